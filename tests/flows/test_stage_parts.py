"""A stage in parts: one array of what is not committed, each task taken for what it is, then the whole under the key it always had."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_slurm.errors import JobFailed, Resubmit, UnknownOutcome
from airflow_slurm.operators import SlurmJobOperator
from airflow_slurm.receipts import JobEnd, load_store
from airflow_slurm.requests import Done, JobRequest
from airflow_slurm.slurm.script import render
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.arrays import compact
from airflow_slurm.truth.holds import GONE as LOST_BY_ITS_CONTROLLER
from airflow_slurm.truth.reconcile import FORGOTTEN
from airflow_slurm.truth.view import Incarnation, JobView
from include.domain.canonical import hex_of, sha256_bytes
from include.domain.layout import RunDir, array_dir
from include.domain.manifest import FileEntry, Manifest
from include.domain.spec import Report
from include.flows import services, stage_parts, stage_work
from include.flows.array_stage_operator import ArrayStageOperator
from include.flows.planners import plan
from include.stages.parts import planned_parts
from include.stores.catalog.receipts import CatalogReceipts
from tests.airflow_slurm.tasks import Task
from tests.flows.conftest import Plane
from tests.flows.things import POLICY, SFT_GIVEN, result

GIVEN: dict[str, Any] = {"sft": result("sft", "policy", POLICY), "datasets": SFT_GIVEN["datasets"]}
OWNER = {"dag_id": "alignment_refresh", "run_id": "manual__1", "task_id": "candidates.generate", "map_index": -1}


class Sharded:
    """Candidate generation in three shards, whose jobs end as a test says."""

    def __init__(self, plane: Plane) -> None:
        body = yaml.safe_load((plane.configs / "recipes/tiny.yaml").read_text())
        self.before = plan("generate", plane.run(), GIVEN)
        plane.change_recipe("tiny", generate=body["generate"] | {"shards": 3, "portion_prompts": 4, "job": {"max_parallel": 2}})
        self.plane, self.run = plane, plane.run()
        self.whole = plan("generate", self.run, GIVEN)
        self.parts = planned_parts(self.whole)

    def prepare(self) -> JobRequest | Done:
        return stage_parts.prepare("generate", self.run, GIVEN)

    def submitted(self) -> tuple[JobRequest, int]:
        """The array, claimed and with its files put beside it, as the protocol does it."""
        request = self.prepare()
        assert isinstance(request, JobRequest)
        n = request.store().claim(request.key, OWNER).n
        request.stage_in(n)
        return request, n

    def leaves(self, part: int, n: int, job_id: int, **changed: Any) -> None:
        """An attempt of this part with its report, and its output where it is complete."""
        key, name = self.parts[part].key, f"{n}-{job_id}.0"
        rows = f"rows of part {part}".encode()
        folder, made = Path(self.plane.store_root, RunDir(key).attempt(name)), {}
        for output in ("candidates", "log_probs"):
            bytes_ = rows + output.encode()
            (folder / f"output/{output}").mkdir(parents=True)
            (folder / f"output/{output}/{output}.parquet").write_bytes(bytes_)
            made[output] = Manifest(
                "candidate_set" if output == "candidates" else "report",
                (FileEntry(f"{output}.parquet", len(bytes_), sha256_bytes(bytes_)),),
            )
        outputs = {"schema": "align/outputs/v1", "artifacts": {output: manifest.to_json() for output, manifest in made.items()}}
        (folder / "output/manifest.json").write_text(json.dumps(outputs))
        good = {"outcome": "complete", "stop_reason": "last_step", "first_step": 0, "last_step": 4, "asked_steps": 4}
        report = Report(key=key, attempt=name, metrics={}, outputs={name: one.digest for name, one in made.items()}, **(good | changed))
        (folder / "report.json").write_text(json.dumps(report.to_json()))

    def ended(self, request: JobRequest, n: int, views: dict[int, JobView], resubmits: int = 0) -> dict[str, Any]:
        tasks = {str(task): compact(view) for task, view in views.items()}
        return {
            "key": request.key,
            "n": n,
            "job_id": "5501",
            "resubmits": resubmits,
            "tasks": tasks,
            "carry": dict(request.carry),
            "receipts": request.receipts,
            "receipts_config": dict(request.receipts_config),
        }

    def close(self, state: dict[str, Any], outcome: str) -> None:
        load_store(state["receipts"], state["receipts_config"]).close(
            state["key"], state["n"], JobEnd(outcome, shards=state.get("shards", {}))
        )

    @property
    def committed(self) -> list[int]:
        return [i for i, part in enumerate(self.parts) if services.catalog().runs.committed(part.key) is not None]


def completed(task: int) -> JobView:
    runs = (Incarnation(0, "COMPLETED", elapsed_s=7.0, nodes=1, node_list="c1"),)
    return JobView(f"5501_{task}", phase=Phase.SUCCEEDED, state="COMPLETED", exit_code=0, node_list="c1", incarnations=runs)


def failed(task: int, cause: str = "failed", *, retryable: bool = True) -> JobView:
    return JobView(f"5501_{task}", phase=Phase.FAILED, state="FAILED", cause=cause, exit_code=1, retryable=retryable, node_list="c2")


@pytest.fixture
def sharded(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> Sharded:
    monkeypatch.setattr(stage_work, "_AFTER_A_FAILURE_S", 0.0)
    monkeypatch.setattr(stage_work, "LOOK_AGAIN_S", 0.0)
    monkeypatch.setattr(type(services.catalog().artifacts), "locate", lambda self, digest, store: f"somewhere/{hex_of(digest)[:8]}")
    return Sharded(plane)


def test_the_array_has_its_clusters_times(sharded: Sharded) -> None:
    request = sharded.prepare()
    assert isinstance(request, JobRequest)
    assert (request.max_wait_s, request.stop.grace_s) == (168 * 3600.0, 60.0)


def test_shards_move_no_key_but_have_keys_of_their_own(sharded: Sharded) -> None:
    assert sharded.whole.key == plan("generate", sharded.run, GIVEN).key
    assert sharded.whole.spec.config == {**sharded.before.spec.config, "portion_prompts": 4}
    assert len({sharded.whole.key, *(part.key for part in sharded.parts)}) == 4
    assert all(part.plan.spec.program == sharded.whole.spec.program for part in sharded.parts)


def test_one_array_for_all_parts_and_each_task_finds_its_own_run(sharded: Sharded) -> None:
    request, n = sharded.submitted()
    assert callable(request.spec)
    job = request.spec(n)
    folder = f"{sharded.plane.store_root}/{array_dir(request.key, n)}"
    assert (job.array, job.output) == ("0-2%2", f"{folder}/slurm-%A_%a.log")
    line = next(line for line in render(job).splitlines() if "bootstrap.py" in line)
    assert shlex.split(line)[-2:] == ["--array", f"{folder}/tasks.json"]
    tasks = json.loads(Path(folder, "tasks.json").read_text())["tasks"]
    for task, part in enumerate(sharded.parts):
        arguments = tasks[str(task)]["arguments"]
        given = dict(zip(arguments[::2], arguments[1::2], strict=True))
        assert (given["--run"], given["--n"], given["--program"]) == (RunDir(part.key).root, "1", "include.training.generate")
        placement = json.loads((sharded.plane.store_root / RunDir(part.key).submission(1) / "placement.json").read_text())
        assert placement["key"] == part.key
        assert not {"shards", "taken"} & set(placement["settings"])
    assert Path(folder, "bootstrap.py").read_bytes() == Path("include/runtime/bootstrap.py").read_bytes()


def test_all_done_then_the_whole_takes_what_the_parts_gave(sharded: Sharded) -> None:
    request, n = sharded.submitted()
    for part in range(3):
        sharded.leaves(part, 1, 700 + part)
    state = sharded.ended(request, n, {task: completed(task) for task in range(3)})
    assert stage_parts.accept(state) == stage_parts.GO_ON
    sharded.close(state, "succeeded")
    assert sharded.committed == [0, 1, 2]
    assert set(sharded.plane.registry.runs) == {part.key for part in sharded.parts}
    joined = sharded.prepare()
    assert isinstance(joined, JobRequest)
    assert joined.key == sharded.whole.key
    assert callable(joined.spec)
    assert (joined.spec(1).array, joined.spec(1).licenses, joined.spec(1).gres) == (None, None, None)
    joined.stage_in(1)
    settings = json.loads((sharded.plane.store_root / RunDir(joined.key).submission(1) / "placement.json").read_text())["settings"]
    assert {name: given["key"] for name, given in settings["taken"].items()} == {part.name: part.key for part in sharded.parts}
    for part in sharded.parts:
        done, given = services.catalog().runs.committed(part.key), settings["taken"][part.name]
        assert done is not None
        for output, place in (("candidates", given), ("log_probs", given["beside"]["log_probs"])):
            assert place["artifact"] == done.outputs[output].digest
            where = services.catalog().artifacts.locate(place["artifact"], services.store().uri)
            assert place["path"] == f"{sharded.plane.store_root}/{where}"
    assert [row.gpu_seconds for row in services.catalog().runs.attempts(sharded.parts[0].key)] == [0.0]
    assert [row.name for row in services.catalog().runs.attempts(sharded.parts[2].key)] == ["1-702.0"]


def test_only_the_part_that_failed_is_sent_again(sharded: Sharded) -> None:
    request, n = sharded.submitted()
    sharded.leaves(0, 1, 700)
    sharded.leaves(2, 1, 702)
    state = sharded.ended(request, n, {0: completed(0), 1: failed(1), 2: completed(2)})
    with pytest.raises(Resubmit) as caught:
        stage_parts.accept(state)
    assert caught.value.cause == "parts_failed"
    sharded.close(state, "interrupted")
    assert sharded.committed == [0, 2]
    again, n = sharded.submitted()
    assert (again.key, n) == (request.key, 2)
    assert callable(again.spec)
    assert again.spec(n).array == "1%2"
    arguments = json.loads(Path(sharded.plane.store_root, array_dir(again.key, n), "tasks.json").read_text())["tasks"]
    assert list(arguments) == ["1"]
    assert arguments["1"]["arguments"][5] == "2", "its own second submission"


def test_a_part_that_saved_goes_on_however_often_the_others_failed(sharded: Sharded) -> None:
    request, n = sharded.submitted()
    for part in range(3):
        sharded.leaves(part, 1, 700 + part, **({"outcome": "interrupted", "stop_reason": "signal", "last_step": 2} if part == 1 else {}))
    state = sharded.ended(request, n, {0: completed(0), 1: failed(1, "time_limit"), 2: completed(2)}, resubmits=9)
    with pytest.raises(Resubmit) as caught:
        stage_parts.accept(state)
    assert caught.value.cause == "parts_interrupted"


def test_a_part_that_fails_too_often_fails_the_task_and_is_named(sharded: Sharded) -> None:
    request, n = sharded.submitted()
    sharded.leaves(0, 1, 700)
    state = sharded.ended(request, n, {0: completed(0), 1: failed(1), 2: failed(2)}, resubmits=stage_parts.PART_RETRIES)
    with pytest.raises(JobFailed, match=r"2 of 3 parts failed \(1-2\): 5501_1 .*part 2 of 3 on c2") as caught:
        stage_parts.accept(state)
    assert caught.value.retryable
    assert sharded.committed == [0], "what is done stays done"


def test_a_part_that_fails_for_good_is_not_sent_again(sharded: Sharded) -> None:
    request, n = sharded.submitted()
    sharded.leaves(1, 1, 701, outcome="failed", stop_reason="guard", message="the loss is not finite")
    state = sharded.ended(request, n, {0: failed(0), 1: failed(1), 2: failed(2)})
    with pytest.raises(JobFailed, match="the loss is not finite") as caught:
        stage_parts.accept(state)
    assert not caught.value.retryable


def test_what_never_ran_through_no_fault_of_its_own_is_sent_again_however_often(sharded: Sharded) -> None:
    request, n = sharded.submitted()
    sharded.leaves(0, 1, 700)
    lost = {1: failed(1, "node_fail"), 2: failed(2, "forgotten")}
    with pytest.raises(Resubmit) as caught:
        stage_parts.accept(sharded.ended(request, n, {0: completed(0), **lost}, resubmits=9))
    assert caught.value.cause == "parts_interrupted"


def test_completed_without_a_report_is_no_success_of_a_part_either(sharded: Sharded) -> None:
    request, n = sharded.submitted()
    state = sharded.ended(request, n, {task: completed(task) for task in range(3)})
    with pytest.raises(Resubmit):
        stage_parts.accept(state)
    assert sharded.committed == []


def test_an_unknown_end_names_the_array_to_resolve(sharded: Sharded) -> None:
    request, n = sharded.submitted()
    sharded.leaves(0, 1, 700)
    gone = {task: JobView(f"5501_{task}", phase=Phase.UNKNOWN, cause="no_accounting") for task in range(3)}
    with pytest.raises(UnknownOutcome, match=rf"parts 2 of 3, 3 of 3\).*bin/align resolve {re.escape(request.key)}"):
        stage_parts.accept_unknown(sharded.ended(request, n, gone))
    assert sharded.committed == [0]
    sharded.leaves(1, 1, 701)
    sharded.leaves(2, 1, 702)
    assert stage_parts.accept_unknown(sharded.ended(request, n, gone)) == stage_parts.GO_ON


def test_parts_that_their_controller_lost_are_taken_for_what_they_made(sharded: Sharded) -> None:
    request, n = sharded.submitted()
    sharded.leaves(0, 1, 700)
    sharded.leaves(1, 1, 701)
    gone = JobView("5501_0", phase=Phase.UNKNOWN, state="RUNNING", cause=LOST_BY_ITS_CONTROLLER)
    forgotten = JobView("5501_2", phase=Phase.LOST, cause=FORGOTTEN, retryable=True)
    state = sharded.ended(
        request, n, {0: gone, 1: replace(completed(1), phase=Phase.FAILED, state="CANCELLED", doubtful=True), 2: forgotten}
    )
    with pytest.raises(Resubmit):
        stage_parts.accept_unknown(state)
    assert sharded.committed == [0, 1]
    assert [shard["cause"] for shard in state["shards"].values() if shard["outcome"] != "succeeded"] == [FORGOTTEN]


def test_a_part_of_which_nobody_can_say_stays_unknown_beside_others_that_are_known(sharded: Sharded) -> None:
    request, n = sharded.submitted()
    sharded.leaves(0, 1, 700)
    sharded.leaves(1, 1, 701, outcome="interrupted", stop_reason="signal", last_step=2)
    gone = {task: JobView(f"5501_{task}", phase=Phase.UNKNOWN, state="RUNNING", cause=LOST_BY_ITS_CONTROLLER) for task in (0, 1)}
    with pytest.raises(UnknownOutcome, match=r"parts 2 of 3\)"):
        stage_parts.accept_unknown(sharded.ended(request, n, {**gone, 2: failed(2)}))
    assert sharded.committed == [0]


def test_a_stage_that_asks_for_no_parts_runs_as_one_job(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(services.catalog().artifacts), "locate", lambda self, digest, store: "somewhere")
    request = stage_parts.prepare("generate", plane.run(), GIVEN)
    assert isinstance(request, JobRequest)
    assert request.key == plan("generate", plane.run(), GIVEN).key
    assert "parts" not in request.carry


def test_a_whole_that_is_committed_needs_no_parts(sharded: Sharded) -> None:
    """A recipe that is cut later, or another way, uses what was made in one."""
    rows = b"all rows"
    made = Manifest("candidate_set", (FileEntry("candidates.parquet", len(rows), sha256_bytes(rows)),))
    runs = services.catalog().runs
    runs.plan(sharded.whole.spec)
    report = Report(sharded.whole.key, "1-5.0", "complete", "last_step", 0, 4, 4, {}, {"candidates": made.digest})
    runs.commit_attempt(sharded.whole.key, "1-5.0", report.to_json(), {"candidates": made.to_json()}, services.store().uri)
    done = sharded.prepare()
    assert isinstance(done, Done)
    assert done.result["outputs"]["candidates"]["digest"] == made.digest


def test_a_task_whose_key_another_array_works_on_waits_and_uses_up_no_retry(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    array = CatalogReceipts(plane.catalog_url, parts={"0": plan("generate", plane.run(), GIVEN).key})
    array.claim("sha256:" + "a" * 64, OWNER)
    monkeypatch.setattr(type(services.catalog().artifacts), "locate", lambda self, digest, store: "somewhere")
    claims = lambda self, context, request, owner, *_: request.store().claim(request.key, owner)  # noqa: E731
    monkeypatch.setattr(SlurmJobOperator, "_submit", claims)
    task = Task(lambda: ArrayStageOperator(task_id="generate", stage="generate", run=plane.run(), given=GIVEN, pool="default_pool"))
    deferred = task.execute()
    assert type(deferred.trigger).__name__ == "SubmitLaterTrigger"
    assert deferred.method_name == "submit_again"
    assert deferred.kwargs["progress"]["nothing_sent"] is False
