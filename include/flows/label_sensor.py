"""Waiting for preferences: enough labels, fresh enough, agreeing enough. Defers between looks; returns a frozen snapshot."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.definitions.context import Context
from airflow.triggers.base import BaseTrigger, TriggerEvent

from include.domain.outcomes import NotDone
from include.flows import services
from include.flows.collected import show_collection
from include.flows.earlier_batches import Again, look_again, record, recorded
from include.flows.errors import FlowError, NoAnswer, RubricInDoubt
from include.flows.gold_items import counted, held_for_review, without, words
from include.flows.skipping import say_and_skip
from include.flows.withdrawing import make_known

if TYPE_CHECKING:
    from include.data.agreement import Agreement
    from include.data.annotation_client import AnnotationClient, Snapshot
    from include.domain.records import Label
    from include.settings.annotation import AnnotationSettings
    from include.stores.catalog.labels import Snapshot as Recorded

POLL_INTERVAL_S = 15.0
ANEW = "other settings of `generate` draw new candidates (so does another rerun_salt, which computes every stage anew)"
"""How a batch of candidates becomes another one."""
_DOUBT = "Cohen's kappa"
"""What a missing agreement beyond chance begins with, in the list of what is missing."""


@dataclass(frozen=True)
class Moment:
    """When a batch is looked at. taken: an earlier run has used its labels, so they were fresh then. last: no later look will follow."""

    now: datetime
    taken: bool = False
    last: bool = False


def still_missing(progress: Mapping[str, Any], wanted: "AnnotationSettings", moment: Moment) -> list[str]:
    """What keeps the batch from being used, in words; empty when nothing does."""
    labels, agreement = progress["labels"], progress["agreement"]
    current = labels["current"]
    decided = labels["by_verdict"].get("A", 0) + labels["by_verdict"].get("B", 0)
    missing = []
    if current < wanted.min_labels:
        missing.append(f"{wanted.min_labels - current} more labels ({current} of {wanted.min_labels})")
    if open_ones := _awaited(progress, wanted, moment):
        missing.append(open_ones)
    if decided < wanted.min_decided:
        missing.append(f"{wanted.min_decided - decided} more decided comparisons ({decided} of {wanted.min_decided})")
    if _too_old(progress, wanted, moment):
        missing.append(f"labels younger than {wanted.max_age_hours:g} h (the freshest is of {progress['freshest_label_at']})")
    if not agreement["applicable"]:
        if not wanted.agreement_not_applicable_passes:
            missing.append("a second annotator: agreement of one is not applicable")
    elif agreement["share"] < wanted.min_agreement:
        missing.append(f"agreement {agreement['share']:.2f} (at least {wanted.min_agreement:.2f}): review the rubric")
    return missing


def _awaited(progress: Mapping[str, Any], wanted: "AnnotationSettings", moment: Moment) -> str | None:
    """Comparisons that a person is still waited for. Of a closed batch none is: nobody is handed one any more."""
    open_ones, freshest = progress["missing"]["human"], progress.get("freshest_label_at")
    if not open_ones or progress.get("closed_at"):
        return None
    said = f"{open_ones} comparisons by a person"
    if wanted.settle_hours is None or progress["labels"]["current"] < wanted.min_labels:
        return said
    settled = freshest and moment.now - datetime.fromisoformat(freshest) >= timedelta(hours=wanted.settle_hours)
    return None if settled or moment.last else f"{said}, or {wanted.settle_hours:g} h without a new label (the last is of {freshest})"


def _too_old(progress: Mapping[str, Any], wanted: "AnnotationSettings", moment: Moment) -> bool:
    freshest = progress.get("freshest_label_at")
    old = freshest and moment.now - datetime.fromisoformat(freshest) > timedelta(hours=wanted.max_age_hours)
    return bool(old) and not moment.taken


def rubric_doubt(found: "Agreement", wanted: "AnnotationSettings") -> list[str]:
    """That annotators agree too little beyond chance, in words, where the recipe asks for it; what is not known is not enough."""
    if wanted.min_kappa is None or (not found.applicable and wanted.agreement_not_applicable_passes):
        return []
    if found.kappa is not None and found.kappa >= wanted.min_kappa:
        return []
    shown = "is not defined for these labels" if found.kappa is None else f"{found.kappa:.2f}"
    return [f"{_DOUBT} {shown} (at least {wanted.min_kappa:.2f}): review rubric {wanted.rubric}"]


def agreement_in(labels: "Sequence[Label]") -> "Agreement":
    """The figures of a snapshot's labels, of corrected ones the last."""
    from include.data.aggregate import standing
    from include.data.agreement import agreement_of

    return agreement_of(standing(labels, ())[0])


