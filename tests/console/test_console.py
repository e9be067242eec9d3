"""Pages and JSON of the console, on a catalog with one released chain, some of it with names that mean harm."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from include.gates.policies import policies_from
from include.stores.catalog import Catalog
from tests.gates import tables
from tests.gates.conftest import read as gates_file
from tests.stores.things import commit, deploy, manifest, release, some_digest, spec

HOSTILE = "<script>alert('x')</script>"
NAME = "helper"


@dataclass(frozen=True)
class Released:
    """One dataset with a label, one policy, one deployment that is champion."""

    policy: str
    deployment: str


@pytest.fixture
def released(opened: Catalog) -> Released:
    item: dict[str, Any] = {"label_id": "l1", "batch_id": "b1", "rubric_version": HOSTILE, "annotator_kind": "human", "verdict": "A"}
    opened.labels.collected([item])
    info = {"dataset_id": f"pairs{HOSTILE}", "content_hash": some_digest("pairs"), "rows": "pair", "schema_version": "v1"}
    info |= {"filter_policy_version": "f1", "licences": {HOSTILE: 3}}
    pairs = opened.datasets.register(info, manifest("pairs", "dataset"), "dag:refresh/r1/pairs/1", [], [("l1", some_digest("l1"), "b1")])
    asked = spec("dpo", inputs={"policy": some_digest("sft"), "preferences": pairs.content_hash}, note={"requested_by": HOSTILE})
    policy = commit(opened, asked, {"policy": manifest("dpo")}).outputs["policy"].digest
    deployment = deploy(opened, NAME, policy)
    release(opened, deployment)
    return Released(policy, deployment)


@pytest.fixture
def judged(opened: Catalog, released: Released) -> str:
    report = tables.judged(policies_from(gates_file("quickstart")), tables.good())
    opened.measurements.record_gate_report(
        report.digest,
        released.deployment,
        report.to_json(),
        verdict="pass",
        gate_code=report.gate_code,
        policies_digest=some_digest("gates"),
    )
    return released.deployment


def paths(app: FastAPI) -> list[tuple[str, str]]:
    """Every route there is, with something in place of its parameters."""
    found = [route for route in app.routes if isinstance(route, APIRoute)]
    filled = [(r.path.replace("{path:path}", "index.html"), sorted(r.methods or ())) for r in found]
    return [(path.replace("{", "").replace("}", ""), method) for path, methods in filled for method in methods]


def test_a_stranger_is_refused_everywhere(app: FastAPI, stranger: TestClient, released: Released) -> None:
    asked = paths(app)
    assert len(asked) > 8
    for path, method in asked:
        answer = stranger.request(method, f"/alignment{path}")
        assert answer.status_code == 401, (method, path)
        assert released.deployment not in answer.text


READ = {
    "RUN": ["", "impact?ref=label:l1", "compare", "v1/releases", "v1/cost?ref=champion"],
    "AUDIT_LOG": ["ledger", "v1/ledger", "audits", "v1/audits", "lineage?ref=champion", "v1/lineage?ref=champion", "deployments/sha256:0"],
    "TASK_LOGS": ["validation/r1/", "validation/r1/index.html"],
}


@pytest.mark.parametrize("right", list(READ))
def test_whoever_lacks_a_right_on_the_chain_reads_nothing_behind_it(
    person: Callable[[str, str], TestClient], released: Released, monkeypatch: pytest.MonkeyPatch, right: str
) -> None:
    """At the process edge: what Airflow's auth manager answers; a site's own may answer by DAG and entity."""
    from airflow.api_fastapi.app import get_auth_manager

    def allowed(*, method: str, access_entity: Any, details: Any, user: Any) -> bool:
        return (method, details.id) == ("GET", "alignment_refresh") and access_entity.value != right

    monkeypatch.setattr(get_auth_manager(), "is_authorized_dag", allowed)
    client = person("rita", "viewer")
    for entity, paths in READ.items():
        for path in paths:
            answer = client.get(f"/alignment/{path}")
            refused = entity == right or right == "RUN"
            assert (answer.status_code == 403) == refused, path
            assert not (refused and released.deployment in answer.text)


def test_a_token_that_is_none_is_refused(stranger: TestClient, released: Released) -> None:
    from airflow.api_fastapi.app import init_auth_manager

    init_auth_manager()
    answer = stranger.get("/alignment/v1/releases", headers={"Authorization": "Bearer no-token"})
    assert answer.status_code in (401, 403)
    assert NAME not in answer.text


def test_nothing_is_registered_yet(signed_in: TestClient) -> None:
    assert "Nothing is registered yet" in signed_in.get("/alignment/").text
    assert signed_in.get("/alignment/v1/releases").json() == []


def test_releases(signed_in: TestClient, released: Released) -> None:
    page = signed_in.get("/alignment/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert released.deployment in page.text
    (found,) = signed_in.get("/alignment/v1/releases").json()
    assert found["name"] == NAME
    assert found["aliases"]["champion"] == released.deployment


@pytest.mark.parametrize("ref", ["champion", f"champion:{NAME}", ""])
def test_lineage_of_the_champion(signed_in: TestClient, released: Released, ref: str) -> None:
    page = signed_in.get("/alignment/lineage", params={"ref": ref} if ref else {})
    assert page.status_code == 200
    for part in ("deployment helper", "dpo, committed", "configuration sha256:"):
        assert part in page.text
    tree = signed_in.get("/alignment/v1/lineage", params={"ref": ref or "champion"}).json()
    assert tree["ref"] == released.deployment
    assert tree["made"][0]["inputs"][0]["ref"] == released.policy


@pytest.mark.parametrize("ref", ["label:l1", "batch:b1"])
def test_impact(signed_in: TestClient, released: Released, ref: str) -> None:
    assert "champion now" in signed_in.get("/alignment/impact", params={"ref": ref}).text
    found = signed_in.get("/alignment/v1/impact", params={"ref": ref}).json()
    assert found["artifacts"] == [[released.policy, "model"]]
    assert found["champions"] == [NAME]


def test_two_things_side_by_side(signed_in: TestClient, released: Released) -> None:
    asked = {"ref": released.policy, "other": "champion"}
    assert "were set up alike" in signed_in.get("/alignment/compare", params=asked).text
    found = signed_in.get("/alignment/v1/compare", params=asked).json()
    assert (found["first"], found["stages"], found["data"]) == (released.policy, {}, [[], []])
    assert signed_in.get("/alignment/compare").status_code == 200


def test_what_a_release_has_cost(signed_in: TestClient, released: Released) -> None:
    found = signed_in.get("/alignment/v1/cost", params={"ref": "champion"}).json()
    assert [run["stage"] for run in found["runs"]] == ["dpo"]
    assert "GPU hours" in signed_in.get(f"/alignment/deployments/{released.deployment}").text


def test_what_is_tainted_says_so_where_releases_are_shown(signed_in: TestClient, opened: Catalog, released: Released) -> None:
    opened.releases.taint("label:l1", "written by <b>a script</b>", "olga")
    for path in ("", f"deployments/{released.deployment}", "lineage?ref=champion"):
        page = signed_in.get(f"/alignment/{path}").text
        assert "label:l1: written by &lt;b&gt;a script&lt;/b&gt;" in page, path


def test_a_deployment_with_its_gates_and_decisions(signed_in: TestClient, judged: str) -> None:
    page = signed_in.get(f"/alignment/deployments/{judged}").text
    assert "Gates: pass" in page
    assert "asked_form" in page
    assert "anna" in page
    assert "looks right" in page


def test_a_deployment_shows_its_dossiers_with_all_that_was_approved(signed_in: TestClient, opened: Catalog) -> None:
    deployment = deploy(opened, NAME, some_digest("another policy"))
    fact = {"dataset": "pairs@v1", "content_hash": some_digest("p"), "licences": {HOSTILE: 3}, "imported_share": 0.25}
    ensemble = {"combine": "minimum", "members": [some_digest(n) for n in range(3)]}
    body = {
        "recipe": "tiny@v1",
        "datasets": [fact],
        "known_risks": [f"speed {HOSTILE}"],
        "reward_ensemble": ensemble,
        "canary": {"kind": "none"},
    }
    made = release(opened, deployment, body=body)
    page = signed_in.get(f"/alignment/deployments/{deployment}").text
    for part in (
        made.digest,
        "Dossier: approved",
        "tiny@v1",
        "pairs@v1",
        "25.0 %",
        "its minimum",
        *ensemble["members"],
        html.escape(HOSTILE),
    ):
        assert part in page or part.replace("&#x27;", "&#39;") in page, part
    assert HOSTILE not in page


def test_the_ledger_and_its_head(signed_in: TestClient, opened: Catalog, released: Released) -> None:
    found = signed_in.get("/alignment/v1/ledger").json()
    assert found["head"] == opened.ledger.head()
    assert found["verified_rows"] == len(found["rows"]) > 1
    assert found["head"]["hash"] in signed_in.get("/alignment/ledger").text
    assert signed_in.get("/alignment/v1/ledger", params={"name": "nobody"}).json()["rows"] == []


def test_a_ledger_that_was_changed_is_said_not_shown(signed_in: TestClient, opened: Catalog, released: Released) -> None:
    with opened.database.engine.begin() as connection:
        for (name,) in connection.execute(sa.text("SELECT name FROM sqlite_master WHERE type='trigger' AND tbl_name='ledger'")).all():
            connection.execute(sa.text(f'DROP TRIGGER "{name}"'))
        connection.execute(sa.text("UPDATE ledger SET actor = 'mallory' WHERE seq = 1"))
    for path in ("/alignment/ledger", "/alignment/v1/ledger"):
        answer = signed_in.get(path)
        assert answer.status_code == 500
        assert "ledger row 1" in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "lineage?ref=champion:nobody",
        "lineage?ref=dataset:nothing@1",
        "lineage?ref=" + some_digest("nothing"),
        "lineage?ref=deployment:nothing",
        "impact?ref=label:nothing",
        "impact?ref=batch:nothing",
        "compare?ref=champion&other=champion:nobody",
    ],
)
def test_an_unknown_id_is_a_clear_404(signed_in: TestClient, released: Released, path: str) -> None:
    answer = signed_in.get(f"/alignment/v1/{path}")
    assert answer.status_code == 404
    assert set(answer.json()) == {"error", "message"}
    assert "noth" in answer.json()["message"] or "nobody" in answer.json()["message"] or "sha256" in answer.json()["message"]
    page = signed_in.get(f"/alignment/{path}")
    assert page.status_code == 404
    assert html.escape(answer.json()["message"], quote=True).replace("&#x27;", "&#39;") in page.text


def test_an_unknown_deployment_is_a_page_that_says_so(signed_in: TestClient, released: Released) -> None:
    answer = signed_in.get("/alignment/deployments/<img src=x onerror=alert(1)>")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "Not shown" in answer.text
    assert "<img" not in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "lineage?ref=champion",
        f"lineage?ref={HOSTILE}",
        "lineage?ref=%22%20autofocus%20onfocus=alert(1)%20x=%22",
        f"impact?ref={HOSTILE}",
        f"compare?ref=champion&other={HOSTILE}",
        "ledger",
        f"ledger?name={HOSTILE}",
        "",
    ],
)
def test_values_from_outside_are_text_and_no_markup(signed_in: TestClient, opened: Catalog, released: Released, path: str) -> None:
    opened.ledger.append("note", {"comment": HOSTILE, "person": HOSTILE}, HOSTILE, name=f"x{HOSTILE}")
    page = signed_in.get(f"/alignment/{path}")
    assert "<script" not in page.text
    assert '" autofocus' not in page.text
    assert "script-src" not in page.headers["content-security-policy"]
    assert page.headers["content-security-policy"].startswith("default-src 'none'")


def validation(tmp_path: Path) -> Path:
    folder = tmp_path / "work/validation/abc"
    (folder / "static").mkdir(parents=True)
    (folder / "index.html").write_text("<h1>Report</h1>")
    (tmp_path / "work/validation/secret.txt").write_text("secret")
    (tmp_path / "work/token").write_text("secret")
    return folder


def test_the_pages_of_a_validation_in_an_origin_of_their_own(signed_in: TestClient, tmp_path: Path) -> None:
    validation(tmp_path)
    answer = signed_in.get("/alignment/validation/abc/index.html")
    assert (answer.status_code, answer.text) == (200, "<h1>Report</h1>")
    policy = answer.headers["content-security-policy"].split()
    assert policy[0] == "sandbox"
    assert "allow-same-origin" not in policy


def test_a_validation_is_shown_without_scripts_what_failed_first(signed_in: TestClient, tmp_path: Path) -> None:
    check = {"table": "rows", "name": "values_to_be_unique", "column": "id", "outcome": "passed", "evaluated": 3, "seen": "all of 3 values"}
    bad = {**check, "column": HOSTILE, "outcome": "could_not_check", "seen": HOSTILE}
    report = {"schema": "align/validation/v1", "outcome": "failed", "checks": [check, bad], "notes": [HOSTILE]}
    (validation(tmp_path) / "report.json").write_text(json.dumps(report))
    page = signed_in.get("/alignment/validation/abc/")
    assert page.status_code == 200
    for words in ("Validation: failed", "1 of 2 expectations passed", "1 of 2 not passed", "values to be unique", "abc/index.html"):
        assert words in page.text
    assert page.text.index("could not check") < page.text.index("all of 3 values")
    assert "<script" not in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'none'")


@pytest.mark.parametrize(
    "path", ["abc/none.html", "abc/..%2fsecret.txt", "abc/..%2f..%2ftoken", "..%2ftoken/x", "%2e%2e/token", ".%2f/secret.txt", "abc/%00", "abc/", "abc/link"]
)  # fmt: skip
def test_nothing_outside_a_validation_is_served(signed_in: TestClient, tmp_path: Path, path: str) -> None:
    (validation(tmp_path) / "link").symlink_to(tmp_path / "work/token")
    answer = signed_in.get(f"/alignment/validation/{path}")
    assert answer.status_code == 404
    assert "secret" not in answer.text.replace("secret.txt", "")


def test_without_a_catalog_the_console_says_what_is_missing(signed_in: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALIGN_CATALOG_URL")
    answer = signed_in.get("/alignment/v1/releases")
    assert answer.status_code == 500
    assert "ALIGN_CATALOG_URL" in answer.json()["message"]


def test_each_writing_is_shown_when_asked(signed_in: TestClient, opened: Catalog) -> None:
    info = {
        "dataset_id": "demos",
        "content_hash": some_digest("demos"),
        "rows": "pair",
        "schema_version": "v1",
        "filter_policy_version": "f",
    }
    for run in ("r1", "r2"):
        opened.datasets.register(info, manifest("demos", "dataset"), f"dag:refresh/{run}/build/1", [("raw/chat-1", "source")])
    pages = [signed_in.get("/alignment/lineage", params={"ref": "dataset:demos@1", **more}).text for more in ({}, {"every": "true"})]
    assert [page.count("made by") for page in pages] == [1, 2]
    assert "written 2 times from the same" in pages[0]
