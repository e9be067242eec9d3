"""What a report says of checkpoints, of resuming, and of preemption."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from include.runtime.checkpoint import Snapshot
from include.runtime.cost import Peaks, Resumption, furthest_step, preemption, used
from include.runtime.job import Job
from include.runtime.ranks import Ranks
from include.runtime.saving import SaveCost
from tests.runtime.bench import Bench

STEP_S, SAVE_S = 0.03, 0.05


def _goes(job: Job, until: int, of: int = 6) -> None:
    """Steps of a known length, each saved; a save takes at least `SAVE_S`."""
    job.expect(of)
    checkpoint = job.resume()
    store = job.checkpoints.save
    job.checkpoints.save = lambda *given, **named: (time.sleep(SAVE_S), store(*given, **named))[1]  # type: ignore[method-assign]
    for step in range(checkpoint.step if checkpoint else 0, until):
        time.sleep(STEP_S)
        job.train_seconds += STEP_S
        job.record(step + 1, {"loss": 1.0}, 10)
        if (step + 1) % 2 == 0:
            job.save(step + 1, Snapshot({}, {"step": step + 1}))


def _done(job: Job) -> None:
    _goes(job, 6)
    with job.output("policy", "model") as folder:
        (folder / "model.safetensors").write_bytes(b"x")
    job.complete({})


def test_checkpoints_are_counted_with_their_seconds_and_the_share_for_which_the_work_stood_still(bench: Bench) -> None:
    _, report = bench.run(_done)
    told = report.summary["checkpoints"]
    assert told["saves"] == 3
    assert told["longest_s"] >= SAVE_S
    assert told["seconds"] >= 3 * SAVE_S
    assert told["seconds"] >= told["longest_s"]
    assert told["stall_s"] >= told["seconds"]  # nothing is saved in the background here
    assert told["stall_share"] == pytest.approx(told["stall_s"] / (told["stall_s"] + 6 * STEP_S), abs=1e-3)
    folder = bench.root / "run" / "attempts" / "1-5.0" / "checkpoints" / "step-6"
    assert told["size_bytes"] >= sum(path.stat().st_size for path in folder.iterdir()) - 64


def test_a_run_that_saves_behind_its_back_stands_still_for_less_than_it_writes(bench: Bench) -> None:
    def body(job: Job) -> None:
        store = job.checkpoints.save
        job.checkpoints.save = lambda *given, **named: (time.sleep(SAVE_S), store(*given, **named))[1]  # type: ignore[method-assign]
        job.expect(2)
        job.resume()
        for step in (1, 2):
            job.record(step, {}, 1)
            job.save(step, Snapshot({}, {}), background=True)
            time.sleep(3 * SAVE_S)
        job.train_seconds = 6 * SAVE_S
        with job.output("policy", "model") as folder:
            (folder / "model.safetensors").write_bytes(b"x")
        job.complete({})

    _, report = bench.run(body, save_in_background=True)
    told = report.summary["checkpoints"]
    assert told["seconds"] >= 2 * SAVE_S
    assert told["stall_s"] < SAVE_S
    assert told["stall_share"] < told["seconds"] / (told["seconds"] + 6 * SAVE_S)


@pytest.mark.parametrize(("stall_s", "warned"), [(2.1, False), (6.0, True), (4.0, False)])
def test_a_report_warns_of_work_that_stood_still_for_its_checkpoints(bench: Bench, stall_s: float, warned: bool) -> None:
    def body(job: Job) -> None:
        _goes(job, 6)
        job.saver.cost.stall_s, job.train_seconds = stall_s, 100.0
        with job.output("policy", "model") as folder:
            (folder / "model.safetensors").write_bytes(b"x")
        job.complete({})

    _, report = bench.run(body)
    told = [said for said in report.summary["warnings"] if said.startswith("checkpoints: the work stood still")]
    assert bool(told) == warned
    if warned:
        assert "for 6.0 s, 5.7% of its time, and 2% is usual: save_every_steps" in told[0]


def test_what_a_death_cost_and_a_checkpoint_spared_is_in_the_next_report(bench: Bench) -> None:
    def dies(job: Job) -> None:
        _goes(job, 5)
        raise RuntimeError("power cut")

    _, first = bench.run(dies)
    assert first.summary["resumption"] == {"steps_lost": 0.0, "steps_spared": 0.0, "seconds_lost": 0.0, "seconds_spared": 0.0}
    _, second = bench.run(_done, "2-6.0")
    assert (second.first_step, second.last_step) == (4, 6)
    assert second.summary["resumption"] == {
        "steps_lost": 1.0,
        "steps_spared": 4.0,
        "seconds_lost": pytest.approx(STEP_S),
        "seconds_spared": pytest.approx(4 * STEP_S),
    }


def test_seconds_lost_and_spared_are_steps_times_the_seconds_of_one() -> None:
    assert Resumption(3, 40).to_json(0.5) == {"steps_lost": 3.0, "steps_spared": 40.0, "seconds_lost": 1.5, "seconds_spared": 20.0}


def test_a_progress_file_that_was_cut_off_tells_nothing(tmp_path: Path) -> None:
    for name, text in (("1-5.0", '{"step": 7}'), ("2-6.0", '{"st'), ("3-7.0", "{}"), ("4-8.0", '{"step": 90}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "progress.json").write_text(text)
    assert furthest_step(tmp_path, "4-8.0") == 7
    (tmp_path / "1-5.0" / "metrics.jsonl").write_text('{"step": 8}\n{"step": 9}\n{"ste')
    assert furthest_step(tmp_path, "4-8.0") == 9
    (tmp_path / "2-6.0" / "metrics.jsonl").write_text("")
    assert furthest_step(tmp_path, "4-8.0") == 9


@pytest.mark.parametrize(("notice_s", "fits"), [(8.0, True), (7.9, False)])
def test_a_preemption_must_give_notice_of_a_step_and_a_save(notice_s: float, fits: bool) -> None:
    seen = preemption(SaveCost(saves=2, seconds=9.0, longest_s=6.0), 2.0, {"signal_lead_s": notice_s})
    assert seen == {"fits": fits, "needed_s": 8.0, "notice_s": notice_s}


@pytest.mark.parametrize(("saves", "resources"), [(0, {"signal_lead_s": 60}), (2, {}), (2, {"signal_lead_s": "soon"})])
def test_whether_a_preemption_fits_is_unknown_without_a_save_or_a_notice(saves: int, resources: dict[str, Any]) -> None:
    assert preemption(SaveCost(saves=saves, longest_s=6.0), 2.0, resources) is None


@pytest.mark.parametrize("preemptible", [True, False])
def test_a_preemptible_job_whose_notice_is_too_short_says_so_in_its_report(bench: Bench, preemptible: bool) -> None:
    bench.resources = {"signal_lead_s": 0.001, "preemptible": preemptible}
    _, report = bench.run(_done)
    seen = report.summary["preemption"]
    assert (seen["fits"], seen["notice_s"]) == (False, 0.001)
    assert seen["needed_s"] >= SAVE_S + STEP_S - 0.001
    assert any("the site gives notice of 0.001 s" in warning for warning in report.summary["warnings"]) == preemptible


def test_a_notice_that_is_long_enough_is_no_warning(bench: Bench) -> None:
    bench.resources = {"signal_lead_s": 60, "preemptible": True}
    _, report = bench.run(_done)
    assert (report.summary["preemption"]["fits"], report.summary["warnings"]) == (True, [])


class _Ranks(Ranks):
    """Some ranks of which each sees GPUs of its own, or the same ones."""

    seen: tuple[tuple[str, ...], ...] = ()

    def most(self, *values: float) -> list[float]:
        return list(values)

    def gather(self, value: Any) -> list[Any]:
        return [value, *self.seen]


@pytest.mark.parametrize(
    ("count", "others", "gpus"),
    [(1, (), 8), (4, (tuple(f"GPU-{at}" for at in range(8)),) * 3, 8), (2, (("GPU-8", "GPU-9"),), 10), (2, (("GPU-7",),), 8)],
)
def test_gpu_time_is_that_of_all_gpus_the_ranks_see_each_counted_once(
    monkeypatch: pytest.MonkeyPatch, count: int, others: tuple[tuple[str, ...], ...], gpus: int
) -> None:
    """Alone on eight; four ranks on eight, of which generators have four; ranks on two machines; ranks that see a part."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda: 5)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda at: SimpleNamespace(uuid=f"GPU-{at}"))
    ranks, peaks = _Ranks(0, count), Peaks()
    object.__setattr__(ranks, "seen", others)
    peaks.look(ranks)
    figures = used(10.0, ranks, peaks)
    assert (figures["gpu_seconds"], figures["ranks"], figures["peak_gpu_memory_bytes"]) == (10.0 * gpus, count, 5)
