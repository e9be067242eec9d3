"""What the answers to :mod:`airflow_slurm.site.commands` say. Pure; the texts of 22.05 and 24.11 are read alike.

A line that can't be read is an error, so that the part it belongs to counts as not checked and nothing is concluded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from airflow_slurm.errors import UnreadableAnswer
from airflow_slurm.resources import Gres, gres_list, gres_words
from airflow_slurm.site.capability import Association, NodeGroup, Partition, Qos, Reservation
from airflow_slurm.site.commands import ASSOCIATION_COLUMNS, QOS_COLUMNS
from airflow_slurm.slurm.parse import epoch

_NO_LIMIT = {"", "UNLIMITED", "N/A", "(NULL)", "NONE", "INFINITE", "NOT_SET"}
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}


def configuration(text: str) -> dict[str, str]:
    """``scontrol show config``: name → value."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def partitions(text: str) -> tuple[Partition, ...]:
    """``scontrol --oneliner show partition``."""
    return tuple(_partition(pairs) for pairs in _records(text, "PartitionName"))


def nodes(text: str) -> tuple[NodeGroup, ...]:
    """``sinfo`` in :data:`~airflow_slurm.site.commands.NODE_FORMAT`."""
    found = []
    for columns in _rows(text, 7, "sinfo"):
        name, count, cpus, memory, gres, features, state = columns
        if not (count.isdigit() and cpus.isdigit() and memory.isdigit()):
            raise UnreadableAnswer(f"sinfo printed a line of an unknown form: {'|'.join(columns)[:200]!r}")
        kinds = _gres(gres)
        words = () if features == "(null)" else tuple(features.split(","))
        found.append(NodeGroup(name, int(count), int(cpus), int(memory), kinds, words, state))
    return tuple(found)


def reservations(text: str) -> tuple[Reservation, ...]:
    """``scontrol --oneliner show reservation``; ``No reservations in the system`` is none."""
    found = []
    for pairs in _records(text, "ReservationName"):
        count = pairs.get("NodeCnt", "")
        found.append(
            Reservation(
                pairs["ReservationName"],
                epoch(pairs.get("StartTime", "")),
                epoch(pairs.get("EndTime", "")),
                _word(pairs.get("PartitionName", "")),
                int(count) if count.isdigit() else None,
                pairs.get("State", ""),
            )
        )
    return tuple(found)


def licenses(text: str) -> dict[str, int]:
    """``scontrol --oneliner show licenses``: name → how many there are."""
    found = {}
    for pairs in _records(text, "LicenseName"):
        if not pairs.get("Total", "").isdigit():
            raise UnreadableAnswer(f"scontrol printed a licence of an unknown form: {pairs}")
        found[pairs["LicenseName"]] = int(pairs["Total"])
    return found


def qos(text: str) -> tuple[Qos, ...]:
    """``sacctmgr show qos``."""
    found = []
    for columns in _rows(text, len(QOS_COLUMNS), "sacctmgr"):
        name, flags, wall, per_job, per_node, running, queued, preempts = columns
        found.append(
            Qos(name, _list(flags), limit_s(wall), tres(per_job), tres(per_node), _number(running), _number(queued), _list(preempts))
        )
    return tuple(found)


def associations(text: str, cluster: str | None = None) -> tuple[Association, ...]:
    """``sacctmgr show associations``: those of one cluster, where it is named."""
    found = []
    for columns in _rows(text, len(ASSOCIATION_COLUMNS), "sacctmgr"):
        where, account, _, partition, names, default = columns
        if cluster is None or where == cluster:
            found.append(Association(account, partition or None, _list(names), default or None))
    return tuple(found)


