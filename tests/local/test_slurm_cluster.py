"""The private Slurm, for real: started, used, hurt and stopped."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from local.process import LocalError, all_processes, wait_until
from local.slurm_cluster import PrivateSlurm

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateSlurm]:
    cluster = PrivateSlurm(tmp_path_factory.mktemp("slurm"), job_niceness=7)
    try:
        yield cluster.start()
    finally:
        cluster.stop()


def submit(slurm: PrivateSlurm, command: str, *options: str) -> str:
    log = str(slurm.base / "job-%j.out")
    return slurm.run("sbatch", "--parsable", "--export=NONE", "-o", log, *options, "--wrap", command).stdout.strip()


def state(slurm: PrivateSlurm, job: str) -> str:
    return slurm.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").stdout.strip()


def reaches(slurm: PrivateSlurm, job: str, wanted: str, timeout_s: float = 90) -> None:
    wait_until(f"{wanted} of job {job}", lambda: state(slurm, job) == wanted, timeout_s=timeout_s)


def output(slurm: PrivateSlurm, job: str) -> str:
    return (slurm.base / f"job-{job}.out").read_text()


def until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    wait_until("the condition", condition, timeout_s=timeout_s)


def test_a_job_gets_a_pretend_gpu_its_configuration_and_the_niceness(slurm: PrivateSlurm) -> None:
    job = submit(slurm, "echo gpus=$CUDA_VISIBLE_DEVICES nice=$(nice); scontrol ping", "--gres=gpu:2", "--wait")
    assert "gpus=0,1 nice=7" in output(slurm, job)
    assert "is UP" in output(slurm, job)


def test_accounting_remembers_the_exit_code(slurm: PrivateSlurm) -> None:
    job = slurm.run("sbatch", "--parsable", "--wait", "-o", "/dev/null", "--wrap", "exit 7", check=False).stdout.strip()
    until(lambda: "FAILED|7:0" in slurm.run("sacct", "-X", "-n", "-P", "-j", job, "-o", "State,ExitCode").stdout)


def test_one_heavy_job_runs_at_a_time(slurm: PrivateSlurm) -> None:
    first = submit(slurm, "sleep 600", "--licenses=heavy")
    reaches(slurm, first, "RUNNING")
    second = submit(slurm, "true", "--licenses=heavy")
    until(lambda: slurm.run("squeue", "-h", "-j", second, "-o", "%r").stdout.strip() == "Licenses")
    slurm.run("scancel", first)
    reaches(slurm, second, "COMPLETED")


def test_both_partitions_reach_the_same_nodes_and_a_requeue_runs_again(slurm: PrivateSlurm) -> None:
    job = submit(slurm, 'test -n "$SLURM_RESTART_COUNT" || { sleep 600; }; echo again', "-p", "other")
    reaches(slurm, job, "RUNNING")
    slurm.run("scontrol", "requeue", job)
    reaches(slurm, job, "COMPLETED")
    assert "again" in output(slurm, job)


def test_a_job_spans_the_two_nodes(slurm: PrivateSlurm) -> None:
    job = submit(slurm, "export SLURM_EXPORT_ENV=ALL; srun sh -c 'echo on $SLURMD_NODENAME'", "-N2", "--ntasks-per-node=1", "--wait")
    assert sorted(output(slurm, job).split("\n")) == ["", "on n1", "on n2"]


def test_ssh_with_the_strict_host_key_reaches_slurm(slurm: PrivateSlurm) -> None:
    answer = subprocess.run(
        ["ssh", "-F", "/dev/null", "-p", str(slurm.ssh_port), "-i", str(slurm.private_key), "-o", "BatchMode=yes",
         "-o", "StrictHostKeyChecking=yes", "-o", f"UserKnownHostsFile={slurm.known_hosts}", f"{slurm.user}@127.0.0.1", "squeue -h -o %T"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert slurm.host_key in slurm.known_hosts.read_text()


def test_jobs_outlive_the_controller_and_a_second_handle_sees_the_same_cluster(slurm: PrivateSlurm) -> None:
    job = submit(slurm, "sleep 600")
    reaches(slurm, job, "RUNNING")
    began = time.time()
    slurm.run("scontrol", "update", f"JobId={job}", "Comment=written-down")  # so that there is something to save
    until(lambda: (slurm.base / "state/job_state").stat().st_mtime > began)  # a killed controller forgets what is not saved yet
    other = PrivateSlurm.attach(slurm.base)
    other.kill("slurmctld")
    assert slurm.pid("slurmctld") is None
    assert not other.is_running()
    other.spawn("slurmctld")
    assert slurm.is_running()
    assert state(slurm, job) == "RUNNING"
    slurm.run("scancel", job)


def test_starting_twice_keeps_every_daemon(slurm: PrivateSlurm) -> None:
    before = {daemon: slurm.pid(daemon) for daemon in slurm.daemons}
    again = PrivateSlurm(slurm.base, job_niceness=7).start()
    assert {daemon: again.pid(daemon) for daemon in again.daemons} == before
    assert again.ssh_port == slurm.ssh_port


def test_an_unknown_daemon_is_refused_with_the_known_ones(slurm: PrivateSlurm) -> None:
    with pytest.raises(LocalError, match="munged, mariadbd, slurmdbd, slurmctld, n1, n2, sshd"):
        slurm.spawn("slurmrestd")


def test_nothing_secret_is_open_to_others(slurm: PrivateSlurm) -> None:
    assert slurm.base.stat().st_mode & 0o077 == 0
    secrets = [slurm.base / "munge/munge.key", slurm.private_key, slurm.base / "ssh/host_ed25519", slurm.base / "etc/slurmdbd.conf"]
    assert [oct(path.stat().st_mode & 0o777) for path in secrets] == ["0o600"] * 4


def test_stop_ends_daemons_and_what_is_left_of_jobs_of_a_killed_node(tmp_path: Path) -> None:
    cluster = PrivateSlurm(
        tmp_path / "-with-a-long-name-so-that-sockets-need-a-shorter-home-than-this-one", accounting=False, slurmd_timeout_s=60
    ).start()
    try:
        marker = f"{os.getpid()}.125"
        job = submit(cluster, f"sleep {marker} & sleep {marker}", "--no-requeue")
        until(lambda: len(running(marker)) >= 2)
        cluster.kill("n1")
        assert state(cluster, job) == "RUNNING"
    finally:
        cluster.stop()
    assert running(marker) == []
    assert [daemon for daemon in cluster.daemons if cluster.pid(daemon)] == []
    assert not cluster.settings.runtime.exists()


def test_a_path_that_slurm_cannot_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="Move the project to a plain path"):
        PrivateSlurm(tmp_path / "two words").start()


def running(marker: str) -> list[int]:
    """Pids whose command is exactly `sleep <marker>`."""
    found = []
    for process in all_processes():
        try:
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        except OSError:
            continue
        if command == f"sleep\0{marker}\0".encode():
            found.append(process.pid)
    return found
