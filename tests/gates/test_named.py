"""A report that blocks ends in one of the named reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from include.domain.outcomes import Verdict
from include.gates.named import named
from include.gates.policy import GateSet
from include.gates.results import GateReport
from tests.gates.tables import good, judged


def with_(report: GateReport, name: str, verdict: Verdict, cause: str) -> GateReport:
    changed = [replace(r, verdict=verdict, cause=cause) if r.name == name else r for r in report.results]
    return replace(report, results=tuple(changed))


@pytest.mark.parametrize(
    ("verdict", "cause", "word"),
    [
        (Verdict.FAIL, "no_improvement", "no improvement: asked_form_better"),
        (Verdict.FAIL, "beyond_limit", "rejected: asked_form_better"),
        (Verdict.INCONCLUSIVE, "within_noise", "rejected: asked_form_better"),
        (Verdict.NOT_EVALUATED, "missing", "not evaluated: asked_form_better"),
        (Verdict.NOT_EVALUATED, "other_backend", "other environment: asked_form_better"),
    ],
)
def test_each_kind_of_block_has_its_word(quickstart: GateSet, verdict: Verdict, cause: str, word: str) -> None:
    report = judged(quickstart, good())
    assert named(report) == ""
    assert named(with_(report, "asked_form_better", verdict, cause)) == word


def test_what_speaks_against_a_candidate_counts_before_what_was_not_measured(quickstart: GateSet) -> None:
    report = with_(judged(quickstart, good()), "asked_form_better", Verdict.FAIL, "no_improvement")
    assert named(with_(report, "piqa_no_worse", Verdict.NOT_EVALUATED, "missing")) == "rejected: asked_form_better, piqa_no_worse"
