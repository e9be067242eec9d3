"""From a :class:`~airflow_slurm.spec.JobSpec` to the text that sbatch reads from its standard input."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from airflow_slurm.errors import InvalidSpec
from airflow_slurm.spec import JobSpec

_OPTIONS = (
    ("partition", "partition"),
    ("account", "account"),
    ("qos", "qos"),
    ("reservation", "reservation"),
    ("constraint", "constraint"),
    ("licenses", "licenses"),
    ("gres", "gres"),
    ("dependency", "dependency"),
    ("nodes", "nodes"),
    ("ntasks", "ntasks"),
    ("ntasks_per_node", "ntasks-per-node"),
    ("cpus_per_task", "cpus-per-task"),
    ("mem", "mem"),
    ("mem_per_cpu", "mem-per-cpu"),
    ("time_limit", "time"),
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
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in _directives(spec)), ""]
    lines += ["export SLURM_EXPORT_ENV=ALL"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(spec.env.items())]
    lines += [_lines_only(line) for line in spec.setup]
    lines += ["exec " + shlex.join(spec.command) if spec.command else _lines_only(spec.body)]
    return "\n".join(lines) + "\n"


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
    for field, option in _OPTIONS:
        value = getattr(spec, field)
        if value is not None:
            yield f"--{option}={quote_directive(str(value))}"
    if spec.exclusive:
        yield "--exclusive"
    yield "--requeue" if spec.requeue else "--no-requeue"
    yield "--open-mode=append"
    yield "--export=NONE"
    if spec.signal_lead_s is not None:
        yield f"--signal=B:{spec.signal}@{spec.signal_lead_s}"


def _lines_only(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")
