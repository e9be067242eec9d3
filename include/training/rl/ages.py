"""Answers by earlier versions of the actor: counted, checked against the version that wrote them, and weighed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from include.training.rl.adapters import load_actor
from include.training.rl.arithmetic import largest_ratio_gap, mean_ratio_gaps, truncated_weights
from include.training.rl.batch import Plan, sampler_log_probs
from include.training.rl.checks import freeze
from include.training.rl.collect import Collected
from include.training.rl.draw import Drawn
from include.training.rl.settings import PpoSettings
from include.training.rl.sources import AnswerSource
from include.training.rl.update import Learner
from include.training.scoring import AnswerScorer

COUNTS = ("answers_dropped", "answers_made_again", "answers_kept_old")


@dataclass(frozen=True)
class Weighed:
    """Of one batch: the trainer's log-probabilities under the very version that drew each answer, the importance weight of each token
    (None where all answers are the present actor's), what is told of them, and of each answer by an earlier actor how far sampler and
    trainer are apart under that actor's weights (`arithmetic.mean_ratio_gaps`)."""

    drawn_BT: Tensor
    weight_BT: Tensor | None
    told: dict[str, float]
    apart_B: Tensor


class Ages:
    """Knows how old answers are. The counts over all iterations are part of a checkpoint."""

    def __init__(self, policy: Path, settings: PpoSettings, source: AnswerSource) -> None:
        self._policy = policy
        self._settings = settings
        self._source = source
        self._counts = dict.fromkeys(COUNTS, 0)
        self._earlier: AnswerScorer | None = None

    def count(self, drawn: Drawn) -> dict[str, float]:
        """The counts of one iteration, {} where the trainer draws all by itself."""
        if self._settings.lag is None:
            return {}
        now = dict(zip(COUNTS, (drawn.dropped, drawn.made_again, drawn.kept_old), strict=True))
        for name, value in now.items():
            self._counts[name] += value
        return {name: float(value) for name, value in now.items()}

    def totals(self) -> dict[str, float]:
        return {name: float(value) for name, value in self._counts.items()} if self._settings.lag is not None else {}

    def weigh(self, learner: Learner, plan: Plan, batch: Collected, now_BT: Tensor, mask_BT: Tensor) -> Weighed:
        """What the answers of earlier actors weigh.

        behaviour_ratio_gap: largest |ratio − 1| between the log-probabilities the sampler reported and those that the trainer finds
        under the very version that drew the answer; the same model must give the same ones.
        """
        lag, lag_B = self._settings.lag, torch.tensor(batch.lags)
        if lag is None or not bool((lag_B > 0).any()):
            return Weighed(now_BT, None, {}, torch.zeros(len(lag_B)))
        sampler_BT = sampler_log_probs(batch.sampled)
        gap, apart_B, drawn_BT = 0.0, torch.zeros(len(lag_B)), now_BT
        for age in sorted({age for age in batch.lags if age > 0}):
            of_age_BT = mask_BT * (lag_B == age)[:, None]
            under_BT = self._under(learner, plan, now_BT, batch, age)
            gap = max(gap, largest_ratio_gap(under_BT, sampler_BT, of_age_BT))
            apart_B += mean_ratio_gaps(under_BT, sampler_BT, of_age_BT)
            drawn_BT = torch.where((lag_B == age)[:, None], under_BT, drawn_BT)
        cap_B = torch.where(lag_B > lag.limit, 1.0, lag.weight_cap)
        weight_BT = torch.where((lag_B > 0)[:, None], truncated_weights(now_BT, sampler_BT, cap_B), torch.ones(()))
        seen = weight_BT[(mask_BT > 0) & (lag_B > 0)[:, None]]
        told = {"behaviour_ratio_gap": gap}
        if len(seen):
            truncated = (seen >= cap_B[:, None].expand_as(mask_BT)[(mask_BT > 0) & (lag_B > 0)[:, None]]).double().mean()
            told |= {"importance_weight": float(seen.mean()), "importance_truncated_share": float(truncated)}
        return Weighed(drawn_BT, weight_BT, told, apart_B)

    def _under(self, learner: Learner, plan: Plan, now_BT: Tensor, batch: Collected, age: int) -> Tensor:
        """B × T log-probabilities under the version that is `age` behind the present one."""
        if self._earlier is None:
            self._earlier = freeze(
                AnswerScorer(load_actor(self._policy, self._settings.attention, self._settings.lora)).to(learner.actor.device)
            )
        self._source.load(batch.step - age, self._earlier.model)
        return learner.log_probs_of(self._earlier, plan, (now_BT.shape[0], now_BT.shape[1]))

    def state(self) -> dict[str, Any]:
        return dict(self._counts)

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._counts = {name: int(state[name]) for name in COUNTS}
