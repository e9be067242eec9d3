"""The arithmetic of PPO on answers of language models. Pure functions; shapes B (answers) × T (answer tokens).

`mask_BT` is 1 on real answer tokens and 0 on padding; an answer whose reward is missing has a row of zeros, so that it
takes part in nothing. Sources: Schulman et al. 2016 (GAE), 2017 (clipping); Ziegler et al. 2019 (per-token KL).
"""

from dataclasses import dataclass

import torch
from torch import Tensor


def masked_mean(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean over the tokens of the mask; 0 when there is none."""
    return (value_BT * mask_BT).sum() / mask_BT.sum().clamp(min=1)


def whiten(value_BT: Tensor, mask_BT: Tensor, epsilon: float = 1e-8) -> Tensor:
    """Mean 0 and standard deviation 1 over the mask; 0 outside of it, and everywhere where there is no spread."""
    mean = masked_mean(value_BT, mask_BT)
    centred_BT = (value_BT - mean) * mask_BT
    deviation = masked_mean(centred_BT**2, mask_BT).sqrt()
    if deviation <= epsilon:
        return torch.zeros_like(value_BT)
    return centred_BT / (deviation + epsilon)


def sequence_kl(policy_BT: Tensor, reference_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Batch mean, over answers that count, of the *sum* over tokens of log π − log π_ref, π being what drew the answers.

    An estimate of KL(π ‖ reference) from samples of π: it can be negative by noise, and only by noise. Of samples of another policy μ
    it would be KL(μ ‖ reference) − KL(μ ‖ π): −KL(reference ‖ π) where the reference itself drew.
    """
    total_B = ((policy_BT - reference_BT) * mask_BT).sum(1)
    return total_B.sum() / (mask_BT.sum(1) > 0).sum().clamp(min=1)


def token_rewards(score_B: Tensor, log_ratio_BT: Tensor, mask_BT: Tensor, kl_coefficient: float) -> Tensor:
    """−coefficient × (log π_old − log π_ref) at each token, and the answer's score at its last one."""
    reward_BT = -kl_coefficient * log_ratio_BT * mask_BT
    length_B = mask_BT.sum(1).long()
    rows = torch.nonzero(length_B > 0).squeeze(1)
    reward_BT[rows, length_B[rows] - 1] += score_B[rows]
    return reward_BT


@dataclass(frozen=True)
class Advantages:
    """What the critic is to learn (returns) and how much better each token was than it expected (advantages)."""

    advantage_BT: Tensor
    return_BT: Tensor


def gae(reward_BT: Tensor, value_BT: Tensor, mask_BT: Tensor, gamma: float, lam: float) -> Advantages:
    """Generalised advantage estimation; the value after the last token is 0 (an answer is an episode).

    δ_t = r_t + γ V_{t+1} − V_t;  A_t = δ_t + γλ A_{t+1};  return_t = A_t + V_t.
    """
    value_BT = value_BT * mask_BT
    advantage_BT = torch.zeros_like(reward_BT)
    running_B = torch.zeros_like(reward_BT[:, 0])
    for t in range(reward_BT.shape[1] - 1, -1, -1):
        following_B = value_BT[:, t + 1] if t + 1 < reward_BT.shape[1] else torch.zeros_like(running_B)
        delta_B = reward_BT[:, t] + gamma * following_B - value_BT[:, t]
        running_B = (delta_B + gamma * lam * running_B) * mask_BT[:, t]
        advantage_BT[:, t] = running_B
    return Advantages(advantage_BT, advantage_BT + value_BT)


def policy_losses(new_BT: Tensor, old_BT: Tensor, advantage_BT: Tensor, clip: float) -> Tensor:
    """−min(ratio × A, clip(ratio, 1 ± clip) × A) at each token."""
    ratio_BT = (new_BT - old_BT).exp()
    return torch.maximum(-advantage_BT * ratio_BT, -advantage_BT * ratio_BT.clamp(1 - clip, 1 + clip))


def value_losses(new_BT: Tensor, old_BT: Tensor, return_BT: Tensor, clip: float) -> Tensor:
    """½ max((V − R)², (V clipped to old ± clip − R)²) at each token."""
    near_BT = old_BT + (new_BT - old_BT).clamp(-clip, clip)
    return 0.5 * torch.maximum((new_BT - return_BT) ** 2, (near_BT - return_BT) ** 2)


def truncated_weights(now_BT: Tensor, sampler_BT: Tensor, cap_B: Tensor) -> Tensor:
    """min(π_now / μ, cap) of each token, μ being the actor that drew it. Truncated importance sampling (Ionides 2008), as decoupled PPO
    weighs its loss with (Hilton et al. 2022)."""
    return torch.minimum((now_BT - sampler_BT).exp(), cap_B[:, None])


def clipped_share(new_BT: Tensor, old_BT: Tensor, mask_BT: Tensor, clip: float) -> Tensor:
    """Share of tokens whose ratio is outside 1 ± clip."""
    return masked_mean((((new_BT - old_BT).exp() - 1).abs() > clip).to(mask_BT.dtype), mask_BT)


def largest_ratio_gap(new_BT: Tensor, old_BT: Tensor, mask_BT: Tensor) -> float:
    """Largest |exp(new − old) − 1| over the mask."""
    return float((((new_BT - old_BT).exp() - 1).abs() * mask_BT).max()) if mask_BT.numel() else 0.0


def mean_ratio_gaps(new_BT: Tensor, old_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """B: of each answer the mean over its tokens of exp|new − old| − 1; 0 where none counts.

    NeMo-RL masks by the same figure (its `token_mult_prob_error`): a mean, as in bfloat16 one rare token may be far off by rounding alone.
    """
    apart_BT = ((new_BT - old_BT).abs().exp() - 1) * mask_BT
    return apart_BT.sum(1) / mask_BT.sum(1).clamp(min=1)


def explained_variance(value_BT: Tensor, return_BT: Tensor, mask_BT: Tensor) -> float:
    """1 − Var(R − V) / Var(R) over the mask: 1 is a perfect critic, 0 is no better than the mean."""
    centred_BT = (return_BT - masked_mean(return_BT, mask_BT)) * mask_BT
    residual_BT = (return_BT - value_BT) * mask_BT
    residual_BT = (residual_BT - masked_mean(residual_BT, mask_BT)) * mask_BT
    spread = float((centred_BT**2).sum())
    return 1 - float((residual_BT**2).sum()) / spread if spread > 0 else 0.0
