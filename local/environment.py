"""The environment of every control-plane process, in one place. No secret stands in it: secrets are files, and it names them."""

from __future__ import annotations

import getpass
import json
import os
import shlex
from collections.abc import Mapping

from local.layout import Layout
from local.slurm_cluster import PrivateSlurm
from local.slurm_programs import SEARCH_PATH

USERS = {"requester": "op", "approver": "op", "demo-approver": "op", "viewer": "viewer", "admin": "admin"}
"""Users of the local Airflow → role. Nobody approves what he asked for, hence the several."""

SUBMISSION_POOL = "slurm_submissions"
"""The Airflow pool that limits submissions at once."""

PORT_NAMES = ("airflow", "airflow_worker_logs", "airflow_trigger_logs", "mlflow", "annotation")
_KEPT = (
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
)


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def environment(layout: Layout, ports: Mapping[str, int], slurm: PrivateSlurm) -> dict[str, str]:
    """What the project's own programs and Airflow need to know of this stack."""
    return {
        **_project(layout, ports),
        **_airflow(layout, ports),
        "AIRFLOW_CONN_SLURM_LOCAL": json.dumps(_slurm_connection(layout, slurm)),
        "SLURM_CONF": str(slurm.slurm_conf),
    }


def process_environment(settings: Mapping[str, str], layout: Layout) -> dict[str, str]:
    """The whole environment of a process of the stack: the settings, and of the caller's own only what does no harm."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    kept.setdefault("LANG", "C.UTF-8")
    kept.setdefault("USER", getpass.getuser())
    return {**kept, "PATH": f"{layout.venv}/bin:{SEARCH_PATH}", "VIRTUAL_ENV": str(layout.venv), "PYTHONUNBUFFERED": "1", **settings}


def as_shell(settings: Mapping[str, str]) -> str:
    """Lines for `eval "$(python -m local env)"`."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in settings.items())


def _project(layout: Layout, ports: Mapping[str, int]) -> dict[str, str]:
    return {
        "PYTHONPATH": f"{layout.root}:{layout.root}/plugins",
        "ALIGN_HOME": str(layout.root),
        "ALIGN_CLUSTER": "local",
        "ALIGN_STORE_ROOT": str(layout.store),
        "ALIGN_SOURCES": str(layout.sources),
        "ALIGN_WORK": str(layout.work),
        "ALIGN_CATALOG_URL": f"sqlite:///{layout.state('catalog')}/catalog.db",
        "ALIGN_CLUSTER_ENVIRONMENT": str(layout.cluster_environment),
        "ALIGN_SLURM_CONN_ID": "slurm_local",
        "ALIGN_ANNOTATION_URL": url(ports["annotation"]),
        "ALIGN_ANNOTATION_TOKENS": str(layout.secrets / "annotation"),
        "ALIGN_SUPPRESSION_KEY": str(layout.secrets / "suppression.key"),
        "MLFLOW_TRACKING_URI": url(ports["mlflow"]),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "GX_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }


def _airflow(layout: Layout, ports: Mapping[str, int]) -> dict[str, str]:
    home = layout.state("airflow")
    settings: dict[str, dict[str, object]] = {
        "CORE": {
            "DAGS_FOLDER": layout.root / "dags", "PLUGINS_FOLDER": layout.root / "plugins", "LOAD_EXAMPLES": False,
            "EXECUTOR": "LocalExecutor", "PARALLELISM": 4, "TEST_CONNECTION": "Enabled",
            "SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{user}:{role}" for user, role in USERS.items()),
            "SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": layout.secrets / "airflow_passwords.json",
            "DEFAULT_TASK_RETRY_DELAY": 10,
            # Two busy cores may take longer than the 30 s that Airflow allows a DAG file.
            "DAGBAG_IMPORT_TIMEOUT": 120,
            "EXECUTION_API_SERVER_URL": f"{url(ports['airflow'])}/execution/",
        },
        "DATABASE": {"SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db"},
        "API": {"HOST": "127.0.0.1", "PORT": ports["airflow"], "BASE_URL": url(ports["airflow"]), "WORKERS": 1},
        # A killed worker is noticed after the heartbeat timeout, by default 300 s.
        "SCHEDULER": {"TASK_INSTANCE_HEARTBEAT_TIMEOUT": 20, "TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": 5},
        # Files that change are parsed at once; parsing all again and again would take a core of two.
        "DAG_PROCESSOR": {
            "REFRESH_INTERVAL": 30, "MIN_FILE_PROCESS_INTERVAL": 600, "PARSING_PROCESSES": 2, "PRINT_STATS_INTERVAL": 600, "DAG_FILE_PROCESSOR_TIMEOUT": 180,
            "DAG_BUNDLE_STORAGE_PATH": home / "bundles",
        },
        # What the tab *Slurm* of a task instance reads, and operators that name no store.
        "SLURM": {
            "RECEIPTS": "include.stores.catalog.receipts.CatalogReceipts",
            "RECEIPTS_CONFIG": json.dumps({"url": f"sqlite:///{layout.state('catalog')}/catalog.db"}),
        },
        "LOGGING": {
            "BASE_LOG_FOLDER": home / "logs",
            "WORKER_LOG_SERVER_PORT": ports["airflow_worker_logs"], "TRIGGER_LOG_SERVER_PORT": ports["airflow_trigger_logs"],
        },
    }  # fmt: skip
    flat = {f"AIRFLOW__{section}__{key}": str(value) for section, keys in settings.items() for key, value in keys.items()}
    return {"AIRFLOW_HOME": str(home), **flat}


def _slurm_connection(layout: Layout, slurm: PrivateSlurm) -> dict[str, object]:
    """The connection `slurm_local`. It names the key's file; the host's key is public."""
    return {
        "conn_type": "slurm",
        "host": "127.0.0.1",
        "port": slurm.ssh_port,
        "login": slurm.user,
        "extra": {
            "key_file": str(slurm.private_key),
            "known_hosts": str(slurm.known_hosts),
            "host_key": slurm.host_key,
            "poll_interval_s": 2,
            "root": str(layout.store),
            "pool": SUBMISSION_POOL,
        },
    }
