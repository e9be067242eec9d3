"""Argument vectors, and the environment they run in."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_slurm.errors import AnswerLost, InvalidSpec
from airflow_slurm.site import commands as site_commands
from airflow_slurm.slurm import commands, parse

INHERITED = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/home/someone",
    "SLURM_CONF": "/etc/slurm-b/slurm.conf",
    "SLURM_JWT": "a-token",
    "SLURM_JOB_ID": "41",
    "SLURM_CPU_BIND": "quiet,mask_cpu:0xF",
    "SLURM_MEM_PER_CPU": "2000",
    "SBATCH_PARTITION": "debug",
    "SQUEUE_FORMAT": "%.7i %.9P",
    "SACCT_FORMAT": "jobid%20,elapsed",
    "SLURM_TIME_FORMAT": "relative",
    "TZ": "Europe/Berlin",
    "PMIX_RANK": "0",
    "AIRFLOW__CORE__FERNET_KEY": "not-a-real-key",
    "SOME_TOKEN": "line one\nHOME=/elsewhere",
}


def environment_of(site: commands.ClientSite = commands.ANY_SITE) -> dict[str, str]:
    """What a program sees that is started through a remote line, as sshd would run it."""
    dump = [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
    line = commands.remote_line(dump, site, "m4rk")
    done = subprocess.run(["/bin/bash", "-c", line], env=INHERITED, capture_output=True, text=True, check=True)
    return json.loads(parse.between_marks(done.stdout, "m4rk")[0])


def test_the_far_side_sees_only_what_a_client_needs() -> None:
    seen = environment_of()
    assert {name for name in seen if name not in ("PWD", "_", "OLDPWD", "SHLVL", "LC_CTYPE")} == {
        "PATH", "HOME", "SLURM_CONF", "SLURM_JWT", "LC_ALL", "TZ", "SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN",
    }  # fmt: skip
    assert seen["SLURM_CONF"] == "/etc/slurm-b/slurm.conf"
    assert seen["HOME"] == "/home/someone"
    assert (seen["TZ"], seen["SLURM_TIME_FORMAT"]) == ("UTC", "%s")


def test_the_site_says_where_commands_and_configuration_are() -> None:
    seen = environment_of(commands.ClientSite("/opt/slurm x/bin", "/etc/c 2/slurm.conf"))
    assert seen["PATH"].startswith("/opt/slurm x/bin:/usr/bin")
    assert seen["SLURM_CONF"] == "/etc/c 2/slurm.conf"


def test_no_secret_stands_in_the_line() -> None:
    line = commands.remote_line(commands.squeue(), commands.ANY_SITE, "m4rk")
    assert "a-token" not in line
    assert 'SLURM_JWT="' not in line


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x00" + commands.ROW_END)), max_size=4))
def test_any_argument_arrives_unchanged_and_nothing_is_executed(arguments: list[str]) -> None:
    dump = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))", *arguments]
    line = commands.remote_line(dump, commands.ANY_SITE, "m4rk")
    done = subprocess.run(["/bin/bash", "-c", line], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True)
    printed, code = parse.between_marks(done.stdout, "m4rk")
    assert (json.loads(printed), code) == (arguments, 0)


@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1), lost=st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_a_command_gets_all_of_its_input_or_is_not_run(text: str, lost: int) -> None:
    data = text.encode()
    line = commands.remote_line(["cat"], commands.ANY_SITE, "m4rk", len(data))
    done = subprocess.run(["/bin/sh", "-c", line], input=data[: len(data) - lost], capture_output=True)
    if lost:
        assert (done.returncode, done.stdout) == (commands.CUT_SHORT, b"")
    else:
        assert done.stdout == b"\nm4rkB\n" + data + b"\nm4rkE:0\n"


@pytest.mark.parametrize("shell", [["/bin/sh"], ["/bin/bash", "--posix"]])
def test_input_is_counted_in_bytes_whatever_the_shell_counts_in(shell: list[str]) -> None:
    data = "é€😀 naïve\n".encode()
    line = commands.remote_line(["cat"], commands.ANY_SITE, "m4rk", len(data)).removeprefix("/bin/sh -c ")
    script = shlex.split(line)[0]
    assert subprocess.run([*shell, "-c", script], input=data, capture_output=True).stdout == b"\nm4rkB\n" + data + b"\nm4rkE:0\n"
    assert subprocess.run([*shell, "-c", script], input=data[:-1], capture_output=True).returncode == commands.CUT_SHORT


@pytest.mark.parametrize(("first", "code", "second"), [("true", 0, "m4rkB says"), ("false", 1, None)])
def test_a_second_command_runs_only_if_the_first_succeeded(first: str, code: int, second: str | None) -> None:
    line = commands.remote_line([first], commands.ANY_SITE, "m4rk", then=["printf", "%s", "m4rkB says"])
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=True)
    assert parse.between_marks(done.stdout, "m4rk") == ("", code)
    if second is None:
        with pytest.raises(AnswerLost):
            parse.between_marks(done.stdout, "m4rkT")
    else:
        assert parse.between_marks(done.stdout, "m4rkT") == (second, 0)


def test_the_clock_of_the_far_side_comes_with_two_commands_and_only_after_the_first() -> None:
    line = commands.remote_line(["printf", "%s", "12\nm4rkC:5"], commands.ANY_SITE, "m4rk", then=["true"])
    before = int(time.time())
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=True)
    assert before <= (parse.clock_behind(done.stdout, "m4rk") or 0.0) <= time.time()
    alone = subprocess.run(
        ["/bin/sh", "-c", commands.remote_line(["true"], commands.ANY_SITE, "m4rk")], capture_output=True, text=True, check=True
    )
    assert parse.clock_behind(alone.stdout, "m4rk") is None


def test_the_exit_code_of_the_command_is_reported() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", commands.remote_line(["false"], commands.ANY_SITE, "m4rk")], capture_output=True, text=True, check=True
    )
    assert parse.between_marks(done.stdout, "m4rk") == ("", 1)


def test_submission_is_held_and_named() -> None:
    assert commands.sbatch_held("a-1") == ["sbatch", "--parsable", "--hold", "--job-name=a-1"]


@pytest.mark.parametrize("build", [
    lambda c: commands.sbatch_held("a-1", c), lambda c: commands.squeue(c), lambda c: commands.sacct(2e9, ids=["7"], cluster=c),
    lambda c: commands.scancel("7", cluster=c), lambda c: commands.scontrol_release("7", c), lambda c: site_commands.nodes(c),
    lambda c: site_commands.configuration(c), lambda c: site_commands.partitions(c), lambda c: site_commands.licenses(c),
])  # fmt: skip
def test_every_command_names_the_cluster(build) -> None:  # type: ignore[no-untyped-def]
    assert "--clusters=borealis" in build("borealis")
    assert not any("--clusters" in word for word in build(None))


def test_columns_and_start_are_never_left_to_the_user() -> None:
    queue = commands.squeue()
    assert any(word.startswith("--Format=JobID:|,JobArrayID:|,State:|") for word in queue)
    sacct = commands.sacct(1_781_000_000.9, ids=["6120", "6121_3"])
    assert "--starttime=uts1781000000" in sacct
    assert "--jobs=6120,6121_3" in sacct
    assert "--duplicates" in sacct


def test_sacct_without_a_question_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="ids or a name"):
        commands.sacct(2e9)


@pytest.mark.parametrize("job_id", ["", "None", "-u", "1 2", "1;id", "5501_", None])
def test_nothing_but_a_job_id_reaches_scancel(job_id: str) -> None:
    with pytest.raises(InvalidSpec):
        commands.scancel(job_id)


def test_an_array_or_one_of_its_tasks_is_cancelled() -> None:
    assert commands.scancel("5501") == ["scancel", "5501"]
    assert commands.scancel(["5501", "5502_4"], waiting_only=True) == ["scancel", "--state=PENDING", "5501", "5502_4"]
    with pytest.raises(InvalidSpec):
        commands.scancel([])
    assert commands.scancel("5501_4", signal="USR1") == ["scancel", "--batch", "--signal=USR1", "5501_4"]
    assert commands.scancel("5501_4", signal="KILL") == ["scancel", "--signal=KILL", "5501_4"]
