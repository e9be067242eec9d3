"""A receipt store made of files in one folder that workers, triggerers and the reconciler all see.

``mkdir`` decides who makes a submission, so it needs no lock and no server. Its promise of one live submission per key
holds for this one folder only: two folders, or two file systems, know nothing of each other.

::

    ROOT/<sha256 of key>/key.json
    ROOT/<sha256 of key>/<n>/claimed.json  connection.json  receipt.json  view.json  end.json  ending  incidents.jsonl
                              owners/<hash>.<token>.json  dropped/<hash>.<token>.json
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from airflow_slurm.receipts import Claim, JobEnd, Owner, Receipt, Submission
from airflow_slurm.truth.view import JobView


class FileReceipts:
    """See the module. :param root: the folder; made if it isn't there, readable by its user only.

    :param clock: seconds since the epoch.
    """

    def __init__(self, root: str, clock: Callable[[], float] = time.time) -> None:
        self.root = Path(root)
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._clock = clock

    def claim(self, key: str, owner: Owner) -> Claim:
        """See :meth:`airflow_slurm.receipts.ReceiptStore.claim`."""
        folder = self._folder(key)
        folder.mkdir(mode=0o700, exist_ok=True)
        _write_once(folder / "key.json", {"key": key})
        while True:
            last = self._last(key)
            if last and not self._closed(key, last):
                return self._adopt(key, last, owner)
            fresh = folder / str(last + 1)
            try:
                fresh.mkdir(mode=0o700)
            except FileExistsError:
                continue
            since = self._clock()
            _write(fresh / "claimed.json", {"since": since})
            return Claim(last + 1, None, False, since, token=self._put_owner(key, last + 1, owner))

    def record(self, key: str, n: int, receipt: Receipt) -> None:
        """See :meth:`airflow_slurm.receipts.ReceiptStore.record`."""
        if not self._closed(key, n):
            _write(self._folder(key) / str(n) / "receipt.json", receipt.to_json())

    def sent_over(self, key: str, n: int, conn_id: str | None = None) -> str | None:
        """See :meth:`airflow_slurm.receipts.KeepsConnections.sent_over`."""
        path = self._folder(key) / str(n) / "connection.json"
        if conn_id is not None:
            _write_once(path, {"conn_id": conn_id})
        value = _read(path)
        return None if value is None else str(value["conn_id"])

    def observe(self, key: str, n: int, view: JobView) -> None:
        """See :meth:`airflow_slurm.receipts.ReceiptStore.observe`."""
        _write(self._folder(key) / str(n) / "view.json", view.to_json())

    def close(self, key: str, n: int, end: JobEnd) -> None:
        """See :meth:`airflow_slurm.receipts.ReceiptStore.close`."""
        _write_once(self._folder(key) / str(n) / "end.json", end.to_json() | {"closed_at": self._clock()})

    def end_of(self, key: str, n: int) -> JobEnd | None:
        """How a submission was closed, for people; None if it is live, or was never made."""
        value = _read(self._folder(key) / str(n) / "end.json")
        return None if value is None else JobEnd.from_json(value)

    def get(self, key: str) -> Submission | None:
        """See :meth:`airflow_slurm.receipts.ReceiptStore.get`."""
        last = self._last(key)
        if not last or self._closed(key, last):
            return None
        ending = (self._folder(key) / str(last) / "ending").exists()
        return Submission(key, last, self._receipt(key, last), tuple(self._owners(key, last)), self._since(key, last), ending)

    def token_of(self, key: str, owner: Owner) -> str | None:
        """See :meth:`airflow_slurm.receipts.KeepsTokens.token_of`."""
        last = self._last(key)
        if not last or self._closed(key, last):
            return None
        tokens = [path.name.split(".")[1] for path in self._files_of(key, last, owner)]
        return next((each for each in tokens if each != "json"), None)

    def drop_owner(self, key: str, owner: Owner, token: str | None = None) -> int:
        """See :meth:`airflow_slurm.receipts.KeepsTokens.drop_owner`.

        The mark is set and the owners are counted once more: a claim in between either sees the mark, or is counted and
        lifts it.
        """
        last = self._last(key)
        if not last or self._closed(key, last):
            return 0
        folder = self._folder(key) / str(last)
        for path in self._files_of(key, last, owner) if token is None else [folder / "owners" / f"{_owner_name(owner)}.{token}.json"]:
            _put_aside(path, folder / "dropped")
        if left := len(self._owners(key, last)):
            return left
        _write(folder / "ending", {"at": self._clock()})
        if left := len(self._owners(key, last)):
            (folder / "ending").unlink(missing_ok=True)
        return left

    def incident(self, key: str, n: int, what: str, detail: Mapping[str, Any]) -> None:
        """See :meth:`airflow_slurm.receipts.ReceiptStore.incident`."""
        line = json.dumps({"at": self._clock(), "what": what, "detail": dict(detail)}, sort_keys=True)
        with open(self._folder(key) / str(n) / "incidents.jsonl", "a", encoding="utf-8") as file:
            # A line of its own, whatever a process that was killed while it wrote has left before it.
            file.write(f"\n{line}\n")
            file.flush()
            os.fsync(file.fileno())

    def incidents(self, key: str, n: int) -> list[dict[str, Any]]:
        """The notes that :meth:`incident` took, oldest first; one that was not written to its end is named as such."""
        path = self._folder(key) / str(n) / "incidents.jsonl"
        return [_note(line) for line in path.read_text("utf-8", "replace").split("\n") if line.strip()] if path.exists() else []

    def live(self) -> list[Submission]:
        """See :meth:`airflow_slurm.receipts.ReceiptStore.live`."""
        names = [_read(folder / "key.json") for folder in sorted(self.root.iterdir())]
        found = [self.get(name["key"]) for name in names if name is not None]
        return [submission for submission in found if submission is not None]

    def claimed_keys(self) -> list[str]:
        """See :meth:`airflow_slurm.receipts.KeepsKeys.claimed_keys`."""
        names = [_read(folder / "key.json") for folder in sorted(self.root.iterdir())]
        return [name["key"] for name in names if name is not None]

    def history(self, key: str) -> list[dict[str, Any]]:
        """See :meth:`airflow_slurm.receipts.KeepsHistory.history`."""
        return [self._record(key, n) for n in range(1, self._last(key) + 1)]

    def _record(self, key: str, n: int) -> dict[str, Any]:
        folder = self._folder(key) / str(n)
        kept = {name: _read(folder / f"{name}.json") for name in ("receipt", "view", "end")}
        owners = _owners_in(folder / "owners", folder / "dropped")
        return {"key": key, "n": n, "since": self._since(key, n), "owners": owners, "incidents": self.incidents(key, n), **kept}

    def _adopt(self, key: str, n: int, owner: Owner) -> Claim:
        token = self._put_owner(key, n, owner)
        ending = (self._folder(key) / str(n) / "ending").exists()
        if ending:
            (self._folder(key) / str(n) / "owners" / f"{_owner_name(owner)}.{token}.json").unlink(missing_ok=True)
        return Claim(n, self._receipt(key, n), True, self._since(key, n), ending, None if ending else token)

    def _folder(self, key: str) -> Path:
        return self.root / hashlib.sha256(key.encode()).hexdigest()

    def _last(self, key: str) -> int:
        folder = self._folder(key)
        return max((int(p.name) for p in folder.iterdir() if p.name.isdigit()), default=0) if folder.exists() else 0

    def _closed(self, key: str, n: int) -> bool:
        return (self._folder(key) / str(n) / "end.json").exists()

    def _receipt(self, key: str, n: int) -> Receipt | None:
        value = _read(self._folder(key) / str(n) / "receipt.json")
        return Receipt.from_json(value) if value else None

    def _since(self, key: str, n: int) -> float:
        """The moment of the claim; a claimer that died before writing it left the folder's own time."""
        folder = self._folder(key) / str(n)
        value = _read(folder / "claimed.json")
        return float(value["since"]) if value else folder.stat().st_ctime

    def _owners(self, key: str, n: int) -> list[Owner]:
        return _owners_in(self._folder(key) / str(n) / "owners")

    def _put_owner(self, key: str, n: int, owner: Owner) -> str:
        """The token of this claim, whose file takes the place of those before; of two claims at once neither removes the other's."""
        folder, token = self._folder(key) / str(n) / "owners", uuid4().hex
        folder.mkdir(mode=0o700, exist_ok=True)
        before = self._files_of(key, n, owner)
        _write(folder / f"{_owner_name(owner)}.{token}.json", owner)
        for path in before:
            path.unlink(missing_ok=True)
        return token

    def _files_of(self, key: str, n: int, owner: Owner) -> list[Path]:
        """An owner's files: one, or two for a moment; without a token in its name, an earlier version's."""
        return sorted((self._folder(key) / str(n) / "owners").glob(f"{_owner_name(owner)}.*json"))


