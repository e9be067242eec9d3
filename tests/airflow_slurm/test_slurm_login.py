"""What passes between a worker, the login node and the job: a key that only an agent has, no key at all, and none of either's variables."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_slurm.errors import JobFailed, LoginRefused, SshUnreachable
from airflow_slurm.hook import SlurmHook
from airflow_slurm.operators import SlurmJobOperator
from local.ports import free_port
from local.process import wait_until
from local.slurm_cluster import PrivateSlurm

from .conftest import CONN_ID, connection_uri
from .tasks import Task
from .test_keys import make_key

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(120)]
ENV = f"AIRFLOW_CONN_{CONN_ID.upper()}"
MakeTask = Callable[..., Task]
SFTP_SERVER = Path("/usr/lib/openssh/sftp-server")


@pytest.fixture
def task(slurm: PrivateSlurm, tmp_path: Path, key: str) -> MakeTask:
    """A task that uses whatever connection there is."""

    def make(**kwargs: Any) -> Task:
        values = {"task_id": "t", "slurm_conn_id": CONN_ID, "key": key, "receipts_config": {"root": str(tmp_path / "receipts")}}
        return Task(lambda: SlurmJobOperator(**(values | kwargs)))

    return make


# -- an agent


@pytest.fixture
def agent(slurm: PrivateSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """An SSH agent that holds a key which the login node takes, and which is nowhere else."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # no key of the person who runs the tests
    make_key(tmp_path, "ed25519")
    private, public = tmp_path / "ed25519False", (tmp_path / "ed25519False.pub").read_text()
    socket = tmp_path / "agent"
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    process = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    authorized = slurm.base / "ssh/authorized_keys"
    before = authorized.read_text()
    try:
        # The socket is there a moment before anybody listens on it: then ssh-add ends with 2.
        wait_until("the agent", lambda: subprocess.run(["ssh-add", "-l"], capture_output=True).returncode == 1, timeout_s=60, every_s=0.02)
        subprocess.run(["ssh-add", "-q", private], check=True)
        private.unlink()
        authorized.write_text(before + public)
        yield process
    finally:
        authorized.write_text(before)
        process.kill()
        process.wait()


