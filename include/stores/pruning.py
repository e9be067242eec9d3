"""Checkpoints that nothing needs any more leave the store; what may be needed stays, and what is not known stays too.

Gone are, once nothing happened to their key for a stated time: all checkpoints of a committed key; of a key that is not
committed those of superseded attempts, but for the newest whole ones and for those that its program protected (the members of
an ensemble that are done). Untouched are keys with a live submission, keys that this catalog does not know, and anything that
is a link. Outputs, reports, logs and curves always stay: releases and lineage are made of them.

A removal is a rename (from then on no job sees it), a row of the ledger, then the deletion: cut off anywhere, the next pass ends it.
"""

import posixpath
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from include.domain.errors import RecordError
from include.domain.layout import REFERENCE_CACHES, AttemptName, checkpoint_step
from include.stores.artifacts import ArtifactStore
from include.stores.catalog import Catalog
from include.stores.catalog.database import stamp
from include.stores.catalog.retention import KeyState
from include.stores.errors import StoreError
from include.stores.transfer import is_object_store, replace

CHECKPOINTS = "checkpoints"
ASIDE, REMOVED = ".tmp", ".removed"
"""A save that was cut off, and a removal that was: as `include.runtime.checkpoint` names them."""
LEDGER_KIND = "removed_from_store"
RUNS = "runs"
TOLD_EVERY_S = 10.0


@dataclass(frozen=True)
class Rules:
    """older_than: so long nothing may have happened. keep: whole checkpoints that stay of a key that is not committed, the newest ones."""

    older_than: timedelta = timedelta(days=14)
    keep: int = 2

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise StoreError(f"keep is {self.keep}: of a run that may go on at least the newest whole checkpoint must stay")
        if self.older_than < timedelta(0):
            raise StoreError(f"older_than is {self.older_than}: it must not be negative")


@dataclass(frozen=True)
class Doomed:
    """A folder that may go; `path` is relative to the store's root."""

    path: str
    size_bytes: int


@dataclass(frozen=True)
class Finding:
    """What is to become of one key, or of one cache: `doomed` goes for `reason`; nothing doomed: it stays, for `reason`."""

    subject: str
    what: str
    reason: str
    doomed: tuple[Doomed, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(item.size_bytes for item in self.doomed)


@dataclass(frozen=True)
class _Entry:
    """A plain folder inside some attempt's checkpoints."""

    path: str
    attempt: AttemptName
    written_at: float

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)

    @property
    def step(self) -> int | None:
        return checkpoint_step(self.name)

    @property
    def of_step(self) -> int | None:
        """Of a folder that was cut off too; None for what is nobody's."""
        return checkpoint_step(self.name.removesuffix(REMOVED).removesuffix(ASIDE))


