"""One pure parser for every Slurm answer. Text in, values out; what can't be read is said, not guessed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from zoneinfo import ZoneInfo

from airflow_slurm.errors import AnswerLost, UnreadableAnswer
from airflow_slurm.slurm.commands import ACCOUNTING_COLUMNS, DELIMITER, HOLD_COLUMNS, QUEUE_COLUMNS
from airflow_slurm.slurm.states import State, parse_state

_NOTHING = {"", "N/A", "NONE", "UNKNOWN", "INVALID", "(NULL)", "NOT_SET"}


@dataclass(frozen=True)
class QueueRow:
    """One line of squeue. Times are seconds since the epoch; for a waiting job, start and end are the controller's estimate.

    :ivar first_hold: whether it was never eligible, and that not because it waits for another job; None if that wasn't asked.
    """

    job_id: str
    array_id: str
    state: State
    restarts: int
    exit_code: int | None
    signal: int | None
    submit_time: float | None
    start_time: float | None
    end_time: float | None
    nodes: int
    node_list: str
    reason: str
    name: str
    first_hold: bool | None = None

    @property
    def held_by_us(self) -> bool:
        """Whether it waits in the hold it was submitted with: a later requeue, or an administrator's hold, looks different."""
        return self.state.name == "PENDING" and self.reason == "JobHeldUser" and self.restarts == 0


@dataclass(frozen=True)
class AccountingRow:
    """One line of sacct: one incarnation of one job. Times are seconds since the epoch.

    :ivar ran: whether it has a start time, or a step (where steps were asked for).
    """

    job_id: str
    array_id: str
    state: State
    exit_code: int | None
    signal: int | None
    submit_time: float | None
    start_time: float | None
    end_time: float | None
    elapsed_s: float | None
    nodes: int
    node_list: str
    name: str
    ran: bool = False


@dataclass(frozen=True)
class Controller:
    """What a controller says of itself.

    :ivar booted_at: when it was started, in seconds since the epoch; None if it doesn't say.
    :ivar own_uids: the users that Slurm's own daemons run as, root always among them.
    """

    booted_at: float | None = None
    own_uids: frozenset[int] = frozenset({0})


@dataclass(frozen=True)
class SlurmTime:
    """A time as it was printed, with the zone it was printed in; ``epoch`` is None where it doesn't name one instant."""

    raw: str
    zone: str
    epoch: float | None


def between_marks(text: str, mark: str) -> tuple[str, int]:
    """What a command wrote, without what start-up files wrote around it, and its exit code.

    :raises AnswerLost: if either mark is missing: the answer is not whole.
    """
    found = re.search(rf"(?:^|\n){mark}B\n(.*?)\n?\n{mark}E:([0-9]+)(?:\r?\n|$)", "\n" + text, re.DOTALL)
    if not found:
        raise AnswerLost("The answer of a remote command did not arrive whole.")
    return found.group(1), int(found.group(2))


def sbatch_receipt(text: str) -> tuple[str, str | None]:
    """Job id and cluster from any form in which sbatch confirms: ``12``, ``12;c1``, ``Submitted batch job 12 on cluster c1``.

    :raises AnswerLost: if no line is a confirmation.
    """
    for line in reversed(text.splitlines()):
        line = line.strip()
        if found := re.fullmatch(r"([0-9]+)(?:;([A-Za-z0-9._-]+))?", line):
            return found.group(1), found.group(2)
        if found := re.search(r"Submitted batch job ([0-9]+)(?: on cluster ([A-Za-z0-9._-]+))?\s*$", line):
            return found.group(1), found.group(2)
    raise AnswerLost("sbatch answered without a job id.")


def queue_rows(text: str, holds: bool = False) -> list[QueueRow]:
    """Rows of :func:`airflow_slurm.slurm.commands.squeue`. ``CLUSTER:`` headings of a multi-cluster answer are passed over.

    :param holds: whether it was asked for :data:`~airflow_slurm.slurm.commands.HOLD_COLUMNS` too.
    :raises UnreadableAnswer: for a line that is neither.
    """
    if not holds:
        return [_queue_row(columns) for columns in _lines(text, len(QUEUE_COLUMNS), "squeue")]
    rows = []
    for columns in _lines(text, len(QUEUE_COLUMNS) + len(HOLD_COLUMNS), "squeue"):
        *usual, eligible, dependency, name = columns
        waits = dependency.strip() not in ("", "(null)")
        rows.append(replace(_queue_row([*usual, name]), first_hold=epoch(eligible) is None and not waits))
    return rows


def accounting_rows(text: str) -> list[AccountingRow]:
    """Rows of :func:`airflow_slurm.slurm.commands.sacct`; a step (``12.batch``) only says that its job ran, incarnations keep sacct's order.

    :raises UnreadableAnswer: for a line with too few columns.
    """
    rows = [_accounting_row(columns) for columns in _lines(text, len(ACCOUNTING_COLUMNS), "sacct")]
    stepped = {row.job_id.partition(".")[0] for row in rows if "." in row.job_id}
    jobs = [row for row in rows if "." not in row.job_id]
    return [replace(row, ran=True) if row.start_time is not None or row.job_id in stepped else row for row in jobs]


def epoch(text: str) -> float | None:
    """A time printed with ``SLURM_TIME_FORMAT=%s``; None for ``N/A``, ``Unknown``, ``None`` and nothing."""
    word = text.strip()
    if word.upper() in _NOTHING or word == "0":
        return None
    if not word.isdigit():
        raise UnreadableAnswer(f"Slurm printed the time {word!r} instead of seconds since the epoch.")
    return float(word)


