"""Whose answer counts, and what each answer leaves in the ledger."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG

from include.flows import services
from include.flows.approval import NOT_COUNTED, ReleaseApproval, may_answer
from include.flows.errors import FlowError, NoAnswer, Rejected
from include.stores.catalog.releases import Dossier
from tests.flows.conftest import Plane
from tests.flows.things import BASE, TEMPLATE, TOKENIZER

NAME = "demo-tiny"
BODY = {
    "weights": BASE,
    "quantisation": "none",
    "engine": "e",
    "system_prompt": "",
    "tokenizer": TOKENIZER,
    "chat_template": TEMPLATE,
    "generation": {},
}


@pytest.fixture
def dossier(plane: Plane) -> dict[str, Any]:
    """An open question, asked for by ada."""
    releases = services.catalog().releases
    deployment = releases.register_deployment(NAME, BODY)
    digest = releases.file_dossier(Dossier(NAME, deployment, {"canary": {"kind": "none"}}, None, 1, demonstration=True))
    releases.ask(digest, run_id="manual__1", asked_by="ada")
    return {
        "digest": digest,
        "title": f"{NAME} version 1",
        "text": "…",
        "approvers": ["ada", "ben", "demo-approver"],
        "demonstration_accounts": ["demo-approver"],
        "requested_by": "ada",
        "timeout_hours": 1.0,
    }


@pytest.fixture
def asked_again() -> list[int]:
    return []


@pytest.fixture
def approval(dossier: dict[str, Any], asked_again: list[int], monkeypatch: pytest.MonkeyPatch) -> ReleaseApproval:
    monkeypatch.setattr(ReleaseApproval, "execute", lambda self, context: asked_again.append(1))
    with DAG("d", schedule=None):
        return ReleaseApproval(task_id="approve", dossier=dossier)


def answer(person: str, choice: str = "Approve", comment: str = "looked at the table") -> dict[str, Any]:
    return {"responded_by_user": {"id": person, "name": person}, "chosen_options": [choice], "params_input": {"comment": comment}}


class Told:
    """A task instance that remembers what it was told."""

    def __init__(self) -> None:
        self.pushed: list[tuple[str, str]] = []

    def xcom_push(self, key: str, value: str) -> None:
        self.pushed.append((key, value))


def ledger() -> list[tuple[str, str]]:
    return [(entry.kind, str(entry.payload.get("person", ""))) for entry in services.catalog().ledger.history(NAME)]


@pytest.mark.parametrize(
    ("person", "comment", "why"),
    [
        ("ben", "", "a comment is required"),
        ("eve", "fine", "not one of the named approvers"),
        ("", "fine", "not one of the named approvers"),
        ("ada", "fine", "who asked for the run does not approve it"),
    ],
)
def test_an_answer_that_does_not_count_says_why(approval: ReleaseApproval, person: str, comment: str, why: str) -> None:
    assert approval._does_not_count(person, comment) == why


def test_the_answer_of_a_named_approver_with_a_comment_counts(approval: ReleaseApproval) -> None:
    assert approval._does_not_count("ben", "fine") is None


@pytest.mark.parametrize("said", [answer("ada"), answer("eve"), answer("ben", comment="   "), answer("ada", "Reject")])
def test_an_answer_that_does_not_count_is_asked_for_again_and_leaves_no_row(
    approval: ReleaseApproval, asked_again: list[int], said: dict[str, Any]
) -> None:
    told = Told()
    approval.execute_complete({"ti": told}, said)  # type: ignore[typeddict-item]
    assert asked_again == [1]
    assert ledger() == []
    assert [key for key, _ in told.pushed] == [NOT_COUNTED]
    assert f"the answer of {said['responded_by_user']['name']} does not count: " in told.pushed[0][1]


def test_a_yes_is_in_the_ledger_with_the_kind_of_account(approval: ReleaseApproval, dossier: dict[str, Any]) -> None:
    assert approval.execute_complete({}, answer("ben")) == {  # type: ignore[typeddict-item]
        "dossier": dossier["digest"],
        "person": "ben",
        "account": "person",
        "state": "approved",
    }
    assert ledger() == [("approved", "ben")]
    assert services.catalog().ledger.history(NAME)[0].payload["account"] == "person"


def test_a_demonstration_account_is_marked_as_such_for_ever(approval: ReleaseApproval) -> None:
    assert approval.execute_complete({}, answer("demo-approver"))["account"] == "demonstration"  # type: ignore[typeddict-item]
    assert services.catalog().ledger.history(NAME)[0].payload["account"] == "demonstration"


def test_a_no_is_red_and_the_ledger_has_who_and_why(approval: ReleaseApproval) -> None:
    with pytest.raises(Rejected, match="ben said no to demo-tiny version 1: too long winded"):
        approval.execute_complete({}, answer("ben", "Reject", "too long winded"))  # type: ignore[typeddict-item]
    assert ledger() == [("rejected", "ben")]
    assert "too long winded" in str(services.catalog().ledger.history(NAME)[0].payload)


def test_silence_is_red_and_an_outcome_of_its_own(approval: ReleaseApproval) -> None:
    with pytest.raises(NoAnswer, match="nobody answered within 1 h"):
        approval.execute_complete({}, {"error_type": "timeout"})  # type: ignore[typeddict-item]
    assert [kind for kind, _ in ledger()] == ["no_answer"]


def test_a_no_is_never_asked_again_by_a_retry_and_has_no_default(approval: ReleaseApproval) -> None:
    assert approval.retries == 0
    assert not approval.defaults


def test_who_asked_for_the_run_is_not_among_those_who_may_answer(dossier: dict[str, Any]) -> None:
    assert may_answer(dossier) == ["ben", "demo-approver"]
    assert may_answer(dossier | {"requested_by": " Ben "}) == ["ada", "demo-approver"]


def test_whoever_asked_on_the_way_is_not_among_them_either(dossier: dict[str, Any]) -> None:
    assert may_answer(dossier | {"also_requested_by": ["ben"]}) == ["demo-approver"]


@pytest.fixture
def two_seats(plane: Plane, dossier: dict[str, Any]) -> dict[str, Any]:
    """The same question where two people have to say yes."""
    releases = services.catalog().releases
    deployment = releases.dossier(dossier["digest"]).deployment
    digest = releases.file_dossier(Dossier(NAME, deployment, {"canary": {"kind": "none"}}, None, 2, demonstration=True))
    releases.ask(digest, run_id="manual__2", asked_by="ada")
    return {**dossier, "digest": digest, "seats": [0, 1]}


def seat(dossier: dict[str, Any], number: int) -> ReleaseApproval:
    with DAG("d", schedule=None):
        return ReleaseApproval(task_id=f"approve_{number}", dossier=dossier, seat=number)


@pytest.fixture
def parked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Whom Airflow was told to ask, each time."""
    asked: list[list[str]] = []
    monkeypatch.setattr(ApprovalOperator, "execute", lambda self, context: asked.append([user["name"] for user in self.assigned_users]))
    return asked


