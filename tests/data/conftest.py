"""Plans over small files, and what building them gives."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from include.data.build import BuildResult, build_datasets
from include.data.filtering import Filtered, filter_all
from include.data.importing import import_sources
from include.data.plan import BuildPlan, SourcePlan
from include.transforms.source import Source
from include.transforms.split import SplitSettings

SPLIT = SplitSettings("test-salt", {"train": 0.6, "validation": 0.2, "holdout": 0.2})
WORDS = ["copper", "lantern", "river", "meadow", "harbour", "violin", "granite", "saffron", "willow", "comet", "anchor", "ledger"]


def sentence(n: int) -> str:
    """A sentence of its own for each n: no two are near-duplicates."""
    a, b, c = WORDS[n % 12], WORDS[(n // 12) % 12], WORDS[(n // 144) % 12]
    return f"In chapter {n} the {a} of the {b} meets the {c} under the old {b} {a}, and someone asks why it happened there on day {n}?"


def demonstrations(n: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"exampleId": f"e{i}", "prompt": sentence(i), "response": f"Because of reason {i}."} for i in range(start, start + n)]


def jsonl(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def source_plan(path: Path, **options: Any) -> SourcePlan:
    options = {"dataset": "demonstrations", "rows": "demonstration", **options}
    return SourcePlan(Source(path.stem, str(path), "jsonl", "CC0-1.0"), "rows", options)


def plan_of_files(*sources: SourcePlan, **changed: Any) -> BuildPlan:
    return BuildPlan("test", sources, ("CC0-1.0",), **{"split": SPLIT, **changed})


def filtered(plan: BuildPlan, protected: Iterable[Path] = ()) -> dict[str, Filtered]:
    """What the filters leave of each dataset, without storing or validating it."""
    imported = import_sources(plan)
    return {one.source.dataset_id: one for one in filter_all(imported.datasets.values(), plan, protected)}


def texts_on(one: Filtered, side: str) -> set[str]:
    return {placed.draft.prompt_text for placed in one.rows if placed.side == side}


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., BuildResult]:
    """Builds one demonstrations file from its bytes."""

    def _build(data: bytes, name: str = "rows", **changed: Any) -> BuildResult:
        path = tmp_path / f"{name}.jsonl"
        path.write_bytes(data)
        return build_datasets(plan_of_files(source_plan(path), **changed), tmp_path / f"out-{name}")

    return _build
