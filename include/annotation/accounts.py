"""Accounts and their tokens: a file that only the service's user may read, holding hashes, never tokens."""

import fcntl
import hashlib
import json
import os
import re
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from include.annotation.errors import ConfigurationError

ROLES = ("pipeline", "annotator", "verifier", "admin")
KINDS: Mapping[str, tuple[str | None, ...]] = {
    "annotator": ("human", "demo"),
    "verifier": ("verifier", "judge"),
    "pipeline": (None,),
    "admin": (None,),
}
"""The kinds of label that a role may give; the first is the default."""
_ACCOUNT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}\Z")
_TOKEN_BYTES = 32


@dataclass(frozen=True)
class Account:
    """Who may do what. `kind` is what labels of this account are marked as."""

    token_sha256: str
    account: str
    role: str
    kind: str | None
    display_name: str

    def __post_init__(self) -> None:
        if not _ACCOUNT.match(self.account):
            raise ConfigurationError(f"account {self.account!r}: letters, digits and . _ @ - only, at most 100")
        if self.role not in KINDS:
            raise ConfigurationError(f"account {self.account}: role {self.role!r} is none of {', '.join(ROLES)}")
        if self.kind not in KINDS[self.role]:
            allowed = ", ".join(str(kind) for kind in KINDS[self.role])
            raise ConfigurationError(f"account {self.account}: kind {self.kind!r} does not fit role {self.role} ({allowed})")


def token_hash(token: str) -> str:
    """sha256 of a token. Tokens are 256 random bits, so that no salt and no slow hash are needed."""
    return hashlib.sha256(token.encode()).hexdigest()


class Accounts:
    """The tokens file, read again whenever it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._by_hash: dict[str, Account] = {}

    def of_token(self, token: str) -> Account | None:
        return self.of_hash(token_hash(token))

    def of_hash(self, token_sha256: str) -> Account | None:
        """The account of a hashed token, or None. Raises ConfigurationError on a file that can't be used."""
        with self._lock:
            state = _private_state(self._path)
            if state != self._seen:
                self._by_hash = {a.token_sha256: a for a in read_accounts(self._path)}
                self._seen = state
            return self._by_hash.get(token_sha256)


def _private_state(path: Path) -> tuple[int, int, int]:
    try:
        info = path.stat()
    except FileNotFoundError as error:
        raise ConfigurationError(f"{path} is not there: make it with `python -m include.annotation add-account`") from error
    check_private(path)
    return info.st_mtime_ns, info.st_size, info.st_ino


def check_private(path: Path) -> None:
    """Refuses a file that anybody but its owner may read or write."""
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise ConfigurationError(f"{path} has mode {mode:04o}: others may read it; `chmod 600` it")


def read_accounts(path: Path) -> tuple[Account, ...]:
    """All accounts of a tokens file. Raises ConfigurationError that names what is wrong (never quoting a token)."""
    check_private(path)
    try:
        rows = json.loads(path.read_text("utf-8"))
        accounts = tuple(Account(**row) for row in rows)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{path} is not a list of accounts: {error}") from error
    if len({a.account for a in accounts}) != len(accounts):
        raise ConfigurationError(f"{path} names an account twice")
    return accounts


@dataclass(frozen=True)
class NewAccount:
    """What `add-account` was asked for."""

    account: str
    role: str
    kind: str | None = None
    display_name: str = ""

    def with_token(self, token: str) -> Account:
        if self.role not in KINDS:
            raise ConfigurationError(f"role {self.role!r} is none of {', '.join(ROLES)}")
        kind = self.kind or KINDS[self.role][0]
        return Account(token_hash(token), self.account, self.role, kind, self.display_name or self.account)


def add_account(path: Path, new: NewAccount, rotate: bool = False) -> str:
    """Adds an account, or gives it a new token (`rotate`), and returns the token: it is kept nowhere.

    Raises:
        ConfigurationError: the account is there already and `rotate` was not asked for, or is there with another role.
    """
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    account = new.with_token(token)
    with _locked(path):
        accounts = list(read_accounts(path)) if path.exists() else []
        old = find_account(accounts, new.account)
        if old and not rotate:
            raise ConfigurationError(f"account {new.account} is there already; --rotate gives it a new token")
        if old and (old.role, old.kind) != (account.role, account.kind):
            raise ConfigurationError(f"account {new.account} is {old.role}/{old.kind}: a person of another role needs another account")
        kept = [a for a in accounts if a.account != new.account]
        write_private(path, json.dumps([asdict(a) for a in [*kept, account]], indent=1).encode())
    return token


def find_account(accounts: Sequence[Account], name: str) -> Account | None:
    return next((a for a in accounts if a.account == name), None)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(path.with_name(path.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write_private(path: Path, data: bytes) -> None:
    """Replaces a file by one of mode 0600, in one step: a reader sees the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle: Any = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(beside, path)
