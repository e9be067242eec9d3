"""How likely a model holds each of several given answers to a prompt."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from include.eval.errors import EvaluationError


@torch.no_grad()
def option_log_probs(
    model: Any, prompts: Sequence[Sequence[int]], options: Sequence[Sequence[Sequence[int]]], rows: int
) -> list[list[float]]:
    """The log-probability (natural, summed over its tokens) of each option as the beginning of the answer.

    Args:
        prompts: token ids of each prompt, up to where the answer begins.
        options: of each prompt, the token ids of its options.
        rows: at most so many options side by side. A prompt is filled in once for all of its options.
    """
    results: list[list[float]] = [[] for _ in prompts]
    by_count: dict[int, list[int]] = defaultdict(list)
    for i, (prompt, of_prompt) in enumerate(zip(prompts, options, strict=True)):
        if not prompt or not of_prompt or not all(of_prompt):
            raise EvaluationError(f"prompt {i} or one of its options holds no token: its likelihood means nothing")
        by_count[len(of_prompt)].append(i)
    for count, members in sorted(by_count.items()):
        ordered = sorted(members, key=lambda i: (max(len(option) for option in options[i]), len(prompts[i]), i))
        width = max(1, rows // count)
        for at in range(0, len(ordered), width):
            chosen = ordered[at : at + width]
            sums = _batch(model, [prompts[i] for i in chosen], [ids for i in chosen for ids in options[i]], count)
            for row, i in enumerate(chosen):
                results[i] = sums[row * count : (row + 1) * count]
    return results


def _batch(model: Any, prompts: Sequence[Sequence[int]], options: Sequence[Sequence[int]], count: int) -> list[float]:
    """Sums for prompts with `count` options each, options prompt by prompt."""
    device = next(model.parameters()).device
    ids, mask = _padded(prompts, left=True, device=device)
    out = model(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0), use_cache=True, logits_to_keep=1)
    first = torch.log_softmax(out.logits[:, -1].float(), -1).repeat_interleave(count, 0)
    tokens, real = _padded(options, left=False, device=device)
    totals = first.gather(1, tokens[:, :1]).squeeze(1)
    if tokens.shape[1] > 1:
        totals = totals + _rest(model, out.cache, mask.repeat_interleave(count, 0), tokens, real, count)
    return [float(total) for total in totals]


def _rest(model: Any, cache: Any, mask: torch.Tensor, tokens: torch.Tensor, real: torch.Tensor, count: int) -> torch.Tensor:
    """[option] log-probability of all tokens but the first; the output layer is applied at real positions alone."""
    cache.batch_repeat_interleave(count)
    fed, follows = tokens[:, :-1], real[:, 1:].bool()
    positions = mask.sum(1, keepdim=True) + torch.arange(fed.shape[1], device=fed.device)
    hidden = getattr(model, model.base_model_prefix)(
        input_ids=fed,
        attention_mask=torch.cat([mask, real[:, :-1]], 1),
        position_ids=positions,
        cache=cache,
        use_cache=True,
    ).last_hidden_state
    logits = model.get_output_embeddings()(hidden[follows]).float()
    chosen = torch.log_softmax(logits, -1).gather(1, tokens[:, 1:][follows][:, None]).squeeze(1)
    owner = torch.nonzero(follows)[:, 0]
    return torch.zeros(len(tokens), dtype=chosen.dtype, device=chosen.device).index_add(0, owner, chosen)


def _padded(sequences: Sequence[Sequence[int]], *, left: bool, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(sequence) for sequence in sequences)
    ids = torch.zeros((len(sequences), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        at = slice(width - len(sequence), width) if left else slice(0, len(sequence))
        ids[row, at] = torch.tensor(list(sequence))
        mask[row, at] = 1
    return ids.to(device), mask.to(device)
