"""Answers of a causal language model, each a function of its prompt and its own seed.

A prompt is filled in once for all its answers, rows of like length go together, a finished row leaves the batch. The
random numbers of an answer come from its seed alone, one for each token, so neither its neighbours nor the batch size
change it (in float32; in bfloat16 rounding depends on how many rows are computed together, so there the same batches must
be formed to get the same text). The model is handed in (any object with the interface of a Hugging Face causal model).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from include.runtime.errors import InputError


@dataclass(frozen=True)
class Sampling:
    """How an answer is drawn. temperature 0 is greedy; top_k None and top_p 1 cut nothing off."""

    temperature: float
    top_p: float = 1.0
    top_k: int | None = None
    max_new_tokens: int = 32

    def __post_init__(self) -> None:
        if self.temperature < 0 or not 0 < self.top_p <= 1 or self.max_new_tokens < 1 or (self.top_k is not None and self.top_k < 1):
            raise InputError(f"{self} cannot be sampled: temperature ≥ 0, 0 < top_p ≤ 1, top_k ≥ 1 or None, max_new_tokens ≥ 1")


@dataclass
class Generated:
    """One answer: its tokens (end token included), why it ended, and each token's log-probability (natural)."""

    tokens: list[int] = field(default_factory=list)
    finish_reason: str = "length"
    log_probs: list[float] | None = None


@dataclass
class _Batch:
    """Rows still being written: their places in the result, and what the model needs to go on."""

    places: torch.Tensor
    mask: torch.Tensor
    cache: Any
    logits: torch.Tensor
    log_probs_at: float

    def keep(self, rows: torch.Tensor) -> None:
        self.places, self.mask, self.logits = self.places[rows], self.mask[rows], self.logits[rows]
        self.cache.batch_select_indices(rows)


@torch.no_grad()
def generate_batch(
    model: Any,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    seeds: Sequence[int],
    *,
    stop_ids: set[int],
    samples_per_prompt: int = 1,
    return_log_probs: bool = False,
    log_probs_at: float | None = None,
    max_rows: int = 256,
) -> list[Generated]:
    """`samples_per_prompt` answers to each prompt, prompt by prompt.

    Args:
        seeds: one for each answer.
        return_log_probs: log softmax(logits / temperature) of each token before top_k and top_p; of the bare logits
            at temperature 0.
        log_probs_at: the temperature of these log-probabilities; None: that of the sampling. 1: the model's own.
        max_rows: how many answers are written side by side.
    """
    wanted = len(prompts) * samples_per_prompt
    if len(seeds) != wanted:
        raise InputError(f"{wanted} answers need as many seeds, there are {len(seeds)}")
    if any(not prompt for prompt in prompts):
        raise InputError(f"prompt {next(i for i, p in enumerate(prompts) if not p)} is empty")
    results = [Generated(log_probs=[] if return_log_probs else None) for _ in range(wanted)]
    chance = _uniforms(seeds, sampling.max_new_tokens) if sampling.temperature > 0 else None
    order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), i))
    width = max(1, max_rows // samples_per_prompt)
    temperature = sampling.temperature if log_probs_at is None else log_probs_at
    for at in range(0, len(order), width):
        batch = _prefill(model, prompts, order[at : at + width], samples_per_prompt, temperature)
        _decode(model, batch, sampling, chance, stop_ids, results)
    return results


def _uniforms(seeds: Sequence[int], count: int) -> torch.Tensor:
    """[answer, token] numbers in [0, 1), each row from its own seed."""
    rows = [torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in seeds]
    return torch.stack(rows)


def _prefill(model: Any, prompts: Sequence[Sequence[int]], chosen: Sequence[int], samples: int, log_probs_at: float) -> _Batch:
    device = next(model.parameters()).device
    width = max(len(prompts[i]) for i in chosen)
    ids = torch.zeros((len(chosen), width), dtype=torch.long)
    mask = torch.zeros((len(chosen), width), dtype=torch.long)
    for row, i in enumerate(chosen):
        ids[row, width - len(prompts[i]) :] = torch.tensor(prompts[i])
        mask[row, width - len(prompts[i]) :] = 1
    ids, mask = ids.to(device), mask.to(device)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    out = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1)
    cache = out.cache
    if samples > 1:
        cache.batch_repeat_interleave(samples)
    places = torch.tensor([i * samples + k for i in chosen for k in range(samples)])
    return _Batch(places, mask.repeat_interleave(samples, 0), cache, out.logits[:, -1].repeat_interleave(samples, 0), log_probs_at)


