"""Candidates as a program: every field of the record, the same texts whatever the batch, their log-probabilities, nothing lost."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from include.domain.records import Candidate, Prompt, candidate_id_of
from include.runtime.chat import answer_text, prompt_ids
from include.runtime.generation import Sampling, generate_batch
from include.training.candidate_log_probs import check_lengths, per_token, read_log_probs
from include.training.errors import TrainingError
from include.training.generate import candidate_seed
from include.training.model_io import load_causal_lm, load_tokenizer
from include.transforms.datasets_io import SidedRow, read_rows
from tests.training.harness import Started, Store, question

SAMPLING = {"temperature": 0.9, "top_p": 0.95, "top_k": 20, "max_new_tokens": 12}
CONFIG: dict[str, Any] = {
    "sampling": SAMPLING,
    "candidates_per_prompt": 3,
    "prompt_limit": 7,
    "side": "train",
    "use": "preference",
    "dtype": "float32",
    "safety_filter_version": "none@1",
}
INPUTS = {"policy": "policy", "prompts": "prompts"}


@pytest.fixture(scope="module")
def answered(store: Store) -> Started:
    store.artifact("policy", Path(store.places["base"].path))
    done = store.run(store.spec("generate", INPUTS, CONFIG))
    assert done.code == 0, done.stderr
    return done


def _candidates(started: Started) -> list[Candidate]:
    table = pq.read_table(started.output("candidates") / "candidates.parquet")
    assert table.column_names == ["id", "prompt_id", "record"]
    records = [Candidate.from_json(json.loads(text)) for text in table["record"].to_pylist()]
    assert [record.candidate_id for record in records] == table["id"].to_pylist()
    assert [record.prompt_id for record in records] == table["prompt_id"].to_pylist()
    return records


def _prompts(store: Store) -> dict[str, Prompt]:
    return {row.id: Prompt.from_json(row.record) for row in read_rows(Path(store.places["prompts"].path), "train")}


def test_every_prompt_has_its_answers_and_each_says_where_it_came_from(store: Store, answered: Started) -> None:
    candidates = _candidates(answered)
    spec = store.spec("generate", INPUTS, CONFIG)
    assert len(candidates) == 21
    assert len({candidate.candidate_id for candidate in candidates}) == 21
    by_prompt = {c.prompt_id: sum(d.prompt_id == c.prompt_id for d in candidates) for c in candidates}
    assert list(by_prompt.values()) == [3] * 7
    assert set(by_prompt) <= set(_prompts(store))
    for candidate in candidates:
        assert candidate.candidate_id == candidate_id_of(candidate.to_json())
        assert candidate.policy_checkpoint == store.places["policy"].digest
        assert (candidate.tokenizer_version, candidate.chat_template) == (spec.tokenizer, spec.chat_template)
        assert candidate.sampling_config is not None
        assert candidate.sampling_config.to_json() == SAMPLING
        assert candidate.origin == "policy"


def test_an_answer_can_be_written_again_from_its_record_alone(store: Store, answered: Started) -> None:
    folder, prompts = Path(store.places["policy"].path), _prompts(store)
    model, tokenizer = load_causal_lm(folder), load_tokenizer(folder)
    for candidate in _candidates(answered)[:6]:
        ids = prompt_ids(tokenizer, prompts[candidate.prompt_id].messages)
        sampling = Sampling(**{key: SAMPLING[key] for key in ("temperature", "top_p", "top_k", "max_new_tokens")})  # type: ignore[arg-type]
        assert candidate.random_seed is not None
        again = generate_batch(model, [ids], sampling, [candidate.random_seed], stop_ids={tokenizer.eos_token_id})[0]
        assert tuple(again.tokens) == candidate.token_ids
        assert answer_text(tokenizer, again.tokens) == candidate.response_text
        assert again.finish_reason == candidate.finish_reason


@pytest.mark.parametrize("batch", [1, 5])
def test_the_batch_size_changes_nothing(store: Store, answered: Started, batch: int) -> None:
    other = store.run(store.spec("generate", INPUTS, CONFIG, salt=f"batch {batch}"), generation_batch=batch)
    assert other.report.outputs["candidates"] == answered.report.outputs["candidates"]
    expected = read_log_probs(answered.output("log_probs"))
    assert read_log_probs(other.output("log_probs")) == {name: pytest.approx(values, abs=1e-5) for name, values in expected.items()}


def test_log_probabilities_are_those_of_a_fresh_forward_pass_at_temperature_one(store: Store, answered: Started) -> None:
    folder, prompts = Path(store.places["policy"].path), _prompts(store)
    model, tokenizer = load_causal_lm(folder), load_tokenizer(folder)
    table = pq.read_table(answered.output("log_probs") / "log_probs.parquet").to_pydict()
    candidates = _candidates(answered)
    assert table["id"] == [candidate.candidate_id for candidate in candidates]
    for candidate, kept, whole, count in zip(candidates, table["token_log_probs"], table["log_prob"], table["tokens"], strict=True):
        assert candidate.token_ids is not None
        ids = prompt_ids(tokenizer, prompts[candidate.prompt_id].messages)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*ids, *candidate.token_ids]])).logits[0, len(ids) - 1 : -1]
        fresh = torch.log_softmax(logits.double(), -1).gather(-1, torch.tensor(candidate.token_ids)[:, None]).flatten()
        assert kept == pytest.approx(fresh.tolist(), abs=1e-5)
        assert (count, whole) == (len(candidate.token_ids), pytest.approx(float(fresh.sum()), abs=1e-4))
    mean = sum(table["log_prob"]) / sum(table["tokens"])
    assert answered.report.metrics["log_prob_per_token"] == pytest.approx(mean)


def test_the_same_seed_gives_the_same_texts_and_the_same_log_probabilities(store: Store, answered: Started) -> None:
    again = store.run(store.spec("generate", INPUTS, CONFIG, salt="again"))
    assert again.report.outputs == answered.report.outputs


def test_log_probabilities_that_are_not_the_answers_are_refused_by_name(answered: Started) -> None:
    rows, log_probs = [candidate.to_json() for candidate in _candidates(answered)], read_log_probs(answered.output("log_probs"))
    check_lengths("1 of 2", rows, log_probs)
    name, tokens = rows[3]["candidate_id"], len(rows[3]["token_ids"])
    with pytest.raises(TrainingError, match=rf"part 1 of 2: candidate {name} has {tokens} tokens and {tokens - 1} log-probabilities"):
        check_lengths("1 of 2", rows, {**log_probs, name: log_probs[name][1:]})
    with pytest.raises(TrainingError, match=rf"candidate {name} has {tokens} tokens and none"):
        check_lengths("1 of 2", rows, {other: values for other, values in log_probs.items() if other != name})
    with pytest.raises(TrainingError, match="21 answers, log-probabilities of 22"):
        check_lengths("1 of 2", rows, {**log_probs, "another": [-1.0]})
    assert per_token([[-1.0, -2.0], [-6.0]]) == -3.0


def test_the_batch_size_changes_nothing_in_bfloat16_either(store: Store, answered: Started) -> None:
    config = {**CONFIG, "dtype": "bfloat16"}
    whole, small = (store.run(store.spec("generate", INPUTS, config, salt=f"bf16 {batch}"), generation_batch=batch) for batch in (64, 2))
    assert whole.code == 0, whole.stderr
    assert small.report.outputs == whole.report.outputs != answered.report.outputs


def test_answers_of_one_prompt_have_seeds_of_their_own() -> None:
    seeds = {candidate_seed(run, prompt, index) for run in (1, 2) for prompt in ("a", "b") for index in range(3)}
    assert len(seeds) == 12
    assert candidate_seed(1, "a", 0) == candidate_seed(1, "a", 0) < 2**53


def test_the_limit_takes_prompts_by_hash_and_another_seed_takes_others(store: Store, answered: Started) -> None:
    chosen = {candidate.prompt_id for candidate in _candidates(answered)}
    few = store.run(store.spec("generate", INPUTS, {**CONFIG, "prompt_limit": 4}, seed=5))
    assert {candidate.prompt_id for candidate in _candidates(few)} < chosen


def test_prompts_that_are_not_there_are_refused(store: Store, answered: Started) -> None:
    done = store.run(store.spec("generate", INPUTS, {**CONFIG, "side": "holdout"}))
    assert done.code == 1
    assert "has no prompt on side 'holdout' for use 'preference'" in done.report.message


def test_prompts_of_further_sides_are_answered_up_to_their_limits(store: Store, answered: Started) -> None:
    made = [question(40 + n, n) for n in range(24)]
    sides = ["train"] * 6 + ["validation"] * 6 + ["holdout"] * 6 + ["safety_holdout"] * 6
    rows = [
        SidedRow(p.prompt_id, side, p.split_group, "evaluation" if "holdout" in side else "preference", p.to_json())
        for p, side in zip(made, sides, strict=True)
    ]
    store.dataset("sided", "prompt", sorted(rows, key=lambda row: row.id))
    inputs, config = {"policy": "policy", "prompts": "sided"}, {**CONFIG, "prompt_limit": 4, "sides": {"validation": 3, "holdout": 9}}
    done = store.run(store.spec("generate", inputs, config))
    assert done.code == 0, done.stderr
    by_side = dict(zip((p.prompt_id for p in made), sides, strict=True))
    found = Counter(by_side[prompt_id].removeprefix("safety_") for prompt_id in {c.prompt_id for c in _candidates(done)})
    assert found == {"train": 4, "validation": 3, "holdout": 9}
    few = store.run(store.spec("generate", {"policy": "policy", "prompts": "prompts"}, {**CONFIG, "sides": {"holdout": 1}}))
    assert few.code == 1
    assert "has no prompt on side 'holdout'" in few.report.message