def test_a_second_seat_is_no_seat_for_who_sat_on_the_first(two_seats: dict[str, Any], parked: list[list[str]]) -> None:
    first, second, told = seat(two_seats, 0), seat(two_seats, 1), Told()
    first.execute({})  # type: ignore[typeddict-item]
    assert first.execute_complete({}, answer("ben"))["state"] == "open"  # type: ignore[typeddict-item]
    second.execute({})  # type: ignore[typeddict-item]
    assert parked == [["ben", "demo-approver"], ["demo-approver"]]
    second.execute_complete({"ti": told}, answer("ben"))  # type: ignore[typeddict-item]
    assert told.pushed == [
        (NOT_COUNTED, "the answer of ben does not count: ben has approved this already; each approval comes from another person")
    ]
    assert second.execute_complete({}, answer("demo-approver"))["state"] == "approved"  # type: ignore[typeddict-item]
    assert ledger() == [("approved", "ben"), ("approved", "demo-approver")]


def test_after_a_no_in_one_seat_the_next_asks_nobody(two_seats: dict[str, Any], parked: list[list[str]]) -> None:
    with pytest.raises(Rejected):
        seat(two_seats, 0).execute_complete({}, answer("ben", "Reject", "no"))  # type: ignore[typeddict-item]
    with pytest.raises(Rejected, match="ben said no to demo-tiny version 1: no"):
        seat(two_seats, 1).execute({})  # type: ignore[typeddict-item]
    assert parked == []


def test_after_silence_in_one_seat_the_next_asks_nobody(two_seats: dict[str, Any], parked: list[list[str]]) -> None:
    with pytest.raises(NoAnswer):
        seat(two_seats, 0).execute_complete({}, {"error_type": "timeout"})  # type: ignore[typeddict-item]
    with pytest.raises(NoAnswer, match="nobody answered another seat"):
        seat(two_seats, 1).execute({})  # type: ignore[typeddict-item]
    assert parked == []


def test_what_enough_people_approved_is_not_asked_again(dossier: dict[str, Any], parked: list[list[str]]) -> None:
    seat(dossier, 0).execute_complete({}, answer("ben"))  # type: ignore[typeddict-item]
    assert seat(dossier, 0).execute({})["state"] == "approved"  # type: ignore[typeddict-item]
    assert parked == []


def test_too_few_people_for_the_seats_is_said_before_the_first_answers(two_seats: dict[str, Any]) -> None:
    with pytest.raises(FlowError, match="names ben beside: 2 more approvals are needed"):
        may_answer(two_seats | {"approvers": ["ada", "ben"]})


def test_where_nobody_else_may_answer_nobody_is_asked(dossier: dict[str, Any]) -> None:
    with pytest.raises(FlowError, match="ada asked for the run and may not approve it.*names nobody else"):
        may_answer(dossier | {"approvers": ["ada"]})


def test_the_form_says_from_the_start_that_a_comment_is_required(approval: ReleaseApproval) -> None:
    """Airflow's form shows no such words for an empty text, and its server takes anything."""
    comment = approval.serialized_params["comment"]
    assert (comment["value"], comment["schema"]["type"]) == (None, "string")
    assert approval.params["comment"] == ""
