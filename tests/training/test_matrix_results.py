"""The resume matrix goes on where it stopped, with the same code alone, and says no where anything is not exact."""

from pathlib import Path

import pytest

from tests.training.matrix_results import Results, code_digest, table

UPDATE = {"moment": "update", "resumed_at": 3, "exact": True}
EXPORT = {"moment": "export", "resumed_at": 8, "exact": True}
BOTH = ("update", "export")


def test_a_cell_counts_as_exact_when_all_its_moments_were_and_nothing_failed(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "matrix.json"
    results = Results(path, "code")
    assert not results.exact("cell", BOTH)
    results.keep("cell", [UPDATE, EXPORT], "", 2.5)
    results.keep("short", [UPDATE], "", 1.0)
    results.keep("wrong", [UPDATE, {**EXPORT, "exact": False}], "", 1.0)
    results.keep("failed", [UPDATE, EXPORT], "nothing died", 1.0)
    again = Results(path, "code")
    assert [name for name in ("cell", "short", "wrong", "failed", "unknown") if again.exact(name, BOTH)] == ["cell"]
    assert again.seconds(["cell", "wrong", "unknown"]) == 3.5


def test_what_was_found_with_other_code_is_not_believed(tmp_path: Path) -> None:
    Results(tmp_path / "matrix.json", "before").keep("cell", [UPDATE], "", 1.0)
    after = Results(tmp_path / "matrix.json", "after")
    assert not after.exact("cell", ("update",))
    after.keep("other", [UPDATE], "", 1.0)
    assert not Results(tmp_path / "matrix.json", "after").exact("cell", ("update",))


@pytest.mark.parametrize(
    "name", ["include/runtime/job.py", "tests/training/kill_at.py", "include/training/sub/new.py", "requirements-cluster.txt"]
)
def test_any_source_a_run_depends_on_changes_the_digest(tmp_path: Path, name: str) -> None:
    before = code_digest(tmp_path)
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("one = 1\n")
    first = code_digest(tmp_path)
    path.write_text("one = 2\n")
    second = code_digest(tmp_path)
    assert len({before, first, second}) == 3
    path.with_name("test_job.py").write_text("what a test says changes no run")
    assert code_digest(tmp_path) == second


def test_the_table_tells_unseen_from_wrong_and_from_impossible() -> None:
    rows = [({"program": "sft", "ranks": "2"}, BOTH, {"update": False}), ({"program": "ppo", "ranks": "1"}, ("update",), {"update": True})]
    assert [line.split() for line in table(rows, BOTH).splitlines()] == [
        ["program", "ranks", "update", "export"],
        ["sft", "2", "NO", "?"],
        ["ppo", "1", "yes", "-"],
    ]
