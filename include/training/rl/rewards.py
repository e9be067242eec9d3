"""From an answer to its score: reward models, each normalised by its own statistics, put together and clipped; then the
verifier, for prompts with a reference, and the length penalty on top. Every part is recorded. A missing part makes the reward
missing, never 0."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from include.domain.errors import AlignmentError
from include.domain.records import Prompt
from include.runtime.ranks import Ranks
from include.runtime.reward_model import score_sequences
from include.runtime.reward_stats import RewardNormaliser, ensemble_score
from include.training.rl.placing import present
from include.training.rl.settings import RewardMix
from include.verifiers.registry import verify


class RewardError(AlignmentError):
    """Rewards cannot be given at all; the message says why."""


@dataclass
class Member:
    """One reward model of the ensemble, wherever its weights lie (`placing.Frozen`). Its statistics go on from those stored with it; its folder never changes."""

    name: str
    model: Any
    normaliser: RewardNormaliser


@dataclass(frozen=True)
class Answer:
    """What is scored: the whole sequence (prompt and answer, end token included) and the answer's text."""

    prompt: Prompt
    sequence: Sequence[int]
    tokens: int
    text: str


@dataclass(frozen=True)
class Scored:
    """score: NaN when a part of it is missing. verified: right by the verifier, None without one or undecided."""

    score: float
    model: float
    verified: bool | None
    in_form: bool | None
    components: Mapping[str, float]

    @property
    def missing(self) -> bool:
        return not math.isfinite(self.score)


class RewardScorer:
    """Scores batches of answers; `members` may be one reward model or an ensemble."""

    def __init__(self, members: Sequence[Member], mix: RewardMix, max_new_tokens: int, pad_id: int, rows: int) -> None:
        if not members:
            raise RewardError("PPO needs a reward model, also where the verifier alone is weighed: the critic starts from it")
        self.members = list(members)
        self._mix = mix
        self._max_new_tokens = max_new_tokens
        self._pad_id = pad_id
        self._rows = rows

    def with_members(self, members: Sequence[Member]) -> "RewardScorer":
        """The same with these members, and so with statistics of their own."""
        return RewardScorer(members, self._mix, self._max_new_tokens, self._pad_id, self._rows)

    def score(self, answers: Sequence[Answer], ranks: Ranks | None = None) -> list[Scored]:
        """Each answer's score, by the statistics known before this batch; then the batch joins them.

        On several ranks all know all scores, and merge the whole batch into the statistics at once, so that these are the very same
        numbers on every rank, whatever the number of ranks.
        """
        scored, raw = self.judge(answers, ranks)
        for at, member in enumerate(self.members):
            member.normaliser = member.normaliser.seen([of_answer[at] for of_answer in raw])
        return scored

    def judge(self, answers: Sequence[Answer], ranks: Ranks | None = None) -> tuple[list[Scored], list[list[float]]]:
        """Each answer's score and the members' raw scores of it; the statistics stay as they are. Each rank scores a part of them."""
        ranks = ranks or Ranks()
        own = ranks.deal(answers)
        raw = [self._raw(member, own) for member in self.members]
        rows = [[member_raw[i] for member_raw in raw] for i in range(len(own))]
        scored = [self._one(answer, of_answer) for answer, of_answer in zip(own, rows, strict=True)]
        together = ranks.collect([(of_answer, astuple(one)) for of_answer, one in zip(rows, scored, strict=True)])
        return [Scored(*one) for _, one in together], [list(of_answer) for of_answer, _ in together]

    def _raw(self, member: Member, own: Sequence[Answer]) -> list[float]:
        if not own:
            return []
        with present(member.model) as model:
            return score_sequences(model, [a.sequence for a in own], self._pad_id, self._rows)

    def _one(self, answer: Answer, raw: Sequence[float]) -> Scored:
        model = ensemble_score(raw, [member.normaliser for member in self.members], self._mix.combine, self._mix.clip)
        parts = {f"raw_{member.name}": value for member, value in zip(self.members, raw, strict=True)}
        if len(self.members) > 1:
            own = zip(self.members, raw, strict=True)
            parts |= {f"normalised_{member.name}": member.normaliser.normalise(value) for member, value in own}
        parts["model"] = model
        used = answer.tokens / self._max_new_tokens
        parts["length_penalty"] = -self._mix.length_penalty * used
        score = parts["length_penalty"] + (self._mix.model_weight * model if self._mix.model_weight else 0.0)
        right, in_form = self._verify(answer)
        if self._mix.verifier_weight and answer.prompt.reference is not None:
            parts["verifier"] = verifier_score(right, in_form)
            score += self._mix.verifier_weight * parts["verifier"]
        parts["score"] = score
        return Scored(score, model, right, in_form, {name: value for name, value in parts.items() if math.isfinite(value)})

    def _verify(self, answer: Answer) -> tuple[bool | None, bool | None]:
        if answer.prompt.reference is None:
            return None, None
        result = verify(answer.prompt.reference, answer.text)
        return result.right, result.in_form

    def state(self) -> dict[str, Any]:
        return {member.name: member.normaliser.to_json() for member in self.members}

    def load_state(self, state: Mapping[str, Any]) -> None:
        for member in self.members:
            member.normaliser = RewardNormaliser.from_json(state[member.name])


def verifier_score(right: bool | None, in_form: bool | None) -> float:
    """Right first, then the asked form: 1, 1/3, −1/3, −1; NaN where the verifier cannot decide."""
    if right is None:
        return math.nan
    return (4 * right + 2 * bool(in_form)) / 3 - 1


@dataclass(frozen=True)
class Usable:
    """Prompts that can be rewarded. unreadable: left out, as the verifier cannot read their reference; unverified: among `prompts`
    without a reference, and so scored by the reward model alone; unscored: left out, as only a verifier is weighed."""

    prompts: list[Prompt]
    unreadable: int = 0
    unverified: int = 0
    unscored: int = 0

    def metrics(self) -> dict[str, float]:
        return {
            "prompts": float(len(self.prompts)),
            "prompts_unreadable": float(self.unreadable),
            "prompts_without_reference": float(self.unverified + self.unscored),
        }

    def words(self, mix: RewardMix) -> str | None:
        """What of it is to be warned of; None where every prompt is rewarded as the recipe says."""
        told = []
        if self.unreadable:
            told.append(f"{self.unreadable} prompts are left out: the verifier cannot read their reference")
        if self.unscored:
            told.append(f"{self.unscored} prompts are left out: they have no reference, and reward.model_weight is 0")
        if mix.verifier_weight and self.unverified == len(self.prompts):
            told.append(f"no prompt has a reference: reward.verifier_weight {mix.verifier_weight:g} adds to no reward")
        return "; ".join(told) or None


def usable_prompts(prompts: Sequence[Prompt], mix: RewardMix) -> Usable:
    """Prompts that can be rewarded by what is weighed.

    Raises:
        RewardError: none is left.
    """
    if not mix.verifier_weight:
        return Usable(list(prompts), unverified=sum(p.reference is None for p in prompts))
    bare = sum(p.reference is None for p in prompts)
    kept = [p for p in prompts if (mix.model_weight if p.reference is None else verify(p.reference, "").right is not None)]
    if not kept:
        raise RewardError(
            f"reward.verifier_weight is {mix.verifier_weight:g}, reward.model_weight {mix.model_weight:g}, and none of {len(prompts)} prompts "
            f"can be rewarded: {bare} have no reference, of {len(prompts) - bare} the verifier cannot read it"
        )
    unscored = 0 if mix.model_weight else bare
    return Usable(kept, len(prompts) - len(kept) - unscored, bare - unscored, unscored)
