"""The first program of a job: makes the attempt's folder, verifies environment and code, then becomes the stage program.

Standard library only and nothing of ours: it runs before our code is unpacked. The control plane copies this file next to
the job's script, which calls

    PYTHON bootstrap.py --root STORE --run runs/<hex> --n N --program include.training.sft --code code/<hex>.tar
        --code-sha256 HEX --environment DIGEST --lock-file PATH [--image sha256:HEX]
    PYTHON bootstrap.py --array FILE     the same arguments, out of a file that has them for each task of an array

With ``--ranks N`` it becomes srun, which starts ``bootstrap.py rank …`` N times and hands signals on to them. With ``--together``, srun has
started it N times already, each in a container, in which there is no srun: the first does all of this and tells the others, which wait
for it. Else it replaces itself (exec) by the stage program, so that Slurm's signals reach it. Exit codes of its own: 78 another environment
or code, 76 a newer attempt of the key is there, 73 the attempt's folder is there already.
"""

import argparse
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import socket
import stat
import sys
import tarfile
import time
from pathlib import Path, PurePosixPath
from typing import NoReturn

SELF = os.path.abspath(__file__)
CONFIGURATION_EXIT = 78
SUPERSEDED_EXIT = 76
EXISTS_EXIT = 73
LOG_VARIABLE = "ALIGN_JOB_LOG_FD"
"""Through this descriptor the program adds lines to the job's own log (`include.runtime.job_log`)."""
LOG_FILE_VARIABLE = "ALIGN_JOB_LOG_FILE"
"""The same log by its path, as srun hands no descriptor on."""
MEETING, JOIN_WITHIN_S = "ranks.json", 600.0
"""Where the first of several ranks says that they may begin, and how long the others wait for that, in seconds."""
_ATTEMPT = re.compile(r"(\d+)-(\d+)\.(\d+)\Z")
_KEPT_VARIABLES = ("SLURM_", "CUDA_VISIBLE", "NVIDIA_", "ROCR_", "GPU_DEVICE")


def main() -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1, signal.SIGTERM))
    if sys.argv[1:2] == ["rank"]:  # under srun: the mask is this process's own to set, and goes with it into the program
        os.execve(sys.executable, [sys.executable, *sys.argv[2:]], os.environ)
    arguments = _arguments()
    run = Path(arguments.root, arguments.run).resolve()
    own = (arguments.n, int(os.environ["SLURM_JOB_ID"]), int(os.environ.get("SLURM_RESTART_COUNT") or 0))
    attempts = run / "attempts"
    attempts.mkdir(parents=True, exist_ok=True)
    if arguments.together and os.environ["SLURM_PROCID"] != "0":
        _join(run, attempts / _name(own), arguments.program)
    if newer := _newer(attempts, own):
        print(f"attempt {newer} is newer than {_name(own)}: nothing to do", file=sys.stderr)
        return SUPERSEDED_EXIT
    attempt = attempts / _name(own)
    try:
        attempt.mkdir()
    except FileExistsError:
        print(f"{attempt} is there already: two jobs must never share an attempt", file=sys.stderr)
        return EXISTS_EXIT
    shutil.copyfile(run / "submissions" / str(arguments.n) / "placement.json", attempt / "placement.json")
    refusal = _check_environment(attempt, arguments) or _unpack(attempt / "code", arguments)
    if refusal:
        _refuse(run, attempt, *refusal)
        return CONFIGURATION_EXIT
    _become(run, attempt, arguments)
    return 1  # not reached


