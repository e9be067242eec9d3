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
        for label_id in asked.labels:
            events.append(client.withdraw(label_id, asked.why))
            make_known(events[-1:], asked.who)
    make_known(events, asked.who)
    catalog = services.catalog()
    affected: dict[str, set[str]] = {"datasets": set(), "models": set(), "champions": set()}
    for event in events:
        ref = f"label:{event['label_id']}"
        if asked.taint:
            catalog.releases.taint(ref, asked.why, asked.who)
        found = catalog.lineage.impact(ref)
        affected["datasets"] |= set(found.datasets)
        affected["models"] |= {digest for digest, kind in found.artifacts if kind in ("model", "reward_model", "adapter")}
        affected["champions"] |= set(found.champions)
    print(f"{len(events)} labels are withdrawn. What came from them: " + "; ".join(f"{len(n)} {kind}" for kind, n in affected.items()))
    for kind, names in affected.items():
        for name in sorted(names):
            print(f"  {kind}: {name}")
    return {"withdrawn": len(events), **{kind: sorted(names) for kind, names in affected.items()}}


def make_known(events: Iterable[Mapping[str, Any]], actor: str) -> None:
    """Brings withdrawals of the annotation service into the catalog, each once."""
    labels = services.catalog().labels
    for event in events:
        detail = {"reason": event["reason"], "batch_id": event["batch_id"], "withdrawn_at": event["withdrawn_at"]}
        labels.event(event["label_id"], "withdrawn", actor, detail)
