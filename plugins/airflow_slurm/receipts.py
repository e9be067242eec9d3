"""Who submitted what for whom: the durable record between Airflow and Slurm.

Airflow may run a task twice, forget a worker between two lines, or run the same work for two DAG runs. What keeps one
piece of work at one Slurm job is this record, written *around* every step of a submission. It is a small interface,
:class:`ReceiptStore`; an application can put its own database behind it. Operators and triggers carry a store as a
dotted path and a JSON config, since both are rebuilt in other processes: see :func:`load_store`.

:class:`FileReceipts` is a complete store in a folder.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol, Self, runtime_checkable

from airflow_slurm.errors import BadConnection
from airflow_slurm.truth.view import JobView

#: Who waits for a job: exactly the keys dag_id, run_id, task_id (texts) and map_index (-1 for an unmapped task).
Owner = dict[str, Any]


@dataclass(frozen=True)
class Receipt:
    """Proof of one submission. Times are seconds since the epoch by the submitter's clock, but for ``queued_at``.

    :ivar job_id: Slurm's id. :ivar job_name: the name it can be found by.
    :ivar conn_id: the Airflow connection it was submitted over. :ivar cluster: its name, where Slurm said one.
    :ivar released_at: when its hold was lifted; None before. A hold seen after that is somebody else's, and stays.
    :ivar log_path: where its output is written, on the cluster; of an array with ``%a`` for the task's number.
    :ivar array: of an array, the task numbers it was submitted with, such as ``0-3,7%2``.
    :ivar queued_at: when the job was submitted by Slurm's own clock (its SubmitTime), or else the login node's right after sbatch's answer:
        what the start of a controller is compared with. None if nobody knows.
    :ivar requeue: whether Slurm may put it back, as it was submitted; None if nobody knows, as of one that was found by its name.
    """

    job_id: str
    job_name: str
    conn_id: str
    cluster: str | None = None
    submitted_at: float | None = None
    released_at: float | None = None
    log_path: str | None = None
    array: str | None = None
    queued_at: float | None = None
    requeue: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON object that :meth:`from_json` takes back."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The receipt that was written; fields of a newer version are passed over."""
        known = {f.name for f in fields(cls)}
        return cls(**{name: item for name, item in value.items() if name in known})


@dataclass(frozen=True)
class Claim:
    """The answer to :meth:`ReceiptStore.claim`.

    :ivar n: number of the submission, 1 and up, without gaps within a key.
    :ivar receipt: proof, if the job is known to be queued; None if nobody knows, or nothing was sent yet.
    :ivar adopted: False if this very call made submission ``n``: then nothing can have been sent. True otherwise: then
        a job may exist even without a receipt, and has to be looked up before anything is sent.
    :ivar since: when submission ``n`` was first claimed: no job of it can be older.
    :ivar ending: the last owner had given it up and it is being ended. Don't wait for it: see that it ends, close it,
        claim again.
    :ivar token: of this very claim, see :class:`KeepsTokens`; None if the store keeps none, or added no owner.
    """

    n: int
    receipt: Receipt | None
    adopted: bool
    since: float
    ending: bool = False
    token: str | None = None


