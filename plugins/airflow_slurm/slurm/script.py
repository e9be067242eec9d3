"""From a :class:`~airflow_slurm.spec.JobSpec` to the text that sbatch reads from its standard input."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from airflow_slurm.containers import WRONG_IMAGE
from airflow_slurm.errors import InvalidSpec
from airflow_slurm.resources import Resources, gpus_of, switches_of
from airflow_slurm.spec import JobSpec

#: Exit codes of a job that can't load an environment module, or a file of variables. Neither sysexits.h, the shell, a signal nor Python ends with
#: one of them, or with WRONG_IMAGE; nor is it an errno, with which Perl dies.
NO_MODULE, NO_ENV_FILE = 211, 213
#: Where the ``module`` function comes from in a shell that is no login shell.
_MODULE_INIT = "/etc/profile.d/modules.sh /etc/profile.d/lmod.sh /usr/share/lmod/lmod/init/bash /usr/share/modules/init/bash"
#: Fields and options that every component of a job may have, and those that belong to the job as a whole.
_RESOURCE_OPTIONS = (
    ("partition", "partition"),
    ("account", "account"),
    ("qos", "qos"),
    ("reservation", "reservation"),
    ("constraint", "constraint"),
    ("licenses", "licenses"),
    ("gres", "gres"),
    ("nodes", "nodes"),
    ("ntasks", "ntasks"),
    ("ntasks_per_node", "ntasks-per-node"),
    ("cpus_per_task", "cpus-per-task"),
    ("mem", "mem"),
    ("mem_per_cpu", "mem-per-cpu"),
    ("time_limit", "time"),
)
_JOB_OPTIONS = (
    ("dependency", "dependency"),
    ("nice", "nice"),
    ("comment", "comment"),
    ("chdir", "chdir"),
    ("output", "output"),
    ("array", "array"),
)


def render(spec: JobSpec) -> str:
    """The whole batch script, with line feeds only.

    The submitter's environment stays out (``--export=NONE``; ``--export=NIL`` does not exist in 22.05 and is taken for
    the name of a variable). The variables wanted are ``export`` lines, and ``SLURM_EXPORT_ENV=ALL`` hands them on to
    every ``srun`` step, which would else start with an empty environment.
    """
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in _directives(spec))]
    for part in spec.components:
        lines += ["#SBATCH hetjob", *(f"#SBATCH {option}" for option in _resources(part))]
    lines += ["", "export SLURM_EXPORT_ENV=ALL"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(spec.env.items())]
    lines += _env_file_lines(spec.env_files)
    lines += _module_lines(spec.modules)
    lines += [_lines_only(line) for line in spec.setup]
    lines += spec.container.check_lines() if spec.container else []
    lines += ["exec " + shlex.join(_command(spec)) if spec.command else _lines_only(spec.body)]
    return "\n".join(lines) + "\n"


def own_exits(spec: JobSpec) -> dict[int, str]:
    """Exit codes that this job's script ends with before its program has begun, and the cause in one word: another try would end the same."""
    found = {NO_MODULE: "no_module"} if spec.modules else {}
    found |= {NO_ENV_FILE: "no_env_file"} if spec.env_files else {}
    return found | ({WRONG_IMAGE: "wrong_image"} if spec.container and spec.container.is_file else {})


def quote_directive(value: str) -> str:
    """A value as sbatch's own reader of ``#SBATCH`` lines takes it back unchanged (which is not the shell's reader).

    Within double quotes, sbatch 22.05 takes a backslash before any character as that character, and ``#`` as itself.

    :raises InvalidSpec: for control characters, which no quoting carries through.
    """
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise InvalidSpec("directive", "holds control characters")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _directives(spec: JobSpec) -> Iterator[str]:
    yield from _resources(spec)
    yield from _given(spec, _JOB_OPTIONS)
    yield "--requeue" if spec.requeue else "--no-requeue"
    yield "--open-mode=append"
    yield "--export=NONE"
    if spec.signal_lead_s is not None:
        yield f"--signal=B:{spec.signal}@{spec.signal_lead_s}"


def _resources(asked: Resources) -> Iterator[str]:
    yield from _given(asked, _RESOURCE_OPTIONS)
    yield from gpus_of(asked)
    yield from switches_of(asked)
    if asked.exclusive:
        yield "--exclusive"


def _given(asked: Resources, options: tuple[tuple[str, str], ...]) -> Iterator[str]:
    for field, option in options:
        value = getattr(asked, field)
        if value is not None:
            yield f"--{option}={quote_directive(str(value))}"


def _command(spec: JobSpec) -> tuple[str, ...]:
    if spec.container is None:
        return spec.command
    # Without a number of tasks, Slurm starts one on each node.
    tasks = spec.ntasks or (spec.ntasks_per_node or 1) * (spec.nodes or 1)
    return spec.container.command(spec.command, tasks > 1, spec.cpus_per_task)


def _env_file_lines(paths: tuple[str, ...]) -> list[str]:
    lines = []
    for path in paths:
        said = shlex.quote(f"airflow_slurm: the environment file {path} could not be read")
        failed = f"{{ printf '%s\\n' {said} >&2; exit {NO_ENV_FILE}; }}"
        # What its last command ends with says nothing of whether it could be read.
        lines.append(f"[ -f {shlex.quote(path)} ] && [ -r {shlex.quote(path)} ] || {failed}")
        lines.append(f"set -a; . {shlex.quote(path)}; set +a")
    return lines


def _module_lines(modules: tuple[str, ...]) -> list[str]:
    if not modules:
        return []
    lines = [f'type module >/dev/null 2>&1 || for f in {_MODULE_INIT}; do [ -r "$f" ] && . "$f" && break; done']
    for name in modules:
        said = shlex.quote(f"airflow_slurm: the environment module {name} could not be loaded")
        lines.append(f"module load {shlex.quote(name)} || {{ printf '%s\\n' {said} >&2; exit {NO_MODULE}; }}")
    return lines


def _lines_only(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")
