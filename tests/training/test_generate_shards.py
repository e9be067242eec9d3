"""Candidates in shards: the whole has the bytes of a run in one, and a part that is not what was asked for is refused by name."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from include.domain.parts import parts_of
from include.domain.spec import RunSpec
from include.training.candidate_parts import check_whole, read_candidates
from include.training.errors import TrainingError
from tests.training.harness import Started, Store
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
        name: {"key": keys[name], "path": str(one.output("candidates")), "artifact": one.report.outputs["candidates"]}
        for name, one in parts.items()
    }


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
    files = [one.output("candidates") / "candidates.parquet" for one in (in_one, joined)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert joined.report.outputs == in_one.report.outputs
    assert (joined.report.last_step, joined.report.asked_steps) == (4, 4)
    assert joined.report.summary["parts"] == ["1 of 3", "2 of 3", "3 of 3"]
    assert joined.report.metrics["share_ended"] == in_one.report.metrics["share_ended"]


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
    given["1 of 3"] = {**given["1 of 3"], "path": str(tmp_path)}
    done = store.run(whole, n=5, **CUT, taken=given)
    assert done.code == 1
    assert "part 1 of 3" in done.report.message


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
