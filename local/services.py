"""The services of the local stack, beside Slurm: what each is started with, and when it is ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from local.environment import url
from local.http_client import answers, call
from local.layout import Layout

AIRFLOW_PARTS = ("api-server", "scheduler", "dag-processor", "triggerer")


@dataclass(frozen=True)
class Service:
    """A foreground program. `niceness` keeps a hungry one from slowing the others."""

    name: str
    title: str
    argv: tuple[str, ...]
    ready: Callable[[], bool]
    env: Mapping[str, str] = field(default_factory=dict)
    url: str = ""
    niceness: int = 0
    patience_s: float = 300.0

    @property
    def command(self) -> list[str]:
        return [*(["nice", "-n", str(self.niceness)] if self.niceness else []), *self.argv]


def services(layout: Layout, ports: Mapping[str, int]) -> list[Service]:
    """All services, in the order in which they start."""
    return [mlflow(layout, ports), annotation(layout, ports), *airflow(layout, ports)]


def mlflow(layout: Layout, ports: Mapping[str, int]) -> Service:
    state, port = layout.state("mlflow"), ports["mlflow"]
    argv = (
        str(layout.python), "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{state}/mlflow.db",
        "--artifacts-destination", str(state / "artifacts"), "--serve-artifacts",
        "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
    )  # fmt: skip
    env = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    return Service("mlflow", "MLflow", argv, lambda: answers(f"{url(port)}/health"), env, url(port), niceness=2)


def has_annotation(layout: Layout) -> bool:
    return (layout.root / "include/annotation/__main__.py").exists()


def annotation_settings(layout: Layout, ports: Mapping[str, int]) -> dict[str, str]:
    """Its database, its tokens and its identities lie apart from the data that is trained on."""
    state, secrets = layout.state("annotation"), layout.secrets / "annotation-service"
    return {
        "ANNOTATION_DB": str(state / "annotation.db"),
        "ANNOTATION_IDENTITY_DB": str(state / "identities.db"),
        "ANNOTATION_HOST": "127.0.0.1",
        "ANNOTATION_PORT": str(ports["annotation"]),
        "ANNOTATION_TOKENS_FILE": str(secrets / "tokens.json"),
        "ANNOTATION_PSEUDONYM_KEY_FILE": str(secrets / "pseudonym.key"),
    }


def annotation(layout: Layout, ports: Mapping[str, int]) -> Service:
    port = ports["annotation"]
    argv = (str(layout.python), "-m", "include.annotation")
    settings = annotation_settings(layout, ports)
    return Service("annotation", "Annotation service", argv, lambda: answers(f"{url(port)}/healthz"), settings, url(port))


def airflow(layout: Layout, ports: Mapping[str, int]) -> list[Service]:
    """The four processes of Airflow, each on its own, so that one can be killed and started again."""
    base = url(ports["airflow"])
    program = (str(layout.python), "-m", "airflow")
    ready: dict[str, Callable[[], bool]] = {
        "api-server": lambda: answers(f"{base}/api/v2/version"),
        "scheduler": _healthy(base, "scheduler"),
        "dag-processor": _healthy(base, "dag_processor"),
        "triggerer": _healthy(base, "triggerer"),
    }
    return [
        Service(f"airflow-{part}", f"Airflow {part}", (*program, part), ready[part], url=base if part == "api-server" else "",
                niceness=5 if part == "dag-processor" else 0)
        for part in AIRFLOW_PARTS
    ]  # fmt: skip


def _healthy(base: str, part: str) -> Callable[[], bool]:
    """Whether Airflow's own health page calls the part healthy."""

    def ready() -> bool:
        try:
            status, answer = call("GET", f"{base}/api/v2/monitor/health", timeout_s=5.0)
        except OSError:
            return False
        return status == 200 and (answer.get(part) or {}).get("status") == "healthy"

    return ready
