"""Passwords and tokens of the local stack: made at random, kept in files that only the calling user may read."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from local.environment import USERS
from local.layout import Layout
from local.ports import write_atomically
from local.process import LocalError


def passwords_file(layout: Layout) -> Path:
    return layout.secrets / "airflow_passwords.json"


def make_passwords(layout: Layout) -> None:
    """A password for each user of the local Airflow. Made before Airflow does, which would print them to its log."""
    path = passwords_file(layout)
    have: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    if lacking := [user for user in USERS if user not in have]:
        have |= {user: secrets.token_urlsafe(18) for user in lacking}
        write_atomically(path, json.dumps(have, indent=1), mode=0o600)


def suppression_key_file(layout: Layout) -> Path:
    return layout.secrets / "suppression.key"


def make_suppression_key(layout: Layout) -> None:
    """What hashes of erased persons are keyed with; made once, as hashes under another key tell nothing."""
    path = suppression_key_file(layout)
    if not path.exists():
        write_atomically(path, secrets.token_hex(32), mode=0o600)


def password(layout: Layout, user: str) -> str:
    found: dict[str, str] = json.loads(passwords_file(layout).read_text())
    return found[user]


def secret(layout: Layout, name: str) -> str:
    """The password of an Airflow user, or the token of an account of the annotation service."""
    if name in USERS and passwords_file(layout).exists():
        return password(layout, name)
    token = layout.secrets / "annotation" / f"{name}.token"
    if "/" not in name and token.exists():
        return token.read_text().strip()
    accounts = sorted(path.stem for path in (layout.secrets / "annotation").glob("*.token"))
    raise LocalError(
        f"no secret is kept for {name!r}. Users of Airflow: {', '.join(USERS)}. Annotation accounts: {', '.join(accounts) or 'none yet'}."
    )
