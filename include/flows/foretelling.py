"""What a stage will cost, in its task's log before it is submitted, and against what was seen when it is done."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from include.flows import services
from include.flows.errors import FlowError
from include.settings.catalogue import recipe
from include.settings.clusters import Cluster
from include.settings.recipes import Recipe
from include.stages.errors import StageError
from include.stages.forecast import Measured, check_preemption, compared, forecast, measured_in
from include.stages.plan import Plan
from include.stages.rates import unusual_rate

log = logging.getLogger(__name__)
_LOOKED_AT = 20
"""Earlier runs of the stage among which one of the same recipe is looked for."""


class Unaffordable(FlowError, AirflowFailException):
    """What is asked for cannot be on this cluster: no retry helps."""


def foretell(made: Plan, run: Mapping[str, Any], where: Cluster) -> dict[str, float]:
    """Says the estimate and its warnings; gives its figures for the report, {} where nothing can be estimated.

    A checkpoint's seconds that an earlier run measured count without an estimate too.

    Raises:
        Unaffordable: the stage cannot fit, or must not be preemptible.
    """
    stage, asked = made.spec.stage, recipe(run["recipe"])
    if (said := unusual_rate(asked, stage)) is not None:
        log.warning(said)
    measured = _measured(made, run) if made.job.preemptible else None
    found = forecast(asked, stage, where, measured)
    if found is None:
        _or_unaffordable(lambda: check_preemption(stage, made.job, measured))
        return {}
    for line in found.lines():
        log.info(line)
    for warning in found.warnings():
        log.warning("%s: %s", stage, warning)
    _or_unaffordable(found.check)
    return found.to_json()


def refuse_unaffordable(found: Recipe, method: str, where: Cluster) -> None:
    """Looks at all stages that a run of the chain trains or generates with, before the first of them has computed anything.

    Raises:
        Unaffordable: one of them cannot fit its devices.
    """
    for stage in ("sft", "generate", "reward_model", method):
        if (made := forecast(found, stage, where)) is not None:
            _or_unaffordable(made.check_fits)


def _or_unaffordable(check: Callable[[], None]) -> None:
    try:
        check()
    except StageError as error:
        raise Unaffordable(str(error)) from error


def _measured(made: Plan, run: Mapping[str, Any]) -> Measured | None:
    """Seconds of a checkpoint: of an earlier attempt of this key, or of the newest run of this stage of the recipe."""
    store, runs = services.store(), services.catalog().runs
    own = {f"attempt {name}": report.to_json() for name in store.attempts(made.key) if (report := store.report(made.key, str(name)))}
    if (found := measured_in(own)) is not None:
        return found
    name = run["recipe"].partition("@")[0]
    for earlier in runs.newest(made.spec.stage, limit=_LOOKED_AT):
        if str(earlier.spec.note.get("recipe", "")).partition("@")[0] == name and (done := runs.committed(earlier.key)) is not None:
            return measured_in({f"run {earlier.key[:19]}": done.report.to_json()})
    return None


def say_what_was_seen(report: Mapping[str, Any]) -> None:
    """Estimate and report side by side, so that one learns how far it is off."""
    for line in compared(report.get("summary", {})):
        log.info(line)
