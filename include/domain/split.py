"""Which side a group of rows is on: one function for all datasets, stable as rows come and go."""

import hashlib
import hmac
import re
import unicodedata
from collections.abc import Mapping

from include.domain.errors import RecordError

SIDES = ("train", "validation", "holdout", "safety_holdout")
DEFAULT_SHARES: Mapping[str, float] = {"train": 0.80, "validation": 0.05, "holdout": 0.15}
USES = ("demonstration", "preference", "rl")
NORMALISER_VERSION = "prompt-normaliser@1"
_SPACE = re.compile(r"\s+")


def unit_interval(salt: str, label: str) -> float:
    """First 8 bytes, big-endian, of HMAC-SHA256(salt, label), divided by 2^64: a number in [0, 1)."""
    if not salt:
        raise RecordError("the split salt is empty: set `split_salt` in the recipe's project settings")
    return int.from_bytes(hmac.new(salt.encode(), label.encode(), hashlib.sha256).digest()[:8], "big") / 2**64


def side_of(salt: str, split_group: str, safety_class: str = "none", shares: Mapping[str, float] = DEFAULT_SHARES) -> str:
    """train, validation or holdout by cumulative shares; a hold-out row of a safety class goes to safety_holdout."""
    if abs(sum(shares.values()) - 1.0) > 1e-9 or list(shares) != ["train", "validation", "holdout"]:
        raise RecordError(f"split shares {dict(shares)} must name train, validation, holdout in this order and sum to 1")
    at, total, side = unit_interval(salt, split_group), 0.0, "holdout"
    for name, share in shares.items():
        total += share
        if at < total:
            side = name
            break
    return "safety_holdout" if side == "holdout" and safety_class != "none" else side


def use_of(salt: str, split_group: str, shares: Mapping[str, float]) -> str:
    """What a training group is used for: a second HMAC with a label of its own, independent of the side."""
    if abs(sum(shares.values()) - 1.0) > 1e-9 or not set(shares) <= set(USES):
        raise RecordError(f"use shares {dict(shares)} must be of {', '.join(USES)} and sum to 1")
    at, total = unit_interval(salt, f"use\n{split_group}"), 0.0
    for name, share in shares.items():
        total += share
        if at < total:
            return name
    return list(shares)[-1]


def normalise_prompt(text: str) -> str:
    """The text used for grouping only (never for hashing records): NFKC, case folded, white space runs as one space."""
    return _SPACE.sub(" ", unicodedata.normalize("NFKC", text).casefold()).strip()
