"""How a run ended, in named words, also where it ended red."""

from __future__ import annotations

from typing import Any

import pytest

from include.flows import release_tasks, services, skipping
from include.flows.errors import Rejected
from include.flows.outcome import outcome_of
from include.flows.skipping import reason_told
from tests.flows.conftest import Plane
from tests.flows.releasing import Candidate


class Told:
    """The XComs of a run: (task, key) → value."""

    def __init__(self, **values: Any) -> None:
        self.values = {tuple(name.split("__")): value for name, value in values.items()}

    def __call__(self, task_ids: str, key: str = "return_value") -> Any:
        return self.values.get((task_ids.replace(".", "_"), key))


FAILED = {"evaluation.gates": "failed", "release.promote": "upstream_failed"}
FINE = {"evaluation.gates": "success", "release.promote": "success"}


def test_a_release_is_green() -> None:
    pull = Told(release_promote__return_value={"name": "demo-tiny", "version": 3})
    assert outcome_of(pull, FINE, "r") == ("released: demo-tiny version 3", False)


def test_an_early_end_is_green_with_its_reason() -> None:
    skipped = {"evaluation.compare_with": "skipped", "release.promote": "skipped"}
    assert outcome_of(Told(evaluation_compare_with__status="already released"), skipped, "r") == ("already released", False)
    rejected = Told(release_dossier__status="already rejected", evaluation_compare_with__status="new")
    assert outcome_of(rejected, skipped, "r") == ("already rejected", False)


def test_gates_that_block_are_red_with_their_reason() -> None:
    pull = Told(evaluation_gates__status="no improvement: asked_form_better")
    assert outcome_of(pull, FAILED, "r") == ("no improvement: asked_form_better", True)


def test_what_never_came_to_its_gates_is_not_evaluated_and_says_which_task_failed() -> None:
    assert outcome_of(Told(), {"sft.train": "failed", "release.promote": "upstream_failed"}, "r") == (
        "not evaluated: sft.train failed",
        True,
    )


def test_what_nobody_can_name_is_unknown_and_never_green() -> None:
    judged = Told(evaluation_gates__return_value={"passed": True})
    assert outcome_of(judged, {"release.shadow_run": "failed"}, "r") == ("unknown: release.shadow_run failed", True)
    assert outcome_of(judged, FINE, "r") == ("unknown: nothing failed", True)


@pytest.mark.parametrize(
    ("answer", "words"),
    [("reject", "rejected: approver said no (too long winded)"), ("no_answer", "no answer")],
)
def test_a_no_and_silence_are_words_of_their_own_by_the_ledger(plane: Plane, answer: str, words: str) -> None:
    filed = Candidate(plane.run(), "a").dossier()
    releases = services.catalog().releases
    if answer == "reject":
        releases.reject(filed["digest"], "approver", "too long winded")
    else:
        releases.no_answer(filed["digest"], "airflow")
    went_on = {"release_dossier__status": "open", "evaluation_compare_with__status": "new"}
    releases.ask(filed["digest"], "another-run", "ada", anew=True)  # what another run asks afterwards is no answer to this one
    pull = Told(evaluation_gates__return_value={"passed": True}, release_dossier__digest=filed["digest"], **went_on)
    assert outcome_of(pull, {"release.approve_0": "failed", "release.promote": "upstream_failed"}, "manual__1") == (words, True)


def test_an_aborted_canary_says_why(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: dict[str, str] = {}

    class Instance:
        def xcom_push(self, key: str, value: str) -> None:
            pushed[key] = value

    monkeypatch.setattr(skipping, "get_current_context", lambda: {"ti": Instance()})
    made = Candidate(plane.run(), "a")
    filed = made.dossier()
    made.approve(filed)
    release_tasks.start_canary(filed, "dag:test")
    with pytest.raises(Rejected), reason_told():
        made.promote(filed, made.observed("aborted", ("error_share is 0.5",)))
    assert pushed == {"status": "rejected: the shadow run was aborted: error_share is 0.5"}
    assert outcome_of(Told(release_promote__status=pushed["status"]), {"release.promote": "failed"}, "r") == (pushed["status"], True)
