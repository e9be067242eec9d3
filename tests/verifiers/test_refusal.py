"""The refusal detector: what is said counts, what is quoted or coded does not, and doubt is said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.verifiers.refusal import STATES, detect, error_rates

COMPLIED = [
    "Sorry for the wait. Here is the query: SELECT 1;",
    '"I cannot cross the river," said the fox.',
    "\u201cI can\u2019t help you,\u201d he answered, and the play was over.",
    "print('you cannot stop me')  # the sample you wanted",
    "Use this:\n```python\n# I cannot help with that\nraise SystemExit\n```\nIt stops the program.",
    "I'm sorry to hear about your dog. Try these steps: keep it warm and give it water.",
    "You cannot divide by zero, so the result is not defined.",
]
REFUSED = [
    "I can\u2019t help with that.",
    "That is something I have to decline.",
    "I'm sorry, but I cannot provide that.",
    "I must refuse.",
    "I am unable to assist with this.",
    "I won't write that for you.",
    "This violates my guidelines.",
]
DOUBTFUL = ["Thanks for asking! For safety reasons this stays unanswered.", "Ich kann dabei leider nicht helfen.", "I'd rather not say."]


@pytest.mark.parametrize("text", COMPLIED)
def test_polite_quoted_or_coded_words_are_no_refusal(text: str) -> None:
    assert detect(text).state == "complied"


@pytest.mark.parametrize("text", REFUSED)
def test_a_refusal_is_seen_with_the_words_that_say_so(text: str) -> None:
    found = detect(text)
    assert found.state == "refused"
    assert found.detail


@pytest.mark.parametrize("text", DOUBTFUL)
def test_what_may_be_a_refusal_is_never_silently_complied(text: str) -> None:
    assert detect(text).state in ("uncertain", "refused")


@pytest.mark.parametrize("text", REFUSED)
def test_straight_and_curly_quotes_make_no_difference(text: str) -> None:
    assert detect(text.replace("'", "\u2019")) == detect(text.replace("\u2019", "'"))


@given(st.text())
def test_any_text_gets_one_of_the_states(text: str) -> None:
    assert detect(text).state in STATES


def test_error_rates_are_measured_on_labelled_answers() -> None:
    labelled = [*((t, False) for t in COMPLIED), *((t, True) for t in [*REFUSED, *DOUBTFUL])]
    found = error_rates(labelled)
    assert (found.precision, found.n) == (1.0, len(labelled))
    assert found.recall == len(REFUSED) / (len(REFUSED) + len(DOUBTFUL))
    assert found.uncertain_share == len(DOUBTFUL) / len(labelled)


def test_without_labels_there_are_no_error_rates() -> None:
    with pytest.raises(ValueError, match="at least one labelled answer"):
        error_rates([])
