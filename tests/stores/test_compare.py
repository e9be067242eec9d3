"""Two things side by side: only what differs, stage by stage."""

from __future__ import annotations

import pytest

from include.stores.catalog import Catalog
from include.stores.catalog.compare import compare, render_comparison
from include.stores.errors import NotFound
from tests.stores.things import commit, deploy, info, manifest, some_digest, spec


def policy(catalog: Catalog, pairs: str, **changes: object) -> str:
    """A deployment of a DPO policy that learnt from `pairs`, from one SFT model."""
    base = spec("sft", inputs={"base": some_digest("base"), "demonstrations": some_digest("demos")})
    sft = commit(catalog, base, {"policy": manifest("sft")}).outputs["policy"].digest
    asked = spec("dpo", inputs={"policy": sft, "reference": sft, "preferences": pairs}, **changes)
    made = commit(catalog, asked, {"policy": manifest(["dpo", pairs, sorted(changes)])}).outputs["policy"].digest
    return f"deployment:{deploy(catalog, 'helper', made)}"


def dataset(catalog: Catalog, name: str) -> str:
    return str(catalog.datasets.register(info(name, name), manifest(name, "dataset"), "w", [("source:raw", "source")]).content_hash)


def judge(catalog: Catalog, deployment: str, estimate: float, verdict: str) -> None:
    results = [{"name": "exact", "against": "sft", "estimate": estimate, "verdict": verdict}]
    digest = some_digest([deployment, estimate])
    judged = {"verdict": verdict, "gate_code": "g@1", "policies_digest": some_digest("policies")}
    catalog.measurements.record_gate_report(digest, deployment.removeprefix("deployment:"), {"results": results}, **judged)


def test_settings_data_and_gates_that_differ_are_named_and_nothing_else(catalog: Catalog) -> None:
    one = policy(catalog, dataset(catalog, "monday"))
    other = policy(catalog, dataset(catalog, "friday"), config={"learning_rate": 1e-5, "steps": 10}, seed=7)
    judge(catalog, one, 0.02, "pass")
    judge(catalog, other, -0.31, "fail")
    found = compare(catalog, one, other)
    assert set(found.stages) == {"dpo"}
    assert found.stages["dpo"]["learning_rate"] == (2e-5, 1e-5)
    assert {"seed", "learning_rate"} == set(found.stages["dpo"])
    assert found.data == (("monday@1",), ("friday@1",))
    assert found.gates == {"exact against sft": ((0.02, "pass"), (-0.31, "fail"))}
    text = render_comparison(found)
    assert "  learning_rate: 2e-05 | 1e-05" in text
    assert "  exact against sft: +0.020 pass | -0.310 fail" in text


def test_a_thing_beside_itself_differs_in_nothing(catalog: Catalog) -> None:
    one = policy(catalog, dataset(catalog, "monday"))
    found = compare(catalog, one, one)
    assert (found.stages, found.data, found.gates) == ({}, ((), ()), {})
    assert "were set up alike" in render_comparison(found)


def test_a_stage_that_only_one_went_through_shows_its_settings(catalog: Catalog) -> None:
    one = policy(catalog, dataset(catalog, "monday"))
    sft = manifest("sft").digest
    found = compare(catalog, sft, one)
    assert found.stages["dpo"]["steps"] == (None, 10)
    assert found.data[0] == ()


def test_what_is_not_there_is_said_so(catalog: Catalog) -> None:
    with pytest.raises(NotFound):
        compare(catalog, policy(catalog, dataset(catalog, "monday")), "champion:nobody")
