"""Which verifier a reference means: by name and version, both exact. A reference of another version is never guessed at.

All are pure and bounded: no clock, no file, no network, and nothing that an answer says is run. What needs running code to be checked
has no verifier here.
"""

from collections.abc import Callable, Mapping
from typing import Any

from include.domain.records import Reference
from include.verifiers import arithmetic, choice, instructions, json_schema, pattern, quantities, texts
from include.verifiers.errors import VerifierError
from include.verifiers.result import VerifierResult
from include.verifiers.stated import MAX_CHARACTERS

Check = Callable[[Any, str], VerifierResult]


def _bounded(check: Check) -> Check:
    """The same for answers of up to MAX_CHARACTERS; a longer one is wrong. The expected answer is looked at in any case."""

    def bounded(expected: Any, text: str) -> VerifierResult:
        plain = _lists(expected)
        if len(text) <= MAX_CHARACTERS:
            return check(plain, text)
        check(plain, "")
        return VerifierResult(False, False, "too_long")

    return bounded


def _lists(value: Any) -> Any:
    """JSON's own lists: records hold tuples."""
    if isinstance(value, (list, tuple)):
        return [_lists(item) for item in value]
    return {name: _lists(item) for name, item in value.items()} if isinstance(value, Mapping) else value


VERIFIERS: Mapping[tuple[str, str], Check] = {
    (arithmetic.NAME, arithmetic.VERSION): arithmetic.check,
    (choice.NAME, choice.VERSION): _bounded(choice.check),
    (texts.EXACT, texts.VERSION): _bounded(texts.check_exact),
    (texts.NORMALISED, texts.VERSION): _bounded(texts.check_normalised),
    (quantities.NAME, quantities.VERSION): _bounded(quantities.check),
    (json_schema.NAME, json_schema.VERSION): _bounded(json_schema.check),
    (pattern.NAME, pattern.VERSION): _bounded(pattern.check),
    (instructions.NAME, instructions.VERSION): _bounded(instructions.check),
}


def verify(reference: Reference, text: str) -> VerifierResult:
    """What the reference's own verifier says of `text`.

    Raises:
        VerifierError: no such verifier, or not in that version (the message lists those there are), or a reference it can't read.
    """
    check = VERIFIERS.get((reference.verifier, reference.verifier_version))
    if check is None:
        known = ", ".join(f"{name}@{version}" for name, version in sorted(VERIFIERS))
        raise VerifierError(f"no verifier {reference.verifier}@{reference.verifier_version}; there are: {known}")
    return check(reference.expected, text)
