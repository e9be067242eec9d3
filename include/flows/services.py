"""The services a task talks to, made from the environment and Airflow's connections; each is made once a process."""

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from include.domain.canonical import digest
from include.flows.errors import FlowError

if TYPE_CHECKING:
    from include.data.annotation_client import AnnotationClient
    from include.settings.clusters import Cluster
    from include.stores.artifacts import ArtifactStore
    from include.stores.catalog import Catalog
    from include.stores.catalog.erasures import Suppression
    from include.stores.registry import Registry

KEY_BYTES = 32
RECEIPTS = "include.stores.catalog.receipts.CatalogReceipts"


def setting(name: str) -> str:
    """An environment variable that must be there."""
    value = os.environ.get(name, "")
    if not value:
        raise FlowError(f"{name} is not set: `python -m local env` shows the environment of a control-plane process")
    return value


@lru_cache(maxsize=1)
def catalog() -> "Catalog":
    """The catalog that ALIGN_CATALOG_URL names; migrated when needed."""
    from include.stores.catalog import Catalog

    return Catalog.open(setting("ALIGN_CATALOG_URL"))


def receipts_config(gpus: int = 0) -> dict[str, Any]:
    """How a trigger rebuilds the receipts; `gpus` of the job, for its GPU-seconds."""
    return {"url": setting("ALIGN_CATALOG_URL"), "gpus": gpus}


@lru_cache(maxsize=4)
def store(name: str | None = None) -> "ArtifactStore":
    """The artifact store of a cluster, reached as its configuration says: over SFTP or as a mounted path."""
    from include.settings.catalogue import cluster, store_root
    from include.stores.artifacts import ArtifactStore

    where = cluster(name)
    root = store_root(where)
    if where.store_access == "mounted":
        import fsspec

        return ArtifactStore(fsspec.filesystem("file"), root, uri=f"file://{root}")
    return _over_sftp(where, root)


def _over_sftp(where: "Cluster", root: str) -> "ArtifactStore":
    from airflow.sdk import BaseHook

    from include.stores.artifacts import ArtifactStore
    from include.stores.sftp import SftpFileSystem, SftpTarget

    connection = BaseHook.get_connection(where.slurm_conn_id)
    extra = connection.extra_dejson
    if extra.get("ssh_conn_id"):
        connection = BaseHook.get_connection(extra["ssh_conn_id"])
        extra = {**extra, **connection.extra_dejson}
    if not extra.get("key_file"):
        raise FlowError(f"connection {where.slurm_conn_id}: `key_file` is needed to reach the store over SFTP")
    target = SftpTarget(
        host=connection.host or "",
        port=connection.port or 22,
        username=connection.login or "",
        client_keys=(extra["key_file"],),
        known_hosts=extra.get("known_hosts"),
        host_key=extra.get("host_key"),
        passphrase=extra.get("private_key_passphrase"),
    )
    return ArtifactStore(SftpFileSystem(target), root, uri=f"sftp://{where.name}{root}")


@lru_cache(maxsize=1)
def registry() -> "Registry":
    """MLflow at MLFLOW_TRACKING_URI: a view of the ledger, never the truth."""
    from include.stores.registry import Registry

    return Registry(setting("MLFLOW_TRACKING_URI"), experiment=os.environ.get("ALIGN_EXPERIMENT", "alignment"))


@lru_cache(maxsize=1)
def live_registry() -> "Registry":
    """The same for those who watch jobs, and must not wait for it: asked once, and not for long."""
    from include.stores.live_log import TIMEOUT_S
    from include.stores.registry import Registry

    experiment = os.environ.get("ALIGN_EXPERIMENT", "alignment")
    return Registry(setting("MLFLOW_TRACKING_URI"), experiment=experiment, timeout_s=TIMEOUT_S, attempts=1)


def annotation(role: str) -> "AnnotationClient":
    """A client of the annotation service as `role` (pipeline, verifier); its token is read from a 0600 file."""
    from include.data.annotation_client import AnnotationClient

    path = Path(setting("ALIGN_ANNOTATION_TOKENS")) / f"{role}.token"
    try:
        token = path.read_text("utf-8").strip()
    except OSError as error:
        raise FlowError(f"the annotation service's token for {role} cannot be read: {error}") from error
    return AnnotationClient(setting("ALIGN_ANNOTATION_URL"), token)


def require_steward(who: str) -> None:
    """Refuses whoever is not known by name or, where ALIGN_DATA_STEWARDS names who may take data back, not among them."""
    stewards = [name.strip() for name in os.environ.get("ALIGN_DATA_STEWARDS", "").split(",") if name.strip()]
    if not who.strip():
        raise FlowError("nobody is known to have started this run: start it as a user, by hand")
    if stewards and who not in stewards:
        raise FlowError(f"{who} may not take data back; these may: {', '.join(stewards)}")


def suppression() -> "Suppression | None":
    """Who must stay out of data; None where nobody was ever erased.

    Raises:
        FlowError: somebody was, and the key that tells who is not there.
    """
    from include.stores.catalog.erasures import Suppression

    hashes = catalog().erasures.suppressed()
    return Suppression(suppression_key(), hashes) if hashes else None


def suppression_key() -> bytes:
    """The bytes of the file that ALIGN_SUPPRESSION_KEY names. Whoever loses it can't tell any more who was erased."""
    path = Path(setting("ALIGN_SUPPRESSION_KEY"))
    try:
        mode, key = path.stat().st_mode, path.read_bytes()
    except OSError as error:
        raise FlowError(f"the key of suppressions cannot be read: {error}") from error
    if mode & 0o077 or len(key) < KEY_BYTES:
        raise FlowError(
            f"{path}: the key of suppressions has at least {KEY_BYTES} bytes, and mode 0600; it has {len(key)} and {mode & 0o777:04o}"
        )
    return key


def work_dir() -> Path:
    """Scratch of the control plane for files on their way to the store, and for reports that a browser opens."""
    path = Path(os.environ.get("ALIGN_WORK") or Path(setting("ALIGN_HOME")) / ".local" / "work")
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def run_dir(run: Mapping[str, Any], purpose: str) -> Path:
    """Scratch of one DAG run, the same in each of its tries; runs at the same time share none."""
    name = digest("scratch", {"dag": run["dag_id"], "run": run["run_id"]}).removeprefix("sha256:")[:16]
    path = work_dir() / purpose / name
    path.mkdir(parents=True, exist_ok=True)
    return path