def look(
    client: "AnnotationClient", batch_id: str, wanted: "AnnotationSettings", *, taken: bool = False, last: bool = False, anew: str = ANEW
) -> list[str]:
    """What a batch still misses now; `anew`: how one that is closed becomes another. Kappa needs the labels themselves, so it is looked at last, and only where it is asked for.

    Raises:
        NoAnswer: everything is labelled, and too old; or the batch is closed, and something is missing.
        RubricInDoubt: the batch is closed, and its annotators agree too little beyond chance.
    """
    progress, moment = client.progress(batch_id), Moment(datetime.now(UTC), taken, last)
    if held := held_for_review(progress, wanted):
        progress = counted(progress, without(client.snapshot(batch_id).labels, held))
    if _too_old(progress, wanted, moment) and not progress["missing"]["total"]:
        raise NoAnswer(
            f"batch {batch_id} is labelled, its newest label is of {progress['freshest_label_at']}, and annotation.max_age_hours is "
            f"{wanted.max_age_hours:g}: nothing younger will come. Raise it, or let another policy answer"
        )
    missing = still_missing(progress, wanted, moment)
    if not missing and wanted.min_kappa is not None:
        missing = rubric_doubt(agreement_in(without(client.snapshot(batch_id).labels, held)), wanted)
    if missing and held:
        missing = [*missing, f"a review of the labels that are held: {words(held)}"]
    if missing and progress.get("closed_at"):
        raise _nothing_more(batch_id, missing, bool(held), anew)
    return missing


def _nothing_more(batch_id: str, missing: Sequence[str], held: bool, anew: str) -> FlowError:
    """Why a closed batch is not waited for, and what to do."""
    if any(text.startswith(_DOUBT) for text in missing):
        return _in_doubt(batch_id, missing)
    accept = "Accept the labels that are held (annotation.gold_reviewed), or open" if held else "Open"
    return NoAnswer(
        f"batch {batch_id} is closed, so nobody is handed a comparison of it any more, and it lacks {'; '.join(missing)}. {accept} a new "
        f"one: {anew}"
    )


def _in_doubt(batch_id: str, doubts: Sequence[str]) -> RubricInDoubt:
    return RubricInDoubt(
        f"batch {batch_id}: {'; '.join(doubts)}. Say in the rubric what people understand differently, "
        "under a new version, and start a run that labels by it"
    )


class LabelTrigger(BaseTrigger):
    """Looks at a batch until nothing is missing or the deadline has passed; a service that is away is asked again."""

    def __init__(self, batch_id: str, recipe_name: str, deadline: float, taken: bool = False) -> None:
        super().__init__()
        self.batch_id, self.recipe_name, self.deadline, self.taken = batch_id, recipe_name, deadline, taken

    def serialize(self) -> tuple[str, dict[str, Any]]:
        kwargs = {"batch_id": self.batch_id, "recipe_name": self.recipe_name, "deadline": self.deadline, "taken": self.taken}
        return "include.flows.label_sensor.LabelTrigger", kwargs

    def _look(self, last: bool = False) -> list[str]:
        from include.settings.catalogue import recipe

        with services.annotation("pipeline") as client:
            return look(client, self.batch_id, recipe(self.recipe_name).annotation, taken=self.taken, last=last)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        said: list[str] | None = None
        while True:
            over = datetime.now(UTC).timestamp() > self.deadline
            try:
                missing = await asyncio.to_thread(self._look, over)
            except NoAnswer as error:
                yield TriggerEvent({"status": "never", "said": str(error), "doubt": isinstance(error, RubricInDoubt)})
                return
            except FlowError:
                raise
            except Exception as error:  # noqa: BLE001 - the service may be restarting: asked again until the deadline
                missing = [f"an answer of the annotation service ({error})"]
            if not missing:
                yield TriggerEvent({"status": "ready"})
                return
            if over:
                yield TriggerEvent({"status": "timeout", "missing": missing})
                return
            if missing != said:
                self.log.info("Waiting for %s", "; ".join(missing))
                said = missing
            await asyncio.sleep(POLL_INTERVAL_S)