def test_a_key_that_only_an_agent_has_submits_waits_and_reads(
    agent: subprocess.Popen[bytes], slurm: PrivateSlurm, task: MakeTask, shared: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv(ENV, connection_uri(slurm, private_key=None))
    made = task(spec={"body": f"echo by the agent; touch {shared}/done", "output": f"{shared}/%j.log"}, expected_output=f"{shared}/done")
    assert made.run()["state"] == "COMPLETED"
    assert "by the agent" in capsys.readouterr().out
    agent.kill()
    agent.wait()
    made.clear()
    with pytest.raises(LoginRefused):
        made.make().execute(made.context)


# -- the key


def parts_of(key: str) -> list[str]:
    """Lines of a key's secret text: any of them elsewhere would give it away."""
    return [line for line in key.splitlines() if len(line) > 40 and "-----" not in line][1:]


@pytest.mark.parametrize("spelling", ["real", "escaped"])
def test_the_key_is_in_no_log_no_xcom_no_template_and_no_record(
    slurm: PrivateSlurm, task: MakeTask, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """In a run that goes well, one that fails, and one whose key the server does not take."""
    good, other = slurm.private_key.read_text(), make_key(tmp_path, "ed25519")
    written = (lambda text: text.replace("\n", "\\n")) if spelling == "escaped" else (lambda text: text)
    monkeypatch.setenv(ENV, connection_uri(slurm, private_key=written(good)))
    made = task(spec={"body": f"[ ! -e {shared}/bad ]", "output": f"{shared}/%j.log"})
    seen: list[Any] = []
    for _ in range(2):
        deferred = made.execute()
        event = made.wait(deferred)
        seen += [deferred.trigger.serialize(), deferred.kwargs, event]
        try:
            seen.append(made.resume(deferred, event))
        except JobFailed as error:
            seen.append(repr(error))
        (shared / "bad").touch()
        made.clear()
    monkeypatch.setenv(ENV, connection_uri(slurm, private_key=written(other)))
    with pytest.raises(LoginRefused) as caught:
        made.make().execute(made.context)
    operator = made.make()
    operator.render_template_fields({"ti": made.ti, "params": {}})  # type: ignore[arg-type]
    seen += [repr(caught.getrepr()), made.xcoms, made.state, {name: getattr(operator, name) for name in operator.template_fields}]
    files = [path for path in (tmp_path / "receipts").rglob("*") if path.is_file()] + list(shared.iterdir())
    files += [path for path in Path(os.environ["AIRFLOW_HOME"]).rglob("*") if path.is_file() and path.suffix != ".db"]
    told = capfd.readouterr()
    text = told.out + told.err + json.dumps(seen, default=repr) + "".join(path.read_text(errors="replace") for path in files)
    assert "COMPLETED" in text
    assert "exit 1" in text
    secret = parts_of(good) + parts_of(other)
    assert len(secret) >= 2
    assert [part for part in secret if part in text] == []


# -- variables

#: A login node whose shells are told all this, as those of an allocation, or of a service, are.
INHERITED = {
    "SLURM_JOB_ID": "41", "SLURM_CPUS_PER_TASK": "4", "SLURM_CPU_BIND": "quiet,mask_cpu:0xF", "SLURM_MEM_PER_CPU": "2000",
    "SLURM_NTASKS": "3", "SBATCH_PARTITION": "debug", "PMIX_RANK": "0", "AIRFLOW__CORE__FERNET_KEY": "not-a-real-key",
    "HF_TOKEN": "not-a-real-token", "KRB5CCNAME": "not-a-real-ticket", "SBATCH_EXPORT": "ALL",
}  # fmt: skip


@contextmanager
def second_sshd(slurm: PrivateSlurm, folder: Path, given: dict[str, str], also: str = "", sftp: str = "internal-sftp") -> Iterator[int]:
    """The port of a second SSH server of the cluster, whose sessions have some variables more. ``sftp``: what serves files."""
    config, log, port = folder / "sshd_config", folder / "sshd.log", free_port()
    lines = (slurm.base / "ssh/sshd_config").read_text().replace(f"Port {slurm.ssh_port}", f"Port {port}")
    lines = also + lines.replace("/sshd.pidfile", "/sshd-second.pidfile").replace("internal-sftp", sftp)
    if given.get("SHLVL") == "0":  # as it is where nobody has set it
        lines = lines.replace(" SHLVL=1", "")
    words = " ".join(f"{name}={value}" for name, value in given.items())
    config.write_text(lines.replace("SetEnv ", f"SetEnv {words} "))
    with open(log, "w") as said:
        process = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", config], stderr=said)

    def listens() -> bool:
        assert process.poll() is None, log.read_text()
        return f"Server listening on 127.0.0.1 port {port}." in log.read_text()

    try:
        wait_until("the second SSH server", listens, timeout_s=60, every_s=0.02)
        yield port
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def crowded(slurm: PrivateSlurm, tmp_path: Path) -> Iterator[int]:
    """The port of a second SSH server of the cluster, whose sessions have :data:`INHERITED`."""
    with second_sshd(slurm, tmp_path, INHERITED) as port:
        yield port


def variables(path: Path) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in path.read_text().split("\0") if "=" in entry)


def test_a_job_and_its_steps_get_no_variable_of_worker_or_login_node(
    slurm: PrivateSlurm, crowded: int, task: MakeTask, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn = json.loads(connection_uri(slurm)) | {"port": crowded}
    monkeypatch.setenv(ENV, json.dumps(conn))
    for name in ("AIRFLOW__CORE__FERNET_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, "not-a-real-secret-of-the-worker")
    seen = subprocess.run(
        ["ssh", "-F/dev/null", "-i", slurm.private_key, "-p", str(crowded), "-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null",
         f"{slurm.user}@127.0.0.1", "env -0"], capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert f"HF_TOKEN={INHERITED['HF_TOKEN']}\0" in seen, "the login node has them"
    body = f"env -0 > {shared}/job; srun --ntasks=1 env -0 > {shared}/step"
    env = {"MODEL": "a b|c\n$HOME", "WANDB_MODE": "offline"}
    made = task(spec={"body": body, "env": env, "output": f"{shared}/%j.log", "mem": "50M", "ntasks": 1})
    job_id = made.run()["job_id"]
    for where in ("job", "step"):
        found = variables(shared / where)
        assert env.items() <= found.items(), where
        assert found["SLURM_CONF"] == str(slurm.slurm_conf)
        assert (found["SLURM_JOB_ID"], found["SLURM_JOB_PARTITION"], found["SLURM_NTASKS"]) == (job_id, "batch", "1")
        assert [name for name in INHERITED if name in found and name not in ("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_CPU_BIND")] == []
        assert [name for name, value in found.items() if "not-a-real" in value or "mask_cpu:0xF" in value] == []


# -- a login node that talks


@pytest.fixture
def talkative(slurm: PrivateSlurm, tmp_path: Path) -> Iterator[int]:
    """The port of a second SSH server with a banner, whose shells print to both streams before each command."""
    (tmp_path / "talks").mkdir()
    (tmp_path / "talks/.bashrc").write_text(
        "echo 'Welcome to Borealis! 7|7|COMPLETED|0:0'; printf 'no end of line'; echo 'Maintenance on Friday' >&2\n"
    )
    (tmp_path / "banner").write_text("Authorised use only\n")
    with second_sshd(slurm, tmp_path, {"HOME": str(tmp_path / "talks"), "SHLVL": "0"}, f"Banner {tmp_path}/banner\n") as port:
        yield port


def test_what_a_login_shell_prints_before_each_command_changes_no_answer(
    slurm: PrivateSlurm, talkative: int, task: MakeTask, shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ENV, json.dumps(json.loads(connection_uri(slurm)) | {"port": talkative}))
    heard = subprocess.run(
        ["ssh", "-F/dev/null", "-i", slurm.private_key, "-p", str(talkative), "-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null",
         f"{slurm.user}@127.0.0.1", "echo answer"], capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert heard.stdout.startswith("Welcome to Borealis!"), "the login node talks"
    assert "Maintenance on Friday" in heard.stderr
    made = task(
        spec={"body": f"echo at work; touch {shared}/done", "output": f"{shared}/%j.log", "mem": "50M"}, expected_output=f"{shared}/done"
    )
    assert made.run()["state"] == "COMPLETED"
    said = capsys.readouterr().out
    assert "] at work" in said
    assert "Borealis" not in said
    made.clear()
    made.make = task(spec={"body": "exit 9", "output": "/dev/null", "mem": "50M"}).make
    with pytest.raises(JobFailed, match="exit 9"):
        made.run()


@pytest.mark.skipif(not SFTP_SERVER.exists(), reason="OpenSSH's own SFTP server is not installed")
def test_a_file_server_that_a_printing_shell_spoils_is_named_and_no_file_counts_as_missing(
    slurm: PrivateSlurm, tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shared / "there").touch()
    (tmp_path / ".bashrc").write_text("echo 'Welcome to Borealis!'\n")
    with second_sshd(slurm, tmp_path, {"HOME": str(tmp_path), "SHLVL": "0"}, sftp=str(SFTP_SERVER)) as port:
        monkeypatch.setenv(ENV, json.dumps(json.loads(connection_uri(slurm)) | {"port": port}))
        for path in ("there", "not there"):
            with pytest.raises(SshUnreachable, match="No SFTP session"):
                SlurmHook(CONN_ID).missing([f"{shared}/{path}"], 0.0)
        assert SlurmHook(CONN_ID).run(lambda client: client.queue("no-such-job-1")) == []