def _note(line: str) -> dict[str, Any]:
    try:
        note = json.loads(line)
    except ValueError:
        note = None
    if isinstance(note, dict):
        return note
    return {"at": None, "what": "torn_note", "detail": {"text": line[:500]}}


def _put_aside(path: Path, folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    with suppress(FileNotFoundError):
        os.replace(path, folder / path.name)


def _owner_name(owner: Owner) -> str:
    return hashlib.sha256(json.dumps(owner, sort_keys=True).encode()).hexdigest()[:32]


def _owners_in(*folders: Path) -> list[Owner]:
    """Each owner once, however many files it has there."""
    found: dict[str, Owner] = {}
    for path in (path for folder in folders for path in sorted(folder.glob("*.json"))):
        if (owner := _read(path)) is not None:
            found.setdefault(path.name.partition(".")[0], owner)
    return list(found.values())


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return value


def _temporary(path: Path, value: Mapping[str, Any]) -> Path:
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    return temporary


def _write(path: Path, value: Mapping[str, Any]) -> None:
    """Whole or not at all, and on the disk when it returns."""
    os.replace(_temporary(path, value), path)
    _sync_folder(path.parent)


def _write_once(path: Path, value: Mapping[str, Any]) -> None:
    """Whole, and only if it isn't there: a hard link refuses to replace."""
    if path.exists():
        return
    temporary = _temporary(path, value)
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
