"""Whether sampler and trainer say the same of the same answers: the gate before anything is learnt from them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from include.training.rl.ages import Weighed
from include.training.rl.arithmetic import largest_ratio_gap, mean_ratio_gaps
from include.training.rl.batch import sampler_log_probs
from include.training.rl.collect import Collected
from include.training.rl.guards import Guards
from include.training.rl.settings import PpoSettings


@dataclass(frozen=True)
class Compared:
    """1 for each answer that may be learnt from, and the figures."""

    fair_B: Tensor
    told: dict[str, float]


def compare(guards: Guards, settings: PpoSettings, batch: Collected, old_BT: Tensor, mask_BT: Tensor, weighed: Weighed) -> Compared:
    """The trainer must find the log-probabilities with which the sampler drew: at lag 0 the present ones, `old_BT`, else those under the
    version that drew the answer (`weighed`).

    In float32 more than rounding stops the run. In bfloat16, where rounding is large, an answer that is too far off is masked, and too
    many of them stop the run.

    Raises:
        GuardStop: sampler_apart.
    """
    sampler_BT = sampler_log_probs(batch.sampled)
    own_BT = mask_BT * (torch.tensor(batch.lags) == 0)[:, None]
    told = {"sampler_ratio_gap": largest_ratio_gap(old_BT, sampler_BT, own_BT)}
    counted_B = mask_BT.any(1)
    if settings.precision == "fp32":
        guards.check_sampler(told["sampler_ratio_gap"], settings.ratio_tolerance, "the present weights")
        earlier = weighed.told.get("behaviour_ratio_gap", 0.0)
        guards.check_sampler(earlier, settings.ratio_tolerance, "the earlier weights that drew the answers")
        return Compared(counted_B.to(mask_BT.dtype), told)
    apart_B = mean_ratio_gaps(old_BT, sampler_BT, own_BT) + weighed.apart_B
    fair_B = apart_B <= settings.ratio_tolerance_bf16  # of what is no number this says no
    masked = int((counted_B & ~fair_B).sum())
    guards.check_apart(masked, int(counted_B.sum()), settings.ratio_tolerance_bf16)
    largest = float(apart_B[counted_B].max()) if bool(counted_B.any()) else 0.0
    return Compared(fair_B.to(mask_BT.dtype), {**told, "sampler_mean_gap": largest, "answers_masked": float(masked)})
