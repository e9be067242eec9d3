"""Answers are functions of prompt and seed: whatever the batch, and equal to a plain loop over one row."""

import random
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from include.runtime.errors import InputError
from include.runtime.generation import Generated, Sampling, choose, generate_batch

STOP = 2
WARM = Sampling(temperature=1.0, top_p=0.9, top_k=30, max_new_tokens=14)


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


def _prompts(count: int) -> list[list[int]]:
    draw = random.Random(4)
    return [[draw.randrange(3, 60) for _ in range(draw.randrange(1, 20))] for _ in range(count)]


def _one_by_one(model: Any, prompt: list[int], sampling: Sampling, seed: int) -> Generated:
    """The slow, plain way: no cache, no padding, one row."""
    draws = torch.rand(sampling.max_new_tokens, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ids, answer = list(prompt), Generated()
    for at in range(sampling.max_new_tokens):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[:, -1]
        token = int(choose(logits, sampling, draws[at : at + 1]))
        answer.tokens.append(token)
        ids.append(token)
        if token == STOP:
            answer.finish_reason = "eos"
            break
    return answer


@pytest.mark.parametrize("sampling", [WARM, Sampling(0.0, max_new_tokens=14)], ids=["sampled", "greedy"])
@pytest.mark.parametrize("max_rows", [1, 7, 100])
def test_answers_do_not_depend_on_the_batch(model: Any, sampling: Sampling, max_rows: int) -> None:
    prompts, seeds = _prompts(12), list(range(100, 124))
    found = generate_batch(model, prompts, sampling, seeds, stop_ids={STOP}, samples_per_prompt=2, max_rows=max_rows)
    expected = [_one_by_one(model, prompts[at // 2], sampling, seed) for at, seed in enumerate(seeds)]
    assert [(a.tokens, a.finish_reason) for a in found] == [(a.tokens, a.finish_reason) for a in expected]


def test_some_answers_end_early_and_some_by_length(model: Any) -> None:
    found = generate_batch(model, _prompts(40), Sampling(1.0, max_new_tokens=20), list(range(40)), stop_ids={STOP, 5, 9})
    assert {answer.finish_reason for answer in found} == {"eos", "length"}
    assert all(answer.tokens[-1] in {STOP, 5, 9} for answer in found if answer.finish_reason == "eos")
    assert all(len(answer.tokens) == 20 for answer in found if answer.finish_reason == "length")
    assert not any({STOP, 5, 9} & set(answer.tokens[:-1]) for answer in found)


def test_another_seed_gives_another_answer_and_the_same_seed_the_same(model: Any) -> None:
    prompt = _prompts(1) * 3
    first, again, other = generate_batch(model, prompt, WARM, [5, 5, 6], stop_ids={STOP})
    assert first.tokens == again.tokens
    assert first.tokens != other.tokens


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_log_probabilities_are_those_of_the_whole_distribution(model: Any, temperature: float) -> None:
    prompt = _prompts(1)[0]
    sampling = Sampling(temperature, top_p=0.8, max_new_tokens=9)
    answer = generate_batch(model, [prompt], sampling, [3], stop_ids={STOP}, return_log_probs=True)[0]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + answer.tokens])).logits[0, len(prompt) - 1 : -1]
    expected = torch.log_softmax(logits / (temperature or 1.0), -1).gather(-1, torch.tensor(answer.tokens)[:, None]).flatten()
    assert answer.log_probs == pytest.approx(expected.tolist(), abs=1e-5)
    own = generate_batch(model, [prompt], sampling, [3], stop_ids={STOP}, return_log_probs=True, log_probs_at=1.0)[0]
    bare = torch.log_softmax(logits, -1).gather(-1, torch.tensor(answer.tokens)[:, None]).flatten()
    assert (own.tokens, own.log_probs) == (answer.tokens, pytest.approx(bare.tolist(), abs=1e-5))


def test_draws_follow_the_distribution(model: Any) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, float("-inf")]]).expand(4000, -1)
    draws = torch.rand(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shares = torch.bincount(choose(logits, Sampling(1.0), draws), minlength=4) / 4000
    assert shares.tolist() == pytest.approx([0.0900, 0.2447, 0.6652, 0.0], abs=0.02)


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        (Sampling(1.0, top_k=2), {2, 3}),
        (Sampling(1.0, top_p=0.6), {3}),
        (Sampling(1.0, top_p=0.66), {2, 3}),
        (Sampling(1.0, top_p=1e-9), {3}),
    ],
)
def test_top_k_and_top_p_cut_off_what_is_unlikely_and_never_the_likeliest(sampling: Sampling, allowed: set[int]) -> None:
    logits = torch.log(torch.tensor([[0.05, 0.1, 0.2, 0.65]])).expand(500, -1)
    draws = torch.linspace(0, 1 - 1e-9, 500, dtype=torch.float64)
    assert set(choose(logits, sampling, draws).tolist()) == allowed


def test_what_cannot_be_sampled_is_refused(model: Any) -> None:
    with pytest.raises(InputError, match="as many seeds"):
        generate_batch(model, [[3]], WARM, [1, 2], stop_ids={STOP})
    with pytest.raises(InputError, match="prompt 1 is empty"):
        generate_batch(model, [[3], []], WARM, [1, 2], stop_ids={STOP})
    with pytest.raises(InputError, match="cannot be sampled"):
        Sampling(temperature=-1.0)