def clusters(text: str) -> tuple[str, ...]:
    """``sacctmgr show clusters``."""
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def limit_s(text: str) -> int | None:
    """Seconds of a limit, in any form that Slurm prints or takes: ``30`` (minutes), ``1-12``, ``1-12:00``, ``1-00:00:00``,
    ``00:30:00``; None for no limit.

    :raises UnreadableAnswer: for anything else.
    """
    word = text.strip()
    if word.upper() in _NO_LIMIT:
        return None
    found = re.fullmatch(r"(?:([0-9]+)-)?([0-9]+)(?::([0-9]+))?(?::([0-9]+))?", word)
    if not found:
        raise UnreadableAnswer(f"{text!r} is not a duration in a known form.")
    days, *numbers = found.groups()
    given = [int(number) for number in numbers if number is not None]
    if days is not None:
        hours, minutes, seconds = (*given, 0, 0)[:3]
        return int(days) * 86400 + hours * 3600 + minutes * 60 + seconds
    if len(given) == 3:
        return given[0] * 3600 + given[1] * 60 + given[2]
    return given[0] * 60 + (given[1] if len(given) == 2 else 0)


def memory_mb(text: str) -> int:
    """MiB of ``64G``, ``2000M`` or ``2000`` (MiB).

    :raises UnreadableAnswer: for anything else.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMGTP]?)[BcnN]?", text.strip())
    if not found:
        raise UnreadableAnswer(f"{text!r} is not an amount of memory in a known form.")
    return int(float(found.group(1)) * _UNITS[found.group(2) or "M"] / 2**20)


def tres(text: str) -> dict[str, int]:
    """``cpu=2,gres/gpu:a100=4,mem=64G``: name → count, memory in MiB. Entries that are no plain numbers are left out."""
    found = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name == "mem" and value:
            found[name] = memory_mb(value)
        elif value.isdigit():
            found[name] = int(value)
    return found


def _gres(text: str) -> tuple[Gres, ...]:
    """Of one node, all of them: a node that seems to hold less than it does would make a possible job look impossible."""
    found = gres_list(text)
    if len(found) != len(gres_words(text)):
        raise UnreadableAnswer(f"sinfo printed generic resources of an unknown form: {text[:200]!r}")
    return tuple(found)


def _partition(pairs: dict[str, str]) -> Partition:
    return Partition(
        name=pairs["PartitionName"],
        state=pairs.get("State", "UP"),
        default=pairs.get("Default") == "YES",
        max_time_s=limit_s(pairs.get("MaxTime", "")),
        max_nodes=_number(pairs.get("MaxNodes", "")),
        min_nodes=_number(pairs.get("MinNodes", "")) or 0,
        total_nodes=_number(pairs.get("TotalNodes", "")),
        max_cpus_per_node=_number(pairs.get("MaxCPUsPerNode", "")),
        max_memory_per_node_mb=_number(pairs.get("MaxMemPerNode", "")),
        allow_accounts=_allowed(pairs.get("AllowAccounts", "ALL")),
        deny_accounts=_list(pairs.get("DenyAccounts", "")),
        allow_qos=_allowed(pairs.get("AllowQos", "ALL")),
        deny_qos=_list(pairs.get("DenyQos", "")),
        qos=_word(pairs.get("QoS", "")),
    )


def _records(text: str, first: str) -> Iterator[dict[str, str]]:
    """``Name=value`` pairs of every line that begins with ``first``; values hold no blanks in what is read here."""
    for line in text.splitlines():
        if line.startswith(f"{first}="):
            yield dict(pair.partition("=")[::2] for pair in line.split() if "=" in pair)


def _rows(text: str, columns: int, command: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if not line.strip() or line.startswith("CLUSTER: "):
            continue
        parts = line.split("|")
        if len(parts) != columns:
            raise UnreadableAnswer(f"{command} printed a line of an unknown form: {line[:200]!r}")
        yield [part.strip() for part in parts]


def _allowed(text: str) -> tuple[str, ...] | None:
    return None if text.upper() in ("ALL", "", "(NULL)") else _list(text)


def _list(text: str) -> tuple[str, ...]:
    return () if text.upper() in _NO_LIMIT else tuple(part.strip() for part in text.split(",") if part.strip())


def _word(text: str) -> str | None:
    return None if text.upper() in _NO_LIMIT else text


def _number(text: str) -> int | None:
    if text.strip().upper() in _NO_LIMIT:
        return None
    if not text.strip().isdigit():
        raise UnreadableAnswer(f"{text!r} is not a number in a known form.")
    return int(text)
