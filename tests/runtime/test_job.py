"""What every program stands on: the report says how it ended, however it ended."""

import json
import os
import signal
from pathlib import Path

import pytest

from include.domain.errors import SpecError
from include.domain.manifest import MANIFEST
from include.domain.outcomes import StopReason
from include.domain.spec import RunSpec
from include.runtime.errors import GuardTripped
from include.runtime.job import Job
from include.runtime.program import run_program
from tests.runtime.bench import SOME, Bench, whole, work


def test_a_complete_run_reports_its_steps_metrics_and_outputs(bench: Bench) -> None:
    code, report = bench.run(whole)
    assert code == 0
    assert (report.outcome, report.stop_reason, report.key, report.attempt) == ("complete", "last_step", bench.spec.key, "1-5.0")
    assert (report.first_step, report.last_step, report.asked_steps) == (0, 3, 3)
    assert report.metrics == {"loss": 0.5}
    assert report.summary.items() >= {"note": "x", "tokens": 30}.items()
    assert report.summary["warnings"] == []
    assert 10**7 < report.summary["peak_memory_bytes"] < 10**12
    output = bench.root / "run" / "attempts" / "1-5.0" / "output"
    listed = json.loads((output / MANIFEST).read_text())
    own = json.loads((output / "policy" / MANIFEST).read_text())
    assert (listed["schema"], listed["artifacts"]) == ("align/outputs/v1", {"policy": own})
    assert report.outputs == {"policy": own["digest"]}


def test_what_was_estimated_stands_beside_what_was_seen(bench: Bench) -> None:
    bench.resources = {"estimate": {"tokens": 60.0, "memory_gb": 1000.0, "save_s": 0.0, "checkpoint_gb": 1e-3, "unheard_of": 1.0}}
    _, report = bench.run(whole, save_every_steps=1)
    rows = report.summary["estimate"]
    assert rows["tokens"] == {"estimated": 60.0, "seen": 30.0, "ratio": 0.5}
    assert 0 < rows["memory_gb"]["ratio"] < 0.1
    assert set(rows) <= {"tokens", "memory_gb", "checkpoint_gb"}
    bench.resources = {}
    assert "estimate" not in bench.run(whole, "1-6.0")[1].summary


def test_metrics_are_one_object_a_step_and_progress_says_how_far_it_is(bench: Bench) -> None:
    bench.run(whole, save_every_steps=2)
    folder = bench.root / "run" / "attempts" / "1-5.0"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["tokens"], line["loss"]) for line in lines] == [(1, 10, 1.0), (2, 20, 0.5), (3, 30, 1 / 3)]
    progress = json.loads((folder / "progress.json").read_text())
    assert (progress["step"], progress["asked_steps"], progress["tokens"]) == (3, 3, 30)
    assert progress["last_checkpoint"] == {"step": 2, "attempt": "1-5.0"}
    assert progress["eta_s"] == 0.0


def test_a_figure_that_is_not_finite_is_null_in_the_metrics(bench: Bench) -> None:
    def body(job: Job) -> None:
        job.expect(1)
        job.record(1, {"loss": float("nan"), "norm": float("inf")})
        job.complete({})

    bench.run(body)
    line = json.loads((bench.root / "run" / "attempts" / "1-5.0" / "metrics.jsonl").read_text())
    assert (line["loss"], line["norm"]) == (None, None)


def test_the_next_attempt_goes_on_from_the_checkpoint_and_says_so(bench: Bench) -> None:
    def dies(job: Job) -> None:
        work(job, until=2)
        raise RuntimeError("power cut")

    code, report = bench.run(dies, save_every_steps=1)
    assert (code, report.outcome, report.last_step) == (1, "failed", 2)
    assert report.message == "RuntimeError: power cut"
    code, report = bench.run(whole, "2-6.0")
    assert (code, report.first_step, report.last_step) == (0, 2, 3)
    assert report.resumed_from == {"attempt": "1-5.0", "step": 2, "set_aside": []}


def test_a_run_that_advanced_nothing_fails(bench: Bench) -> None:
    code, report = bench.run(lambda job: job.complete({}))
    assert (code, report.outcome) == (1, "failed")
    assert "ended at step 0 of 0" in report.message