class Pruner:
    """Finds what may go, and removes it.

    Args:
        now: the time that ages are counted from, as an aware datetime.
    """

    def __init__(self, catalog: Catalog, store: ArtifactStore, rules: Rules, now: datetime) -> None:
        if is_object_store(store.fs):
            raise StoreError(f"{store.uri} is an object store: runs and their checkpoints lie in a file system")
        self.catalog, self.store, self.rules = catalog, store, rules
        self.before = now - rules.older_than
        self.looked_at = ""
        # runs/<key>/attempts/<name>/checkpoints/step-N: the folder in which an artifact is registered.
        self._protected = frozenset("/".join(path.split("/")[:6]) for path in catalog.key_states.registered_in_checkpoints())

    def findings(self) -> Iterator[Finding]:
        """One for each run that has checkpoints, and for each cache, as they are looked at."""
        names = sorted(self._folders(RUNS))
        for number, name in enumerate(names, 1):
            self.looked_at = f"{number} of {len(names)} runs looked at"
            entries = list(self._entries(name))
            if entries:
                yield self._of_key(f"sha256:{name}", entries)
        yield from self._caches()

    def remove(self, finding: Finding, actor: str) -> int:
        """Removes what is doomed, and gives its bytes; the same again finds nothing. A key that has meanwhile got a job is left alone."""
        if finding.what != "cache":
            state = self.catalog.key_states.of(finding.subject)
            if state is None or self._why_not(state) is not None:
                return 0
        gone = [(item, aside) for item in finding.doomed if (aside := self._set_aside(item)) is not None]
        if not gone:
            return 0
        told = self._told(finding.subject)
        new = [item for item, _ in gone if not (item.path.endswith(REMOVED) and item.path.removesuffix(REMOVED) in told)]
        if new:
            removed = [{"path": item.path.removesuffix(REMOVED), "size_bytes": item.size_bytes} for item in new]
            payload = {"store": self.store.uri, "what": finding.what, "reason": finding.reason, "removed": removed}
            self.catalog.ledger.append(LEDGER_KIND, payload, actor, subject=finding.subject)
        for _, aside in gone:
            self.store.remove(aside)
        return sum(item.size_bytes for item, _ in gone)

    def _told(self, subject: str) -> set[str]:
        """What the ledger says was removed of it: a pass that was cut off after its row left the folder under its other name."""
        rows = self.catalog.ledger.entries(kind=LEDGER_KIND, subject=subject)
        return {str(item["path"]) for row in rows if row.payload["store"] == self.store.uri for item in row.payload["removed"]}

    def _set_aside(self, item: Doomed) -> str | None:
        """Renames it, so that from now on no job takes it for a checkpoint; None where it is gone, or is no plain folder any more."""
        folder, name = posixpath.split(item.path)
        if name not in self._folders(folder):
            return None
        if name.endswith(REMOVED):
            return item.path
        target = item.path + REMOVED
        self.store.remove(target)
        replace(self.store.fs, self.store.full(item.path), self.store.full(target))
        return target

    def _why_not(self, state: KeyState) -> str | None:
        """Why nothing of this key may go; None where something may."""
        if state.live:
            return "a submission of it is live"
        if state.quiet_since is None:
            return "no submission of it is known, so its jobs are not either"
        return "it is too young" if state.quiet_since > stamp(self.before) else None

    def _of_key(self, key: str, entries: list[_Entry]) -> Finding:
        state = self.catalog.key_states.of(key)
        if state is None:
            return Finding(key, "run", "this catalog does not know it")
        if (why := self._why_not(state)) is not None:
            return Finding(key, state.stage, why)
        old = [entry for entry in entries if entry.written_at < self.before.timestamp() and entry.path not in self._protected]
        if state.committed_at is not None:
            going, reason = old, f"committed {state.committed_at[:10]}"
        else:
            staying = self._needed_to_resume(key, entries)
            newest = max(self.store.attempts(key))
            going = [entry for entry in old if entry.path not in staying and (entry.attempt != newest or entry.name.endswith(REMOVED))]
            reason = "of attempts that were superseded; the run may go on from newer ones"
            if not staying:
                return Finding(key, state.stage, "it is not committed, and none of its checkpoints is whole: a person should look")
        if not going:
            return Finding(
                key, state.stage, "it is not committed, and may go on" if state.committed_at is None else "written to lately, or registered"
            )
        return Finding(key, state.stage, reason, tuple(Doomed(entry.path, self._size(entry.path)) for entry in going))

    def _needed_to_resume(self, key: str, entries: list[_Entry]) -> frozenset[str]:
        """The newest whole ones, and those that the program protected. Sizes are compared; the bytes are the job's to hash."""
        whole = []
        for entry in sorted((entry for entry in entries if entry.step is not None), key=lambda e: (e.step or 0, e.attempt), reverse=True):
            manifest = self._manifest(entry, key)
            if manifest is not None:
                whole.append((entry.path, bool(manifest.get("keep"))))
        newest = {path for path, _ in whole[: self.rules.keep]}
        return frozenset(newest | {path for path, kept in whole if kept})

    def _manifest(self, entry: _Entry, key: str) -> Mapping[str, Any] | None:
        """The manifest of a checkpoint that is whole by its sizes; else None."""
        try:
            stated = self.store.read_json(f"{entry.path}/manifest.json")
            if stated["key"] != key or stated["step"] != entry.step or not stated["files"]:
                return None
            sizes = {posixpath.basename(item["name"]): item["size"] for item in self._ls(entry.path)}
            return stated if all(sizes.get(file["path"]) == file["size"] for file in stated["files"]) else None
        except (StoreError, RecordError, KeyError, TypeError):
            return None

    def _entries(self, name: str) -> Iterator[_Entry]:
        """What lies in the checkpoints of all attempts of a run; links, and names that are nobody's, are passed over."""
        attempts = f"{RUNS}/{name}/attempts"
        for attempt in sorted(self._folders(attempts) if "attempts" in self._folders(f"{RUNS}/{name}") else ()):
            try:
                parsed = AttemptName.parse(attempt)
            except RecordError:
                continue
            if CHECKPOINTS not in self._folders(f"{attempts}/{attempt}"):
                continue
            folder = f"{attempts}/{attempt}/{CHECKPOINTS}"
            found = [_Entry(f"{folder}/{child}", parsed, written_at) for child, written_at in self._folders(folder).items()]
            yield from sorted((entry for entry in found if entry.of_step is not None), key=lambda entry: (entry.of_step or 0, entry.name))

    def _caches(self) -> Iterator[Finding]:
        """Reference log-probabilities that no run has read for as long: only the time to compute them anew is lost."""
        for name, used_at in sorted(self._folders(REFERENCE_CACHES).items()):
            path = f"{REFERENCE_CACHES}/{name}"
            if used_at < self.before.timestamp() and len(name.removesuffix(REMOVED)) == 64:
                yield Finding(f"sha256:{name.removesuffix(REMOVED)}", "cache", "no run has read it", (Doomed(path, self._size(path)),))

    def _ls(self, path: str) -> list[dict[str, Any]]:
        full = self.store.full(path)
        self.store.fs.invalidate_cache(full)
        try:
            return list(self.store.fs.ls(full, detail=True))
        except FileNotFoundError:
            return []

    def _folders(self, path: str) -> dict[str, float]:
        """Name → time of the last change of the plain folders in a folder. A link to a folder is none."""
        plain = [item for item in self._ls(path) if item["type"] == "directory" and not item.get("islink")]
        return {posixpath.basename(item["name"].rstrip("/")): _seconds(item.get("mtime")) for item in plain}

    def _size(self, path: str) -> int:
        """Of all plain files below; links are not followed."""
        total = 0
        for item in self._ls(path):
            if item.get("islink") or item["type"] == "link":
                continue
            name = posixpath.basename(item["name"].rstrip("/"))
            total += self._size(f"{path}/{name}") if item["type"] == "directory" else int(item["size"])
        return total


