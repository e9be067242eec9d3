"""Whether a job can run at a site at all, before it is submitted. Pure: a request against the site's record.

Only what is certain is refused: a limit that is not known, a rule that can't be read, a node that is down say nothing.
Every refusal names the nearest request that could run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from airflow_slurm.resources import Resources
from airflow_slurm.site import fitting
from airflow_slurm.site.capability import Capability, Partition, Qos, Reservation, duration
from airflow_slurm.site.fitting import Impossible, unknown
from airflow_slurm.site.parse import limit_s, memory_mb
from airflow_slurm.spec import JobSpec

#: Field of a request that a limit on a trackable resource is about.
_FIELDS = {"node": "nodes", "cpu": "cpus_per_task"}


@dataclass
class Verdict:
    """What is impossible, and what could not be checked."""

    impossible: list[Impossible] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)


def check(spec: JobSpec, site: Capability) -> Verdict:
    """Hold a job against a site."""
    verdict = Verdict(not_checked=[f"{name}: {why}" for name, why in site.not_checked.items()])
    parts: tuple[Resources, ...] = (spec, *spec.components)
    for number, part in enumerate(parts):
        found = list(_Check(part, site, verdict).problems())
        where = f"components[{number - 1}]." if number else ""
        verdict.impossible += [Impossible(where + p.field, p.problem, p.nearest) for p in found]
    # Without the throttle and the steps; never spelled out: somebody may ask for 0-99999999999.
    array_last = max((int(n) for n in re.findall("[0-9]+", re.sub("[:%][0-9]+", "", spec.array or ""))), default=0)
    if site.max_array_size is not None and array_last >= site.max_array_size:
        most = site.max_array_size - 1
        verdict.impossible.append(Impossible("array", f"index {array_last}; the site's highest is {most}", f"indices up to {most}"))
    return verdict


class _Check:
    """One component against one site."""

    def __init__(self, asked: Resources, site: Capability, verdict: Verdict) -> None:
        self.asked = asked
        self.site = site
        self.verdict = verdict
        self.enforce = ("associations", "limits", "qos") if "all" in (site.enforce or ()) else site.enforce or ()

    def problems(self) -> Iterator[Impossible]:
        yield from self._names()
        yield from self._licenses()
        candidates = self._candidates()
        if not candidates:
            return
        each = {part.name: list(self._in(part)) for part in candidates}
        # Of several partitions, one that fits is enough: Slurm takes the first that can.
        if all(each.values()):
            yield from min(each.values(), key=len)

    # -- names

    def _names(self) -> Iterator[Impossible]:
        site, asked = self.site, self.asked
        if site.rewrites:
            self.verdict.not_checked.append(f"names of partition, QOS and account: a job submit plugin ({site.rewrites}) may change them")
        else:
            yield from self._among("partition", _words(asked.partition), site.partitions)
            yield from self._among("qos", [asked.qos] if asked.qos else [], site.qos)
            yield from self._account()
        yield from self._among("reservation", _words(asked.reservation), site.reservations)

    def _among(self, name: str, wanted: list[str], known: Sequence[Partition | Qos | Reservation] | None) -> Iterator[Impossible]:
        if known is not None:
            names = [item.name for item in known]
            # QOS are taken in any case; of the others, nothing certain is lost by doing the same.
            there = {known_name.lower() for known_name in names}
            yield from (unknown(name, word, names) for word in wanted if word.lower() not in there)

    def _account(self) -> Iterator[Impossible]:
        """An account, and a QOS in it, as far as the site enforces that they are assigned."""
        mine, asked = self.site.associations, self.asked
        if not mine or "associations" not in self.enforce:
            return
        fitting_ones = [a for a in mine if asked.account is None or _in_any_case(asked.account, [a.account])]
        if not fitting_ones:
            yield unknown("account", asked.account or "", {a.account for a in mine}, f"is no account of {self.site.user} here")
            return
        allowed = sorted({name for a in fitting_ones for name in a.qos})
        if asked.qos and "qos" in self.enforce and allowed and not _in_any_case(asked.qos, allowed) and self.site.of_qos(asked.qos):
            where = f" in account {asked.account}" if asked.account else ""
            yield Impossible("qos", f"{asked.qos!r} may not be asked for{where}", " or ".join(allowed))

    def _licenses(self) -> Iterator[Impossible]:
        known = self.site.licenses
        if not self.asked.licenses or known is None:
            return
        alternatives = "|" in self.asked.licenses
        for part in re.split(r"[,;]", self.asked.licenses):
            name, _, count = part.replace("*", ":").replace("=", ":").partition(":")
            bare = name.partition("@")[0]
            if alternatives or not (name in known or bare in known):
                # A licence of a server elsewhere may be named with or without it.
                if not alternatives and not any("@" in k for k in known):
                    yield unknown("licenses", name, known)
                continue
            total = known.get(name, known.get(bare, 0))
            if count.isdigit() and int(count) > total:
                yield Impossible("licenses", f"{count} of {name}; the site has {total}", f"{name}:{total}" if total else "")

    # -- limits of QOS

    def _under(self, part: Partition, whose: str) -> Iterator[Impossible]:
        """The limits on one job. A partition's QOS comes before the job's own, limit by limit, unless the latter says OverPartQOS."""
        named, own = self.site.of_qos(self.asked.qos), self.site.of_qos(part.qos)
        order = [q for q in ((named, own) if named and "OverPartQOS" in named.flags else (own, named)) if q]
        if "limits" not in self.enforce or not order or self.site.rewrites:
            return
        said = " and ".join(f"QOS {qos.name}" for qos in order) + f" in {whose}"
        yield from self._time(next((qos.max_time_s for qos in order if qos.max_time_s is not None), None), said)
        in_all, a_node = {"node": self.asked.nodes or 1, "cpu": self._cpus(), **self._gpus(True)}, self._gpus(False)
        for counts, name, words in ((in_all, "max_tres_per_job", "job"), (a_node, "max_tres_per_node", "node")):
            limits = {tres: limit for qos in reversed(order) for tres, limit in getattr(qos, name).items()}
            for tres, count in counts.items():
                if count > limits.get(tres, count):
                    yield Impossible(
                        _FIELDS.get(tres, "gpus"), f"{count} {tres} a {words}; {said} allows {limits[tres]}", str(limits[tres])
                    )

    def _time(self, limit: int | None, whose: str) -> Iterator[Impossible]:
        asked = self._seconds()
        if limit is not None and asked is not None and asked > limit:
            yield Impossible("time_limit", f"{duration(asked)} is more than {whose} allows", duration(limit))

    def _seconds(self) -> float | None:
        text = self.asked.time_limit
        if text is None:
            return None
        return float("inf") if str(text).upper() == "UNLIMITED" else limit_s(str(text))

    def _cpus(self) -> int:
        """CPUs in all, at the least."""
        asked = self.asked
        tasks = asked.ntasks or (asked.ntasks_per_node or 1) * (asked.nodes or 1)
        return max(tasks * (asked.cpus_per_task or 1), asked.nodes or 1)

    def _gpus(self, in_all: bool) -> dict[str, int]:
        a_node = sum(g.count for g in fitting.gres_per_node(self.asked) if g.name == "gpu")
        count = (self.asked.gpus or a_node * (self.asked.nodes or 1)) if in_all else a_node
        kind = {f"gres/gpu:{self.asked.gpu_type}": count} if self.asked.gpu_type else {}
        return {"gres/gpu": count, **kind} if count else {}

    # -- one partition

    def _candidates(self) -> list[Partition]:
        if self.site.partitions is None:
            return []
        if self.site.rewrites:  # a plugin may choose any of them, whatever the job names
            return list(self.site.partitions)
        if self.asked.partition:
            return [p for name in _words(self.asked.partition) if (p := self.site.partition(name))]
        return [p for p in self.site.partitions if p.default]

    def _in(self, part: Partition) -> Iterator[Impossible]:
        whose = f"partition {part.name}"
        flags = [flag for name in (self.asked.qos, part.qos) if (qos := self.site.of_qos(name)) for flag in qos.flags]
        yield from self._may_use(part, whose)
        if "PartitionTimeLimit" not in flags:
            yield from self._time(part.max_time_s, whose)
        nodes = self.asked.nodes or 1
        limits = [] if "PartitionMaxNodes" in flags else [part.max_nodes]
        most = min((n for n in (*limits, part.total_nodes) if n is not None), default=None)
        if most is not None and nodes > most:
            yield Impossible("nodes", f"{nodes} nodes; {whose} gives a job at most {most}", str(most) if most else "")
        if self.asked.nodes and nodes < part.min_nodes and "PartitionMinNodes" not in flags:
            yield Impossible("nodes", f"{nodes} nodes; {whose} takes jobs of at least {part.min_nodes}", str(part.min_nodes))
        yield from self._under(part, whose)
        yield from self._memory_limit(part, whose)
        groups = self.site.nodes_of(part.name)
        if groups and sum(group.nodes for group in groups) < (part.total_nodes or 0):
            # sinfo hides nodes of a cloud that are powered down.
            self.verdict.not_checked.append(f"nodes of {whose}: not all of them are shown")
            groups = ()
        yield from fitting.problems(self.asked, groups, nodes, whose, self.verdict.not_checked)

    def _may_use(self, part: Partition, whose: str) -> Iterator[Impossible]:
        if self.site.rewrites:
            return
        for name, value, allowed, denied in (
            ("account", self.asked.account, part.allow_accounts, part.deny_accounts),
            ("qos", self.asked.qos, part.allow_qos, part.deny_qos),
        ):
            if value and allowed is not None and not _in_any_case(value, allowed):
                if name == "account" and not self._stands_alone(value):
                    self.verdict.not_checked.append(f"account {value} in {whose}: it may be below one that is allowed")
                    continue
                yield Impossible(name, f"{value!r} may not use {whose}", " or ".join(allowed))
            elif value and allowed is None and _in_any_case(value, denied):
                yield Impossible(name, f"{value!r} may not use {whose}")

    def _stands_alone(self, account: str) -> bool:
        """Whether an account has to be listed itself; newer versions take those below a listed one too."""
        major = re.match("[0-9]+", self.site.version or "")
        return account.lower() == "root" or (major is not None and int(major.group()) < 23)

    def _memory_limit(self, part: Partition, whose: str) -> Iterator[Impossible]:
        limit = part.max_memory_per_node_mb
        asked = memory_mb(self.asked.mem) if self.asked.mem else 0
        if limit is not None and asked > limit:
            yield Impossible("mem", f"{asked} MiB a node; {whose} allows {limit}", f"{limit}M")


def _in_any_case(name: str, names: Iterable[str]) -> bool:
    return name.lower() in (known.lower() for known in names)


def _words(text: str | None) -> list[str]:
    return [word for word in (text or "").split(",") if word]