def _join(run: Path, attempt: Path, program: str) -> NoReturn:
    """Becomes the program when the first rank has made all there is to make; what it refused is not begun."""
    until = time.monotonic() + JOIN_WITHIN_S
    while not (attempt / MEETING).exists():
        if (attempt / "report.json").exists() or time.monotonic() >= until:
            print(f"the first rank did not begin attempt {attempt}", file=sys.stderr)
            raise SystemExit(CONFIGURATION_EXIT)
        time.sleep(0.2)
    meeting = json.loads((attempt / MEETING).read_text("utf-8"))
    _redirect(attempt)
    os.chdir(attempt)
    os.execve(sys.executable, _program(run, attempt, program), _environment_of(attempt) | meeting)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True, help="the store on this cluster")
    parser.add_argument("--run", required=True, help="runs/<hex>, below the root")
    parser.add_argument("--n", type=int, required=True, help="number of the submission")
    parser.add_argument("--program", required=True, help="module of the stage program")
    parser.add_argument("--code", required=True, help="code/<hex>.tar, below the root")
    parser.add_argument("--code-sha256", required=True, help="sha256 of the tar's bytes, with or without 'sha256:'")
    parser.add_argument("--environment", required=True, help="digest of the environment the run is for")
    parser.add_argument("--lock-file", required=True, help="pinned requirements of this environment")
    parser.add_argument("--image", help="digest of the container's image that the job's script has checked; none without a container")
    parser.add_argument("--ranks", type=int, default=1, help="processes that share the work, started by srun")
    parser.add_argument("--together", action="store_true", help="srun has started this N times already")
    return parser.parse_args(_of_task(sys.argv[2]) if sys.argv[1:2] == ["--array"] else None)


def _of_task(file: str) -> list[str]:
    """The arguments of this task of the array."""
    tasks = json.loads(Path(file).read_text("utf-8"))["tasks"]
    return [str(argument) for argument in tasks[os.environ["SLURM_ARRAY_TASK_ID"]]["arguments"]]


def _name(attempt: tuple[int, int, int]) -> str:
    return f"{attempt[0]}-{attempt[1]}.{attempt[2]}"


def _newer(attempts: Path, own: tuple[int, int, int]) -> str | None:
    """A greater submission, or the same submission and job with a greater restart."""
    for path in attempts.iterdir():
        match = _ATTEMPT.match(path.name)
        if not match:
            continue
        n, job, restart = (int(part) for part in match.groups())
        if n > own[0] or ((n, job) == own[:2] and restart > own[2]):
            return path.name
    return None


def environment_digest(lock: str, image: str | None = None) -> tuple[str, dict[str, str]]:
    """The digest of the environment this process runs in, and what it is made of (the same as in include.domain)."""
    parts = {
        "lock": lock,
        "system": platform.system().lower(),
        "machine": platform.machine(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        **({"image": image} if image else {}),
    }
    body = json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()
    return "sha256:" + hashlib.sha256(b"align/environment/v1\n" + body).hexdigest(), parts


def _check_environment(attempt: Path, arguments: argparse.Namespace) -> tuple[str, str] | None:
    lock = _sha256(Path(arguments.lock_file)) if Path(arguments.lock_file).is_file() else "missing"
    digest, parts = environment_digest(f"sha256:{lock}", arguments.image)
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith(_KEPT_VARIABLES)}
    record = {
        "schema": "align/job-environment/v1",
        "digest": digest,
        **parts,
        "python_full": platform.python_version(),
        "host": socket.gethostname(),
        "kernel": platform.release(),
        "processors": os.cpu_count(),
        "started": time.time(),
        "variables": variables,
    }
    (attempt / "environment.json").write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", "utf-8")
    if digest == arguments.environment:
        return None
    return "other environment", f"this job runs in {digest} ({json.dumps(parts, sort_keys=True)}), the run is for {arguments.environment}"


def _sha256(path: Path) -> str:
    hasher = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(1 << 20):
            hasher.update(chunk)
    return hasher.hexdigest()


def _unpack(target: Path, arguments: argparse.Namespace) -> tuple[str, str] | None:
    archive = Path(arguments.root, arguments.code)
    if not archive.is_file():
        return "code is missing", f"{archive} is not there"
    wanted = arguments.code_sha256.removeprefix("sha256:")
    if (seen := _sha256(archive)) != wanted:
        return "code is corrupt", f"{archive}: its bytes give {seen}, the run is for {wanted}"
    target.mkdir()
    with tarfile.open(archive, "r:") as tar:
        for member in tar:
            parts = PurePosixPath(member.name).parts
            if member.isdir():
                continue
            if not member.isfile() or member.name.startswith("/") or ".." in parts:
                return "code is refused", f"{archive} holds {member.name!r}, which is not a plain file below its root"
            path = target.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            source = tar.extractfile(member)
            assert source is not None
            with source, open(path, "wb") as stream:
                shutil.copyfileobj(source, stream)
    return None


