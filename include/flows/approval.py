"""A person's approval of a release: one seat, a named person, a comment; *no* and silence are outcomes that last."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Param
from airflow.sdk.definitions.context import Context

from include.flows import services
from include.flows.errors import FlowError, NoAnswer, Rejected

NOT_COUNTED = "not_counted"
"""Under this XCom key the task says why the last answer did not count: Airflow keeps a question's text as it was first asked."""


def may_answer(dossier: Mapping[str, Any]) -> list[str]:
    """The named approvers but for who asked for the run; Airflow refuses everybody else's answer at once.

    Raises:
        FlowError: nobody is left.
    """
    from include.stores.catalog.dossiers import same_person

    people = [name for name in dossier["approvers"] if not same_person(name, dossier["requested_by"])]
    if not people:
        raise FlowError(
            f"{dossier['title']}: {dossier['requested_by']} asked for the run and may not approve it, and approval.approvers of the recipe "
            "names nobody else: name another person there, or start the run as somebody else"
        )
    return people


class ReleaseApproval(ApprovalOperator):
    """Asks the named approvers, writes the answer into the ledger, bound to the dossier's digest, and fails on *no* and on silence.

    Steps after it never trust this task's state: they require the ledger's rows. There is no default answer, and no retry that would
    ask again after a *no*.

    :param dossier: what the dossier task returned (templated): digest, title, text, approvers, timeout_hours, demonstration_accounts.
    :param seat: which of the approvals asked for this is (one mapped task each); the ledger wants distinct persons.
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
        self.subject = f"Release {self.dossier['title']}?"
        self.body = self.dossier["text"]
        self.assigned_users = [{"id": name, "name": name} for name in may_answer(self.dossier)]
        self.response_timeout = timedelta(hours=self.dossier["timeout_hours"])
        return super().execute(context)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        releases, digest = services.catalog().releases, self.dossier["digest"]
        if event.get("error_type") == "timeout":
            releases.no_answer(digest, actor="airflow")
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
            raise Rejected(f"{person} said no to {self.dossier['title']}: {comment}")
        account = "demonstration" if person in self.dossier["demonstration_accounts"] else "person"
        decision = releases.approve(digest, person, comment, account=account)
        self.log.info("%s (%s account) approved %s: %s", person, account, digest, comment)
        return {"dossier": digest, "person": person, "account": account, "state": str(decision.state)}

    def _does_not_count(self, person: str, comment: str) -> str | None:
        if not comment:
            return "a comment is required"
        if person not in self.dossier["approvers"]:
            return "not one of the named approvers"
        if person == self.dossier["requested_by"]:
            return "who asked for the run does not approve it"
        return None
