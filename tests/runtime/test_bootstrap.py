"""The bootstrap: makes the attempt, verifies environment and code, and becomes the program."""

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from include.domain.canonical import sha256_file
from include.domain.environment import this_environment
from include.domain.spec import Report
from include.runtime import bootstrap

BOOTSTRAP = Path(bootstrap.__file__)
PROGRAM = """
import json, os, signal, sys
from hello import WORD
print("out", WORD)
print("err", WORD, file=sys.stderr)
if "ALIGN_JOB_LOG_FD" in os.environ:
    os.write(int(os.environ["ALIGN_JOB_LOG_FD"]), b"step 3 of 9\\n")
with open(sys.argv[6] + "/seen.json", "w") as stream:
    json.dump({"argv": sys.argv[1:], "path": os.environ["PYTHONPATH"], "pid": os.getpid(), "blocked": sorted(signal.pthread_sigmask(0, []))}, stream)
"""


@dataclass
class Site:
    """A store with one run, its code and its environment."""

    root: Path
    code: Path
    lock: Path

    def command(self, n: int = 1, **changes: Any) -> list[str]:
        options = {
            "root": str(self.root),
            "run": "runs/abc",
            "n": str(n),
            "program": "program",
            "code": self.code.relative_to(self.root).as_posix(),
            "code_sha256": sha256_file(self.code),
            "environment": this_environment(sha256_file(self.lock)).digest,
            "lock_file": str(self.lock),
            **changes,
        }
        return [
            sys.executable,
            str(BOOTSTRAP),
            *(part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)),
        ]

    def run(self, job_id: int = 7, restart: str | None = None, n: int = 1, **changes: Any) -> subprocess.CompletedProcess[str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
        environment["SLURM_JOB_ID"] = str(job_id)
        if restart is not None:
            environment["SLURM_RESTART_COUNT"] = restart
        return subprocess.run(self.command(n, **changes), env=environment, capture_output=True, text=True, timeout=60, check=False)

    def attempt(self, name: str) -> Path:
        return self.root / "runs" / "abc" / "attempts" / name

    def report(self, name: str) -> Report:
        return Report.from_json(json.loads((self.attempt(name) / "report.json").read_text()))


def _tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    root = tmp_path / "store"
    for n in (1, 2):
        (root / "runs" / "abc" / "submissions" / str(n)).mkdir(parents=True)
        (root / "runs" / "abc" / "submissions" / str(n) / "placement.json").write_text(json.dumps({"n": n}))
    (root / "runs" / "abc" / "spec.json").write_text(json.dumps({"key": "sha256:" + "0" * 64}))
    (root / "code").mkdir()
    _tar(root / "code" / "x.tar", {"program.py": PROGRAM.encode(), "hello.py": b"WORD = 'world'\n"})
    (root / "lock.txt").write_text("torch==2.13.0\n")
    return Site(root, root / "code" / "x.tar", root / "lock.txt")


def _seen(site: Site, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((site.attempt(name) / "seen.json").read_text())
    return found


def test_it_becomes_the_program_with_the_contracts_arguments_and_the_unpacked_code(site: Site) -> None:
    done = site.run()
    assert done.returncode == 0, done.stderr
    attempt = site.attempt("1-7.0")
    run = site.root / "runs" / "abc"
    expected = ["--spec", str(run / "spec.json"), "--placement", str(attempt / "placement.json"), "--out", str(attempt)]
    assert _seen(site, "1-7.0")["argv"] == expected
    assert _seen(site, "1-7.0")["path"] == str(attempt / "code")
    assert (attempt / "stdout").read_text() == "out world\n"
    assert (attempt / "stderr").read_text() == "err world\n"
    assert json.loads((attempt / "placement.json").read_text()) == {"n": 1}
    assert str(attempt) in done.stdout
    assert done.stdout.endswith("\nstep 3 of 9\n"), "what the program says for the job's own log"


def test_the_attempt_is_named_by_submission_job_and_restart(site: Site) -> None:
    assert site.run(job_id=12, restart="3", n=2).returncode == 0
    assert _seen(site, "2-12.3")["argv"][-1].endswith("attempts/2-12.3")


def test_a_task_of_an_array_takes_its_own_arguments(site: Site, tmp_path: Path) -> None:
    tasks = {str(index): {"arguments": site.command(n=n)[2:]} for index, n in ((0, 1), (3, 2))}
    (tmp_path / "tasks.json").write_text(json.dumps({"tasks": tasks}))
    command = [sys.executable, str(BOOTSTRAP), "--array", str(tmp_path / "tasks.json")]
    environment = {**os.environ, "SLURM_JOB_ID": "88", "SLURM_RESTART_COUNT": "", "SLURM_ARRAY_TASK_ID": "3"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert _seen(site, "2-88.0")["argv"][1] == str(site.root / "runs" / "abc" / "spec.json")


def test_it_keeps_its_process_so_that_signals_reach_the_program(site: Site) -> None:
    process = subprocess.Popen(
        site.command(), env={**os.environ, "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": ""}, stdout=subprocess.DEVNULL
    )
    assert process.wait(60) == 0
    assert _seen(site, "1-7.0")["pid"] == process.pid


def test_a_signal_before_the_program_listens_waits_and_does_not_kill(site: Site) -> None:
    assert site.run().returncode == 0
    assert _seen(site, "1-7.0")["blocked"] == sorted([signal.SIGUSR1, signal.SIGTERM])


def test_a_waiting_signal_comes_through_when_the_handlers_are_installed(tmp_path: Path) -> None:
    program = (
        "import os, signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
        "from include.runtime.signals import StopFlag\n"
        "flag = StopFlag()\nprint(bool(flag))\nflag.install()\nprint(flag.received)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\nprint(flag.received)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(BOOTSTRAP.parents[2])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["False", "SIGUSR1", "SIGUSR1"], done.stderr


def test_environment_digest_is_the_same_as_the_control_planes(site: Site) -> None:
    lock = sha256_file(site.lock)
    digest, parts = bootstrap.environment_digest(lock)
    assert digest == this_environment(lock).digest
    assert set(parts) == {"lock", "system", "machine", "python"}
    image = "sha256:" + "7" * 64
    assert bootstrap.environment_digest(lock, image)[0] == replace(this_environment(lock), image=image).digest != digest


def test_a_job_in_another_image_is_refused(site: Site) -> None:
    """The script has compared the image with its digest before; here it is held against what the run is for."""
    wanted = replace(this_environment(sha256_file(site.lock)), image="sha256:" + "7" * 64).digest
    assert site.run(environment=wanted, image="sha256:" + "8" * 64).returncode == 78
    assert site.run(environment=wanted, job_id=8).returncode == 78
    assert site.run(environment=wanted, image="sha256:" + "7" * 64, job_id=9).returncode == 0


def test_another_environment_is_refused_with_a_report_that_names_both(site: Site) -> None:
    site.lock.write_text("torch==2.12.0\n")
    other = this_environment("sha256:" + "1" * 64).digest
    done = site.run(environment=other)
    assert done.returncode == 78
    report = site.report("1-7.0")
    assert (report.outcome, report.last_step) == ("failed", 0)
    assert report.message.startswith("other environment: ")
    assert other in report.message
    assert not (site.attempt("1-7.0") / "seen.json").exists()
    recorded = json.loads((site.attempt("1-7.0") / "environment.json").read_text())
    assert recorded["digest"] in report.message


def test_a_lock_file_that_is_not_there_is_another_environment(site: Site) -> None:
    assert site.run(lock_file=str(site.root / "none")).returncode == 78


def test_code_with_one_wrong_byte_is_refused_by_name(site: Site) -> None:
    wanted = sha256_file(site.code)
    data = bytearray(site.code.read_bytes())
    data[600] ^= 1
    site.code.write_bytes(bytes(data))
    assert site.run(code_sha256=wanted).returncode == 78
    assert "x.tar: its bytes give " + hashlib.sha256(bytes(data)).hexdigest() in site.report("1-7.0").message


@pytest.mark.parametrize("name", ["../outside.py", "/tmp/outside.py"])
def test_code_that_would_unpack_outside_is_refused(site: Site, name: str) -> None:
    _tar(site.code, {name: b"x = 1\n"})
    assert site.run().returncode == 78
    assert "not a plain file below its root" in site.report("1-7.0").message


def test_a_link_in_the_code_is_refused(site: Site) -> None:
    with tarfile.open(site.code, "w") as tar:
        link = tarfile.TarInfo("program.py")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert site.run().returncode == 78


def test_a_newer_attempt_stops_it_before_it_makes_a_folder(site: Site) -> None:
    site.attempt("2-5.0").mkdir(parents=True)
    done = site.run(n=1)
    assert done.returncode == 76
    assert "2-5.0 is newer than 1-7.0" in done.stderr
    assert not site.attempt("1-7.0").exists()


def test_the_same_submission_under_another_job_is_not_newer(site: Site) -> None:
    site.attempt("1-9.4").mkdir(parents=True)
    assert site.run(n=1).returncode == 0


def test_a_folder_that_is_there_already_is_never_shared(site: Site) -> None:
    assert site.run().returncode == 0
    (site.attempt("1-7.0") / "seen.json").unlink()
    assert site.run().returncode == 73
    assert not (site.attempt("1-7.0") / "seen.json").exists()


def test_it_imports_the_standard_library_alone() -> None:
    code = f"import sys, runpy; sys.argv = ['x', '--help']; sys.path.insert(0, '')\ntry:\n runpy.run_path({str(BOOTSTRAP)!r}, run_name='__main__')\nexcept SystemExit: pass\n"
    code += "print([m for m in sys.modules if m.split('.')[0] in ('include', 'torch', 'numpy', 'rfc8785')])"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_it_is_quick(site: Site) -> None:
    started = time.monotonic()
    site.run(program="hello")
    assert time.monotonic() - started < 10


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for srun, the one thing that is not there: it runs its command once, as rank 0 of 2, and hands no descriptor on."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "srun").write_text(
        '#!/bin/bash\necho "$@" > "$PWD/srun.txt"\nwhile [[ "$1" == --* ]]; do case "$1" in *=*) shift;; *) shift 2;; esac; done\n'
        'for fd in /proc/self/fd/*; do n=${fd##*/}; (( n > 2 )) && eval "exec $n>&-"; done; exec "$@"\n'
    )
    (folder / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.usefixtures("srun")
def test_the_first_rank_finds_the_jobs_log_by_its_path_and_nobody_overwrites_its_lines(site: Site, tmp_path: Path) -> None:
    program = "import sys; from include.runtime import job_log; job_log.take(); job_log.say('step 3 of 9'); print('out')\n"
    sources = {f"include/runtime/{name}": (BOOTSTRAP.parent / name).read_bytes() for name in ("__init__.py", "job_log.py")}
    _tar(site.code, {"program.py": program.encode(), "include/__init__.py": b"", **sources})
    log = tmp_path / "slurm-7.log"
    command = ["bash", "-c", 'echo begin; "$@"; echo end', "job.sh", *site.command(ranks="2")]
    with open(log, "w") as stream:
        subprocess.run(command, env={**os.environ, "SLURM_JOB_ID": "7"}, stdout=stream, timeout=60, check=True)
    attempt = site.attempt("1-7.0")
    assert log.read_text().splitlines() == ["begin", f"attempt {attempt}: stdout and stderr go there", "step 3 of 9", "end"]
    assert (attempt / "stdout").read_text() == "out\n"


@pytest.mark.usefixtures("srun")
def test_with_ranks_it_becomes_srun_which_starts_each_with_both_signals_waiting(site: Site) -> None:
    done = site.run(ranks="2")
    assert done.returncode == 0, done.stderr
    attempt = next((site.root / "runs/abc/attempts").iterdir())
    asked = (attempt / "srun.txt").read_text()
    assert asked.startswith("--ntasks 2 --kill-on-bad-exit=1 --wait=0 --mpi=none ")
    assert "--cpus-per-task 3" in " ".join(bootstrap.on_ranks(["python"], 2, "3"))
    seen = json.loads((attempt / "seen.json").read_text())
    assert {int(signal.SIGUSR1), int(signal.SIGTERM)} <= set(seen["blocked"])


def together(site: Site, count: int = 3, late_s: float = 0.0, **changes: Any) -> list[subprocess.CompletedProcess[str]]:
    """What srun does around containers: starts the same command once for each rank, here the first one last."""
    command = [*site.command(ranks=str(count), **changes), "--together"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")} | {"SLURM_JOB_ID": "7"}
    started = []
    for rank in reversed(range(count)):
        if rank == 0:
            time.sleep(late_s)
        own = environment | {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(count)}
        started.append(subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    ended = [(process, *process.communicate(timeout=60)) for process in reversed(started)]
    return [subprocess.CompletedProcess(process.args, process.returncode, out, err) for process, out, err in ended]


def test_ranks_that_were_started_together_wait_for_the_first_and_share_one_attempt(site: Site) -> None:
    program = """
import json, os, signal, sys
own = {name: os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT", "PYTHONHASHSEED")}
own |= {"cwd": os.getcwd(), "argv": sys.argv[1:], "log": "ALIGN_JOB_LOG_FD" in os.environ, "blocked": sorted(signal.pthread_sigmask(0, []))}
print("rank", os.environ["SLURM_PROCID"])
open(f"seen-{os.environ['SLURM_PROCID']}.json", "w").write(json.dumps(own))
"""
    _tar(site.code, {"program.py": program.encode()})
    done = together(site, late_s=0.5)
    assert [one.returncode for one in done] == [0, 0, 0], [one.stderr for one in done]
    attempt = site.attempt("1-7.0")
    assert [path.name for path in attempt.parent.iterdir()] == ["1-7.0"]
    seen = [json.loads((attempt / f"seen-{rank}.json").read_text()) for rank in range(3)]
    assert [one.pop("log") for one in seen] == [True, False, False]
    assert seen[0] == seen[1] == seen[2]
    assert seen[0]["cwd"] == str(attempt)
    assert (seen[0]["MASTER_ADDR"], int(seen[0]["MASTER_PORT"]) > 0) == ("127.0.0.1", True)
    assert {int(signal.SIGUSR1), int(signal.SIGTERM)} <= set(seen[0]["blocked"])
    assert sorted((attempt / "stdout").read_text().split("\n")) == ["", "rank 0", "rank 1", "rank 2"]
    assert [one.stdout for one in done] == [f"attempt {attempt}: stdout and stderr go there\n", "", ""]


def test_what_the_first_of_them_refuses_none_begins(site: Site) -> None:
    done = together(site, code_sha256="0" * 64)
    assert [one.returncode for one in done] == [78, 78, 78]
    assert "did not begin" in done[2].stderr
    assert site.report("1-7.0").outcome == "failed"
    assert not (site.attempt("1-7.0") / bootstrap.MEETING).exists()
