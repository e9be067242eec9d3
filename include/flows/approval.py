"""A person's approval of a release: one seat, a named person, a comment; *no* and silence are outcomes that last."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Param
from airflow.sdk.definitions.context import Context

from include.flows import services
from include.flows.errors import FlowError, NoAnswer, Rejected

if TYPE_CHECKING:
    from include.stores.catalog.dossiers import Decision

NOT_COUNTED = "not_counted"
"""Under this XCom key the task says why the last answer did not count: Airflow keeps a question's text as it was first asked."""


def may_answer(dossier: Mapping[str, Any], approved_by: Sequence[str] = ()) -> list[str]:
    """The named approvers but for who asked for the run and who has approved; Airflow refuses everybody else's answer at once.

    Raises:
        FlowError: fewer are left than there are approvals to give.
    """
    from include.stores.catalog.dossiers import same_person

    askers = [dossier["requested_by"], *dossier.get("also_requested_by", ())]
    people = [name for name in dossier["approvers"] if not any(same_person(name, other) for other in (*askers, *approved_by))]
    missing = len(dossier.get("seats") or (0,)) - len(approved_by)
    if len(people) < max(missing, 1):
        raise FlowError(
            f"{dossier['title']}: {' and '.join(askers)} asked for the run and may not approve it, and approval.approvers of the recipe "
            f"names {', '.join(people) or 'nobody else'} beside: {missing} more approvals are needed. Name another person there, or start "
            "the run as somebody else"
        )
    return people


class ReleaseApproval(ApprovalOperator):
    """Asks the named approvers, writes the answer into the ledger, bound to the dossier's digest, and fails on *no* and on silence.

    Steps after it never trust this task's state: they require the ledger's rows. There is no default answer, and no retry that would
    ask again after a *no*.

    :param dossier: what the dossier task returned (templated): digest, title, text, approvers, timeout_hours, demonstration_accounts.
    :param seat: which of the approvals asked for this is (one mapped task each, one after the other: who has approved is not asked again).
    """

    template_fields = (*ApprovalOperator.template_fields, "dossier")
    ui_color = "#f7d7d7"

    def __init__(self, *, dossier: Any, seat: int = 0, **kwargs: Any) -> None:
        kwargs.setdefault("retries", 0)
        comment = Param(
            "", type="string", format="multiline", title="Comment", description="Why, for either answer. It stands in the ledger."
        )
        # A mapped task is made anew from its own arguments, these among them.
        super().__init__(**{**kwargs, "subject": "Release this model?", "params": {"comment": comment}})
        self.dossier = dossier
        self.seat = seat

    @property
    def serialized_params(self) -> dict[str, dict[str, Any]]:
        """As the form gets them: with no value rather than an empty one, it says from the start that the field is required.

        (The parameter's own default cannot be None: Airflow validates it before the task runs.)
        """
        return {name: {**param, "value": param["value"] or None} for name, param in super().serialized_params.items()}

    def execute(self, context: Context) -> Any:
        """Asks; where the round is over already (enough approvals, a no, silence in another seat), that stands and nobody is asked."""
        decision = self._decision()
        if decision.state == "approved":
            self.log.info("%s is approved by %s already", self.dossier["digest"], ", ".join(decision.approved_by))
            return {"dossier": self.dossier["digest"], "person": None, "account": None, "state": "approved"}
        if decision.state == "no_answer":
            raise NoAnswer(f"nobody answered another seat in time; {self.dossier['title']} is not released")
        if decision.state != "open":
            raise Rejected(f"{decision.decided_by} said no to {self.dossier['title']}: {decision.why}")
        self.subject = f"Release {self.dossier['title']}?"
        self.body = self.dossier["text"]
        self.assigned_users = [{"id": name, "name": name} for name in may_answer(self.dossier, decision.approved_by)]
        self.response_timeout = timedelta(hours=self.dossier["timeout_hours"])
        return super().execute(context)

    def _renew_papers(self) -> None:
        """MLflow shows the answer; the ledger has it already, so what is wrong with MLflow must not undo it."""
        from include.flows.papers import renew

        try:
            renew(services.catalog().releases.dossier(self.dossier["digest"]))
        except Exception as error:  # noqa: BLE001 - the next step writes the same papers, and fails by name where it cannot
            self.log.warning("The answer stands in the ledger, and not yet in MLflow: %s: %s", type(error).__name__, error)

    def _decision(self) -> "Decision":
        found = services.catalog().releases.decision(self.dossier["digest"])
        if found is None:
            raise FlowError(f"nobody was asked about {self.dossier['digest']}: clear the task `dossier`")
        return found

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        releases, digest = services.catalog().releases, self.dossier["digest"]
        if event.get("error_type") == "timeout":
            releases.no_answer(digest, actor="airflow")
            self._renew_papers()
            raise NoAnswer(f"nobody answered within {self.dossier['timeout_hours']:g} h; {self.dossier['title']} is not released")
        user = event.get("responded_by_user") or {}
        person = str(user.get("name") or user.get("id") or "")
        comment = str((event.get("params_input") or {}).get("comment") or "").strip()
        if (why := self._does_not_count(person, comment)) is not None:
            self.log.warning("The answer of %s does not count: %s. Asking again.", person or "nobody", why)
            context["ti"].xcom_push(key=NOT_COUNTED, value=f"the answer of {person or 'nobody'} does not count: {why}")
            return self.execute(context)
        if list(event.get("chosen_options") or []) != [self.APPROVE]:
            releases.reject(digest, person, comment)
            self._renew_papers()
            raise Rejected(f"{person} said no to {self.dossier['title']}: {comment}")
        account = "demonstration" if person in self.dossier["demonstration_accounts"] else "person"
        decision = releases.approve(digest, person, comment, account=account)
        self._renew_papers()
        self.log.info("%s (%s account) approved %s: %s", person, account, digest, comment)
        return {"dossier": digest, "person": person, "account": account, "state": str(decision.state)}

    def _does_not_count(self, person: str, comment: str) -> str | None:
        from include.stores.catalog.dossiers import same_person

        decision = self._decision()
        if not comment:
            return "a comment is required"
        if person not in self.dossier["approvers"]:
            return "not one of the named approvers"
        if any(same_person(person, asker) for asker in (self.dossier["requested_by"], *decision.asked_by)):
            return "who asked for the run does not approve it"
        if any(same_person(person, other) for other in decision.approved_by):
            return f"{person} has approved this already; each approval comes from another person"
        return None
