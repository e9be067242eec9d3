"""Success is a complete report of this run and attempt, with all steps and outputs; nothing less."""

from dataclasses import replace
from typing import Any

import pytest

from include.domain.manifest import FileEntry, Manifest
from include.domain.spec import Report, RunSpec
from include.stages.errors import Interrupted, NotComplete, RunFailed
from include.stages.record import read_outputs, read_report, result

D = ["sha256:" + f"{i:064x}" for i in range(20)]
SPEC = RunSpec("sft", "include.training.sft", {"base": D[1]}, D[2], {"steps": 20}, D[3], 1, D[4], D[5])
MODEL = Manifest("model", (FileEntry("model.safetensors", 10, D[6]),))
ATTEMPT = "1-100.0"


def report(**changed: Any) -> dict[str, Any]:
    good = Report(SPEC.key, ATTEMPT, "complete", "last_step", 1, 20, 20, {"loss": 0.5}, {"policy": MODEL.digest})
    return replace(good, **changed).to_json()


def outputs(**changed: Any) -> dict[str, Any]:
    return {"schema": "align/outputs/v1", "artifacts": {"policy": MODEL.to_json()}, **changed}


def test_a_complete_report_is_a_success() -> None:
    checked = read_report(report(), SPEC, ATTEMPT)
    manifests = read_outputs(outputs(), checked)
    given = result(SPEC, ATTEMPT, checked, {n: m.to_json() for n, m in manifests.items()}, reused=False)
    assert given.model("policy").digest == MODEL.digest
    assert given.metrics == {"loss": 0.5}


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"outcome": "interrupted", "stop_reason": "signal", "last_step": 7}, Interrupted, "step 7 of 20"),
        ({"outcome": "failed", "stop_reason": "guard", "message": "loss is nan"}, RunFailed, "loss is nan"),
        ({"last_step": 19}, NotComplete, "step 19"),
        ({"stop_reason": "early_stop", "last_step": 19}, NotComplete, "step 19"),
        ({"last_step": 0, "asked_steps": 0}, NotComplete, "advanced nothing"),
        ({"key": D[9]}, NotComplete, "speaks of key"),
        ({"attempt": "2-101.0"}, NotComplete, "2-101.0"),
        ({"outcome": "unknown"}, RunFailed, "failed"),
    ],
)
def test_everything_less_is_not(changed: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read_report(report(**changed), SPEC, ATTEMPT)


def test_an_early_stop_counts_where_it_is_the_method() -> None:
    spec = replace(SPEC, stage="reward_model")
    value = report(key=spec.key, stop_reason="early_stop", last_step=12)
    assert read_report(value, spec, ATTEMPT).last_step == 12


@pytest.mark.parametrize(
    "value",
    [
        {"schema": "align/outputs/v2", "artifacts": {}},
        {"schema": "align/outputs/v1", "artifacts": {}},
        {"schema": "align/outputs/v1"},
        {"schema": "align/outputs/v1", "artifacts": {"policy": {**MODEL.to_json(), "digest": D[9]}}},
        {"schema": "align/outputs/v1", "artifacts": {"other": MODEL.to_json()}},
    ],
)
def test_outputs_that_do_not_fit_the_report_are_refused(value: dict[str, Any]) -> None:
    with pytest.raises(NotComplete):
        read_outputs(value, read_report(report(), SPEC, ATTEMPT))