def _decode(
    model: Any,
    batch: _Batch,
    sampling: Sampling,
    chance: torch.Tensor | None,
    stop_ids: set[int],
    results: list[Generated],
) -> None:
    stops = torch.tensor(sorted(stop_ids))
    for count in range(sampling.max_new_tokens):
        draws = None if chance is None else chance[batch.places, count]
        tokens = choose(batch.logits, sampling, draws)
        _write(batch, tokens, stops, results)
        going = torch.nonzero(~torch.isin(tokens.cpu(), stops)).flatten()
        if len(going) == 0 or count + 1 == sampling.max_new_tokens:
            return
        if len(going) < len(tokens):
            batch.keep(going)
            tokens = tokens[going]
        positions = batch.mask.sum(1, keepdim=True)
        batch.mask = torch.cat([batch.mask, torch.ones_like(positions)], 1)
        out = model(
            input_ids=tokens[:, None],
            attention_mask=batch.mask,
            position_ids=positions,
            cache=batch.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        batch.logits, batch.cache = out.logits[:, -1], out.cache


def _write(batch: _Batch, tokens: torch.Tensor, stops: torch.Tensor, results: list[Generated]) -> None:
    ended = torch.isin(tokens.cpu(), stops).tolist()
    log_probs: list[float] | None = None
    if results[int(batch.places[0])].log_probs is not None:
        log_probs = token_log_probs(batch.logits, tokens, batch.log_probs_at).tolist()
    for row, (place, token) in enumerate(zip(batch.places.tolist(), tokens.tolist(), strict=True)):
        answer = results[place]
        answer.tokens.append(token)
        if log_probs is not None and answer.log_probs is not None:
            answer.log_probs.append(log_probs[row])
        if ended[row]:
            answer.finish_reason = "eos"


def token_log_probs(logits: torch.Tensor, tokens: torch.Tensor, temperature: float) -> torch.Tensor:
    """[row] log-probability of `tokens` under softmax(logits / temperature), before anything is cut off."""
    scaled = logits.float() / (temperature if temperature > 0 else 1.0)
    return torch.log_softmax(scaled, -1).gather(-1, tokens[:, None]).squeeze(-1)


def choose(logits: torch.Tensor, sampling: Sampling, draws: torch.Tensor | None) -> torch.Tensor:
    """[row] next tokens: the likeliest at temperature 0, else by inverting the cumulative distribution at `draws`."""
    if draws is None or sampling.temperature == 0:
        return logits.float().argmax(-1)
    probabilities = torch.softmax(logits.float() / sampling.temperature, -1)
    probabilities = _cut_off(probabilities, sampling)
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    target = draws.to(logits.device)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True).squeeze(-1).clamp(max=logits.shape[-1] - 1)


def _cut_off(probabilities: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Sets to zero what top_k and then top_p leave out; the likeliest token always stays."""
    if sampling.top_k is not None and sampling.top_k < probabilities.shape[-1]:
        least = probabilities.topk(sampling.top_k, -1).values[:, -1:]
        probabilities = probabilities.masked_fill(probabilities < least, 0.0)
    if sampling.top_p < 1:
        ordered, index = probabilities.sort(dim=-1, descending=True, stable=True)
        share = ordered.cumsum(-1) / ordered.sum(-1, keepdim=True)
        beyond = share - ordered / ordered.sum(-1, keepdim=True) >= sampling.top_p
        probabilities = probabilities.masked_fill(torch.zeros_like(beyond).scatter(-1, index, beyond), 0.0)
    return probabilities
