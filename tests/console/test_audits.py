"""The page of annotation audits: what is to be reviewed by name, each figure with its interval, earlier weeks a step away."""

from __future__ import annotations

import html
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

from include.console.audit_marks import WIDTH, audit_marks
from include.data.annotation_audit import Interval, Thresholds, audit
from include.data.audit_figures import figures_of
from include.stores.catalog import Catalog
from include.stores.catalog.audits import AuditRow
from include.stores.errors import NotFound, StoreError
from tests.data.test_annotation_audit import said
from tests.stores.things import some_digest

HOSTILE = "<script>alert('x')</script>\n\x1b[31m"
MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
NOBODY = figures_of([])


def kept(catalog: Catalog, name: str = "ann", week: int = 0) -> AuditRow:
    """A week in which somebody gets 1 of 4 gold items right, and agrees with another on half of what both judged."""
    collected = [*said(name, "AAAA", gold="ABBB"), *said(name, "ABAB", rubric_version=name), *said("bob", "ABBA", rubric_version=name)]
    begin = MONDAY + timedelta(weeks=week)
    asked = Thresholds(min_items=4, min_gold_labels=4)
    report: dict[str, Any] = audit(Interval(begin, begin + timedelta(weeks=1)), figures_of(collected), NOBODY, asked)
    return catalog.audits.record(some_digest(f"{name}{week}"), report, "dag:audit_annotation/r/audit/1")


def test_no_week_was_audited_yet(signed_in: TestClient) -> None:
    assert "No week was audited yet" in signed_in.get("/alignment/audits").text
    assert signed_in.get("/alignment/v1/audits").json() == []


def test_the_latest_week_is_shown_and_an_earlier_one_by_its_digest(signed_in: TestClient, opened: Catalog) -> None:
    earlier, latest = kept(opened, "early"), kept(opened, "late", 1)
    page = signed_in.get("/alignment/audits").text
    assert "<code>late</code>: gold items right: 1 of 4 (0.25), at least 0.8 is asked for" in page
    assert latest.digest in page
    older = signed_in.get("/alignment/audits", params={"digest": earlier.digest}).text
    assert "<code>early</code>: gold items right" in older
    assert "<code>late</code>" not in older
    found = signed_in.get("/alignment/v1/audits", params={"week": "2026-W10"}).json()
    assert [(one["digest"], one["report"]["since"]) for one in found] == [(earlier.digest, "2026-03-02T00:00:00Z")]
    assert signed_in.get("/alignment/v1/audits", params={"week": "2026-10"}).status_code == 404
    assert signed_in.get("/alignment/audits", params={"digest": some_digest("none")}).status_code == 404


def test_marks_stand_where_their_figures_are() -> None:
    collected = [*said("ann", "AAAA", gold="ABBB"), *said("ann", "ABAB"), *said("bob", "ABBA")]
    report = audit(Interval(MONDAY, MONDAY + timedelta(weeks=1)), figures_of(collected), NOBODY, Thresholds(min_items=4, min_gold_labels=4))
    marks = {(mark.name, mark.measure): mark for mark in audit_marks(report)}
    gold, kappa = marks["ann", "gold items right"], marks["made@1", "kappa"]
    assert (gold.at, gold.asked, gold.state) == (WIDTH * 0.25, WIDTH * 0.8, "to be reviewed")
    assert (kappa.at, kappa.asked) == (WIDTH * 0.5, WIDTH * 0.8), "kappa 0 lies in the middle from -1 to 1"
    assert gold.low < gold.at < gold.high
    assert ("bob", "gold items right") not in marks


def test_names_that_mean_harm_are_text_and_no_markup(signed_in: TestClient, opened: Catalog) -> None:
    kept(opened, HOSTILE)
    page = signed_in.get("/alignment/audits")
    assert "<script" not in page.text
    assert "\x1b" not in page.text
    assert html.escape("<script>alert(") in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'none'")


def test_a_report_is_kept_once_and_never_changed(opened: Catalog) -> None:
    one = kept(opened)
    again = opened.audits.record(one.digest, one.body, "dag:audit_annotation/other/audit/1")
    assert again == one
    with pytest.raises(StoreError, match="other content"):
        opened.audits.record(one.digest, {**one.body, "status": "no threshold crossed"}, "eve")
    with pytest.raises(NotFound, match="is not in the catalog"):
        opened.audits.get(some_digest("nothing"))
