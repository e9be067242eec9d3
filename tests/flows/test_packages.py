"""Each package that the suite is built on is pinned, and imported by code that a DAG or a program reaches."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from include.stages.plan import PROGRAMS
from include.stages.programs import of_engine
from tests.flows.things import ROOT

CONTROL, CLUSTER = "requirements.txt", "requirements-cluster.txt"
NAMED = [
    ("apache-airflow", "airflow", CONTROL),
    ("apache-airflow-providers-amazon", "airflow.providers.amazon", CONTROL),
    ("apache-airflow-providers-ssh", "airflow.providers.ssh", CONTROL),
    ("mlflow", "mlflow", CONTROL),
    ("great-expectations", "great_expectations", CONTROL),
    ("datasets", "datasets", CLUSTER),
    ("torch", "torch", CLUSTER),
    ("transformers", "transformers", CLUSTER),
    ("deepspeed", "deepspeed", CLUSTER),
    ("megatron-core", "megatron.core", CLUSTER),
]
"""Distribution, what is imported of it, and where it is pinned."""


@lru_cache(maxsize=1024)
def file_of(module: str) -> Path | None:
    for root in (ROOT, ROOT / "plugins"):
        stem = root.joinpath(*module.split("."))
        for path in (stem.with_suffix(".py"), stem / "__init__.py"):
            if path.is_file():
                return path
    return None


def imports(path: Path) -> Iterator[str]:
    """Modules that a file imports, anywhere in it: most of ours are imported by the task that needs them."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def reached_from(starts: list[Path]) -> set[str]:
    """Names that are imported by the files or by what they import of ours."""
    found: set[str] = set()
    waiting = list(starts)
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        names = set(imports(path))
        found |= names
        waiting += [file for name in names if name.split(".")[0] in ("include", "airflow_slurm") and (file := file_of(name))]
    return found


@pytest.fixture(scope="module")
def reached() -> dict[str, set[str]]:
    other_engines = [of_engine(stage, "megatron") or "" for stage in ("sft", "reward_model", "dpo")]
    named = [*PROGRAMS.values(), *other_engines]
    programs = [file for module in named if (file := file_of(module))]
    assert len(programs) == len(named)
    return {CONTROL: reached_from(sorted((ROOT / "dags").glob("*.py"))), CLUSTER: reached_from(programs)}


def pins(file: str) -> dict[str, str]:
    lines = [line.split(" ")[0] for line in (ROOT / file).read_text("utf-8").splitlines() if "==" in line and not line.startswith("#")]
    return {name.split("[")[0]: version for name, version in (line.split("==", 1) for line in lines)}


@pytest.mark.parametrize(("distribution", "module", "where"), NAMED)
def test_a_named_package_is_pinned_and_reached(reached: dict[str, set[str]], distribution: str, module: str, where: str) -> None:
    version = pins(where).get(distribution, "")
    assert version[:1].isdigit(), f"{distribution} is not pinned in {where}"
    assert any(name == module or name.startswith(f"{module}.") for name in reached[where]), f"nothing that {where} serves imports {module}"


def test_the_walk_stops_where_nothing_is_imported(reached: dict[str, set[str]]) -> None:
    """It must be able to fail: what only the other plane uses is not found."""
    assert not any(name.split(".")[0] == "torch" for name in reached[CONTROL])
    assert not any(name.split(".")[0] == "airflow" for name in reached[CLUSTER])
