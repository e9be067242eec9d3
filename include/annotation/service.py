"""What the running service consists of; every request gets at it through the app."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from fastapi import Request

from include.annotation.accounts import Accounts
from include.annotation.config import Config
from include.annotation.database import Database
from include.annotation.errors import ConfigurationError
from include.annotation.identity import Identities
from include.annotation.times import now


@dataclass(frozen=True)
class Service:
    database: Database
    identities: Identities
    accounts: Accounts
    config: Config
    schema: str
    clock: Callable[[], datetime]


def open_service(config: Config, clock: Callable[[], datetime] = now) -> Service:
    """Opens and migrates both databases. Raises ConfigurationError for keys or files that don't fit."""
    if not config.lease_s > 0:
        raise ConfigurationError(f"ANNOTATION_LEASE_S={config.lease_s}: a lease lasts longer than nothing")
    database = Database(config.database)
    schema = database.migrate()
    identities = Identities(config.identity_database, config.pseudonym_key_file, clock)
    return Service(database, identities, Accounts(config.tokens_file), config, schema, clock)


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service
