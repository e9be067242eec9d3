"""Waiting for the panel: people compare the candidate's answers with others'; what they said is frozen and becomes measurements."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.definitions.context import Context

from include.flows import services
from include.flows.errors import NoAnswer, RubricInDoubt
from include.flows.gold_items import held_for_review, without
from include.flows.label_sensor import LabelTrigger, look

if TYPE_CHECKING:
    from include.data.annotation_client import AnnotationClient
    from include.flows.panel import Opened
    from include.settings.panel import PanelSettings


def missing_of(
    client: "AnnotationClient", batch_id: str, wanted: "PanelSettings", kinds: Sequence[str], *, last: bool = False
) -> list[str]:
    """What one batch of the panel still lacks, in words; `kinds`: of annotators whose word counts. Who could judge nothing is not among them.

    Raises:
        NoAnswer: it is closed, and lacks something.
    """
    from include.flows.panel_result import ANEW, judged_by

    progress = client.progress(batch_id)
    most = progress["labels"]["wanted"]  # equal answers are nobody's work, so a batch may be smaller than what is asked for
    asked = wanted.model_copy(update={"min_labels": min(wanted.min_labels, most), "min_decided": min(wanted.min_decided, most)})
    missing = look(client, batch_id, asked, taken=True, last=last, anew=ANEW)
    held = held_for_review(progress, wanted)
    people = len(judged_by(label for label in without(client.snapshot(batch_id).labels, held) if label.annotator_kind in kinds))
    if people < (least := min(wanted.min_annotators, most)):
        missing.append(f"{least - people} more people ({people} of {least})")
        if progress.get("closed_at"):
            raise NoAnswer(f"batch {batch_id} is closed and lacks {'; '.join(missing)}: {ANEW}")
    return missing


class PanelTrigger(LabelTrigger):
    """Looks at every batch of a panel until none lacks anything."""

    def __init__(self, batches: Sequence[str], recipe_name: str, deadline: float) -> None:
        super().__init__(",".join(batches), recipe_name, deadline, True)
        self.batches = list(batches)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        kwargs = {"batches": self.batches, "recipe_name": self.recipe_name, "deadline": self.deadline}
        return "include.flows.panel_sensor.PanelTrigger", kwargs

    def _look(self, last: bool = False) -> list[str]:
        return look_at(self.batches, self.recipe_name, last)


def look_at(batches: Sequence[str], recipe_name: str, last: bool = False) -> list[str]:
    """What the batches of a recipe's panel lack together, each named."""
    from include.flows.panel import settings_of
    from include.flows.panel_result import kinds_of
    from include.settings.catalogue import recipe

    found = recipe(recipe_name)
    wanted, kinds = settings_of(found), kinds_of(found)
    with services.annotation("pipeline") as client:
        return [f"{text} (batch {name})" for name in batches for text in missing_of(client, name, wanted, kinds, last=last)]


class PanelSensor(BaseOperator):
    """Opens the panel's batches, waits for people, and returns where their measurements lie; {} where no gate asks people.

    :param run: what `resolve` returned (templated).
    :param wanted: what the evaluation measures (templated).
    :param measured: the evaluation's result (templated).

    A retry finds the same batches, and labels that were frozen for the run stay what they were.
    """

    template_fields = ("run", "wanted", "measured")
    ui_color = "#f7ecd7"

    def __init__(self, *, run: Any, wanted: Any, measured: Any, **kwargs: Any) -> None:
        kwargs.setdefault("retries", 2)
        super().__init__(**kwargs)
        self.run, self.wanted, self.measured = run, wanted, measured

    def execute(self, context: Context) -> Any:
        from include.flows.panel import open_panel, settings_of
        from include.settings.catalogue import recipe

        opened = open_panel(self.run, self.wanted, self.measured)
        if not opened:
            return {}
        waiting = self._not_frozen(context, opened)
        missing = look_at(waiting, self.run["recipe"]) if waiting else []
        if not missing:
            return self._freeze(context, opened)
        self.log.info("The panel waits for %s. Compare at %s/annotate", "; ".join(missing), services.setting("ALIGN_ANNOTATION_URL"))
        hours = settings_of(recipe(self.run["recipe"])).timeout_hours
        deadline = (datetime.now(UTC) + timedelta(hours=hours)).timestamp()
        return self.defer(trigger=PanelTrigger(waiting, self.run["recipe"], deadline), method_name="resume")

    def _not_frozen(self, context: Context, opened: "Sequence[Opened]") -> list[str]:
        labels, run_id = services.catalog().labels, context["dag_run"].run_id
        return [one.batch_id for one in opened if one.batch_id is not None and labels.snapshot(run_id, one.batch_id) is None]

    def resume(self, context: Context, event: Mapping[str, Any]) -> Any:
        from include.flows.panel import open_panel

        if event["status"] == "never":
            raise (RubricInDoubt if event["doubt"] else NoAnswer)(event["said"])
        if event["status"] != "ready":
            raise NoAnswer(f"people have not compared enough answers in time; the panel still waits for {'; '.join(event['missing'])}")
        return self._freeze(context, open_panel(self.run, self.wanted, self.measured))

    def _freeze(self, context: Context, opened: "Sequence[Opened]") -> dict[str, Any]:
        from include.flows.panel_result import freeze, keep

        ti, run_id = context["ti"], context["dag_run"].run_id
        for one in opened:
            freeze(run_id, one, self.run)
        return keep(self.run, run_id, opened, self.measured, f"dag:{ti.dag_id}/{run_id}/{ti.task_id}/{ti.try_number}")