def local_time(text: str, zone: str) -> SlurmTime | None:
    """A time that a site prints in its own zone. The hour that comes twice in autumn stays without an instant."""
    word = text.strip()
    if word.upper() in _NOTHING:
        return None
    try:
        moment = datetime.strptime(word, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=ZoneInfo(zone))
    except ValueError as error:
        raise UnreadableAnswer(f"Slurm printed the time {word!r} in an unknown form.") from error
    first, second = moment.timestamp(), moment.replace(fold=1).timestamp()
    return SlurmTime(word, zone, first if first == second else None)


def controller(text: str) -> Controller:
    """Out of ``scontrol show config``: ``BOOT_TIME``, and the users of the lines ``SlurmUser`` and ``SlurmdUser``, such as ``slurm(64030)``."""
    found = re.search(r"^BOOT_TIME\s*=\s*(\S+)", text, re.MULTILINE)
    uids = re.findall(r"^Slurmd?User\s*=\s*\S*\(([0-9]+)\)", text, re.MULTILINE)
    return Controller(epoch(found.group(1)) if found else None, frozenset({0, *map(int, uids)}))


def node_reasons(text: str) -> list[str]:
    """Why nodes are down or drained, out of ``scontrol --oneliner show node``; nothing of those that are well."""
    return [found.strip() for found in re.findall(r"\bReason=([^\[\n]*)", text) if found.strip()]


def elapsed_s(text: str) -> float | None:
    """Seconds from ``[D-]HH:MM:SS``, ``MM:SS`` or ``MM:SS.mmm``; None for anything that is no duration."""
    found = re.fullmatch(r"(?:(?:([0-9]+)-)?([0-9]+):)?([0-9]+):([0-9]+(?:\.[0-9]+)?)", text.strip())
    if not found:
        return None
    days, hours, minutes, seconds = found.groups()
    return int(days or 0) * 86400 + int(hours or 0) * 3600 + int(minutes) * 60 + float(seconds)


def array_tasks(job_id: str) -> list[int]:
    """The task numbers that one array id stands for: ``30_[2-4,9%2]`` is 2, 3, 4 and 9 (``%2`` is a throttle).

    An id that is no array's, and one cut short by Slurm (``30_[1-9,...]``), is refused or read as far as it goes:
    a plain id gives no tasks.

    :raises UnreadableAnswer: for a malformed range.
    """
    _, _, tail = job_id.partition("_")
    if not tail:
        return []
    inner = tail.strip("[]").partition("%")[0]
    tasks: list[int] = []
    for part in inner.split(","):
        if part == "...":
            break
        found = re.fullmatch(r"([0-9]+)(?:-([0-9]+)(?::([0-9]+))?)?", part)
        if not found:
            raise UnreadableAnswer(f"{job_id!r} is not an array id in a known form.")
        low, high, step = int(found.group(1)), found.group(2), int(found.group(3) or 1)
        tasks.extend(range(low, (int(high) if high else low) + 1, step))
    return tasks


def matches(wanted: str, raw_id: str, array_id: str) -> bool:
    """Whether a row is about ``wanted``, in either form in which array tasks and het components are named."""
    return wanted in (raw_id, array_id)


def exit_pair(text: str) -> tuple[int | None, int | None]:
    """Exit code and signal from sacct's ``7:0`` or ``0:9``."""
    found = re.fullmatch(r"([0-9]+):([0-9]+)", text.strip())
    return (int(found.group(1)), int(found.group(2))) if found else (None, None)


def wait_status(text: str) -> tuple[int | None, int | None]:
    """Exit code and signal from squeue's ``exit_code``: 22.05 prints the raw wait status (exit 7 is 1792), whose core-dump
    bit is dropped; 24.11 prints ``7:0``."""
    if not text.strip().isdigit():
        return exit_pair(text)
    status = int(text)
    return status >> 8, status & 0x7F


def _lines(text: str, columns: int, command: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if not line.strip() or line.startswith("CLUSTER: "):
            continue
        parts = line.split(DELIMITER, columns - 1)
        if len(parts) < columns or not parts[0].strip()[:1].isdigit():
            raise UnreadableAnswer(f"{command} printed a line of an unknown form: {line[:200]!r}")
        yield parts


def _queue_row(columns: list[str]) -> QueueRow:
    raw, array, state, restarts, status, submit, start, end, nodes, node_list, reason, name = columns
    code, signal = wait_status(status)
    return QueueRow(
        raw.strip(),
        array.strip(),
        parse_state(state),
        int(restarts) if restarts.strip().isdigit() else 0,
        code,
        signal,
        epoch(submit),
        epoch(start),
        epoch(end),
        int(nodes) if nodes.strip().isdigit() else 0,
        _nodes(node_list),
        reason.strip(),
        name,
    )


def _accounting_row(columns: list[str]) -> AccountingRow:
    raw, array, state, exit_code, submit, start, end, elapsed, nodes, node_list, name = columns
    code, signal = exit_pair(exit_code)
    return AccountingRow(
        raw.strip(),
        array.strip(),
        parse_state(state),
        code,
        signal,
        epoch(submit),
        epoch(start),
        epoch(end),
        float(elapsed) if elapsed.strip().isdigit() else None,
        int(nodes) if nodes.strip().isdigit() else 0,
        _nodes(node_list),
        name,
    )


def _nodes(text: str) -> str:
    """A node list; empty where sacct says ``None assigned``."""
    return "" if text.strip().startswith("None") else text.strip()
