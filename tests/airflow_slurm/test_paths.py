"""Paths of a job's output: whatever is given, it is refused or one file below the root, the one that Slurm writes."""

from __future__ import annotations

import asyncio
import os
import re
from functools import partial
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from airflow_slurm.errors import InvalidSpec
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.slurm.names import job_name_for
from airflow_slurm.slurm.script import render
from airflow_slurm.spec import JobSpec, task_path
from local.slurm_cluster import PrivateSlurm

from .faults.helpers import until
from .looking import submit_held
from .test_script import directives

#: What paths are made of that mean something to a file system, a shell, sbatch or this package, and all other text.
WORD = st.one_of(
    st.sampled_from(
        [
            "..",
            ".",
            "",
            "%j",
            "%%",
            "%a",
            "%A",
            "%",
            "%x",
            "%5j",
            "%%a",
            "%%j",
            "~",
            "$HOME",
            "$(touch x)",
            "`x`",
            "a b",
            "a#b",
            '"',
            "'",
            "\\",
            "-n",
        ]
    ),
    st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=6),
)
PATH = st.builds(
    lambda lead, words: lead + "/".join(words), st.sampled_from(["/", "", "//", "/runs/", "/runs/../"]), st.lists(WORD, max_size=4)
)


def as_slurm_expands(pattern: str, values: dict[str, str]) -> str:
    """From left to right, as sbatch does: a percent sign and the character after it are one pattern."""
    return re.sub(r"%(.)", lambda found: values[found[1]], pattern, flags=re.DOTALL)


def test_the_root_is_a_folder_and_no_pattern() -> None:
    assert JobSpec(command=("true",), output="/runs/100%%/x", root="/runs/100%").log_path("7") == "/runs/100%/x"
    for output, root in (("/runs/%j/x", "/runs/%j"), ("/runs/%j/x", "/runs/0"), ("/runs/100%%/x", "/runs/100%%")):
        with pytest.raises(InvalidSpec, match="does not lie below"):
            JobSpec(command=("true",), output=output, root=root)


@settings(max_examples=300)
@given(output=PATH, root=st.one_of(st.none(), st.just("/runs"), PATH), job_id=st.integers(1, 10**9))
def test_any_output_is_refused_or_one_file_below_the_root(output: str, root: str | None, job_id: int) -> None:
    try:
        spec = JobSpec(command=("true",), output=output, root=root)
    except InvalidSpec:
        return
    path = spec.log_path(str(job_id))
    assert path == as_slurm_expands(output, {"j": str(job_id), "%": "%"})
    assert path is not None
    assert path.startswith("/")
    assert ".." not in path.split("/")
    if root is not None:
        assert PurePosixPath(os.path.normpath(path)).is_relative_to(os.path.normpath(root))
    (given_line,) = [line for line in directives(render(spec)) if line.startswith("--output=")]
    quoted = given_line.removeprefix("--output=")
    assert (quoted[0], quoted[-1]) == ('"', '"')
    assert re.sub(r"\\(.)", r"\1", quoted[1:-1]) == output


@settings(max_examples=300)
@given(output=PATH, array_id=st.integers(1, 10**9), index=st.integers(0, 1000))
def test_each_task_of_an_array_has_a_file_of_its_own(output: str, array_id: int, index: int) -> None:
    try:
        spec = JobSpec(command=("true",), output=output, root="/runs", array="0-1001")
    except InvalidSpec:
        return
    pattern = spec.log_path(str(array_id))
    assert pattern is not None
    path, other = task_path(pattern, index), task_path(pattern, index + 1)
    assert path == as_slurm_expands(output, {"A": str(array_id), "a": str(index), "%": "%"})
    assert path != other or output == "/dev/null"
    assert PurePosixPath(os.path.normpath(path)).is_relative_to("/runs")


@settings(max_examples=200)
@given(chdir=PATH)
def test_any_working_directory_is_refused_or_below_the_root(chdir: str) -> None:
    try:
        spec = JobSpec(command=("true",), chdir=chdir, root="/runs")
    except InvalidSpec:
        return
    assume(spec.chdir is not None)
    assert PurePosixPath(os.path.normpath(str(spec.chdir))).is_relative_to("/runs")


def holds(path: Path, text: str) -> bool:
    """Whether a folder has this file alone, with this text."""
    return path.exists() and path.read_text() == text and [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.slurm
async def test_slurm_writes_where_we_look(slurm: PrivateSlurm, client: SlurmClient, key: str, shared: Path) -> None:
    names = ["a b", 'c"d', "e#f", "%%j %j", "100%%-%j", "$(touch pwned)", "`touch pwned`", "étape", "-n", "~root", "it's", "%%%%%%j"]
    paths = []
    for number, name in enumerate(names):
        (shared / str(number)).mkdir()
        spec = JobSpec(body=f"echo {number}", output=f"{shared}/{number}/{name}", root=str(shared), mem="20M")
        queued = await submit_held(client, spec, job_name_for(f"{key}/{number}", 1))
        await client.release(queued.job_id)
        paths.append(Path(queued.log_path or ""))
    for number, path in enumerate(paths):
        await until(partial(asyncio.to_thread, holds, path, f"{number}\n"))
