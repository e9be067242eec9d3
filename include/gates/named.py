"""One of the named reasons for a report that does not let its candidate through."""

from include.domain.outcomes import NotDone, Verdict
from include.gates.results import GateReport


def named(report: GateReport) -> str:
    """The reason and the gates that block, such as ``no improvement: asked_form_better``; empty where nothing blocks.

    *no improvement*: nothing else is wrong than that nothing got better. *other environment*: numbers of two backends would have to be
    compared. *not evaluated*: something was not measured, and nothing that was measured speaks against it. Else *rejected*.
    """
    blocking = [result for result in report.results if not result.lets_through]
    if not blocking:
        return ""
    causes = {result.cause for result in blocking}
    if causes == {"no_improvement"}:
        reason = NotDone.NO_IMPROVEMENT
    elif causes == {"other_backend"}:
        reason = NotDone.OTHER_ENVIRONMENT
    elif all(result.verdict is Verdict.NOT_EVALUATED for result in blocking):
        reason = NotDone.NOT_EVALUATED
    else:
        reason = NotDone.REJECTED
    return f"{reason}: {', '.join(dict.fromkeys(result.name for result in blocking))}"
