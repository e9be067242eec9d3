"""A control plane in a folder: real catalog and real store, configurations that a test may change, MLflow as a notebook of what it was told."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from include.flows import services
from include.settings import catalogue
from include.stages import plan as planning
from tests.flows.things import ROOT

CACHED = (services.catalog, services.store, services.registry, services.live_registry)


class RegistryNotebook:
    """Takes what MLflow would be told."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.versions: list[tuple[str, str]] = []
        self.logs: list[Any] = []
        self.shown: dict[str, str] = {}
        self.figures: dict[str, dict[str, float]] = {}
        self.papers: dict[str, Any] = {}
        self.tags: dict[str, dict[str, str]] = {}

    def log_run(self, log: Any) -> str:
        self.runs.append(log.spec.key)
        self.logs.append(log)
        return f"run-{len(self.runs)}"

    def show(self, key: str, name: str, figures: Mapping[str, float], tags: Mapping[str, str]) -> str:
        self.figures[key] = dict(figures)
        return name

    def running(self) -> list[str]:
        return [key for key, status in self.shown.items() if status == "RUNNING"]

    def end_run(self, key: str, status: str) -> bool:
        was = self.shown.get(key) == "RUNNING"
        self.shown |= {key: status} if was else {}
        return was

    def register(self, name: str, entry: Any) -> int:
        if (name, entry.deployment) not in self.versions:
            self.versions.append((name, entry.deployment))
        return self.versions.index((name, entry.deployment)) + 1

    def renew(self, name: str, deployment: str, papers: Any, tags: Mapping[str, str]) -> bool:
        self.papers[deployment], self.tags[deployment] = papers, dict(tags)
        return True

    def heads(self, name: str) -> list[dict[str, Any]]:
        return [
            {"seq": int(t["ledger_head"].split()[0]), "hash": t["ledger_head"].split()[1]} for t in self.tags.values() if "ledger_head" in t
        ]

    def repair(self, ledger: Any, name: str) -> list[Any]:
        return []


class Plane:
    """The folders of this control plane, and ways to change its configuration."""

    def __init__(self, folder: Path) -> None:
        self.configs = folder / "configs"
        self.store_root = folder / "store"
        self.catalog_url = f"sqlite:///{folder}/catalog.db"
        self.registry = RegistryNotebook()
        shutil.copytree(ROOT / "configs", self.configs)
        self.store_root.mkdir()
        here = yaml.safe_load((self.configs / "clusters/local.yaml").read_text())
        here |= {"name": "here", "store_access": "mounted", "visibility_deadline_s": 0}
        (self.configs / "clusters/here.yaml").write_text(yaml.safe_dump(here))

    def change_recipe(self, name: str, **fields: Any) -> None:
        path = self.configs / f"recipes/{name}.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | fields))

    def change_cluster(self, **fields: Any) -> None:
        """Rewrites fields of the cluster that jobs go to."""
        path = self.configs / "clusters/here.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | fields))
        _forget()

    def gates_on_few_items(self) -> None:
        """The tiny recipe's gates with no smallest n, for suites of a handful of items."""
        path = self.configs / "gates/tiny.yaml"
        path.write_text(re.sub(r"min_n: \d+", "min_n: 1", path.read_text()))

    def run(self, recipe: str = "tiny", **changed: Any) -> dict[str, Any]:
        """What `resolve` returns."""
        found = catalogue.recipe(recipe)
        return {
            "recipe": recipe,
            "recipe_digest": found.digest,
            "method": found.method,
            "auto": True,
            "ask_again": False,
            "rerun_salt": "",
            "requested_by": "ada",
            "run_id": "manual__1",
            "dag_id": "alignment_refresh",
            **changed,
        }


@pytest.fixture
def plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plane]:
    made = Plane(tmp_path)
    monkeypatch.setenv("ALIGN_HOME", str(ROOT))
    monkeypatch.setenv("ALIGN_CONFIGS", str(made.configs))
    monkeypatch.setenv("ALIGN_CLUSTER", "here")
    monkeypatch.setenv("ALIGN_STORE_ROOT", str(made.store_root))
    monkeypatch.setenv("ALIGN_CATALOG_URL", made.catalog_url)
    _forget()
    monkeypatch.setattr(services, "registry", lambda: made.registry)
    yield made
    _forget()


def _forget() -> None:
    for cached in CACHED:
        cached.cache_clear()
    planning.git_commit.cache_clear()
