"""The four models of PPO: loaded, checked before anything else, and put into their engines."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from include.domain.errors import SpecError
from include.runtime.job import Job
from include.runtime.reward_stats import RewardNormaliser, member_inputs
from include.training.engines.engine import EngineSettings
from include.training.engines.precision import keep_cast
from include.training.model_checks import check_trained
from include.training.model_io import compute_device, load_causal_lm
from include.training.reward.head import Critic, load_reward_model
from include.training.rl.actor import DrawingActor, MakeActorEngine
from include.training.rl.checks import check_models, freeze
from include.training.rl.rewards import Member
from include.training.rl.settings import PpoSettings
from include.training.rl.update import Learner
from include.training.scoring import AnswerScorer


def dropouts(*models: torch.nn.Module) -> list[str]:
    """Settings of these models by which a pass in training mode is left to chance, as ``name: share``."""
    parts = [part for model in models for part in model.modules()]
    layers = [f"dropout: {part.p}" for part in parts if isinstance(part, torch.nn.Dropout) and part.p]
    configs = {id(part.config): part.config for part in parts if hasattr(part, "config")}.values()
    told = [(name, value) for config in configs for name, value in vars(config).items() if name.endswith(("dropout", "pdrop"))]
    return layers + [f"{name}: {value}" for name, value in told if value]


@dataclass(frozen=True)
class Models:
    """Checked, on the device, and still in plain modules. `actor` is the causal model inside of what is trained."""

    actor: Any
    critic: Any
    reference: Any
    members: list[Member]

    @classmethod
    def load(cls, job: Job, settings: PpoSettings) -> "Models":
        """Modes, gradients, vocabularies and weights of their own are checked.

        Raises:
            ModelsError: a model is not in the state it must be in.
        """
        device = compute_device()
        actor = load_causal_lm(job.input("policy"), settings.attention).requires_grad_(True).to(device)
        reference = freeze(AnswerScorer(load_causal_lm(job.input("reference"), settings.attention)).to(device))
        members = []
        for name in member_inputs(job.inputs):
            model = freeze(load_reward_model(job.input(name), settings.attention).to(device))
            members.append(Member(name, model, RewardNormaliser.read(job.input(name))))
        critic = Critic(load_reward_model(job.input("reward_model"), settings.attention).to(device), members[0].normaliser)
        others = {"reference": reference, **{member.name: member.model for member in members}}
        check_models({"actor": actor.train(), "critic": critic.train(), **others})
        for model in others.values():
            keep_cast(model, settings.precision)
        return cls(actor.eval(), critic, reference, members)

    def learner(self, job: Job, settings: PpoSettings, make_engine: MakeActorEngine) -> Learner:
        """Actor and critic in their engines; from here on the weights of `actor` may be cut up among the ranks."""
        common = EngineSettings.of(job.config)
        actor = make_engine(AnswerScorer(self.actor), common)
        critic = make_engine(self.critic, replace(common, learning_rate=settings.critic_learning_rate))
        for engine in (actor, critic):
            check_trained(engine)
        reused = job.settings.flag("reuse_first_pass", False)
        if reused and actor.cut_up:
            raise SpecError("reuse_first_pass needs zero_stage 0 to 2: at 3 a pass gives its weights up before the next one begins")
        if reused and (chance := dropouts(self.actor, self.critic)):
            raise SpecError(
                f"reuse_first_pass needs models without dropout, and {chance[0]} is set: a pass that learns is another one than a pass that looks"
            )
        drawing = DrawingActor(actor, job.input("policy"), settings.attention)
        return Learner(actor, critic, self.reference, settings, drawing, reuse_first_pass=reused)
