"""Exact match: whether the reference's verifier finds the answer right."""

from include.domain.records import Reference
from include.eval.answers import Answer
from include.verifiers.registry import verify


def score(reference: Reference, answer: Answer) -> float:
    """1 when right; 0 when wrong, and when the verifier cannot decide: what cannot be read is not right."""
    return 1.0 if verify(reference, answer.text).right else 0.0
