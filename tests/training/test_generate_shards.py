"""Candidates in shards: the whole has the bytes of a run in one, and a part that is not what was asked for is refused by name."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from include.domain.parts import parts_of
from include.domain.spec import RunSpec
from include.training.candidate_log_probs import read_log_probs
from include.training.candidate_parts import check_whole, read_candidates
from include.training.errors import TrainingError
from tests.training.harness import Started, Store, wait_for_step
from tests.training.resume_matrix import DIED
from tests.training.resume_matrix_cells import KILL
from tests.training.test_generate import CONFIG, INPUTS

SMALL = {**CONFIG, "portion_prompts": 2}
CUT = {"shards": 3}


@pytest.fixture(scope="module")
def whole(store: Store) -> RunSpec:
    store.artifact("policy", Path(store.places["base"].path))
    return store.spec("generate", INPUTS, SMALL, salt="shards")


@pytest.fixture(scope="module")
def parts(store: Store, whole: RunSpec) -> dict[str, Started]:
    done = {part.name: store.run(part.spec) for part in parts_of(whole, CUT)}
    assert [one.code for one in done.values()] == [0, 0, 0], [one.stderr for one in done.values()]
    return done


def placed(whole: RunSpec, parts: dict[str, Started]) -> dict[str, Any]:
    keys = {part.name: part.spec.key for part in parts_of(whole, CUT)}
    return {
        name: {"key": keys[name], **_placed(one, "candidates"), "beside": {"log_probs": _placed(one, "log_probs")}}
        for name, one in parts.items()
    }


def _placed(started: Started, output: str) -> dict[str, str]:
    return {"path": str(started.output(output)), "artifact": started.report.outputs[output]}


def test_shards_are_runs_of_their_own_and_share_every_portion(whole: RunSpec, parts: dict[str, Started]) -> None:
    found = parts_of(whole, CUT)
    assert [part.name for part in found] == ["1 of 3", "2 of 3", "3 of 3"]
    assert len({whole.key, *(part.spec.key for part in found)}) == 4
    assert [one.report.metrics["candidates"] for one in parts.values()] == [9.0, 6.0, 6.0]  # 7 prompts: 4 portions, 3 answers a prompt
    assert parts_of(whole, {"shards": 1}) == parts_of(found[0].spec, CUT) == ()


def test_the_whole_of_the_shards_has_the_bytes_of_a_run_in_one(store: Store, whole: RunSpec, parts: dict[str, Started]) -> None:
    in_one = store.run(whole)
    joined = store.run(whole, n=2, **CUT, taken=placed(whole, parts))
    assert (in_one.code, joined.code) == (0, 0), in_one.stderr + joined.stderr
    for output in ("candidates", "log_probs"):
        files = [one.output(output) / f"{output}.parquet" for one in (in_one, joined)]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert joined.report.metrics["log_prob_per_token"] == in_one.report.metrics["log_prob_per_token"]
    assert joined.report.outputs == in_one.report.outputs
    assert (joined.report.last_step, joined.report.asked_steps) == (4, 4)
    assert joined.report.summary["parts"] == ["1 of 3", "2 of 3", "3 of 3"]
    assert joined.report.metrics["share_ended"] == in_one.report.metrics["share_ended"]


def test_shards_killed_and_signalled_inside_go_on_there_and_the_whole_has_the_same_bytes(store: Store, parts: dict[str, Started]) -> None:
    again = store.spec("generate", INPUTS, SMALL, salt="shards that die")
    killed, asked, third = (part.spec for part in parts_of(again, CUT)[:3])
    dead = store.run(killed, 1, [KILL, killed.program, "generating", "2"], save_every_steps=1)
    assert dead.code == -signal.SIGKILL, dead.stderr
    assert (dead.folder / DIED).exists()
    first = store.run(killed, 2, save_every_steps=1)
    assert (first.report.first_step, first.report.last_step) == (1, 2), first.stderr
    second, rest = store.run(asked), store.run(third)
    made = dict(zip(parts, (first, second, rest), strict=True))
    assert [one.report.outputs for one in made.values()] == [one.report.outputs for one in parts.values()]
    joined = store.run(again, **CUT, taken=placed(again, made))
    assert joined.code == 0, joined.stderr
    assert read_log_probs(joined.output("log_probs")) == {
        name: values for one in parts.values() for name, values in read_log_probs(one.output("log_probs")).items()
    }
    assert read_candidates(joined.output("candidates")) == sorted(
        (row for one in parts.values() for row in read_candidates(one.output("candidates"))),
        key=lambda row: (row["prompt_id"], row["candidate_id"]),
    )


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_ends_a_shard_after_its_portion_with_exit_75_and_the_next_attempt_writes_the_rest(
    store: Store, whole: RunSpec, parts: dict[str, Started], number: signal.Signals
) -> None:
    spec = replace(parts_of(whole, CUT)[0].spec, rerun_salt=f"asked to stop by {number.name}")
    arguments = store.prepare(spec, 1, save_every_steps=100)
    folder = Path(arguments[-1])
    process = store.start(spec, arguments, [str(Path(__file__).with_name("slow_steps.py")), spec.program])
    wait_for_step(folder, 1)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    stopped = Started(folder, process.returncode, stderr)
    assert stopped.code == 75, stderr
    assert (stopped.report.outcome, stopped.report.stop_reason, stopped.report.last_step) == ("interrupted", "signal", 1)
    assert os.listdir(folder / "checkpoints") == ["step-1"]
    second = store.run(spec, 2)
    assert (second.report.first_step, second.report.last_step) == (1, 2), second.stderr
    assert second.report.outputs == parts["1 of 3"].report.outputs


def test_a_part_that_is_not_there_or_is_another_runs_is_refused(store: Store, whole: RunSpec, parts: dict[str, Started]) -> None:
    given = placed(whole, parts)
    two = {name: one for name, one in given.items() if name != "2 of 3"}
    done = store.run(whole, n=3, **CUT, taken=two)
    assert done.code == 1
    assert "this run has 1 of 3, 2 of 3, 3 of 3" in done.report.message
    done = store.run(whole, n=4, **CUT, taken=given | {"2 of 3": given["1 of 3"]})
    assert done.code == 1
    assert "part 2 of 3" in done.report.message
    assert "this specification asks for" in done.report.message


def test_a_part_with_a_changed_byte_is_refused(store: Store, whole: RunSpec, parts: dict[str, Started], tmp_path: Path) -> None:
    given, folder = placed(whole, parts), parts["1 of 3"].output("candidates")
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    data = bytearray((tmp_path / "candidates.parquet").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "candidates.parquet").write_bytes(data)
    changed = {**given["1 of 3"], "path": str(tmp_path)}
    done = store.run(whole, n=5, **CUT, taken=given | {"1 of 3": changed})
    assert done.code == 1
    assert "part 1 of 3" in done.report.message


def test_log_probabilities_of_a_part_that_are_not_there_or_are_changed_are_refused(
    store: Store, whole: RunSpec, parts: dict[str, Started], tmp_path: Path
) -> None:
    given = placed(whole, parts)
    bare = {name: value for name, value in given["2 of 3"].items() if name != "beside"}
    done = store.run(whole, n=6, **CUT, taken=given | {"2 of 3": bare})
    assert done.code == 1
    assert "taken.2 of 3 is to have key, path and artifact, and the same of log_probs beside it" in done.report.message
    (tmp_path / "log_probs.parquet").write_bytes((parts["1 of 3"].output("log_probs") / "log_probs.parquet").read_bytes())
    other = {**given["2 of 3"], "beside": {"log_probs": {**given["2 of 3"]["beside"]["log_probs"], "path": str(tmp_path)}}}
    done = store.run(whole, n=7, **CUT, taken=given | {"2 of 3": other})
    assert done.code == 1
    assert "part 2 of 3, log_probs" in done.report.message


def test_a_missing_or_doubled_answer_is_named(parts: dict[str, Started]) -> None:
    rows = {name: read_candidates(one.output("candidates")) for name, one in parts.items()}
    asked = {(row["prompt_id"], row["random_seed"]): None for of_part in rows.values() for row in of_part}
    check_whole(rows, asked)
    gone = rows["3 of 3"][0]
    with pytest.raises(TrainingError, match=rf"1 of 21 answers are missing from parts .*{gone['prompt_id']} of seed {gone['random_seed']}"):
        check_whole({**rows, "3 of 3": rows["3 of 3"][1:]}, asked)
    with pytest.raises(TrainingError, match=rf"{gone['prompt_id']} of seed .* is there twice: in part 1 of 3 and in part 3 of 3"):
        check_whole({**rows, "1 of 3": [*rows["1 of 3"], gone]}, asked)
    strange = json.loads(json.dumps(gone)) | {"random_seed": 7}
    with pytest.raises(TrainingError, match="of part 2 of 3 was not asked for"):
        check_whole({**rows, "2 of 3": [*rows["2 of 3"], strange]}, asked)


def test_more_shards_than_portions_leave_one_with_nothing_to_do(store: Store, whole: RunSpec) -> None:
    last = parts_of(whole, {"shards": 5})[-1]
    done = store.run(replace(last.spec, rerun_salt="too many"))
    assert done.code == 1
    assert "part 5 of 5 has nothing to do: the prompts make 4 portions" in done.report.message
