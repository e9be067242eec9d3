"""Repositories laid out like a hub's are read through `datasets`, and none of their code runs."""

import json
from pathlib import Path

import pytest

from include.transforms.errors import SourceError
from include.transforms.hub import read_hub
from include.transforms.reading import read_source, source_digest
from include.transforms.rows import RawRow
from include.transforms.source import Source


def _repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "data").mkdir(parents=True)
    rows = [{"prompt": "Say hello.", "response": "Hello."}, {"prompt": "odd\u2028line", "response": "kept"}]
    (folder / "data" / "train.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return folder


def test_a_local_repository_gives_its_rows(tmp_path: Path) -> None:
    rows = list(read_hub(str(_repository(tmp_path)), "train"))
    assert [row.value["prompt"] for row in rows if isinstance(row, RawRow)] == ["Say hello.", "odd\u2028line"]
    assert [row.line for row in rows] == [1, 2]


def test_code_in_a_repository_is_refused_and_not_run(tmp_path: Path) -> None:
    folder = _repository(tmp_path)
    (folder / "repository.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    with pytest.raises(SourceError, match=r"holds repository\.py"):
        list(read_hub(str(folder), "train"))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("revision", [None, "main", "v1.0"])
def test_a_hub_id_must_be_pinned_by_its_commit(revision: str | None) -> None:
    with pytest.raises(SourceError, match="is not a commit of 40 hexadecimal digits"):
        list(read_hub("some-owner/some-set", "train", revision=revision))


def test_a_split_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"\(test\) cannot be read"):
        list(read_hub(str(_repository(tmp_path)), "test"))


def test_the_digest_of_a_hub_source_follows_its_rows(tmp_path: Path) -> None:
    folder = _repository(tmp_path)
    source = Source("hub", str(folder), "hub", "CC0")
    before = source_digest(source, list(read_source(source)))
    assert before == source_digest(source, list(read_source(source)))
    path = folder / "data" / "train.jsonl"
    path.write_text(path.read_text("utf-8").replace("kept", "changed"), "utf-8")
    assert source_digest(source, list(read_source(source))) != before
