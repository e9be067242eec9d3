"""One pure parser for every Slurm answer. Text in, values out; what can't be read is said, not guessed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from airflow_slurm.errors import AnswerLost, UnreadableAnswer
from airflow_slurm.slurm.commands import ACCOUNTING_COLUMNS, DELIMITER, HOLD_COLUMNS, QUEUE_COLUMNS, ROW_END
from airflow_slurm.slurm.states import State, parse_state

#: What stands before the rows of each cluster, where several were asked.
_HEADINGS = re.compile(r"\A(?:CLUSTER: [^\n]*(?:\n|\Z)|[ \t\r]*\n)+")
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
    :ivar gpus: that it was given; None where accounting doesn't say what it was given.
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
    gpus: int | None = None


@dataclass(frozen=True)
class Controller:
    """What a controller says of itself.

    :ivar booted_at: when it was started, in seconds since the epoch; None if it doesn't say. :ivar said_at: when it said so, by the same clock.
    :ivar own_uids: the users that Slurm's own daemons run as, root always among them.
    """

    booted_at: float | None = None
    own_uids: frozenset[int] = frozenset({0})
    said_at: float | None = None


def between_marks(text: str, mark: str) -> tuple[str, int]:
    """What a command wrote, without what start-up files wrote around it, and its exit code.

    :raises AnswerLost: if either mark is missing: the answer is not whole.
    """
    found = re.search(rf"(?:^|\n){mark}B\n(.*?)\n?\n{mark}E:([0-9]+)(?:\r?\n|$)", "\n" + text, re.DOTALL)
    if not found:
        raise AnswerLost("The answer of a remote command did not arrive whole.")
    return found.group(1), int(found.group(2))


def with_row_ends(text: str, mark: str) -> str:
    """The answer to a question that held :data:`~airflow_slurm.slurm.commands.ROW_END`, with it in the mark's place, and nowhere else."""
    return text.replace(ROW_END, "\ufffd").replace(mark, ROW_END)


def clock_behind(text: str, mark: str) -> float | None:
    """The far side's clock after the first of two commands, in seconds since the epoch; None if it did not arrive."""
    found = re.search(rf"\n{mark}E:[0-9]+\r?\n{mark}C:([0-9]+)\r?\n", text)
    return float(found.group(1)) if found else None


def sbatch_receipt(text: str) -> tuple[str, str | None]:
    """Job id and cluster from any form in which sbatch confirms: ``12``, ``12;c1``, ``Submitted batch job 12 on cluster c1``.

    :raises AnswerLost: if no line is a confirmation.
    """
    for line in reversed(text.split("\n")):
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
        return [_queue_row(columns) for columns in _queue_columns(text, len(QUEUE_COLUMNS))]
    rows = []
    for columns in _queue_columns(text, len(QUEUE_COLUMNS) + len(HOLD_COLUMNS)):
        *usual, eligible, dependency, name = columns
        waits = dependency.strip() not in ("", "(null)")
        rows.append(replace(_queue_row([*usual, name]), first_hold=epoch(eligible) is None and not waits))
    return rows


def accounting_rows(text: str) -> list[AccountingRow]:
    """Rows of :func:`airflow_slurm.slurm.commands.sacct`; a step (``12.batch``) only says that its job ran, incarnations keep sacct's order.

    :raises UnreadableAnswer: for a line with too few columns.
    """
    rows = [_accounting_row(columns) for columns in _accounting_columns(text)]
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


def controller(text: str) -> Controller:
    """Out of ``scontrol show config``: ``BOOT_TIME``, and the users of the lines ``SlurmUser`` and ``SlurmdUser``, such as ``slurm(64030)``."""
    found = re.search(r"^BOOT_TIME\s*=\s*(\S+)", text, re.MULTILINE)
    uids = re.findall(r"^Slurmd?User\s*=\s*\S*\(([0-9]+)\)", text, re.MULTILINE)
    said = re.search(r"^Configuration data as of ([0-9]+)\s*$", text, re.MULTILINE)
    now = float(said.group(1)) if said else None
    return Controller(epoch(found.group(1)) if found else None, frozenset({0, *map(int, uids)}), now)


def node_reasons(text: str) -> list[str]:
    """Why nodes are down or drained, out of ``scontrol --oneliner show node``; nothing of those that are well."""
    return [found.strip() for found in re.findall(r"\bReason=([^\[\n]*)", text) if found.strip()]


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


def _queue_columns(text: str, columns: int) -> Iterator[list[str]]:
    """The columns of each row of squeue, whose rows end with a mark; recorded answers have a line each."""
    end = f"{DELIMITER}{ROW_END}\n" if ROW_END in text else "\n"
    *rows, rest = (text.removesuffix("\n") + "\n").split(end)
    if rest.strip() and not _HEADINGS.fullmatch(rest):
        raise UnreadableAnswer(f"squeue printed a row without its end: {rest[:200]!r}")
    rows = [_HEADINGS.sub("", row) for row in rows]
    return _checked((row.split(DELIMITER, columns - 1) for row in rows if row.strip()), columns, "squeue")


def _accounting_columns(text: str) -> Iterator[list[str]]:
    """The columns of each row of sacct, each of which ends with a mark; recorded answers have a line each, without the last column."""
    width = len(ACCOUNTING_COLUMNS)
    if ROW_END not in text:
        lines = (line for line in text.split("\n") if line.strip() and not line.startswith("CLUSTER: "))
        return _checked((line.split(DELIMITER, width - 2) for line in lines), width - 1, "sacct")
    *cells, rest = text.split(DELIMITER + ROW_END)
    if rest.strip() or len(cells) % width:
        raise UnreadableAnswer(f"sacct printed a row without its end: {rest[-200:]!r}")
    cells[::width] = [_HEADINGS.sub("", first.removeprefix("\n")) for first in cells[::width]]
    return _checked((cells[at : at + width] for at in range(0, len(cells), width)), width, "sacct")


def _checked(rows: Iterable[list[str]], width: int, command: str) -> Iterator[list[str]]:
    for columns in rows:
        if len(columns) < width or not columns[0].strip()[:1].isdigit():
            raise UnreadableAnswer(f"{command} printed a row of an unknown form: {DELIMITER.join(columns)[:200]!r}")
        yield columns


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
    raw, array, state, exit_code, submit, start, end, elapsed, nodes, node_list, name, *allocated = columns
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
        gpus=_gpus(*allocated) if allocated else None,
    )


def _gpus(allocated: str) -> int | None:
    """GPUs out of ``billing=8,cpu=8,gres/gpu=2,gres/gpu:a100=2,mem=64G,node=1``; None where a run has no resources, or the site counts no GPUs."""
    if not allocated.strip():
        return None
    found = re.search(r"(?:^|,)gres/gpu=([0-9]+)(?:,|$)", allocated.strip())
    typed = re.findall(r"(?:^|,)gres/gpu:[^=,]+=([0-9]+)(?=,|$)", allocated.strip())
    return int(found.group(1)) if found else sum(map(int, typed))


def _nodes(text: str) -> str:
    """A node list; empty where sacct says ``None assigned``."""
    return "" if text.strip().startswith("None") else text.strip()
