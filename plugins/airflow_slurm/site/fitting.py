"""Whether a partition has enough nodes that hold what each node of a job needs, and what it has instead. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from airflow_slurm.resources import Gres, Resources, gres_list
from airflow_slurm.site.capability import NodeGroup
from airflow_slurm.site.parse import memory_mb


@dataclass(frozen=True)
class Impossible:
    """A field whose value can't be had, why, and the nearest that could (empty: none is known)."""

    field: str
    problem: str
    nearest: str = ""

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}" + (f" (nearest: {self.nearest})" if self.nearest else "")


@dataclass(frozen=True)
class _Need:
    """Something that every node must have."""

    field: str
    what: str
    fits: Callable[[NodeGroup], bool]
    nearest: Callable[[Sequence[NodeGroup], int], str]


def problems(asked: Resources, groups: Sequence[NodeGroup], nodes: int, whose: str, not_checked: list[str]) -> Iterator[Impossible]:
    """What stands in the way, need after need; the first that too few nodes meet is named.

    :param groups: the partition's nodes; none: they aren't known, and nothing is said.
    :param nodes: how many are asked for. Nodes that are down count: they may come back.
    """
    if not groups:
        return
    before = _with_features(asked, groups, not_checked)
    if isinstance(before, Impossible):
        yield before
        return
    for need in _needs(asked):
        after = [group for group in before if need.fits(group)]
        if _count(after) < nodes:
            where = f" on {nodes} nodes" if nodes > 1 else ""
            yield Impossible(need.field, f"{whose} has no {need.what} a node{where}", need.nearest(before, nodes))
            return
        before = after
    yield from _in_all(asked, before, whose)


def _in_all(asked: Resources, groups: Sequence[NodeGroup], whose: str) -> Iterator[Impossible]:
    """Whether all nodes together have what the job needs in all, where it leaves open on how many nodes."""
    cpus = (asked.ntasks or 1) * (asked.cpus_per_task or 1)
    there = sum(group.nodes * group.cpus for group in groups)
    if cpus > there:
        most = there // (asked.cpus_per_task or 1)
        yield Impossible("ntasks", f"{asked.ntasks} tasks need {cpus} CPUs; {whose} has {there} for them", str(most) if most else "")
    if asked.gpus and not asked.nodes:
        total = sum(group.nodes * _held(group, "gpu", asked.gpu_type or "") for group in groups)
        if total < asked.gpus:
            yield Impossible("gpus", f"{asked.gpus} {asked.gpu_type or 'GPUs'}; {whose} has {total} in all", str(total))


