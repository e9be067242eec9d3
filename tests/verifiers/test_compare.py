"""Comparing two answers: right first, then the asked form; sides and lengths never matter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.domain.records import VERDICTS, Reference
from include.verifiers.compare import REASON_CODES, compare
from include.verifiers.errors import VerifierError
from include.verifiers.registry import verify

REFERENCE = Reference("arithmetic", "1", "15")
RIGHT_FORM, RIGHT_OTHER = "6 + 9 = 15\nAnswer: 15", "6 + 9 = 15\nSo the result is 15."
WRONG_FORM, WRONG_OTHER = "6 + 8 = 14\nAnswer: 14", "6 + 8 = 14\nSo the result is 14."
UNDECIDED = "So the result is fifteen."
ANSWERS = st.sampled_from([RIGHT_FORM, RIGHT_OTHER, WRONG_FORM, WRONG_OTHER, UNDECIDED, ""]) | st.text()


@pytest.mark.parametrize(
    ("a", "b", "verdict", "reason"),
    [
        (RIGHT_OTHER, WRONG_FORM, "A", "right_over_wrong"),
        (WRONG_FORM, RIGHT_OTHER, "B", "right_over_wrong"),
        (RIGHT_OTHER, RIGHT_FORM, "B", "form_both_right"),
        (WRONG_FORM, WRONG_OTHER, "A", "form_both_wrong"),
        (RIGHT_FORM, "5 + 10 = 15\nAnswer: 15", "tie", "alike_both_right"),
        (WRONG_OTHER, "I do not know.", "both_bad", "alike_both_wrong"),
        (RIGHT_FORM, UNDECIDED, "cannot_judge", "not_decidable"),
    ],
)
def test_right_comes_first_then_the_asked_form(a: str, b: str, verdict: str, reason: str) -> None:
    found = compare(REFERENCE, a, b)
    assert (found.verdict, found.reason_codes) == (verdict, (reason,))


@given(ANSWERS, ANSWERS)
def test_exchanging_the_sides_exchanges_the_verdict(a: str, b: str) -> None:
    assert compare(REFERENCE, a, b).swap() == compare(REFERENCE, b, a)


@given(ANSWERS)
def test_an_answer_never_beats_itself(text: str) -> None:
    assert compare(REFERENCE, text, text).verdict in ("tie", "both_bad", "cannot_judge")


@given(ANSWERS, ANSWERS)
def test_verdicts_and_reasons_are_of_the_known_ones(a: str, b: str) -> None:
    found = compare(REFERENCE, a, b)
    assert found.verdict in VERDICTS
    assert set(found.reason_codes) <= set(REASON_CODES)


@pytest.mark.parametrize(("name", "version"), [("arithmetic", "2"), ("geometry", "1"), ("arithmetic", "")])
def test_another_verifier_or_version_is_an_error_that_lists_those_there_are(name: str, version: str) -> None:
    with pytest.raises(VerifierError, match=f"no verifier {name}@{version}; there are: arithmetic@1"):
        verify(Reference(name, version, "15"), RIGHT_FORM)