def test_a_run_that_did_less_than_it_was_asked_for_fails(bench: Bench) -> None:
    def body(job: Job) -> None:
        work(job, until=2)
        job.complete({})

    code, report = bench.run(body)
    assert (code, report.outcome) == (1, "failed")
    assert "ended at step 2 of 3" in report.message


def test_an_early_stop_may_end_sooner_and_says_so(bench: Bench) -> None:
    def body(job: Job) -> None:
        work(job, until=2)
        job.complete({}, stop_reason=StopReason.EARLY_STOP)

    code, report = bench.run(body)
    assert (code, report.outcome, report.stop_reason, report.last_step) == (0, "complete", "early_stop", 2)


def test_a_program_that_forgets_to_complete_fails(bench: Bench) -> None:
    code, report = bench.run(work)
    assert code == 1
    assert "without calling complete()" in report.message


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_saves_and_ends_as_interrupted_with_75(bench: Bench, number: signal.Signals) -> None:
    def body(job: Job) -> None:
        os.kill(os.getpid(), number)
        whole(job)

    code, report = bench.run(body, save_every_steps=100)
    assert (code, report.outcome, report.stop_reason, report.last_step) == (75, "interrupted", "signal", 1)
    assert signal.Signals(number).name in report.message
    assert (bench.root / "run" / "attempts" / "1-5.0" / "checkpoints" / "step-1" / "manifest.json").exists()


@pytest.mark.parametrize(("other", "code"), [("1-5.1", 76), ("2-3.0", 76), ("1-9.7", 0), ("0-900.3", 0)])
def test_only_a_newer_attempt_supersedes(bench: Bench, other: str, code: int) -> None:
    (bench.root / "run" / "attempts" / other).mkdir(parents=True)
    found, report = bench.run(whole)
    assert found == code
    assert report.stop_reason == ("superseded" if code else "last_step")


def test_a_guard_is_named_in_the_report(bench: Bench) -> None:
    def body(job: Job) -> None:
        work(job, until=1)
        raise GuardTripped("kl_exploding", "KL is 900, the limit is 50")

    code, report = bench.run(body)
    assert (code, report.outcome, report.stop_reason, report.summary["guard"]) == (1, "failed", "guard", "kl_exploding")
    assert report.message == "kl_exploding: KL is 900, the limit is 50"


def test_a_corrupt_input_fails_before_the_body_runs(bench: Bench) -> None:
    (Path(bench.base.path) / "tokenizer.json").write_text("[]")
    ran: list[Job] = []
    code, report = bench.run(ran.append)
    assert (code, report.outcome, ran) == (1, "failed", [])
    assert "input base" in report.message
    assert "tokenizer.json is corrupt" in report.message


def test_another_tokenizer_or_template_than_the_runs_is_refused(bench: Bench) -> None:
    for field in ("tokenizer", "chat_template"):
        fields = {**{name: getattr(bench.spec, name) for name in bench.spec.__dataclass_fields__}, field: SOME}
        spec = RunSpec(**fields)
        name = f"{len(field)}-1.0"
        code = run_program("sft", whole, bench.arguments(name, spec))
        assert code == 1
        assert f"the run is for {SOME}" in bench.report(name).message


def test_a_specification_of_another_stage_or_key_is_refused(bench: Bench) -> None:
    with pytest.raises(SpecError, match="this program runs dpo"):
        run_program("dpo", whole, bench.arguments())
    with pytest.raises(SpecError, match="of key"):
        run_program("sft", whole, bench.arguments("2-5.0", key=SOME))


def test_an_input_that_the_run_does_not_have_is_named(bench: Bench) -> None:
    code, report = bench.run(lambda job: print(job.input("reference")))
    assert code == 1
    assert "sft needs the input 'reference'; the run has base" in report.message


def test_an_output_is_written_once(bench: Bench) -> None:
    def body(job: Job) -> None:
        work(job)
        for _ in range(2):
            with job.output("policy", "model") as folder:
                (folder / "config.json").write_text("{}")

    code, report = bench.run(body)
    assert code == 1
    assert "an output is written once" in report.message


def test_warnings_are_in_the_report(bench: Bench) -> None:
    def body(job: Job) -> None:
        job.warn("5 rows were cut")
        whole(job)

    assert bench.run(body)[1].summary["warnings"] == ["5 rows were cut"]
