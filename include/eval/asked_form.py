"""Asked form: whether the answer is written as the prompt asked, right or not."""

from include.domain.records import Reference
from include.eval.answers import Answer
from include.verifiers.registry import verify


def score(reference: Reference, answer: Answer) -> float:
    """1 in the form that the reference's verifier knows, else 0."""
    return 1.0 if verify(reference, answer.text).in_form else 0.0