class LabelSensor(BaseOperator):
    """Waits until a batch's labels may be used and returns their snapshot.

    :param run: what `resolve` returned (templated).
    :param batch: what the opening of the batch returned (templated).
    :param new_only: end as *no new input* when an earlier run saw the same labels and nobody asks to go on (`ask_again`).

    The snapshot (high-water mark, digest) is recorded for the DAG run: retry and clear give the same one.
    """

    template_fields = ("run", "batch")
    ui_color = "#f7ecd7"

    def __init__(self, *, run: Any, batch: Any, new_only: bool = False, **kwargs: Any) -> None:
        kwargs.setdefault("retries", 2)
        super().__init__(**kwargs)
        self.run, self.batch, self.new_only = run, batch, new_only

    def execute(self, context: Context) -> Any:
        from include.settings.catalogue import recipe

        run_id = context["dag_run"].run_id
        if (known := services.catalog().labels.snapshot(run_id, self.batch["batch_id"])) is not None:
            return self._result(run_id, known.high_water_mark, known.digest)
        found = recipe(self.run["recipe"])
        wanted, before = found.annotation, services.catalog().labels.last_snapshot(self.batch["batch_id"])
        with services.annotation("pipeline") as client:
            again = look_again(client, found, self.batch["batch_id"], run_id)
            if self._nothing_new(before, client.snapshot(self.batch["batch_id"]), again):
                say_and_skip(str(NotDone.NO_NEW_INPUT))
            missing = look(client, self.batch["batch_id"], wanted, taken=before is not None)
        if not missing:
            return self._freeze(run_id)
        self.log.info("Batch %s waits for %s. Compare at %s/annotate", self.batch["batch_id"], "; ".join(missing), self.batch["url"])
        deadline = (datetime.now(UTC) + timedelta(hours=wanted.timeout_hours)).timestamp()
        trigger = LabelTrigger(self.batch["batch_id"], self.run["recipe"], deadline, before is not None)
        return self.defer(trigger=trigger, method_name="resume")

    def _nothing_new(self, before: "Recorded | None", now: "Snapshot", again: "Sequence[Again]") -> bool:
        """Whether this run is for new labels alone, and none is new, of this batch or an earlier one, and no earlier one is left out since."""
        if not self.new_only or self.run["ask_again"] or before is None:
            return False
        used = {one["batch_id"] for one in recorded(before.run_id, before.name)}
        return before.digest == now.digest and all(one.unchanged for one in again) and used <= {one.recorded.name for one in again}

    def resume(self, context: Context, event: Mapping[str, Any]) -> Any:
        if event["status"] == "never":
            raise (RubricInDoubt if event["doubt"] else NoAnswer)(event["said"])
        if event["status"] != "ready":
            if doubts := [text for text in event["missing"] if text.startswith(_DOUBT)]:
                raise _in_doubt(self.batch["batch_id"], doubts)
            raise NoAnswer(f"batch {self.batch['batch_id']} is not ready in time; it still waits for {'; '.join(event['missing'])}")
        return self._freeze(context["dag_run"].run_id)

    def _freeze(self, run_id: str) -> dict[str, Any]:
        from include.settings.catalogue import recipe

        batch_id = self.batch["batch_id"]
        with services.annotation("pipeline") as client:
            progress = client.progress(batch_id)
            snapshot = client.snapshot(batch_id)
            again = look_again(client, recipe(self.run["recipe"]), batch_id, run_id)
            for name in (batch_id, *(one.recorded.name for one in again)):
                make_known(client.withdrawals(name), "annotation service")
        labels = services.catalog().labels
        if self._nothing_new(labels.last_snapshot(batch_id), snapshot, again):
            say_and_skip(str(NotDone.NO_NEW_INPUT))
        record(run_id, again)
        labels.collected([label.to_json() for label in snapshot.labels])
        held = held_for_review(progress, recipe(self.run["recipe"]).annotation)
        found = agreement_in(without(snapshot.labels, held))
        self.log.info("%s", found.text)
        self._warn(found, held)
        if doubts := rubric_doubt(found, recipe(self.run["recipe"]).annotation):
            raise FlowError(f"batch {batch_id} got labels since it was last looked at: {'; '.join(doubts)}")
        self._give_up(batch_id, progress)
        body = {"batch_id": batch_id, "progress": progress, "agreement": found.to_json(), "origin": self.batch.get("origin"), "held": held}
        kept = labels.record_snapshot(run_id, batch_id, snapshot.mark, snapshot.digest, self.batch["url"], body=body)
        show_collection(batch_id, kept.digest, found, progress)
        share = progress["decided_share"]
        self.log.info(
            "Snapshot %s: %d labels, decided share %s", kept.digest, len(snapshot.labels), f"{share:.2f}" if share is not None else "–"
        )
        return self._result(run_id, kept.high_water_mark, kept.digest)

    def _give_up(self, batch_id: str, progress: Mapping[str, Any]) -> None:
        """Nobody is to be handed what no run waits for. Last of all, because a batch that is closed gets no more labels, whatever it lacks."""
        if progress["missing"]["human"] and not progress.get("closed_at"):
            with services.annotation("pipeline") as client:
                client.close_batch(batch_id)
            self.log.info("Closed with %d comparisons that nobody has got to", progress["missing"]["human"])

    def _warn(self, found: "Agreement", held: Mapping[str, Mapping[str, int]]) -> None:
        """What a person should look at, although the run goes on."""
        from include.data.agreement import RUBRIC_KAPPA

        if found.rubric_in_doubt:
            self.log.warning(
                "Cohen's kappa is %.2f, below %.1f: review the rubric before these labels are trusted", found.kappa, RUBRIC_KAPPA
            )
        if found.one_sided and found.left_win_interval is not None:
            low, high = found.left_win_interval
            self.log.warning("The answer on the left won %.0f %% (99 %%: %.0f to %.0f): sides are drawn at random, so this is a habit", 100 * (found.left_win_share or 0), 100 * low, 100 * high)  # fmt: skip
        if held:
            self.log.warning("Held for review, and not used: the labels of %s", words(held))

    def _result(self, run_id: str, mark: int | str, digest: str) -> dict[str, Any]:
        body = {"batch_id": self.batch["batch_id"], "mark": mark, "digest": digest}
        kept = services.catalog().labels.snapshot(run_id, self.batch["batch_id"])
        held, earlier = sorted(kept.body.get("held") or ()) if kept else [], recorded(run_id, self.batch["batch_id"])
        return {**body, **({"held": held} if held else {}), **({"earlier": earlier} if earlier else {})}