def prune(catalog: Catalog, store: ArtifactStore, rules: Rules, actor: str, *, apply: bool, say: Callable[[str], None]) -> int:
    """One pass, told line by line as it goes; gives the bytes that went or, without `apply`, would go."""
    total, stay, told_at = 0, Counter[str](), time.monotonic()
    pruner = Pruner(catalog, store, rules, catalog.database.clock())
    for finding in pruner.findings():
        if time.monotonic() - told_at >= TOLD_EVERY_S:
            told_at = time.monotonic()
            say(pruner.looked_at)
        if not finding.doomed:
            stay[finding.reason] += 1
            continue
        size = pruner.remove(finding, actor) if apply else finding.size_bytes
        total += size
        names = ", ".join("/".join(item.path.split("/")[-3::2]) for item in finding.doomed)
        say(
            f"{'removed' if apply else 'would remove'} {size / 1e6:10.1f} MB  {finding.what:<13} {finding.subject}  {finding.reason}: {names}"
        )
    for reason, count in sorted(stay.items()):
        say(f"{count} left alone: {reason}")
    say(f"{total / 1e6:.1f} MB in {store.uri} {'removed' if apply else 'would be removed; nothing was: say --apply to do it'}")
    return total


def _seconds(mtime: Any) -> float:
    """Since the epoch; what a file system does not say counts as just now."""
    if isinstance(mtime, datetime):
        return mtime.timestamp()
    return float(mtime) if mtime is not None else datetime.now(UTC).timestamp()
