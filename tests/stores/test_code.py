"""The code tar: the same bytes for the same files, and all that a program imports."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from include.domain.canonical import sha256_bytes
from include.stores.code import code_tar

FILES = {
    "include/__init__.py": "",
    "include/training/__init__.py": "",
    "include/training/program.py": "from include.domain import nouns\nprint(nouns.NAME)\n",
    "include/domain/__init__.py": "",
    "include/domain/nouns.py": "NAME = 'policy'\n",
    "include/domain/unused.py": "NAME = 'unused'\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        place = tmp_path / "project" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return tmp_path / "project"


def names(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return tar.getnames()


def test_the_tar_holds_what_is_imported_and_nothing_else(project: Path) -> None:
    wanted = sorted(set(FILES) - {"include/domain/unused.py"})
    assert names(code_tar(project, "include.training.program").data) == wanted


def test_the_program_runs_from_the_unpacked_tar_alone(project: Path, tmp_path: Path) -> None:
    made = code_tar(project, "include.training.program")
    with tarfile.open(fileobj=io.BytesIO(made.data)) as tar:
        tar.extractall(tmp_path / "code", filter="data")
    argv = [sys.executable, "-m", "include.training.program"]
    ran = subprocess.run(argv, cwd="/", env={"PYTHONPATH": str(tmp_path / "code")}, capture_output=True, text=True, check=True)
    assert ran.stdout == "policy\n"


def test_times_and_modes_of_the_files_do_not_count(project: Path, tmp_path: Path) -> None:
    first = code_tar(project, "include.training.program")
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", project, copy], check=True)
    for path in copy.rglob("*.py"):
        os.utime(path, (1, 1))
        path.chmod(0o755)
    assert code_tar(copy, "include.training.program").data == first.data


def test_the_digest_is_of_the_bytes(project: Path) -> None:
    made = code_tar(project, "include.training.program")
    assert made.sha256 == sha256_bytes(made.data)


def test_it_is_made_once_while_the_files_stay(project: Path) -> None:
    assert code_tar(project, "include.training.program") is code_tar(project, "include.training.program")


def test_an_edit_gives_another_tar_in_the_same_process(project: Path) -> None:
    first = code_tar(project, "include.training.program")
    (project / "include/domain/nouns.py").write_text("NAME = 'reference'\n")
    second = code_tar(project, "include.training.program")
    assert second.sha256 != first.sha256


def test_a_new_import_is_taken_in(project: Path) -> None:
    code_tar(project, "include.training.program")
    (project / "include/training/program.py").write_text("from include.domain import unused\n")
    assert "include/domain/unused.py" in names(code_tar(project, "include.training.program").data)