def _refuse(run: Path, attempt: Path, reason: str, message: str) -> None:
    """The report of a run that must not start here."""
    key = json.loads((run / "spec.json").read_text("utf-8"))["key"]
    report = {
        "schema": "align/report/v1",
        "key": key,
        "attempt": attempt.name,
        "outcome": "failed",
        "stop_reason": "error",
        "first_step": 0,
        "last_step": 0,
        "asked_steps": 0,
        "metrics": {},
        "outputs": {},
        "resumed_from": None,
        "message": f"{reason}: {message}",
        "seconds": 0.0,
        "summary": {"refused": reason},
    }
    aside = attempt / ".report.json.tmp"
    with open(aside, "w", encoding="utf-8") as stream:
        json.dump(report, stream, indent=1, sort_keys=True)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(aside, attempt / "report.json")
    print(f"{reason}: {message}", file=sys.stderr)


def _become(run: Path, attempt: Path, arguments: argparse.Namespace) -> None:
    """Sends both streams into the attempt's folder and hands the process over to the program."""
    print(f"attempt {attempt}: stdout and stderr go there", flush=True)
    sys.stderr.flush()
    log = os.dup(1)
    _redirect(attempt)
    environment, command = _environment_of(attempt), _program(run, attempt, arguments.program)
    os.chdir(attempt)
    if arguments.together:
        meeting = meeting_point()
        environment.update(meeting)
        aside = attempt / f".{MEETING}.tmp"
        aside.write_text(json.dumps(meeting), "utf-8")
        os.replace(aside, attempt / MEETING)
    elif arguments.ranks > 1:
        environment.pop(LOG_VARIABLE, None)  # srun's tasks have no descriptor of ours
        environment.update(meeting_point() | log_file(log))
        os.execvpe("srun", on_ranks(command, arguments.ranks, os.environ.get("SLURM_CPUS_PER_TASK")), environment)
    os.set_inheritable(log, True)
    os.execve(sys.executable, command, environment | {LOG_VARIABLE: str(log)})


def _redirect(attempt: Path) -> None:
    for number, name in ((1, "stdout"), (2, "stderr")):
        descriptor = os.open(attempt / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)


def _environment_of(attempt: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(attempt / "code"),
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _program(run: Path, attempt: Path, program: str) -> list[str]:
    own = ["--spec", str(run / "spec.json"), "--placement", str(attempt / "placement.json"), "--out", str(attempt)]
    return [sys.executable, "-m", program, *own]


def log_file(descriptor: int) -> dict[str, str]:
    """The variable with the path of an open log, if it is a file. From now on every write to it goes to its end: there are two writers."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return {}
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)
    return {LOG_FILE_VARIABLE: os.path.realpath(f"/proc/self/fd/{descriptor}")}


def on_ranks(command: list[str], ranks: int, cpus: str | None) -> list[str]:
    """srun's arguments: one that fails ends the others, one that is done early does not; the exit code is the greatest.

    Since 22.05 srun does not take the CPUs a task from the job.
    """
    options = ["--ntasks", str(ranks), "--kill-on-bad-exit=1", "--wait=0", "--mpi=none", *(["--cpus-per-task", cpus] if cpus else [])]
    return ["srun", *options, command[0], SELF, "rank", *command[1:]]


def meeting_point() -> dict[str, str]:
    """Where the ranks find each other: the batch host, which has the first rank, and a port that is free there now."""
    alone = os.environ.get("SLURM_JOB_NUM_NODES", "1") == "1"
    with socket.socket() as free:
        free.bind(("", 0))
        return {"MASTER_ADDR": "127.0.0.1" if alone else socket.gethostname(), "MASTER_PORT": str(free.getsockname()[1])}


if __name__ == "__main__":
    raise SystemExit(main())
