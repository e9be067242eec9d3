"""What a job asks for: :class:`JobSpec`, checked field by field before Slurm sees any of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import PurePosixPath
from typing import Any

from airflow_slurm.containers import Container
from airflow_slurm.errors import InvalidSpec
from airflow_slurm.resources import Resources, check_modules, check_resources

SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_DEPENDENCY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:,=+?-]*")
_SIGNAL = re.compile(r"[A-Z]+[0-9]?|[0-9]{1,2}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ARRAY = re.compile(r"[0-9]+(?:-[0-9]+(?::[1-9][0-9]*)?)?(?:,[0-9]+(?:-[0-9]+(?::[1-9][0-9]*)?)?)*(?:%[1-9][0-9]*)?")
#: A body that takes signals by itself, or hands the shell over to the program that does.
_TAKES_SIGNALS = re.compile(r"\b(?:trap|exec)\b")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class JobSpec(Resources):
    """One batch job. Give either ``command`` (an argument vector) or ``body`` (shell text by its author).

    :param command: program and arguments; each is quoted, and the batch shell becomes the program (``exec``), so that
        signals from Slurm reach it.
    :param body: shell lines instead, run as they are: nothing from outside belongs in here.
    :param setup: shell lines before the command. As they are, like ``body``.
    :param modules: environment modules to load before that, such as ``cuda/12.4``; the job fails if one is missing.
    :param container: where ``command`` runs, as a :class:`~airflow_slurm.containers.Container` or a mapping of its fields.
    :param env: environment variables of the job, byte for byte. Nothing else of the submitter's environment gets there. They stand in the batch
        script, which Slurm keeps, and in the task's rendered fields: no place for a secret.
    :param env_files: files on the cluster, absolute, whose shell assignments become environment variables of the job as it starts: the place
        for secrets, readable by their user alone. Nothing of them passes Airflow; the job fails for good if one can't be read.
    :param chdir: working directory, absolute.
    :param array: task numbers of a job array, such as ``0-9,12%4`` (at most 4 at once); each task finds its own in
        ``SLURM_ARRAY_TASK_ID``.
    :param output: absolute path of the job's output; ``%j`` stands for the job id, ``%%`` for a percent sign. In an array
        ``%A`` is the array's id and ``%a``, which has to be there, the task's number.
    :param root: folder that ``output`` and ``chdir`` must lie below, where given; one of them has to be, as Slurm writes its own output into
        the folder that sbatch was called in, which is the login's home.
    :param components: further components of a heterogeneous job, each a :class:`~airflow_slurm.resources.Resources` or a
        mapping of its fields. The program starts in the first component; ``srun --het-group`` reaches the others.
    :param preemptible: that the job may be preempted: the site's policy for such jobs chooses partition, QOS and requeueing.
    :param requeue: whether Slurm may put the job back after preemption or a node's failure.
    :param signal: what is sent before the time limit and on a polite stop, to the program or, of a ``body``, to its shell.
    :param signal_lead_s: seconds before the limit (Slurm may send it up to 60 s earlier), and at once when the job is pushed out, where the
        site says so; ``None`` sends none. A ``body`` has to ``trap`` it, or to ``exec`` the program.
    :param nice: lowers the priority by this much.

    What is asked of the cluster (partition … ``switches_wait_s``) is described at :class:`~airflow_slurm.resources.Resources`.

    :raises InvalidSpec: for a value that can't be what is meant, naming the field.
    """

    command: tuple[str, ...] = ()
    body: str = ""
    setup: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    container: Container | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    env_files: tuple[str, ...] = ()
    array: str | None = None
    chdir: str | None = None
    output: str | None = None
    root: str | None = None
    dependency: str | None = None
    comment: str | None = None
    components: tuple[Resources, ...] = ()
    preemptible: bool = False
    nice: int | None = None
    requeue: bool = False
    signal: str = "USR1"
    signal_lead_s: int | None = None

    def __post_init__(self) -> None:
        for name in ("command", "setup", "modules", "env_files", "components"):
            if isinstance(getattr(self, name), (str, Mapping)):
                raise InvalidSpec(name, "give a list, not one value")
            object.__setattr__(self, name, tuple(getattr(self, name)))
        container: Any = self.container
        if isinstance(container, Mapping):
            object.__setattr__(self, "container", Container.from_mapping(container))
        parts = (Resources.from_mapping(part) if isinstance(part, Mapping) else part for part in self.components)
        object.__setattr__(self, "components", tuple(parts))
        object.__setattr__(self, "env", dict(self.env))
        _check_program(self)
        check_modules(self.modules)
        check_resources(self)
        _check_options(self)
        _check_paths(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> JobSpec:
        """Build one from a mapping, such as a templated operator argument.

        :raises InvalidSpec: for a name that is no field, listing those that are.
        """
        known = {f.name for f in fields(cls)}
        for name in values:
            if name not in known:
                raise InvalidSpec(name, f"no such field; there are {', '.join(sorted(known))}")
        return cls(**values)

    def log_path(self, job_id: str) -> str | None:
        """Where the output of one job is written, with ``%j`` filled in.

        Of an array ``%A`` is filled in, and ``%a`` and ``%%`` stay: :func:`task_path` fills those.
        """
        if self.output is None:
            return None
        if self.array is not None:
            return re.sub(r"%([Aa%])", lambda m: job_id if m.group(1) == "A" else m.group(0), self.output)
        return re.sub(r"%([j%])", lambda m: job_id if m.group(1) == "j" else "%", self.output)


def task_path(pattern: str, index: int) -> str:
    """A path of one array task: ``%a`` is its number, ``%%`` a percent sign."""
    return re.sub(r"%([a%])", lambda m: str(index) if m.group(1) == "a" else "%", pattern)


def check_job_name(name: str) -> str:
    """The name as it is, if it is safe to look up and to print.

    :raises InvalidSpec: otherwise.
    """
    if not SAFE_NAME.fullmatch(name):
        raise InvalidSpec("job_name", f"{name!r} may only hold A-Z a-z 0-9 . _ - (1 to 200 of them, a letter or digit first)")
    return name


def check_below(field: str, path: str, root: str | None, *, pattern: bool = False) -> None:
    """Refuse a path that climbs up, or lies outside a folder, if there is one.

    :param pattern: the path is one of Slurm's patterns; what it stands for has to lie there, as the root is a folder and none.
    :raises InvalidSpec: naming the field.
    """
    if ".." in PurePosixPath(path).parts:
        raise InvalidSpec(field, f"{path!r} climbs up with '..'")
    # In the place of a number comes a character that no root holds.
    written = re.sub(r"%([jAa%])", lambda m: "%" if m.group(1) == "%" else "\x00", path) if pattern else path
    if root and not PurePosixPath(written).is_relative_to(root):
        raise InvalidSpec(field, f"{path!r} does not lie below {root!r}")


def check_sent(spec: JobSpec) -> None:
    """Refuse what must not be sent any more. A job that an earlier version sent with it, and that lives, is waited for all the same.

    :raises InvalidSpec: naming the field.
    """
    if spec.signal_lead_s is not None and spec.body and not _TAKES_SIGNALS.search(spec.body):
        raise InvalidSpec(
            "signal_lead_s",
            f"the warning goes to the shell that runs the body, and ends it unless it traps {spec.signal}: let the body trap it "
            f"(program & p=$!; trap 'kill -{spec.signal} $p; wait $p; exit $?' {spec.signal}; wait $p), become the program (exec program), "
            "or give the program as command",
        )
    if spec.root and spec.output is None and spec.chdir is None:
        raise InvalidSpec(
            "output", f"give it, or chdir, below {spec.root!r}: without either, Slurm writes slurm-%j.out into the login's home"
        )


def _check_program(spec: JobSpec) -> None:
    if bool(spec.command) == bool(spec.body.strip()):
        raise InvalidSpec("command", "give either command or body, and one of them")
    if spec.container and not spec.command:
        raise InvalidSpec("container", "runs a command, not a body: give the program and its arguments in command")
    for position, argument in enumerate(spec.command):
        if not isinstance(argument, str) or "\x00" in argument:
            raise InvalidSpec("command", f"argument {position} is not a text without NUL")
    if "\x00" in spec.body or any("\x00" in line for line in spec.setup):
        raise InvalidSpec("body", "a shell script can't hold NUL")
    for name, value in spec.env.items():
        if not _ENV_NAME.fullmatch(name):
            raise InvalidSpec("env", f"{name!r} is not a name of an environment variable")
        if not isinstance(value, str) or "\x00" in value:
            raise InvalidSpec("env", f"the value of {name} is not a text without NUL")
        if name.startswith(("SLURM_", "SBATCH_")) and name not in ("SLURM_CPU_BIND", "SLURM_MPI_TYPE"):
            raise InvalidSpec("env", f"{name} is Slurm's own to set")


def _check_options(spec: JobSpec) -> None:
    if spec.dependency is not None and not (isinstance(spec.dependency, str) and _DEPENDENCY.fullmatch(spec.dependency)):
        raise InvalidSpec("dependency", f"{spec.dependency!r} is not a dependency, such as afterok:1234")
    if spec.array is not None and not (isinstance(spec.array, str) and _ARRAY.fullmatch(spec.array)):
        raise InvalidSpec("array", f"{spec.array!r} is not a list of task numbers like 0-9,12%4")
    if not _SIGNAL.fullmatch(spec.signal):
        raise InvalidSpec("signal", f"{spec.signal!r} is not a signal's name (USR1) or number")
    lead = spec.signal_lead_s
    if lead is not None and not 0 <= lead <= 65535:
        raise InvalidSpec("signal_lead_s", f"{lead!r} is not within 0 and 65535 seconds")
    if spec.nice is not None and abs(spec.nice) > 2147483645:
        raise InvalidSpec("nice", f"{spec.nice!r} is outside Slurm's range")
    if spec.comment is not None and (_CONTROL.search(spec.comment) or len(spec.comment) > 1000):
        raise InvalidSpec("comment", "holds control characters or more than 1000 characters")


def _check_path(field: str, value: Any) -> None:
    if not isinstance(value, str) or not value.startswith("/") or _CONTROL.search(value) or "\\" in value:
        raise InvalidSpec(field, f"{value!r} is not an absolute path free of control characters and backslashes")


def _check_paths(spec: JobSpec) -> None:
    for path in spec.env_files:
        _check_path("env_files", path)
        check_below("env_files", path, None)
    for name in ("chdir", "output", "root"):
        if (value := getattr(spec, name)) is not None:
            _check_path(name, value)
            check_below(name, value, spec.root, pattern=name == "output")
    if spec.output and spec.array is None and "%" in re.sub(r"%[j%]", "", spec.output):
        raise InvalidSpec("output", "only %j (the job id) and %% may be used as patterns")
    if spec.output and spec.array is not None:
        if "%" in re.sub(r"%[Aa%]", "", spec.output):
            raise InvalidSpec("output", "of an array only %A (the array's id), %a (the task's number) and %% may be used as patterns")
        if "%a" not in spec.output.replace("%%", "") and spec.output != "/dev/null":
            raise InvalidSpec("output", "all tasks of the array would write into one file; %a stands for the task's number")
