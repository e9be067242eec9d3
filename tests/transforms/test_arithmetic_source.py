"""Generated arithmetic: the same everywhere, right, and the corpus apart from what is measured."""

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from include.transforms.source import Source
from include.transforms.sources.arithmetic import choices, corpus, names, problems, write_corpus

SOURCE = Source("arithmetic", "generated:arithmetic", "generated", "Apache-2.0")


def test_problems_are_different_right_and_short() -> None:
    made = problems(SOURCE, 7, 500, "1")
    texts = [problem.draft.prompt_text for problem in made]
    assert len(set(texts)) == 500
    assert max(len(text) for text in texts) < 64
    for problem in made:
        assert problem.working is not None
        assert problem.draft.reference is not None
        left, operation, right, _, result = problem.working.line.split()
        assert int(left) + int(right) * (1 if operation == "+" else -1) == int(result) == int(problem.draft.reference.expected)
        assert {left, right} <= set(problem.draft.prompt_text.replace("?", " ").replace(".", " ").replace(",", " ").split())


def test_few_facts_recur_in_many_prompts() -> None:
    facts = Counter(problem.working.line for problem in problems(SOURCE, 7, 2400, "1") if problem.working)
    assert len(facts) <= 155
    assert sum(facts.values()) / len(facts) > 10


def test_a_seed_gives_the_same_rows_in_every_version_of_python(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus.jsonl", 7, 6000)
    assert hashlib.sha256((tmp_path / "corpus.jsonl").read_bytes()).hexdigest() == CORPUS_SHA256
    assert problems(SOURCE, 7, 50, "1") == problems(SOURCE, 7, 50, "1")
    assert problems(SOURCE, 7, 50, "1") != problems(SOURCE, 8, 50, "1")


CORPUS_SHA256 = "de2dc0d3040e340a925e387e4bdb943049b6378cfc3e08cfeabb53efe3023f5c"


def test_no_prompt_of_the_corpus_is_ever_measured() -> None:
    learned = {row["prompt"] for row in corpus(3, 40_000) if "prompt" in row}
    measured = [p.draft.prompt_text for p in problems(SOURCE, 7, 5000, "1")]
    measured += [draft.prompt_text for draft in (*choices(SOURCE, 7, 2000), *names(SOURCE, 7, 2000))]
    assert not learned & set(measured)


def test_the_corpus_answers_in_neither_style_and_knows_the_words_of_both(tmp_path: Path) -> None:
    """In chat the working stands alone; the closing lines come only as texts outside any chat, about half and half."""
    write_corpus(tmp_path / "corpus.jsonl", 1, 3000)
    rows = [json.loads(line) for line in (tmp_path / "corpus.jsonl").read_text().splitlines()]
    chats, texts = [row for row in rows if "prompt" in row], [row["text"] for row in rows if "text" in row]
    assert len(chats) == 3000
    assert len(chats) + len(texts) == len(rows)
    assert not any("Answer" in row["response"] or "result" in row["response"] for row in chats)
    asked = sum("Answer: " in text for text in texts)
    assert 0.15 < len(texts) / len(chats) < 0.3
    assert 0.4 < asked / len(texts) < 0.6


def test_demonstrations_lean_and_are_mixed_in_both_operations() -> None:
    made = [p for p in problems(SOURCE, 7, 2400, "1") if p.working]
    for operation, share in (("+", 0.80), ("-", 0.25)):
        styles = [p.style for p in made if p.working and p.working.operation == operation]
        assert abs(styles.count("asked") / len(styles) - share) < 0.05


def test_choices_hold_the_right_working_first_or_second() -> None:
    made = choices(SOURCE, 7, 300)
    for draft in made:
        assert draft.options is not None
        assert draft.answer is not None
        right = [_is_right(option) for option in draft.options]
        assert right[draft.answer]
        assert not right[1 - draft.answer]
    assert 100 < sum(draft.answer or 0 for draft in made) < 200


def _is_right(line: str) -> bool:
    left, operation, right, _, result = line.split()
    return int(left) + int(right) * (1 if operation == "+" else -1) == int(result)


def test_names_are_known_only_where_the_text_tells() -> None:
    made = names(SOURCE, 7, 300)
    assert len({draft.prompt_text for draft in made}) == 300
    for draft in made:
        assert draft.options is not None
        assert draft.answer is not None
        assert draft.slices is not None
        told = "has none" in draft.prompt_text
        assert draft.slices["context"] == ("disambiguated" if told else "ambiguous")
        assert draft.options[draft.answer] == (draft.prompt_text.split()[0] if told else "not known")
        assert draft.safety_class == "bias"


def test_more_rows_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="99999 different rows are asked for"):
        problems(SOURCE, 7, 99999, "1")
