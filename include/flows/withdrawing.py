"""Labels that are taken back: withdrawn in the annotation service, known to the catalog, and left out of what is built from then on."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from include.flows import services
from include.flows.errors import FlowError


@dataclass(frozen=True)
class Asked:
    """Which labels, why, and who says so. taint: nothing that learnt from them may be released any more."""

    labels: tuple[str, ...]
    annotator: str | None
    why: str
    who: str
    taint: bool = False

    def __post_init__(self) -> None:
        if not self.labels and not self.annotator:
            raise FlowError("name labels or an annotator: nothing was withdrawn")
        services.require_steward(self.who)


def withdraw_labels(asked: Asked) -> dict[str, Any]:
    """Withdraws, and says what came from the labels; the same again changes nothing.

    Raises:
        AnnotationError: a label or annotator that the service does not know, or a label that was corrected since. What was
            withdrawn before it in the same call stays withdrawn.
    """
    events: list[dict[str, Any]] = []
    with services.annotation("pipeline") as client:
        if asked.annotator:
            events += client.withdraw_all_of(asked.annotator, asked.why)
            _settle(events, asked)
        for label_id in asked.labels:
            events.append(client.withdraw(label_id, asked.why))
            _settle(events[-1:], asked)
    ids = [event["label_id"] for event in events]
    impact = services.catalog().lineage.impact_of_labels(f"{len(ids)} withdrawn labels", ids)
    affected = {
        "datasets": list(impact.datasets),
        "models": [digest for digest, kind in impact.artifacts if kind in ("model", "reward_model", "adapter")],
        "champions": list(impact.champions),
    }
    print(f"{len(events)} labels are withdrawn. What came from them: " + "; ".join(f"{len(n)} {kind}" for kind, n in affected.items()))
    for kind, names in affected.items():
        for name in names:
            print(f"  {kind}: {name}")
    return {"withdrawn": len(events), **affected}


def _settle(events: Iterable[Mapping[str, Any]], asked: Asked) -> None:
    """At once, so that a later label which the service refuses takes nothing of this along."""
    make_known(events, asked.who)
    for event in events if asked.taint else ():
        services.catalog().releases.taint(f"label:{event['label_id']}", asked.why, asked.who)


def make_known(events: Iterable[Mapping[str, Any]], actor: str) -> None:
    """Brings withdrawals of the annotation service into the catalog, each once."""
    labels = services.catalog().labels
    for event in events:
        detail = {"reason": event["reason"], "batch_id": event["batch_id"], "withdrawn_at": event["withdrawn_at"]}
        labels.event(event["label_id"], "withdrawn", actor, detail)
