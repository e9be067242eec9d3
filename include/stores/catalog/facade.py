"""The one way in: `Catalog.open(url)`."""

from include.stores.catalog.artifacts import Artifacts
from include.stores.catalog.audits import Audits
from include.stores.catalog.cost import Costs
from include.stores.catalog.database import Clock, Database, system_clock
from include.stores.catalog.datasets import Datasets
from include.stores.catalog.erasures import Erasures
from include.stores.catalog.labels import Labels
from include.stores.catalog.ledger import Ledger
from include.stores.catalog.lineage import Lineage
from include.stores.catalog.measurements import Measurements
from include.stores.catalog.migrate import migrate
from include.stores.catalog.releases import Releases
from include.stores.catalog.requests import Requests
from include.stores.catalog.retention import KeyStates
from include.stores.catalog.runs import Runs


class Catalog:
    """The catalog's tables by topic. Synchronous, safe between threads and after a fork; every call may be repeated."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.artifacts = Artifacts(database)
        self.audits = Audits(database)
        self.costs = Costs(database)
        self.datasets = Datasets(database)
        self.erasures = Erasures(database)
        self.key_states = KeyStates(database)
        self.labels = Labels(database)
        self.ledger = Ledger(database)
        self.lineage = Lineage(database)
        self.measurements = Measurements(database)
        self.releases = Releases(database)
        self.requests = Requests(database)
        self.runs = Runs(database)

    @classmethod
    def open(cls, url: str, clock: Clock = system_clock) -> "Catalog":
        """Opens the catalog and migrates it when needed.

        Args:
            url: ``sqlite:////path/catalog.db`` (a local disk) or ``postgresql+psycopg://…``.
            clock: gives the time as an aware datetime; every time in the catalog comes from it.

        Raises:
            CatalogUnsafe: SQLite on a network mount or in memory, or a database of a newer release.
        """
        catalog = cls(Database(url, clock))
        catalog.migrate()
        return catalog

    def migrate(self) -> None:
        """Brings the database to the newest revision; nothing happens when it is there."""
        migrate(self.database)
