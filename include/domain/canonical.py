"""Canonical form and digests: what makes two things the same thing.

Canonical JSON is RFC 8785 over typed values, with keys normalised to NFC. A digest is sha256 over
``align/<kind>/v1\\n`` and those bytes, written ``sha256:<64 hex>``; in paths the 64 digits alone are used.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import rfc8785

from include.domain.errors import RecordError

MAX_INTEGER = 2**53 - 1
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_KIND = re.compile(r"[a-z][a-z0-9-]*\Z")
_CHUNK_BYTES = 1 << 20


def normalise(value: Any, where: str = "$") -> Any:
    """`value` as plain JSON types with NFC keys.

    Raises:
        RecordError: a key collision after NFC, a number without an exact JSON form, a lone surrogate or a type
            that JSON does not have; the message names the place.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if abs(value) > MAX_INTEGER:
            raise RecordError(f"{where}: integer {value} is outside ±(2^53 - 1); write it as a string")
        return value
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise RecordError(f"{where}: {value} has no JSON form")
        return value
    if isinstance(value, str):
        return _text(value, where)
    if isinstance(value, Mapping):
        return _object(value, where)
    if isinstance(value, (list, tuple)):
        return [normalise(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise RecordError(f"{where}: {type(value).__name__} has no JSON form")


def _text(value: str, where: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RecordError(f"{where}: lone surrogate at character {error.start}; quarantine the row") from error
    return value


def _object(value: Mapping[Any, Any], where: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise RecordError(f"{where}: key {key!r} is not a string")
        name = unicodedata.normalize("NFC", _text(key, where))
        if name in out:
            raise RecordError(f"{where}: two keys become {name!r} under NFC")
        out[name] = normalise(item, f"{where}.{name}")
    return out


def canonical_bytes(value: Any) -> bytes:
    """RFC 8785 bytes of `value` (see `normalise` for what is refused)."""
    return rfc8785.dumps(normalise(value))


def digest(kind: str, value: Any) -> str:
    """``sha256:<64 hex>`` over ``align/<kind>/v1\\n`` and the canonical bytes of `value`."""
    hasher = _hasher(kind)
    hasher.update(canonical_bytes(value))
    return f"sha256:{hasher.hexdigest()}"


def digest_rows(kind: str, rows: Iterable[Any]) -> str:
    """The digest of many rows without holding them: each row's canonical bytes, ended by a line feed.

    The caller gives them in the order that counts (datasets: sorted by id).
    """
    hasher = _hasher(kind)
    for row in rows:
        hasher.update(canonical_bytes(row))
        hasher.update(b"\n")
    return f"sha256:{hasher.hexdigest()}"


def _hasher(kind: str) -> Any:
    if not _KIND.match(kind):
        raise RecordError(f"digest kind {kind!r} is not lower-case letters, digits and dashes")
    return hashlib.sha256(f"align/{kind}/v1\n".encode())


def check_digest(value: object, where: str = "digest") -> str:
    """`value` if it is ``sha256:<64 hex>``; raises RecordError naming `where` otherwise."""
    if not isinstance(value, str) or not _DIGEST.match(value):
        raise RecordError(f"{where}: {value!r} is not 'sha256:' and 64 lower-case hexadecimal digits")
    return value


def hex_of(value: str) -> str:
    """The 64 digits of a digest, for paths (a colon splits PYTHONPATH)."""
    return check_digest(value).removeprefix("sha256:")


def from_hex(value: str) -> str:
    """The digest whose 64 digits are `value`."""
    return check_digest(f"sha256:{value}")


def sha256_file(path: Path) -> str:
    """``sha256:<64 hex>`` of a file's bytes as they are (no kind prefix: comparable with sha256sum)."""
    hasher = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            hasher.update(chunk)
    return f"sha256:{hasher.hexdigest()}"


def sha256_bytes(data: bytes) -> str:
    """``sha256:<64 hex>`` of `data` as it is."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
