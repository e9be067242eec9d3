"""Labels that are taken back: in the service first, then in the catalog, and out of what is built next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from include.flows import services
from include.flows.errors import FlowError
from include.flows.withdrawing import Asked, make_known, withdraw_labels
from include.stores.catalog import Catalog
from include.stores.errors import StoreError
from tests.stores.things import commit, deploy, info, manifest, release, some_digest, spec


class Service:
    """At the process edge: the annotation service, which knows the labels l1 and l2 of ann_1."""

    def __init__(self) -> None:
        self.withdrawn: dict[str, str] = {}

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None: ...

    def withdraw(self, label_id: str, reason: str) -> dict[str, Any]:
        if label_id not in ("l1", "l2"):
            raise StoreError(f"there is no label {label_id}")
        reason = self.withdrawn.setdefault(label_id, reason)
        return {"label_id": label_id, "batch_id": "b1", "mark": 3, "reason": reason, "withdrawn_at": "2026-05-04T12:00:00Z"}

    def withdraw_all_of(self, annotator_id: str, reason: str) -> list[dict[str, Any]]:
        assert annotator_id == "ann_1"
        return [self.withdraw(label_id, reason) for label_id in ("l1", "l2")]


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """A catalog whose champion learnt from l1, l2 and l3."""
    opened = Catalog.open(f"sqlite:///{tmp_path}/catalog.db")
    service = Service()
    monkeypatch.setattr(services, "catalog", lambda: opened)
    monkeypatch.setattr(services, "annotation", lambda role: service)
    members = [(f"l{n}", some_digest(f"l{n}"), "b1") for n in (1, 2, 3)]
    pairs = opened.datasets.register(info("preferences", "p"), manifest("p", "dataset"), "dag:r/1/pairs/1", [], members).content_hash
    asked = spec("dpo", inputs={"policy": some_digest("sft"), "preferences": pairs})
    policy = commit(opened, asked, {"policy": manifest("dpo")}).outputs["policy"].digest
    release(opened, deploy(opened, "helper", policy))
    return opened


def test_what_came_from_a_withdrawn_label_is_named(catalog: Catalog, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        found = withdraw_labels(Asked(("l1",), None, "misread the rubric", "olga"))
        assert (found["withdrawn"], found["datasets"], found["champions"]) == (1, ["preferences@1"], ["helper"])
    assert "champions: helper" in capsys.readouterr().out
    assert catalog.labels.withdrawn(["l1", "l2"]) == {"l1"}
    (row,) = catalog.ledger.entries(kind="label_withdrawn")
    assert (row.actor, row.payload["reason"], row.subject) == ("olga", "misread the rubric", "label:l1")
    assert catalog.lineage.trace("dataset:preferences@1").facts["withdrawn_labels"] == 1
    assert catalog.releases.tainted(catalog.ledger.champion("helper") or "") is None


def test_labels_that_are_wrong_taint_what_learnt_from_them(catalog: Catalog) -> None:
    withdraw_labels(Asked((), "ann_1", "a script answered", "olga", taint=True))
    assert catalog.labels.withdrawn(["l1", "l2", "l3"]) == {"l1", "l2"}
    assert catalog.releases.tainted(catalog.ledger.champion("helper") or "") == "label:l1: a script answered"


def test_what_was_withdrawn_before_an_unknown_label_is_known(catalog: Catalog) -> None:
    with pytest.raises(StoreError, match="no label l9"):
        withdraw_labels(Asked(("l1", "l9", "l2"), None, "misread", "olga"))
    assert catalog.labels.withdrawn(["l1", "l2"]) == {"l1"}


def test_all_of_an_annotator_is_known_before_a_label_is_refused(catalog: Catalog) -> None:
    with pytest.raises(StoreError, match="no label l9"):
        withdraw_labels(Asked(("l9",), "ann_1", "a script answered", "olga", taint=True))
    assert catalog.labels.withdrawn(["l1", "l2"]) == {"l1", "l2"}
    assert catalog.releases.tainted(catalog.ledger.champion("helper") or "") == "label:l1: a script answered"


def test_nobody_in_particular_withdraws_nothing() -> None:
    with pytest.raises(FlowError, match="nobody is known"):
        Asked(("l1",), None, "why", " ")


def test_a_request_for_nothing_is_refused() -> None:
    with pytest.raises(FlowError, match="name labels or an annotator"):
        Asked((), None, "why", "olga")


def test_a_withdrawal_made_in_the_service_alone_is_known_once(catalog: Catalog, make_event: Callable[[str], dict[str, Any]]) -> None:
    for _ in range(2):
        make_known([make_event("l2")], "annotation service")
    withdraw_labels(Asked(("l2",), None, "misread", "olga"))
    assert len(catalog.ledger.entries(kind="label_withdrawn")) == 1


@pytest.fixture
def make_event() -> Callable[[str], dict[str, Any]]:
    return lambda label_id: Service().withdraw(label_id, "misread")
