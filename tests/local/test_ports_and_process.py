"""Ports that are remembered, daemons that are known by pid and start time."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
from pathlib import Path

import pytest

from local import folders
from local.ports import FIRST_PORT, LAST_PORT, Ports, free_port, is_free, write_atomically
from local.process import Daemons, LocalError, ProcessStat, wait_until

ENV = {"PATH": "/usr/bin:/bin"}


def test_a_port_is_chosen_once_and_remembered(tmp_path: Path) -> None:
    first = Ports(tmp_path / "ports.json").pick("mlflow")
    assert FIRST_PORT <= first <= LAST_PORT
    assert Ports(tmp_path / "ports.json").pick("mlflow") == first


def test_a_port_that_somebody_else_took_is_given_up_unless_it_is_our_own(tmp_path: Path) -> None:
    ports = Ports(tmp_path / "ports.json")
    first = ports.pick("mlflow")
    with socket.socket() as other:
        other.bind(("127.0.0.1", first))
        other.listen()
        assert not is_free(first)
        assert ports.pick("mlflow", ours=True) == first
        assert ports.pick("mlflow") != first


def test_two_services_never_share_a_port() -> None:
    taken = [free_port() for _ in range(3)]
    assert free_port(taken) not in taken


def test_a_file_is_replaced_whole_with_the_mode_asked_for(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a/secret", "one", mode=0o600)
    write_atomically(tmp_path / "a/secret", "two", mode=0o600)
    assert (tmp_path / "a/secret").read_text() == "two"
    assert stat.S_IMODE((tmp_path / "a/secret").stat().st_mode) == 0o600
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["secret"]


def test_a_process_name_with_spaces_and_brackets_is_parsed() -> None:
    line = "4242 (a (b) c) S 7 4242 4200 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 1 0 987654 1 1"
    assert ProcessStat.parse(line) == ProcessStat(4242, "a (b) c", "S", 7, 4200, 987654)


@pytest.fixture
def daemons(tmp_path: Path) -> Daemons:
    return Daemons(tmp_path / "run", tmp_path / "logs")


def test_a_daemon_leads_a_session_of_its_own_and_is_started_once(daemons: Daemons, tmp_path: Path) -> None:
    pid = daemons.start("sleeper", ["sleep", "60"], env=ENV, cwd=tmp_path)
    try:
        assert os.getsid(pid) == pid
        assert daemons.start("sleeper", ["sleep", "60"], env=ENV, cwd=tmp_path) == pid
        assert Daemons(daemons.run, daemons.logs).pid("sleeper") == pid
    finally:
        assert daemons.stop("sleeper") == ["sleeper"]
    assert daemons.pid("sleeper") is None


def test_stop_ends_what_a_killed_leader_left_behind(daemons: Daemons, tmp_path: Path) -> None:
    pid = daemons.start("parent", ["sh", "-c", "sleep 61 & sleep 61; true"], env=ENV, cwd=tmp_path)
    wait_until("the children", lambda: len(daemons.members("parent")) == 3, timeout_s=5)
    os.kill(pid, signal.SIGKILL)
    wait_until("the end", lambda: daemons.pid("parent") is None, timeout_s=5)
    assert len(daemons.members("parent")) == 2
    assert daemons.stop("parent") == ["parent"]
    assert daemons.members("parent") == []


def test_one_that_ignores_the_signal_is_killed(daemons: Daemons, tmp_path: Path) -> None:
    daemons.start("deaf", ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"], env=ENV, cwd=tmp_path)
    daemons.stop("deaf", grace_s=0.5)
    assert daemons.members("deaf") == []


def test_a_reused_pid_is_never_ours(daemons: Daemons) -> None:
    """The pid file names a living process (this one) with another start time."""
    mine = Path("/proc/self/stat").read_text()
    head, _, tail = mine.rpartition(")")
    fields = tail.split()
    fields[19] = str(int(fields[19]) - 1)
    daemons.run.mkdir()
    (daemons.run / "old.pid").write_text(f"{head}) {' '.join(fields)}")
    assert daemons.pid("old") is None
    assert daemons.stop("old") == []


def test_a_program_that_ends_at_once_leaves_its_words(daemons: Daemons, tmp_path: Path) -> None:
    daemons.start("brief", ["sh", "-c", "echo could not; exit 3"], env=ENV, cwd=tmp_path)
    wait_until("the words", lambda: daemons.tail("brief") == "could not", timeout_s=5)
    assert daemons.pid("brief") is None


def test_no_secret_passes_through_a_world_readable_log(daemons: Daemons, tmp_path: Path) -> None:
    daemons.start("brief", ["true"], env=ENV, cwd=tmp_path)
    assert stat.S_IMODE(daemons.log_path("brief").stat().st_mode) == 0o600


def test_waiting_ends_with_what_to_do() -> None:
    with pytest.raises(LocalError, match="the moon did not come within 0 s. Look up."):
        wait_until("the moon", lambda: False, timeout_s=0, hint="Look up.")


def test_what_was_remembered_is_plain_json(tmp_path: Path) -> None:
    port = Ports(tmp_path / "ports.json").pick("x")
    assert json.loads((tmp_path / "ports.json").read_text()) == {"x": port}


def test_a_folder_is_closed_against_change_and_still_removed(tmp_path: Path) -> None:
    top = tmp_path / "env"
    (top / "lib/deep").mkdir(parents=True)
    (top / "lib/deep/a.py").write_text("x")
    (top / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    before = stat.S_IMODE((tmp_path / "elsewhere").stat().st_mode)
    folders.make_read_only(top)
    assert [stat.S_IMODE(p.stat().st_mode) for p in (top, top / "lib/deep")] == [0o555, 0o555]
    assert stat.S_IMODE((tmp_path / "elsewhere").stat().st_mode) == before
    folders.remove(top)
    folders.remove(top)
    assert not top.exists()
    assert (tmp_path / "elsewhere").exists()
