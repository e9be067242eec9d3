"""Private keys in the spellings in which people paste them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_slurm.errors import BadConnection
from airflow_slurm.remote.keys import load_private_key, normalise_private_key

SPELLINGS: dict[str, Callable[[str], str]] = {
    "real": lambda key: key,
    "escaped": lambda key: key.replace("\n", "\\n"),
    "crlf": lambda key: key.replace("\n", "\r\n"),
    "no last line feed": lambda key: key.rstrip("\n"),
    "indented by a form": lambda key: f"\n  {key}\n".replace("\n  -", "\n-"),
}


def make_key(folder: Path, kind: str, passphrase: str = "") -> str:
    path = folder / f"{kind}{bool(passphrase)}"
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "throw-away", "-f", path], check=True)
    return path.read_text()


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(("kind", "algorithm"), [("ed25519", "ssh-ed25519"), ("rsa", "ssh-rsa")])
def test_every_spelling_loads_as_its_own_type(tmp_path: Path, kind: str, algorithm: str, spelling: str) -> None:
    text = SPELLINGS[spelling](make_key(tmp_path, kind))
    assert load_private_key(text, None, "connection 'c1'").get_algorithm() == algorithm


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
@pytest.mark.parametrize("given", [None, "", "wrong"])
def test_a_missing_or_wrong_passphrase_is_named_and_the_key_is_not(tmp_path: Path, kind: str, given: str | None) -> None:
    text = make_key(tmp_path, kind, "pass phrase")
    with pytest.raises(BadConnection, match="passphrase") as caught:
        load_private_key(text, given, "connection 'c1'")
    assert text.split("\n")[2] not in str(caught.value)


def test_the_right_passphrase_opens_it(tmp_path: Path) -> None:
    assert load_private_key(make_key(tmp_path, "ed25519", "pass phrase"), "pass phrase", "c1").get_algorithm() == "ssh-ed25519"


def test_what_is_no_key_says_so_without_repeating_it() -> None:
    with pytest.raises(BadConnection, match="can't be read") as caught:
        load_private_key("hunter2-secret", None, "connection 'c1'")
    assert "hunter2" not in str(caught.value)


def test_normalising_twice_changes_nothing(tmp_path: Path) -> None:
    once = normalise_private_key(make_key(tmp_path, "ed25519").replace("\n", "\\r\\n"))
    assert normalise_private_key(once) == once
