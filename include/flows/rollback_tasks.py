"""The way back: one step of one authorised person, to the newest untainted earlier deployment whose bytes verify."""

from typing import Any

from include.domain.errors import IntegrityError, RecordError
from include.domain.manifest import Manifest
from include.flows import services
from include.flows.errors import Rejected
from include.flows.release_tasks import repair_aliases
from include.settings.catalogue import recipe, recipe_names
from include.settings.errors import SettingsError
from include.stores.errors import NotFound


def may_roll_back(name: str) -> list[str]:
    """Who may take a release of `name` back: `release.rollback_by` of the recipes that release under it, else their approvers."""
    people: dict[str, None] = {}
    for known in recipe_names():
        try:
            found = recipe(known)
        except SettingsError as error:  # another recipe's mistake must not be in the way
            print(f"recipe {known} does not read, and is passed over: {error}")
            continue
        if found.release.registered_name == name:
            people |= dict.fromkeys(found.release.rollback_by or found.approval.approvers)
    return list(people)


def rollback(name: str, why: str, actor: str, request_id: str) -> dict[str, Any]:
    """Puts the newest untainted earlier deployment whose bytes are whole back.

    Raises:
        Rejected: nobody is known to have asked, or somebody who may not.
        LedgerBroken, NoRollbackTarget: what is in the way, by name.
    """
    from include.flows.ledger_heads import check_ledger, keep_head
    from include.flows.papers import renew_deployment

    if actor not in (people := may_roll_back(name)):
        raise Rejected(
            f"{actor or 'nobody known'} may not roll {name} back; {', '.join(people) or 'no recipe releases under this name, so nobody'} may "
            "(release.rollback_by of its recipe, else its approvers): start the DAG as one of them"
        )
    check_ledger(name)
    catalog = services.catalog()
    entry = catalog.releases.rollback(name, request_id, actor, why, verify=_whole)
    drift = repair_aliases(name)
    head = keep_head()
    for deployment in (entry.payload["previous"], entry.payload["deployment"]):
        renew_deployment(deployment, name)
    champion = catalog.ledger.champion(name)
    print(f"{name}: champion is {champion} (ledger {entry.seq}, head {head['hash']}); aliases set: {drift or 'none'}")
    return {"name": name, "champion": champion, "ledger_seq": entry.seq, "head": head}


def _whole(deployment: str) -> bool:
    """Whether every byte of a deployment's weights is what was registered."""
    catalog, store = services.catalog(), services.store()
    weights = catalog.releases.deployment(deployment)["weights"]
    try:
        path = catalog.artifacts.locate(weights, store.uri)
        manifest = _manifest_at(path, weights)
        print(f"{deployment}: verifying {len(manifest.files)} files, {manifest.size_bytes / 1e9:.2f} GB, at {store.full(path)}")
        store.verify(path, manifest, print)
    except (IntegrityError, RecordError, NotFound) as error:  # a store that is not reached is no answer: the task tries again
        print(f"{deployment} cannot be put back: {error}")
        return False
    return True


def _manifest_at(path: str, digest: str) -> Manifest:
    """The manifest of the artifact at `path` (runs/<key>/attempts/<name>/output/<artifact>)."""
    outputs = services.store().read_json(f"{path.rsplit('/', 1)[0]}/manifest.json")
    for item in outputs["artifacts"].values():
        if (found := Manifest.from_json(item)).digest == digest:
            return found
    raise IntegrityError(f"{services.store().full(path)} holds no artifact {digest}, which was registered there")
