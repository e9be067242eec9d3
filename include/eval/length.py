"""Length of an answer."""

from include.eval.answers import Answer


def score(answer: Answer) -> float:
    """Tokens written, the end token included: what generation costs. At least 1."""
    return float(len(answer.tokens))
