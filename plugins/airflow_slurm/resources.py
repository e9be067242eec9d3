"""What a job, or one component of a heterogeneous job, asks of the cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from airflow_slurm.errors import InvalidSpec

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:,=+@%&|!()\[\]*/-]*")
#: Constraints may begin with a bracket: ``[rack1*2&rack2*2]``.
_CONSTRAINT = re.compile(r"[A-Za-z0-9(\[][A-Za-z0-9._:,=+@%&|!()\[\]*/-]*")
_GPU_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MODULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+/-]*")
_MEMORY = re.compile(r"[0-9]+[KMGT]?")
_TIME = re.compile(r"[0-9]+|(?:[0-9]+-)?[0-9]+:[0-9]{2}(?::[0-9]{2})?|[0-9]+-[0-9]+|[0-9]+:[0-9]{2}:[0-9]{2}|UNLIMITED")
#: A type may begin with a digit (``gpu:3090:8``, ``gpu:1g.10gb:7``); digits alone at the end are the count.
_GRES = re.compile(r"(?:gres[:/])?(?P<name>[A-Za-z_][\w.-]*)(?:[:=](?P<type>\w[\w.-]*))??(?:[:=](?P<count>[0-9]+)(?P<unit>[KMGT]?))?")
_NOT_SAID = re.compile(r":\(null\)|:no_consume|\([^)]*\)")

WORD_FIELDS = ("partition", "account", "qos", "reservation", "licenses", "gres")
COUNT_FIELDS = ("nodes", "ntasks", "ntasks_per_node", "cpus_per_task", "gpus", "gpus_per_node", "switches", "segment")


@dataclass(frozen=True)
class Resources:
    """What one component of a job asks for. The first component is the :class:`~airflow_slurm.spec.JobSpec` itself.

    :param gpus: GPUs in all. :param gpus_per_node: GPUs on each node. :param gpu_type: of which type.
    :param gres: other generic resources a node, as Slurm writes them (``shard:2``); for GPUs, the fields above say it better.
    :param mem: memory a node, such as ``64G``. :param mem_per_cpu: the same per CPU.
    :param time_limit: minutes, or ``D-HH:MM:SS``.
    :param constraint: features the nodes must have. :param exclusive: whole nodes.
    :param switches: at most so many leaf switches. :param switches_wait_s: how long the job waits for that at most.
    :param segment: where the topology is of blocks (Slurm 23.11 and later): the nodes come in segments of so many, each within one block.

    :raises InvalidSpec: for a value that can't be what is meant, naming the field.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    licenses: str | None = None
    gres: str | None = None
    gpus: int | None = None
    gpus_per_node: int | None = None
    gpu_type: str | None = None
    nodes: int | None = None
    ntasks: int | None = None
    ntasks_per_node: int | None = None
    cpus_per_task: int | None = None
    mem: str | None = None
    mem_per_cpu: str | None = None
    time_limit: str | int | None = None
    exclusive: bool = False
    switches: int | None = None
    switches_wait_s: int | None = None
    segment: int | None = None

    def __post_init__(self) -> None:
        check_resources(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Resources:
        """Build one from a mapping. :raises InvalidSpec: for a name that is no field, listing those that are."""
        known = [f.name for f in fields(cls)]
        for name in values:
            if name not in known:
                raise InvalidSpec(f"components.{name}", f"no such field of a component; there are {', '.join(known)}")
        return cls(**values)


@dataclass(frozen=True)
class Gres:
    """A generic resource: name, type (empty: any) and count."""

    name: str
    type: str = ""
    count: int = 1

    def __str__(self) -> str:
        return ":".join(part for part in (self.name, self.type, str(self.count)) if part)


def gres_list(text: str) -> list[Gres]:
    """``gpu:a100:4(S:0-1),shard:8`` in any form of sinfo, scontrol or sbatch; what can't be read is left out."""
    found = []
    for part in gres_words(text):
        if (match := _GRES.fullmatch(part)) and match["name"] != "null":
            count = int(match["count"] or 1) * 1024 ** " KMGT".index(match["unit"] or " ")
            found.append(Gres(match["name"], match["type"] or "", count))
    return found


def gres_words(text: str) -> list[str]:
    """The entries of such a list, without what says nothing about name, type and count."""
    return [part.strip() for part in _NOT_SAID.sub("", text).split(",") if part.strip()]


def gpus_of(asked: Resources) -> Iterator[str]:
    """The sbatch options of the GPU fields."""
    kind = f"{asked.gpu_type}:" if asked.gpu_type else ""
    if asked.gpus is not None:
        yield f"--gpus={kind}{asked.gpus}"
    if asked.gpus_per_node is not None:
        yield f"--gpus-per-node={kind}{asked.gpus_per_node}"


def switches_of(asked: Resources) -> Iterator[str]:
    """The sbatch options of the topology fields; of switches ``count@HH:MM:SS``."""
    if asked.segment is not None:
        yield f"--segment={asked.segment}"
    if asked.switches is None:
        return
    wait = asked.switches_wait_s
    yield f"--switches={asked.switches}" + ("" if wait is None else f"@{wait // 3600}:{wait // 60 % 60:02}:{wait % 60:02}")


def check_modules(modules: tuple[str, ...]) -> None:
    """:raises InvalidSpec: for a name that is no module's."""
    for name in modules:
        if not isinstance(name, str) or not _MODULE.fullmatch(name):
            raise InvalidSpec("modules", f"{name!r} is not the name of an environment module, such as cuda/12.4")


def check_resources(asked: Resources) -> None:
    """:raises InvalidSpec: for a value that can't be what is meant, naming the field."""
    for name in WORD_FIELDS:
        _matching(asked, name, _WORD, "is not a word Slurm would take here")
    _matching(asked, "constraint", _CONSTRAINT, "is not a constraint, such as a100&ib")
    _matching(asked, "gpu_type", _GPU_TYPE, "is not the name of a GPU type, such as a100")
    for name in COUNT_FIELDS:
        value = getattr(asked, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise InvalidSpec(name, f"{value!r} is not a whole number of at least 1")
    for name, pattern, example in (("mem", _MEMORY, "64G"), ("mem_per_cpu", _MEMORY, "2000M"), ("time_limit", _TIME, "1-12:00:00")):
        value = getattr(asked, name)
        if value is not None and not pattern.fullmatch(str(value)):
            raise InvalidSpec(name, f"{value!r} is not a value like {example}")
    _check_together(asked)


def _check_together(asked: Resources) -> None:
    if asked.mem and asked.mem_per_cpu:
        raise InvalidSpec("mem", "mem and mem_per_cpu exclude each other")
    if asked.gpu_type and asked.gpus is None and asked.gpus_per_node is None:
        raise InvalidSpec("gpu_type", "names a type and no number: give gpus or gpus_per_node")
    if (asked.gpus or asked.gpus_per_node) and any(part.name == "gpu" for part in gres_list(asked.gres or "")):
        raise InvalidSpec("gres", "GPUs are asked for in gres and in gpus or gpus_per_node; give one of them")
    if asked.segment is not None and (asked.nodes is None or asked.segment > asked.nodes):
        raise InvalidSpec(
            "segment", f"{asked.segment} nodes a segment, of {asked.nodes or 'no given number of'} nodes: give as many nodes at least"
        )
    wait = asked.switches_wait_s
    if wait is not None and (asked.switches is None or isinstance(wait, bool) or not isinstance(wait, int) or wait < 0):
        raise InvalidSpec("switches_wait_s", f"{wait!r} is not a number of seconds beside a number of switches")


def _matching(asked: Resources, name: str, pattern: re.Pattern[str], problem: str) -> None:
    value = getattr(asked, name)
    if value is not None and not (isinstance(value, str) and pattern.fullmatch(value)):
        raise InvalidSpec(name, f"{value!r} {problem}")
