"""Two answers to one prompt, compared by its verifier: the right one first, then the one in the asked form."""

from dataclasses import dataclass

from include.domain.records import Reference
from include.verifiers.registry import verify
from include.verifiers.result import VerifierResult

COMPARE_VERSION = "right-then-form@1"
REASON_CODES = (
    "right_over_wrong",
    "form_both_right",
    "form_both_wrong",
    "alike_both_right",
    "alike_both_wrong",
    "not_decidable",
)
_SWAPPED = {"A": "B", "B": "A"}


@dataclass(frozen=True)
class Comparison:
    """verdict: A, B, tie, both_bad or cannot_judge; reason_codes say why; a, b: what was found of each."""

    verdict: str
    reason_codes: tuple[str, ...]
    a: VerifierResult
    b: VerifierResult

    def swap(self) -> "Comparison":
        """The same comparison with the sides exchanged."""
        return Comparison(_SWAPPED.get(self.verdict, self.verdict), self.reason_codes, self.b, self.a)


def compare(reference: Reference, text_a: str, text_b: str) -> Comparison:
    """Right beats wrong. Where both are right, or both wrong, the asked form beats another. Length is never a reason.

    Alike in both: a tie when right, both_bad when wrong. One that cannot be decided: cannot_judge.

    Raises:
        VerifierError: the reference's verifier is not there.
    """
    a, b = verify(reference, text_a), verify(reference, text_b)
    verdict, reason = _decide(a, b)
    return Comparison(verdict, (reason,), a, b)


def _decide(a: VerifierResult, b: VerifierResult) -> tuple[str, str]:
    if a.right is None or b.right is None:
        return "cannot_judge", "not_decidable"
    if a.right != b.right:
        return ("A" if a.right else "B"), "right_over_wrong"
    truth = "right" if a.right else "wrong"
    if a.in_form != b.in_form:
        return ("A" if a.in_form else "B"), f"form_both_{truth}"
    return ("tie" if a.right else "both_bad"), f"alike_both_{truth}"
