"""What a judge is shown of two answers, and what counts as its verdict. Answers come from models that may want to win: they are data.

Each text stands between marks that carry a number no answer can know, special tokens in it are broken up, and what is replaced in a template
is replaced once, so that an answer cannot bring a placeholder. A reply is a verdict only where the whole of it is one line of the grammar
``Verdict: A``, ``Verdict: B`` or ``Verdict: tie``; anything else is no verdict, and is counted.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from include.domain.canonical import digest
from include.domain.records import Message
from include.eval.errors import EvaluationError

OURS, THEIRS, TIE = "ours", "theirs", "tie"
PLACES = ("question", "first", "second")
_PLACE = re.compile(r"\{(question|first|second)\}")
_GRAMMAR = re.compile(r"\s*Verdict: (A|B|tie)\s*")
_CONTROL = re.compile(r"<\|[^|<>]{1,64}\|>|</?s>|<(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>")
"""How families of models write the tokens that begin and end turns."""
_BREAK = "\u200b"


def check_template(template: str) -> None:
    """Raises EvaluationError where a template does not show question and both answers, each once."""
    seen = _PLACE.findall(template)
    if sorted(seen) != sorted(PLACES):
        raise EvaluationError(f"a judge's template holds {{question}}, {{first}} and {{second}}, each once; this one has {seen}")


def harmless(text: str, special: Iterable[str] = ()) -> str:
    """`text` with what a tokenizer would read as a token of its own broken up by a character without width."""
    for token in sorted({token for token in special if len(token) > 1}, key=len, reverse=True):
        text = text.replace(token, token[0] + _BREAK + token[1:])
    return _CONTROL.sub(lambda found: found[0][0] + _BREAK + found[0][1:], text)


def question_text(messages: Sequence[Message]) -> str:
    """A conversation as the judge reads it."""
    return "\n".join(f"{turn.role}: {turn.content}" for turn in messages)


def shown(template: str, texts: Mapping[str, str], seed: int, special: Iterable[str] = ()) -> str:
    """The template with question, first and second answer, each between marks.

    Raises:
        EvaluationError: a text holds the number of its own marks, which only somebody who knows seed and texts could write.
    """
    number = digest("judge-marks", [seed, *(texts[name] for name in PLACES)])[7:23]
    if any(number in text for text in texts.values()):
        raise EvaluationError("a text holds the number of the marks it is put between")
    names = {"question": "question", "first": "answer A", "second": "answer B"}
    tokens = list(special)
    marked = {
        name: f"[begin of {names[name]} {number}]\n{harmless(texts[name], tokens)}\n[end of {names[name]} {number}]" for name in PLACES
    }
    return _PLACE.sub(lambda place: marked[place[1]], template)


def verdict_of(reply: str) -> str | None:
    """A, B or tie; None where the reply is anything else, a verdict with more around it included."""
    found = _GRAMMAR.fullmatch(reply)
    return found[1] if found else None


def both_orders(ours_first: str | None, theirs_first: str | None) -> str | None:
    """What the two replies on one pair come to: ours, theirs or tie; a judge that changes its mind with the order has said tie.

    Args:
        ours_first, theirs_first: the verdict where the candidate's answer stood first, and where the other's did.
    """
    one = {"A": OURS, "B": THEIRS, "tie": TIE}.get(str(ours_first))
    other = {"A": THEIRS, "B": OURS, "tie": TIE}.get(str(theirs_first))
    if one is None or other is None:
        return None
    return one if one == other else TIE
