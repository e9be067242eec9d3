"""The filters' version moves with their code and settings, not with a comment."""

import shutil
from pathlib import Path

import pytest

from include.transforms.filter_policy import MODULES, filter_policy_version

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "include", tmp_path / "include", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def _edit(project: Path, name: str, old: str, new: str) -> Path:
    path = project.joinpath("include", "transforms", name)
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")
    moved = project.parent / f"{project.name}-edited"
    project.rename(moved)
    return moved


def test_settings_move_the_version() -> None:
    assert filter_policy_version({"threshold": 0.8}) == filter_policy_version({"threshold": 0.8})
    assert filter_policy_version({"threshold": 0.8}) != filter_policy_version({"threshold": 0.9})


def test_an_edit_of_deduplication_moves_the_version(project: Path) -> None:
    before = filter_policy_version({}, project)
    assert before == filter_policy_version({})
    assert filter_policy_version({}, _edit(project, "dedupe.py", '"exact_duplicate"', '"same_row"')) != before


def test_a_comment_or_docstring_does_not(project: Path) -> None:
    before = filter_policy_version({}, project)
    edited = _edit(project, "near.py", '"""When two texts count as near-duplicates.', '# why\n    """Reworded.')
    assert filter_policy_version({}, edited) == before


def test_an_edit_of_a_reader_does_not(project: Path) -> None:
    before = filter_policy_version({}, project)
    assert filter_policy_version({}, _edit(project, "hub.py", "repository", "repo")) == before


def test_every_filter_is_counted() -> None:
    assert {"clean", "dedupe", "near", "normalise", "pii", "split"} == {module.rpartition(".")[2] for module in MODULES}
