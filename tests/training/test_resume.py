"""N updates = k updates + SIGKILL + the rest, to the last bit, wherever the process dies."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from include.domain.layout import RunDir
from include.domain.spec import RunSpec
from include.training.candidate_log_probs import read_log_probs
from tests.training.harness import SFT, TINY, Started, Store, corpus, wait_for_step
from tests.training.resume_matrix_cells import GENERATE as ONE_BY_ONE

KILL = str(Path(__file__).with_name("kill_at.py"))
QUICK = {**SFT, "eval_rows": 0}
GENERATE = {**ONE_BY_ONE, "prompt_limit": 9, "portion_prompts": 2}
_COST = ("time", "tokens")


def _series(started: Started) -> list[dict[str, Any]]:
    """What was recorded, without the clock and this attempt's own count of tokens."""
    if not (started.folder / "metrics.jsonl").exists():
        return []
    return [{k: v for k, v in line.items() if k not in _COST} for line in started.lines]


def _killed_and_resumed(store: Store, spec: RunSpec, moment: str, number: int, **settings: Any) -> tuple[Started, Started]:
    wrapper = [KILL, spec.program, moment, str(number)]
    first = store.run(spec, 1, wrapper, **settings)
    assert first.code == -signal.SIGKILL, first.stderr
    assert not (first.folder / "report.json").exists()
    second = store.run(spec, 2, **settings)
    assert second.code == 0, second.stderr
    return first, second


@pytest.fixture(scope="module")
def whole(store: Store) -> Started:
    """SFT in one go."""
    done = store.run(_sft(store, "in one go"), save_every_steps=3, micro_batch=4)
    assert done.code == 0, done.stderr
    return done


def _sft(store: Store, salt: str) -> RunSpec:
    return store.spec("sft", {"base": "base", "demonstrations": "demonstrations"}, QUICK, salt=salt)


DEATHS = [("update", 5, 0), ("half-saved", 1, 3), ("recorded", 2, 3), ("before-rename", 1, 3), ("after-rename", 1, 3), ("export", 1, 6)]
"""(moment, number, step from which that attempt starts), one attempt after another, saving every 3 steps."""


def test_sft_after_six_deaths_has_the_losses_and_weights_of_a_run_in_one_go(store: Store, whole: Started) -> None:
    spec = _sft(store, "killed again and again")
    lived: list[dict[str, Any]] = []
    for n, (moment, number, starts_at) in enumerate(DEATHS, 1):
        dead = store.run(spec, n, [KILL, spec.program, moment, str(number)], save_every_steps=3, micro_batch=4)
        assert dead.code == -signal.SIGKILL, dead.stderr
        assert not (dead.folder / "report.json").exists()
        assert json.loads((dead.folder / "progress.json").read_text())["first_step"] == starts_at, moment
        lived = [line for line in lived if line["step"] <= starts_at] + _series(dead)
    last = store.run(spec, len(DEATHS) + 1, save_every_steps=3, micro_batch=4)
    assert last.code == 0, last.stderr
    assert (last.report.first_step, last.report.last_step) == (8, 8)
    assert lived == _series(whole)
    assert last.report.outputs == whole.report.outputs


def test_a_save_that_was_cut_off_is_named_and_left_where_it_is(store: Store) -> None:
    spec = _sft(store, "cut off")
    first, second = _killed_and_resumed(store, spec, "before-rename", 2, save_every_steps=3)
    resumed = second.report.resumed_from
    assert resumed is not None
    assert [item["name"] for item in resumed["set_aside"]] == ["1-101.0/checkpoints/step-6.tmp"]
    assert (first.folder / "checkpoints" / "step-6.tmp" / "manifest.json").exists()


@pytest.mark.parametrize("moment", ["before-rename", "generating"])
def test_candidates_after_a_kill_are_those_of_a_run_in_one_go(store: Store, moment: str) -> None:
    store.artifact("policy", Path(store.places["base"].path))
    inputs = {"policy": "policy", "prompts": "prompts"}
    whole = store.run(store.spec("generate", inputs, GENERATE, salt=f"in one go, {moment}"))
    spec = store.spec("generate", inputs, GENERATE, salt=f"killed {moment}")
    wrapper = [KILL, spec.program, moment, "2"]
    assert store.run(spec, 1, wrapper, save_every_steps=1).code == -signal.SIGKILL
    second = store.run(spec, 2, save_every_steps=1, generation_batch=3)
    assert second.code == 0, second.stderr
    assert (second.report.first_step, second.report.last_step) == (1, 5)
    assert second.report.outputs["candidates"] == whole.report.outputs["candidates"]
    found, expected = (read_log_probs(one.output("log_probs")) for one in (second, whole))
    assert found == {name: pytest.approx(values, abs=1e-5) for name, values in expected.items()}


def test_the_tiny_base_after_a_kill_has_the_weights_of_one_made_in_one_go(store: Store) -> None:
    store.raw("source", "corpus.jsonl", corpus())
    config = {"kind": "tiny", "file": "corpus.jsonl", "dtype": "float32", "tiny": TINY}
    spec = store.spec("base_import", {"source": "source"}, config, salt="killed")
    _, second = _killed_and_resumed(store, spec, "update", 35, save_every_steps=20)
    assert second.report.first_step == 20
    assert second.report.outputs == {"base": store.places["base"].digest}


def test_a_signal_ends_the_run_after_its_step_with_a_checkpoint_and_exit_75(store: Store, whole: Started) -> None:
    spec = _sft(store, "signalled")
    arguments = store.prepare(spec, 1, save_every_steps=100, micro_batch=4)
    folder = Path(arguments[-1])
    process = store.start(spec, arguments, [str(Path(__file__).with_name("slow_steps.py")), spec.program])
    wait_for_step(folder, 2)
    process.send_signal(signal.SIGUSR1)
    _, stderr = process.communicate(timeout=60)
    stopped = Started(folder, process.returncode, stderr)
    assert stopped.code == 75, stderr
    assert (stopped.report.outcome, stopped.report.stop_reason) == ("interrupted", "signal")
    last = stopped.report.last_step
    assert 2 <= last < 8
    assert os.listdir(folder / "checkpoints") == [f"step-{last}"]
    second = store.run(spec, 2, micro_batch=4)
    assert second.report.first_step == last
    assert second.report.outputs == whole.report.outputs


def test_a_job_that_sees_a_newer_attempt_stops(store: Store) -> None:
    spec = _sft(store, "superseded")
    arguments = store.prepare(spec, 1, save_every_steps=100)
    folder = Path(arguments[-1])
    process = store.start(spec, arguments, [str(Path(__file__).with_name("slow_steps.py")), spec.program])
    wait_for_step(folder, 1)
    (store.root / RunDir(spec.key).attempts / "2-300.0").mkdir()
    _, stderr = process.communicate(timeout=60)
    stopped = Started(folder, process.returncode, stderr)
    assert (stopped.code, stopped.report.outcome, stopped.report.stop_reason) == (76, "interrupted", "superseded")
    assert "2-300.0" in stopped.report.message


def test_a_checkpoint_with_one_wrong_byte_is_named_and_the_one_before_it_is_used(store: Store) -> None:
    spec = _sft(store, "wrong byte")
    first = store.run(spec, 1, [KILL, spec.program, "export", "1"], save_every_steps=3)
    path = first.folder / "checkpoints" / "step-8" / "optimizer.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(bytes(data))
    second = store.run(spec, 2, save_every_steps=3)
    assert second.code == 0, second.stderr
    assert second.report.first_step == 6
    assert "step-8/optimizer.safetensors is corrupt" in json.dumps(second.report.resumed_from)
