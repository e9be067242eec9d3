"""What one site offers, as it said at one moment: a typed record that is kept as JSON.

``None`` always means that it could not be read (see ``not_checked``): nothing is ever refused because of it.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, Union, get_args, get_origin, get_type_hints

from airflow_slurm.resources import Gres


@dataclass(frozen=True)
class Partition:
    """Limits of a partition. None where there is no limit; times in seconds, memory in MiB.

    :ivar state: ``UP``, ``DOWN``, ``DRAIN`` or ``INACTIVE``.
    :ivar allow_accounts: the only ones that may, or None for all; likewise ``allow_qos``.
    :ivar qos: the partition's own QOS, whose limits hold for every job in it.
    """

    name: str
    state: str = "UP"
    default: bool = False
    max_time_s: int | None = None
    max_nodes: int | None = None
    min_nodes: int = 0
    total_nodes: int | None = None
    max_cpus_per_node: int | None = None
    max_memory_per_node_mb: int | None = None
    allow_accounts: tuple[str, ...] | None = None
    deny_accounts: tuple[str, ...] = ()
    allow_qos: tuple[str, ...] | None = None
    deny_qos: tuple[str, ...] = ()
    qos: str | None = None


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of a partition that are exactly alike: how many, and what each one has."""

    partition: str
    nodes: int
    cpus: int
    memory_mb: int
    gres: tuple[Gres, ...] = ()
    features: tuple[str, ...] = ()
    state: str = ""


@dataclass(frozen=True)
class Qos:
    """A quality of service. ``max_tres_per_job`` and ``…_per_node``: names such as ``gres/gpu`` → count; memory in MiB."""

    name: str
    flags: tuple[str, ...] = ()
    max_time_s: int | None = None
    max_tres_per_job: Mapping[str, int] = field(default_factory=dict)
    max_tres_per_node: Mapping[str, int] = field(default_factory=dict)
    max_running: int | None = None
    max_queued: int | None = None
    preempts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Association:
    """An account of this user (in one partition, if that is named), and what may be asked for in it."""

    account: str
    partition: str | None = None
    qos: tuple[str, ...] = ()
    default_qos: str | None = None


@dataclass(frozen=True)
class Reservation:
    """A reservation; times in seconds since the epoch."""

    name: str
    start: float | None = None
    end: float | None = None
    partition: str | None = None
    nodes: int | None = None
    state: str = ""


@dataclass(frozen=True)
class Capability:
    """The record.

    :ivar probed_at: when, in seconds since the epoch.
    :ivar enforce: what accounting enforces (``associations``, ``limits``, ``qos`` …); empty: nothing.
    :ivar max_array_size: no array index may reach it.
    :ivar requeue: whether Slurm puts jobs back unless they say otherwise (JobRequeue).
    :ivar kill_wait_s: between TERM and KILL at the end of a job.
    :ivar clusters: all that share the accounting; ``--clusters`` reaches them.
    :ivar rewrites: job submit plugins, which may change what a job asks for; None: there are none.
    :ivar json: whether ``--json`` works. :ivar accounting: whether there is any.
    :ivar not_checked: part of the record → why it could not be read.
    """

    probed_at: float
    version: str | None = None
    cluster: str | None = None
    user: str | None = None
    partitions: tuple[Partition, ...] | None = None
    nodes: tuple[NodeGroup, ...] | None = None
    qos: tuple[Qos, ...] | None = None
    associations: tuple[Association, ...] | None = None
    reservations: tuple[Reservation, ...] | None = None
    licenses: Mapping[str, int] | None = None
    clusters: tuple[str, ...] | None = None
    enforce: tuple[str, ...] | None = None
    max_array_size: int | None = None
    requeue: bool | None = None
    kill_wait_s: int | None = None
    preemption: str | None = None
    rewrites: str | None = None
    accounting: bool | None = None
    json: bool | None = None
    not_checked: Mapping[str, str] = field(default_factory=dict)

    def partition(self, name: str) -> Partition | None:
        """The partition of a name."""
        return next((p for p in self.partitions or () if p.name == name), None)

    def of_qos(self, name: str | None) -> Qos | None:
        """The QOS of a name; Slurm takes it in any case."""
        return next((q for q in self.qos or () if name and q.name.lower() == name.lower()), None)

    def nodes_of(self, partition: str) -> tuple[NodeGroup, ...]:
        """The kinds of nodes of a partition."""
        return tuple(group for group in self.nodes or () if group.partition == partition)

    def to_json(self) -> dict[str, Any]:
        """A JSON object that :meth:`from_json` takes back."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Capability:
        """The record that was written. :raises ValueError: if it is none, or of another version."""
        built: Capability = _build(cls, value)
        return built

    def summary(self) -> str:
        """A few lines for people: version, partitions with limits, QOS, accounting."""
        at = f"{datetime.fromtimestamp(self.probed_at, UTC):%Y-%m-%d %H:%M} UTC"
        lines = [f"Slurm {self.version or 'of unknown version'}, cluster {self.cluster or 'of unknown name'}, asked {at}"]
        for part in self.partitions or ():
            lines.append(f"partition {part.name}: {self._limits(part)}")
        if self.qos:
            lines.append("QOS: " + ", ".join(q.name for q in self.qos))
        if self.associations:
            lines.append(f"accounts of {self.user}: " + ", ".join(sorted({a.account for a in self.associations})))
        words = {True: "kept", False: "not kept: a job that left the queue can't be looked up", None: "not checked"}
        lines.append(f"accounting: {words[self.accounting]}")
        lines.append(
            f"largest array: {self.max_array_size or 'not checked'}; JSON output: {_yes(self.json)}; requeue: {_yes(self.requeue)}"
        )
        lines += [f"not checked: {name} ({why})" for name, why in self.not_checked.items()]
        return "; ".join(lines)

    def _limits(self, part: Partition) -> str:
        kinds = sorted({str(g) for group in self.nodes_of(part.name) for g in group.gres})
        said = [part.state.lower(), f"{part.total_nodes} nodes", f"limit {duration(part.max_time_s)}"]
        said += [f"at most {part.max_nodes} a job"] if part.max_nodes else []
        said += [f"{' or '.join(kinds)} a node"] if kinds else []
        return ", ".join(said)


def duration(seconds: float | None) -> str:
    """``1-12:00:00``, as Slurm writes it; ``none`` for no limit."""
    if seconds is None:
        return "none"
    days, rest = divmod(int(seconds), 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def _yes(value: bool | None) -> str:
    return {True: "yes", False: "no", None: "not checked"}[value]


def _build(kind: Any, value: Any) -> Any:
    """A value of the type from JSON: dataclasses, tuples of them, optional fields and mappings. Fields not known are left out."""
    if get_origin(kind) in (Union, types.UnionType):
        if value is None:
            return None
        return _build(next(k for k in get_args(kind) if k is not type(None)), value)
    if is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise ValueError(f"{kind} is not made of {value!r}")
        hints = get_type_hints(kind)
        known = {f.name for f in fields(kind)}
        try:
            return kind(**{name: _build(hints[name], item) for name, item in value.items() if name in known})  # type: ignore[operator]
        except TypeError as error:
            raise ValueError(str(error)) from error
    if get_origin(kind) is tuple:
        return tuple(_build(get_args(kind)[0], item) for item in value)
    if get_origin(kind) is not None:
        return dict(value)
    return value
