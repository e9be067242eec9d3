"""An evaluation in parts: each deployment by itself, latency side by side in the whole, and the same table as in one."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from include.domain.parts import ALONE, parts_of
from include.domain.spec import RunSpec
from include.gates.expected import expected_from
from include.gates.tables import table_from
from tests.eval.conftest import evaluation, run_here
from tests.eval.test_evaluate import measured
from tests.training.harness import Started, Store

CUT = {"parts": True}


@pytest.fixture(scope="module")
def whole(store: Store) -> RunSpec:
    return evaluation(store, salt="parts")


@pytest.fixture(scope="module")
def in_one(store: Store) -> Started:
    return run_here(store, evaluation(store, salt="in one"))


@pytest.fixture(scope="module")
def parts(store: Store, whole: RunSpec) -> dict[str, Started]:
    done = {part.name: run_here(store, part.spec) for part in parts_of(whole, CUT)}
    assert [one.code for one in done.values()] == [0, 0, 0], [one.report.message for one in done.values()]
    return done


def placed(whole: RunSpec, parts: dict[str, Started]) -> dict[str, Any]:
    keys = {part.name: part.spec.key for part in parts_of(whole, CUT)}
    return {
        name: {"key": keys[name], "path": str(one.output("findings")), "artifact": one.report.outputs["findings"]}
        for name, one in parts.items()
    }


def test_a_deployment_under_two_roles_is_one_part_and_no_role_is_in_its_key(store: Store, whole: RunSpec) -> None:
    found = {part.name: part for part in parts_of(whole, CUT)}
    assert list(found) == ["anchor, sft", "base", "candidate"]
    assert all(part.spec.config["measure"] == [ALONE] and part.spec.config["latency"] == [] for part in found.values())
    other = {part.name: part.spec.key for part in parts_of(evaluation(store, "parts", {"candidate": "base", "sft": "sft"}), CUT)}
    assert other == {"candidate": found["base"].spec.key, "sft": found["anchor, sft"].spec.key}


def test_the_whole_of_the_parts_is_the_table_of_a_run_in_one(
    store: Store, whole: RunSpec, in_one: Started, parts: dict[str, Started]
) -> None:
    joined = run_here(store, whole, **CUT, taken=placed(whole, parts))
    assert joined.code == 0, joined.report.message
    assert measured(joined)["rows"] == measured(in_one)["rows"]
    assert [row["role"] for row in measured(joined)["latency"]] == [row["role"] for row in measured(in_one)["latency"]]
    assert joined.report.asked_steps == in_one.report.asked_steps == joined.report.last_step
    assert joined.report.summary["parts"] == ["anchor, sft", "base", "candidate"]
    assert [line["step"] for line in joined.lines if "tokens_per_s" in line or "items" in line] == [], "nothing was measured again"
    expected, table = expected_from(whole), table_from(measured(joined))
    assert [expected.refusal(row) for row in table.rows] == [None] * len(table.rows)


def test_latency_is_the_wholes_own(parts: dict[str, Started]) -> None:
    assert [measured(one)["latency"] for one in parts.values()] == [[], [], []]
    for one in parts.values():
        assert json.loads((one.output("findings") / "findings.json").read_text())["findings"]["latency"] == {}


def test_what_was_measured_on_another_backend_is_measured_again(
    store: Store, whole: RunSpec, in_one: Started, parts: dict[str, Started], tmp_path: Path
) -> None:
    from include.domain.manifest import MANIFEST, build_manifest

    body = json.loads((parts["base"].output("findings") / "findings.json").read_text())
    body["backends"] = dict.fromkeys(body["backends"], "sha256:" + "0" * 64)
    for suites in body["findings"]["choices"].values():
        suites["choices"] = [[0.0, 0.0]] * len(suites["choices"])
    folder = tmp_path / "findings"
    folder.mkdir()
    (folder / "findings.json").write_text(json.dumps(body))
    manifest = build_manifest("report", folder)
    (folder / MANIFEST).write_text(json.dumps(manifest.to_json()))
    given = placed(whole, parts)
    given["base"] |= {"path": str(folder), "artifact": manifest.digest}
    joined = run_here(store, whole, n=2, fresh_start=True, **CUT, taken=given)
    assert joined.code == 0, joined.report.message
    assert measured(joined)["rows"] == measured(in_one)["rows"]
    assert "part base was measured on another backend" in joined.report.summary["warnings"][0]


def test_the_part_of_another_model_is_refused(store: Store, whole: RunSpec, parts: dict[str, Started]) -> None:
    given = placed(whole, parts)
    joined = run_here(store, whole, n=3, fresh_start=True, **CUT, taken=given | {"candidate": given["base"]})
    assert joined.code == 1
    assert "part candidate" in joined.report.message
    assert "this specification asks for" in joined.report.message
