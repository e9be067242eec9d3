"""Ending early with a named reason: what follows is skipped, the reason stays readable."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowSkipException

from include.domain.outcomes import NotDone
from include.flows.errors import Rejected


def say_and_skip(reason: str) -> NoReturn:
    """Skips this task and what follows it; the reason stays readable as the XCom `status`."""
    get_current_context()["ti"].xcom_push(key="status", value=reason)
    raise AirflowSkipException(reason)


@contextmanager
def reason_told() -> Iterator[None]:
    """A task that a gate's or a person's no ends stays red; the named reason stays readable as the XCom `status`."""
    try:
        yield
    except Rejected as no:
        get_current_context()["ti"].xcom_push(key="status", value=no.reason)
        raise


def skip_unless_new(wanted: dict[str, Any]) -> dict[str, Any]:
    """Skips the rest when the candidate is the champion already."""
    if wanted["status"] == NotDone.ALREADY_RELEASED:
        say_and_skip(str(NotDone.ALREADY_RELEASED))
    return wanted


def skip_if_rejected(dossier: dict[str, Any]) -> dict[str, Any]:
    """Skips the rest when a person has said no to this very dossier, or took its release back: it stands until a run asks anew."""
    if dossier["status"].startswith(NotDone.ALREADY_REJECTED):
        say_and_skip(dossier["status"])
    return dossier
