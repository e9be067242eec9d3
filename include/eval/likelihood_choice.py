"""Choice by likelihood: the option that the model holds likeliest, for its length, is its choice.

Log-probabilities are divided by the option's length in UTF-8 bytes, which does not depend on a tokenizer (the
normalisation known as ``acc_norm`` of the language model evaluation harness).
"""

from collections.abc import Sequence

from include.domain.records import SuiteItem
from include.eval.errors import EvaluationError
from include.eval.likelihood import option_log_probs

__all__ = ["choice", "option_log_probs", "score"]


def choice(item: SuiteItem, log_probs: Sequence[float]) -> int:
    """The index of the chosen option; of equals the first."""
    options = item.options or ()
    if len(options) != len(log_probs):
        raise EvaluationError(f"item {item.item_id} has {len(options)} options and {len(log_probs)} log-probabilities")
    per_byte = [value / len(option.encode()) for value, option in zip(log_probs, options, strict=True)]
    return max(range(len(per_byte)), key=lambda i: (per_byte[i], -i))


def score(item: SuiteItem, log_probs: Sequence[float]) -> float:
    """1 when the choice is the right option."""
    return float(choice(item, log_probs) == item.answer)