def gres_per_node(asked: Resources) -> list[Gres]:
    """The generic resources that each node of a job must have; of GPUs in all, as many as each node holds at the least."""
    wanted = gres_list(asked.gres or "")
    per_node = asked.gpus_per_node or (-(-asked.gpus // asked.nodes) if asked.gpus and asked.nodes else 0)
    if per_node or asked.gpus:
        wanted.append(Gres("gpu", asked.gpu_type or "", per_node or 1))
    return wanted


def unknown(name: str, value: str, known: Iterable[str], said: str = "is not known at this site") -> Impossible:
    """A name that isn't there, with the one that is spelled most like it, or all."""
    names = sorted(known)
    close = difflib.get_close_matches(value, names, n=1, cutoff=0.6)
    return Impossible(name, f"{value!r} {said}", close[0] if close else " or ".join(names[:20]))


def _needs(asked: Resources) -> Iterator[_Need]:
    in_gres = gres_list(asked.gres or "")
    for gres in gres_per_node(asked):
        name = "gres" if gres in in_gres else ("gpus_per_node" if asked.gpus_per_node else "gpus")
        yield _Need(name, str(gres), _has(gres), _nearest_gres(gres))
    memory = _memory_per_node(asked)
    if memory:
        name = "mem" if asked.mem else "mem_per_cpu"
        yield _Need(name, f"{memory} MiB", lambda group: group.memory_mb >= memory, _most("memory_mb", "{} MiB a node"))
    cpus = (asked.cpus_per_task or 1) * _tasks_per_node(asked)
    yield _Need("cpus_per_task", f"{cpus} CPUs", lambda group: group.cpus >= cpus, _most("cpus", "{} CPUs a node"))


def _memory_per_node(asked: Resources) -> int:
    if asked.mem:
        return memory_mb(asked.mem)
    if asked.mem_per_cpu:
        return memory_mb(asked.mem_per_cpu) * (asked.cpus_per_task or 1) * _tasks_per_node(asked)
    return 0


def _tasks_per_node(asked: Resources) -> int:
    """Tasks that each node has to hold at the least: beside ``ntasks``, ``ntasks_per_node`` is only the most a node gets."""
    return 1 if asked.ntasks else asked.ntasks_per_node or 1


def _with_features(asked: Resources, groups: Sequence[NodeGroup], not_checked: list[str]) -> list[NodeGroup] | Impossible:
    """The nodes with the features asked for. Of an expression of more than one kind, nothing is said."""
    text = asked.constraint or ""
    known = {feature for group in groups for feature in group.features}
    if re.fullmatch(r"[\w.=-]+(?:[&,][\w.=-]+)*", text):
        names = set(re.split("[&,]", text))
        for name in sorted(names - known):
            return unknown("constraint", name, known, "is a feature of no node of the partition")
        fitting = [group for group in groups if names <= set(group.features)]
        return fitting or Impossible("constraint", f"no node of the partition has all of {text}", _closest(names, groups))
    if re.fullmatch(r"[\w.=-]+(?:\|[\w.=-]+)+", text):
        fitting = [group for group in groups if set(text.split("|")) & set(group.features)]
        return fitting or unknown("constraint", text, known, "are features of no node of the partition")
    if text:
        not_checked.append(f"constraint {text}: an expression of more than one kind")
    return list(groups)


def _closest(names: set[str], groups: Sequence[NodeGroup]) -> str:
    return "&".join(max(groups, key=lambda group: len(names & set(group.features))).features)


def _count(groups: Iterable[NodeGroup]) -> int:
    return sum(group.nodes for group in groups)


def _held(group: NodeGroup, name: str, kind: str) -> int:
    return sum(g.count for g in group.gres if g.name == name and kind.lower() in ("", g.type.lower()))


def _has(gres: Gres) -> Callable[[NodeGroup], bool]:
    return lambda group: _held(group, gres.name, gres.type) >= gres.count


def _nearest_gres(gres: Gres) -> Callable[[Sequence[NodeGroup], int], str]:
    """The largest number of that kind that enough nodes have; else what there is of other kinds."""

    def nearest(groups: Sequence[NodeGroup], nodes: int) -> str:
        counts = sorted({_held(group, gres.name, gres.type) for group in groups} - {0}, reverse=True)
        for count in counts:
            smaller = Gres(gres.name, gres.type, min(count, gres.count))
            fitting = _count(group for group in groups if _has(smaller)(group))
            if fitting >= nodes or count == counts[-1]:
                return f"{smaller} a node" + (f" on {fitting} nodes" if fitting < nodes else "")
        others = sorted({str(held) for group in groups for held in group.gres if held.name == gres.name})
        return " or ".join(others)

    return nearest


def _most(attribute: str, words: str) -> Callable[[Sequence[NodeGroup], int], str]:
    """The largest value that as many nodes as asked for have."""

    def nearest(groups: Sequence[NodeGroup], nodes: int) -> str:
        left = nodes
        for group in sorted(groups, key=lambda g: getattr(g, attribute), reverse=True):
            left -= group.nodes
            if left <= 0:
                return words.format(getattr(group, attribute))
        return f"{_count(groups)} nodes with that"

    return nearest