@dataclass(frozen=True)
class JobEnd:
    """How a submission was closed.

    :ivar outcome: ``succeeded`` (accepted), ``failed``, ``interrupted`` (the next submission goes on), ``cancelled``
        (given up by its last owner), ``lost`` (a person decided that it is gone) or ``ended`` (a person saw it end).
    :ivar view: the last that was seen of the job.
    :ivar closed_by: a task, the reconciler or a person.
    :ivar shards: of an array: how each of its tasks ended, by its number, as :class:`airflow_slurm.truth.shards.ShardEnd` in JSON.
    """

    outcome: str
    cause: str = ""
    detail: str = ""
    view: JobView | None = None
    closed_by: str = ""
    shards: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self) | {"view": self.view.to_json() if self.view else None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The end that was written."""
        known = {f.name for f in fields(cls)}
        kept = {name: item for name, item in value.items() if name in known}
        return cls(**{**kept, "view": JobView.from_json(value["view"]) if value.get("view") else None})


@dataclass(frozen=True)
class Submission:
    """One submission that is not closed, as the reconciler sees it."""

    key: str
    n: int
    receipt: Receipt | None
    owners: tuple[Owner, ...]
    since: float
    ending: bool = False


@dataclass(frozen=True)
class Record:
    """One submission as it is kept, live or closed.

    :ivar view: the last that was seen of the job. :ivar end: how it was closed; None while it is live.
    :ivar owners: everyone who has waited for it, those that gave it up included.
    """

    key: str
    n: int
    since: float
    receipt: Receipt | None = None
    view: JobView | None = None
    end: JobEnd | None = None
    owners: tuple[Owner, ...] = ()
    incidents: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The record that a store gave."""
        return cls(
            key=value["key"],
            n=int(value["n"]),
            since=float(value["since"]),
            receipt=Receipt.from_json(value["receipt"]) if value.get("receipt") else None,
            view=JobView.from_json(value["view"]) if value.get("view") else None,
            end=JobEnd.from_json(value["end"]) if value.get("end") else None,
            owners=tuple(value.get("owners", ())),
            incidents=tuple(value.get("incidents", ())),
        )


@runtime_checkable
class KeepsHistory(Protocol):
    """What a store does besides, for arrays (only failed tasks are submitted again) and for the page of a task."""

    def history(self, key: str) -> list[dict[str, Any]]:
        """All submissions of a key, oldest first, as :class:`Record` in JSON: ``receipt``, ``view`` and ``end`` as they were
        written, or None; ``since`` in seconds since the epoch."""


@runtime_checkable
class KeepsKeys(Protocol):
    """What a store does besides, so that the reconciler can tell jobs that it once knew from those of another Airflow under the same login."""

    def claimed_keys(self) -> Iterable[str]:
        """Every key that was ever claimed, its submissions closed or not."""


@runtime_checkable
class KeepsConnections(Protocol):
    """What a store does besides, so that a job whose receipt was never written is looked up where it was sent, also by tasks that name another
    connection. Without it, a task that comes back with another connection knows only by itself."""

    def sent_over(self, key: str, n: int, conn_id: str | None = None) -> str | None:
        """Over which connection submission ``n`` is sent; None if that was not kept.

        :param conn_id: kept, durably, before returning, unless one is kept already: of several callers the first counts, for all of them.
        """


@runtime_checkable
class KeepsTokens(Protocol):
    """What a store does besides, so that whoever acts late for an old try of a task takes nothing from its next one, which is the same owner: each
    claim leaves a fresh token with its owner, in place of the one before. Tokens are no part of an :data:`Owner`."""

    def token_of(self, key: str, owner: Owner) -> str | None:
        """The token of the owner's last claim of the live submission; None if there is none, as of one that an earlier version of the store kept."""

    def drop_owner(self, key: str, owner: Owner, token: str | None = None) -> int:
        """As :meth:`ReceiptStore.drop_owner`. Given a token, an owner with another one, or with none, stays."""


@runtime_checkable
class ReceiptStore(Protocol):
    """What a store has to do. Every call may come twice, from several processes at once, and from any thread.

    A *key* names a piece of work. Of all its submissions, numbered 1, 2, …, at most the last one is *live* (not closed).
    """

    def claim(self, key: str, owner: Owner) -> Claim:
        """Take part in the live submission of ``key``, or make the next one if none is live; atomically.

        Adds ``owner`` either way, except to a submission that is *ending*. Exactly one of several callers at the same
        moment gets ``adopted=False``.
        """

    def record(self, key: str, n: int, receipt: Receipt) -> None:
        """Store the receipt of submission ``n``, durably, before returning. The last one written stays.

        It is written after sbatch, again when the hold is lifted, and again if another job of that name turns out to be
        the older one. After ``close`` it changes nothing.
        """

    def observe(self, key: str, n: int, view: JobView) -> None:
        """Keep the last that was seen of the job, for people to read. Nothing is decided by it."""

    def close(self, key: str, n: int, end: JobEnd) -> None:
        """End submission ``n`` and forget its owners, so that the next claim makes a new one.

        The first close stays; later ones do nothing.
        """

    def get(self, key: str) -> Submission | None:
        """The live submission of ``key``; None if all are closed, or none was made."""

    def drop_owner(self, key: str, owner: Owner) -> int:
        """Remove an owner and return how many are left.

        If none is left, the live submission is marked as *ending* in the same transaction: whoever claims afterwards is
        told so and does not adopt a job that is about to be cancelled. Dropping an owner that isn't there marks nothing
        unless no owner is left.
        """

    def incident(self, key: str, n: int, what: str, detail: Mapping[str, Any]) -> None:
        """Append a note about something that should not have happened, such as two jobs of one name."""

    def live(self) -> list[Submission]:
        """All submissions that are not closed."""


def token_of(store: ReceiptStore, key: str, owner: Owner) -> str | None:
    """The token of an owner's last claim, to be read before anything is decided about it; None in a store that keeps none."""
    return store.token_of(key, owner) if isinstance(store, KeepsTokens) else None


def drop_claim(store: ReceiptStore, key: str, owner: Owner, token: str | None) -> int:
    """Remove an owner unless it has claimed anew since the token was read, and return how many are left. Without a token, in any case."""
    return store.drop_owner(key, owner, token) if token is not None and isinstance(store, KeepsTokens) else store.drop_owner(key, owner)


def history_of(store: ReceiptStore | KeepsHistory, key: str) -> list[Record]:
    """All submissions of a key, oldest first; none of a store that keeps no history."""
    return [Record.from_json(value) for value in store.history(key)] if isinstance(store, KeepsHistory) else []


def load_store(path: str, config: Mapping[str, Any]) -> ReceiptStore:
    """Rebuild a store from the dotted path of its class and the keyword arguments that it takes.

    :raises BadConnection: if there is no such class, or it is no store.
    """
    module_name, _, name = path.rpartition(".")
    try:
        store = getattr(importlib.import_module(module_name), name)(**config)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise BadConnection(f"No receipt store {path!r}: {error}. Give the dotted path of a class and its arguments.") from error
    if not isinstance(store, ReceiptStore):
        raise BadConnection(f"{path!r} is no receipt store: it lacks methods of airflow_slurm.receipts.ReceiptStore.")
    return store
