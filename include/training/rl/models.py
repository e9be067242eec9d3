"""The four models of PPO: loaded, checked before anything else, and put into their engines."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from include.domain.errors import SpecError
from include.runtime.job import Job
from include.runtime.reward_stats import RewardNormaliser, member_inputs
from include.training.engines.engine import EngineSettings
from include.training.lora import frozen_digest
from include.training.model_checks import check_trained
from include.training.model_io import compute_device, load_causal_lm
from include.training.reward.head import Critic, load_reward_model
from include.training.rl.actor import DrawingActor, MakeActorEngine
from include.training.rl.adapters import OwnBase, adapt_critic, learnt_names, load_actor
from include.training.rl.checks import ModelsError, check_models, freeze
from include.training.rl.placing import DEVICE, PLACES, Frozen
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
    """Checked, and actor and critic still in plain modules. `actor` is the causal model inside of what is trained.

    The critic waits on the CPU until its engine takes it: two whole models more than once dealt out may be too many for a device.

    reference: None where it is the actor's own base. base: digest of the actor's frozen weights, known to the first rank; None without any.
    """

    actor: Any
    critic: Any
    reference: Frozen | None
    members: list[Member]
    base: str | None = None

    @classmethod
    def load(cls, job: Job, settings: PpoSettings) -> "Models":
        """Modes, gradients, vocabularies and weights of their own are checked.

        Raises:
            ModelsError: a model is not in the state it must be in.
        """
        device = compute_device()
        stays = job.settings.text("frozen", PLACES, DEVICE) == DEVICE
        actor = load_actor(job.input("policy"), settings.attention, settings.lora, job.seed).to(device)
        own_base = settings.lora is not None and job.input_digest("reference") == job.input_digest("policy")
        names = member_inputs(job.inputs)
        normalisers = {name: RewardNormaliser.read(job.input(name)) for name in names}
        judge = adapt_critic(load_reward_model(job.input("reward_model"), settings.attention), settings.lora, job.seed + 1)
        critic = Critic(judge, normalisers[names[0]])
        others: dict[str, Any] = {}
        if not own_base:
            others["reference"] = freeze(AnswerScorer(load_causal_lm(job.input("reference"), settings.attention)))
        others |= {name: freeze(load_reward_model(job.input(name), settings.attention)) for name in names}
        trained = {"actor": actor.train(), "critic": critic.train()}
        check_models({**trained, **others}, {role: learnt_names(model) for role, model in trained.items()})
        base = frozen_digest(actor) if settings.lora is not None and job.ranks.main else None
        kept = {name: Frozen(model, settings.precision, device, stays=stays) for name, model in others.items()}
        members = [Member(name, kept[name], normalisers[name]) for name in names]
        return cls(actor.eval(), critic, kept.get("reference"), members, base)

    def left(self) -> "Models":
        """The actor alone: critic and frozen models are not needed any more."""
        for model in (self.reference, *(member.model for member in self.members)):
            if model is not None:
                model.leave()
        return replace(self, critic=None, reference=None, members=[])

    def check_base(self) -> None:
        """At the end, on the first rank with whole weights again: training has left the frozen weights alone.

        Raises:
            ModelsError: it has not; the adapters belong to no model that there is, and the reference was not the one that was named.
        """
        if self.base is not None and (now := frozen_digest(self.actor)) != self.base:
            raise ModelsError(f"the actor's frozen weights have changed under training: {self.base} at its start, {now} at its end")

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
        drawing = DrawingActor(actor, job.input("policy"), settings)
        reference = OwnBase(actor) if self.reference is None else self.reference
        return Learner(actor, critic, reference, settings, drawing, reuse_first_pass=reused)
