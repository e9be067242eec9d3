"""The command: accounts are added once, tokens leave once, and a wrong set-up is told."""

import json
from pathlib import Path

import pytest

from include.annotation.__main__ import main
from include.annotation.accounts import token_hash
from include.annotation.config import from_environment
from include.annotation.errors import ConfigurationError


@pytest.fixture
def tokens_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "secrets" / "tokens.json"
    monkeypatch.setenv("ANNOTATION_TOKENS_FILE", str(path))
    return path


def _rows(path: Path) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = json.loads(path.read_text("utf-8"))
    return rows


def test_the_token_is_shown_once_and_only_its_hash_kept(tokens_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["add-account", "ada", "--role", "annotator", "--display-name", "Ada"]) == 0
    token = capsys.readouterr().out.strip()
    assert _rows(tokens_file) == [
        {"token_sha256": token_hash(token), "account": "ada", "role": "annotator", "kind": "human", "display_name": "Ada"}
    ]
    assert tokens_file.stat().st_mode & 0o777 == 0o600


def test_a_token_written_to_a_file_is_not_shown(tokens_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "ada.token"
    assert main(["add-account", "ada", "--role", "annotator", "--token-out", str(out)]) == 0
    assert capsys.readouterr().out == ""
    assert out.stat().st_mode & 0o777 == 0o600
    assert token_hash(out.read_text("utf-8")) == _rows(tokens_file)[0]["token_sha256"]


def test_an_account_is_not_added_twice(tokens_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["add-account", "ada", "--role", "annotator"])
    before = tokens_file.read_bytes()
    assert main(["add-account", "ada", "--role", "annotator"]) == 2
    assert "there already" in capsys.readouterr().err
    assert tokens_file.read_bytes() == before


def test_a_start_that_is_repeated_leaves_the_account_alone(tokens_file: Path, tmp_path: Path) -> None:
    add = ["add-account", "ada", "--role", "annotator", "--token-out", str(tmp_path / "t"), "--if-missing"]
    assert main(add) == 0
    before = tokens_file.read_bytes()
    assert main(add) == 0
    assert tokens_file.read_bytes() == before


def test_a_lost_or_stale_token_file_is_replaced(tokens_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "t"
    add = ["add-account", "ada", "--role", "annotator", "--token-out", str(out), "--if-missing"]
    main(add)
    out.write_text("not the token any more", "utf-8")
    assert main(add) == 0
    assert token_hash(out.read_text("utf-8")) == _rows(tokens_file)[0]["token_sha256"]


def test_a_new_token_ends_the_old_one(tokens_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["add-account", "ada", "--role", "annotator"])
    main(["add-account", "ada", "--role", "annotator", "--rotate"])
    old, new = capsys.readouterr().out.split()
    assert [row["token_sha256"] for row in _rows(tokens_file)] == [token_hash(new)]
    assert old != new


def test_an_account_never_changes_its_role(tokens_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["add-account", "ada", "--role", "annotator"])
    assert main(["add-account", "ada", "--role", "admin", "--rotate"]) == 2
    assert "another account" in capsys.readouterr().err


@pytest.mark.parametrize(("role", "kind"), [("annotator", "verifier"), ("verifier", "human"), ("pipeline", "human"), ("admin", "demo")])
def test_a_kind_that_does_not_fit_the_role_is_refused(tokens_file: Path, role: str, kind: str) -> None:
    assert main(["add-account", "ada", "--role", role, "--kind", kind]) == 2
    assert not tokens_file.exists()


@pytest.mark.parametrize("missing", ["ANNOTATION_DB", "ANNOTATION_TOKENS_FILE", "ANNOTATION_PSEUDONYM_KEY_FILE"])
def test_a_missing_variable_is_named(missing: str) -> None:
    complete = {"ANNOTATION_DB": "a.sqlite", "ANNOTATION_TOKENS_FILE": "t.json", "ANNOTATION_PSEUDONYM_KEY_FILE": "k"}
    assert from_environment(complete).port == 8090
    with pytest.raises(ConfigurationError, match=missing):
        from_environment({name: value for name, value in complete.items() if name != missing})


def test_identities_are_never_kept_with_the_labels() -> None:
    base = {"ANNOTATION_TOKENS_FILE": "t.json", "ANNOTATION_PSEUDONYM_KEY_FILE": "k"}
    with pytest.raises(ConfigurationError, match="another database"):
        from_environment({**base, "ANNOTATION_DB": "a.sqlite", "ANNOTATION_IDENTITY_DB": "a.sqlite"})
    with pytest.raises(ConfigurationError, match="ANNOTATION_IDENTITY_DB"):
        from_environment({**base, "ANNOTATION_DB": "postgresql+psycopg://host/labels"})


def test_serving_without_a_set_up_ends_with_a_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("ANNOTATION_DB", raising=False)
    assert main(["serve"]) == 2
    assert "ANNOTATION_DB is not set" in capsys.readouterr().err
