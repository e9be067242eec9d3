"""Which tasks of a sharded piece of work are done, over all its submissions. Pure.

Submissions of one key make *rounds*: a round goes on until one of its submissions is closed as succeeded. Within a round a
shard that was accepted is not submitted again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from airflow_slurm.errors import InvalidSpec, JobFailed, Resubmit
from airflow_slurm.receipts import Record
from airflow_slurm.truth.arrays import expression, indices_of
from airflow_slurm.truth.reconcile import FORGOTTEN
from airflow_slurm.truth.view import JobView


@dataclass(frozen=True)
class ShardEnd:
    """How one task of an array ended.

    :ivar n: the submission it belonged to. :ivar job_id: such as ``5501_3``.
    :ivar outcome: ``succeeded`` (accepted) or ``failed``.
    :ivar result: JSON that ``accept_shard`` returned.
    :ivar gpu_seconds: of all its runs, and ``lost_gpu_seconds`` of those that Slurm ended before the program had; None where accounting doesn't say.
    """

    index: int
    n: int
    job_id: str
    outcome: str
    state: str = ""
    cause: str = ""
    detail: str = ""
    retryable: bool = False
    exit_code: int | None = None
    elapsed_s: float | None = None
    result: Any = None
    gpu_seconds: float | None = None
    lost_gpu_seconds: float | None = None

    @classmethod
    def of(cls, index: int, n: int, view: JobView) -> Self:
        """The end of a task as Slurm says it, before what it made has been looked at."""
        return cls(
            index,
            n,
            view.job_id,
            "failed",
            view.state,
            view.cause,
            retryable=view.retryable,
            exit_code=view.exit_code,
            elapsed_s=view.elapsed_s,
            gpu_seconds=_sum(run.gpu_seconds for run in view.incarnations),
            lost_gpu_seconds=_sum(run.gpu_seconds for run in view.incarnations if run.lost),
        )

    @property
    def succeeded(self) -> bool:
        """Whether it need not run again."""
        return self.outcome == "succeeded"

    def to_json(self) -> dict[str, Any]:
        """A JSON object that :meth:`from_json` takes back."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The end that was written; fields of a newer version are passed over."""
        known = {f.name for f in fields(cls)}
        return cls(**{name: item for name, item in value.items() if name in known})


def _sum(seconds: Iterable[float | None]) -> float | None:
    known = [value for value in seconds if value is not None]
    return sum(known) if known else None


def wanted_shards(shards: Any) -> list[int]:
    """The task numbers that are asked for: a count, ``"4"`` (as templates give it), ``"0-3,9"``, or the numbers themselves.

    :raises InvalidSpec: for anything else, or none at all.
    """
    if isinstance(shards, str) and not shards.strip().isdigit():
        try:
            return indices_of(shards.strip())
        except Exception as error:
            raise InvalidSpec("shards", f"{shards!r} is neither a count nor a list such as 0-3,9") from error
    if isinstance(shards, str):
        shards = int(shards)
    found = list(range(shards)) if isinstance(shards, int) and not isinstance(shards, bool) else shards
    if not isinstance(found, Sequence) or not found or not all(type(i) is int and i >= 0 for i in found):
        raise InvalidSpec("shards", f"{shards!r} is neither a count of at least 1 nor a list of task numbers")
    return sorted(set(found))


def first_of_round(history: Iterable[Record]) -> int:
    """The number with which the present round began: after the last submission that was closed as succeeded."""
    return max((record.n + 1 for record in history if record.end is not None and record.end.outcome == "succeeded"), default=1)


def ends_since(history: Iterable[Record], from_n: int, before_n: int | None = None) -> dict[int, ShardEnd]:
    """The last end of every shard in submissions ``from_n`` up to (without) ``before_n``; one that succeeded stays so."""
    found: dict[int, ShardEnd] = {}
    for record in sorted(history, key=lambda record: record.n):
        if record.n < from_n or (before_n is not None and record.n >= before_n) or record.end is None:
            continue
        merge(found, (ShardEnd.from_json(value) for value in record.end.shards.values()))
    return found


def merge(known: dict[int, ShardEnd], ends: Iterable[ShardEnd]) -> dict[int, ShardEnd]:
    """Add later ends to earlier ones, in place."""
    for end in ends:
        if end.index not in known or not known[end.index].succeeded:
            known[end.index] = end
    return known


def remaining(wanted: Iterable[int], ends: Mapping[int, ShardEnd]) -> list[int]:
    """The shards that still have to run."""
    return [index for index in wanted if index not in ends or not ends[index].succeeded]


def settle(ends: Sequence[ShardEnd], kind: str, *, used: int, most: int, blameless: Collection[str] = (FORGOTTEN,)) -> None:
    """What follows from the ends of all tasks of a submission: nothing, if each is done.

    :param kind: what they are called, such as ``shards``. :param used: how often some were submitted again in this try of the task, and ``most``:
        how often some that failed may be. :param blameless: causes that say nothing about the program; what ended so goes on however often others failed.
    :raises JobFailed: one failed for good, or too often. :raises Resubmit: those that are not done, and only they, are to be submitted again.
    """
    left = [end for end in ends if not end.succeeded]
    if not left:
        return
    failed = [end for end in left if end.cause not in blameless]
    named, what = (failed, "failed") if failed else (left, "are not done")
    shown = "; ".join(f"{end.job_id} {end.state}: {end.cause} {end.detail}".strip() for end in named[:5])
    words = f"{len(named)} of {len(ends)} {kind} {what} ({expression([end.index for end in named])}): {shown}"
    for_good = [end for end in failed if not end.retryable]
    if for_good:
        raise JobFailed(words, retryable=False, cause=for_good[0].cause)
    if failed and used >= most:
        raise JobFailed(words, cause=failed[0].cause)
    again = f"{words}. Only these are sent again."
    if failed:
        raise Resubmit(f"{kind}_failed", again)
    only_forgotten = all(end.cause == FORGOTTEN for end in left)
    raise Resubmit(FORGOTTEN if only_forgotten else f"{kind}_interrupted", again)
