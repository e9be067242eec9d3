"""How a run ended, in the finite list of words: also a no, silence and gates that block are such an end, and stay red."""

from collections.abc import Callable, Mapping
from typing import Any

from include.domain.outcomes import NotDone
from include.flows import services

TOLD_BY = ("release.promote", "release.dossier", "evaluation.gates", "evaluation.compare_with", "reward_model.gate")
"""Tasks that say why they end early, under the XCom key `status`; the last one in the chain counts."""
_NO_END = ("open", "new")
"""What dossier and comparison say under the same key where the run goes on."""
_RED = ("failed", "upstream_failed", "removed")

Pull = Callable[..., Any]


def outcome_of(pull: Pull, states: Mapping[str, str | None], run_id: str) -> tuple[str, bool]:
    """The words, and whether the run is red.

    pull: `xcom_pull` of a task instance of the run. states: the state of each of its tasks.
    """
    if promoted := pull(task_ids="release.promote"):
        return f"released: {promoted['name']} version {promoted['version']}", False
    failed = sorted(name for name, state in states.items() if state == "failed")
    said = _told(pull) or _asked(pull, run_id)
    if said is None:
        evaluated = pull(task_ids="evaluation.gates") is not None
        said = f"{NotDone.UNKNOWN if evaluated else NotDone.NOT_EVALUATED}: {', '.join(failed) or 'nothing'} failed"
    return said, any(state in _RED for state in states.values()) or said.startswith(NotDone.UNKNOWN)


def _told(pull: Pull) -> str | None:
    """What the last task said that ended early."""
    said = [pull(task_ids=task, key="status") for task in TOLD_BY]
    return next((str(status) for status in said if status and status not in _NO_END), None)


def _asked(pull: Pull, run_id: str) -> str | None:
    """What people answered this run, by the catalog: a task's state is no answer."""
    digest = pull(task_ids="release.dossier", key="digest")
    decision = services.catalog().releases.decision(str(digest), run_id) if digest else None
    if decision is None:
        return None
    if decision.state == "rejected":
        return f"{NotDone.REJECTED}: {decision.decided_by} said no ({decision.why})"
    if decision.state == "no_answer":
        return str(NotDone.NO_ANSWER)
    return None
