"""Looks at validation prompts while PPO trains: the same prompts each time, answered greedily and scored by the same statistics.

A reward that rises while these answers get worse is what over-optimisation looks like (Gao et al. 2022). Worse is: less often right by
the verifier; without one, answers on which the members of the ensemble disagree more, or that have grown long.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev
from typing import Any

from include.domain.errors import SpecError
from include.domain.records import Prompt
from include.runtime.chat import answer_text
from include.runtime.job import Job
from include.runtime.settings import Settings
from include.training.engines.precision import precision_context
from include.training.errors import TrainingError
from include.training.model_io import compute_device
from include.training.rl.actor import Drawing
from include.training.rl.collect import encode_prompts
from include.training.rl.draw import DrawSettings, draw_together
from include.training.rl.rewards import Answer, Member, RewardScorer, Scored
from include.training.rl.settings import PpoSettings
from include.transforms.datasets_io import read_rows


@dataclass(frozen=True)
class LookSettings:
    """every: iterations between two looks; prompts: so many validation prompts, the first that leave room for an answer."""

    every: int
    prompts: int

    @classmethod
    def of(cls, config: Settings) -> "LookSettings | None":
        """The section `heldout`; None where nothing is looked at."""
        section = config.section("heldout", {})
        section.only("every", "prompts")
        every = section.integer("every", 0)
        if every < 0:
            raise SpecError(f"config.heldout.every is {every}: iterations between two looks, or 0 for none")
        return cls(every, section.positive("prompts", 64)) if every else None


@dataclass(frozen=True)
class Look:
    """What was seen. reward: mean of the answers in deviations of the reward models' validation sets; verified: share that is right,
    None where no prompt has a reference; disagreement: mean deviation between the members' scores, None for one member."""

    reward: float
    tokens: float
    verified: float | None
    disagreement: float | None

    def figures(self) -> dict[str, float]:
        told = {"reward": self.reward, "tokens": self.tokens, "verified_share": self.verified, "disagreement": self.disagreement}
        return {f"heldout_{name}": value for name, value in told.items() if value is not None}


def unwatched(looks: LookSettings | None, prompts: Sequence[Prompt]) -> str | None:
    """In words, that nothing watches whether answers get worse while the reward rises; None where something does. `prompts`: learnt from."""
    if looks is not None or any(prompt.reference is not None for prompt in prompts):
        return None
    return (
        "nothing watches the quality of answers: no training prompt has a reference that a verifier reads, and heldout.every is 0, so guard "
        "reward_hacking sees nothing. Set ppo.heldout.every, so that validation prompts are answered while the reward rises"
    )


@dataclass
class BestLook:
    """The best of all looks at an actor that has learnt: more often right by the verifier, then the higher reward."""

    step: int = 0
    """Iterations behind it; 0: there was none yet."""
    verified: float = 0.0
    reward: float = 0.0

    def see(self, step: int, look: Look) -> bool:
        """Whether `look`, after `step` iterations, is better than all before it."""
        seen = (look.verified or 0.0, look.reward)
        if self.step and seen <= (self.verified, self.reward):
            return False
        self.step, self.verified, self.reward = step, *seen
        return True


class HeldOut:
    """Answers and scores the same prompts again and again. It draws no random number and moves no statistics."""

    def __init__(
        self, job: Job, settings: PpoSettings, tokenizer: Any, scorer: RewardScorer, draws: DrawSettings, looks: LookSettings
    ) -> None:
        """`scorer`: as it is before training; its statistics are kept as they are now."""
        self.every = looks.every
        self._job = job
        self._settings = settings
        self._tokenizer = tokenizer
        self._scorer = scorer.with_members([Member(m.name, m.model, m.normaliser) for m in scorer.members])
        self._draws = replace(draws, temperature=0.0)
        encoded = encode_prompts(tokenizer, [Prompt.from_json(row.record) for row in read_rows(job.input("prompts"), "validation")])
        room = settings.max_length - settings.max_new_tokens
        self._prompts = [(prompt, ids) for prompt, ids in encoded.values() if len(ids) <= room][: looks.prompts]
        if not self._prompts:
            raise TrainingError(
                f"config.heldout: {job.input('prompts')} has {len(encoded)} validation prompts, none of at most {room} tokens: nothing could "
                "be looked at. Set heldout.every to 0, or give such prompts"
            )

    def due(self, iterations: int) -> bool:
        return iterations % self.every == 0

    def look(self, drawing: Drawing) -> Look:
        """At the actor's answers, in eval mode; every rank calls it, and each gets the same figures.

        Raises:
            TrainingError: no answer has a reward: then nobody could say whether it rises.
        """
        wanted = [(row, 0) for row in range(len(self._prompts))]
        drawn = draw_together(self._job.ranks, drawing.model(), [ids for _, ids in self._prompts], wanted, self._draws)
        drawing.release()
        answers = [
            Answer(prompt, sampled.sequence, len(sampled.tokens), answer_text(self._tokenizer, sampled.tokens))
            for (prompt, _), sampled in zip(self._prompts, drawn, strict=True)
        ]
        with precision_context(self._settings.precision, compute_device().type):
            scored, _ = self._scorer.judge(answers, self._job.ranks)
        rewards = [one.model for one in scored if math.isfinite(one.model)]
        if not rewards:
            raise TrainingError(f"none of {len(scored)} answers to validation prompts has a finite reward")
        decided = [float(one.verified) for one in scored if one.verified is not None]
        return Look(
            reward=fmean(rewards),
            tokens=fmean(len(sampled.tokens) for sampled in drawn),
            verified=fmean(decided) if decided else None,
            disagreement=_disagreement(scored),
        )


def _disagreement(scored: Sequence[Scored]) -> float | None:
    """Mean over answers of the deviation between members' normalised scores; None for one member."""
    spreads = [pstdev(own) for one in scored if len(own := [v for k, v in one.components.items() if k.startswith("normalised_")]) > 1]
    return fmean(spreads) if spreads else None
