"""What MLflow is told of a collection of preferences."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from include.data.agreement import Agreement
from include.flows import services
from include.flows.collected import collection_figures, show_collection
from include.stores.errors import RegistryError
from tests.flows.conftest import Plane

FOUND = Agreement(
    applicable=True, annotators=3, tasks=40, comparisons=60, raw=0.8, kappa=0.61, alpha=None, kappas={}, left_win_share=0.5, tie_share=0.1
)
PROGRESS: dict[str, Any] = {
    "labels": {"current": 120},
    "freshest_label_at": "2026-05-01T10:00:00+00:00",
    "oldest_label_at": "2026-04-30T12:00:00+00:00",
    "decided_share": 0.8,
    "tie_share": 0.125,
    "both_bad_share": None,
}


def test_agreement_ties_and_freshness_are_told_and_what_is_not_defined_is_left_out() -> None:
    found = collection_figures(FOUND, PROGRESS, datetime(2026, 5, 1, 12, tzinfo=UTC))
    assert found == {
        "labels": 120, "annotators": 3, "agreement_raw": 0.8, "kappa": 0.61, "left_win_share": 0.5, "decided_share": 0.8, "tie_share": 0.125,
        "freshest_label_hours": 2.0, "oldest_label_hours": 24.0,
    }  # fmt: skip


def test_a_snapshot_is_shown_under_its_digest(plane: Plane) -> None:
    show_collection("b1", "sha256:1", FOUND, PROGRESS)
    assert plane.registry.figures["collection:sha256:1"]["kappa"] == 0.61


def test_a_tracker_that_is_away_stops_no_collection(
    plane: Plane, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away() -> Any:
        raise RegistryError("MLflow does not answer")

    monkeypatch.setattr(services, "registry", away)
    show_collection("b1", "sha256:1", FOUND, PROGRESS)
    assert "MLflow does not answer" in caplog.text
