"""Settings of PPO. Each field is identity or placement; a test snapshots the identity set."""

from typing import Literal

from pydantic import Field, model_validator

from include.settings.base import Settings, added_identity, added_placement, identity, placement
from include.settings.lora import LoraSettings
from include.settings.stage import Precision, StageSettings, check_offload


class KlSettings(Settings):
    """Adaptive: above twice the target × factor, below half of it ÷ factor; constants of mission and InstructGPT practice."""

    controller: Literal["adaptive", "fixed"] = "adaptive"
    target: float = 6.0
    initial: float = 0.1
    factor: float = 1.5
    floor: float = 1e-4


class PpoRewardSettings(Settings):
    """`verifier_weight` counts for prompts with a reference; those without one are scored by the reward model alone."""

    model_weight: float = 1.0
    clip: float = 5.0
    verifier_weight: float = 1.0
    length_penalty: float = 0.0
    combine: Literal["mean", "minimum"] = added_identity("mean")
    """How the members of a reward ensemble become one score; with one member they are the same."""


class PpoGuards(Settings):
    """Limits past which PPO stops with its last good checkpoint kept; see `include.training.rl.guard_limits`."""

    kl_negative: float = -1.0
    kl_max: float = 50.0
    value_loss_max: float = 100.0
    entropy_min: float = 0.01
    missing_reward_share: float = 0.2
    consecutive: int = 3
    kl_noise: float = added_identity(0.5, ge=0)
    ratio_max: float = added_identity(2.0, gt=1)
    value_loss_factor: float = added_identity(20.0, gt=1)
    value_loss_floor: float = added_identity(5.0, ge=0)
    distinct_share_min: float = added_identity(0.3, ge=0, le=1)
    length_factor: float = added_identity(3.0, gt=1)
    hacking_reward: float = added_identity(1.0, gt=0)
    hacking_quality: float = added_identity(0.2, gt=0)
    masked_share: float = added_identity(0.2, ge=0, lt=1)
    hacking_disagreement: float = added_identity(0.5, gt=0)
    hacking_length: float = added_identity(2.0, gt=1)
    entropy_floor: float = added_identity(1e-3, ge=0)
    """Nats a token: below it for `consecutive` iterations is a collapse, however different the answers to different prompts are; 0: none."""
    flat_iterations: int = added_identity(10, ge=0)
    """So many iterations in a row in which all rewards are one number stop the run; 0: none."""


class PpoLag(Settings):
    """How old answers may be that generators beside the trainer write; see `include.training.rl.settings`. `ahead` and `too_old` are
    for own_process alone."""

    limit: int = Field(1, ge=0)
    ahead: int | None = Field(None, ge=0)
    """Left out: as many as `limit`."""
    too_old: Literal["drop", "weight"] = "drop"
    weight_cap: float = Field(2.0, ge=1)
    wait_s: float = Field(600.0, gt=0)


class PpoHeldout(Settings):
    """Looks at validation prompts while PPO trains; see `include.training.rl.heldout`."""

    every: int = Field(0, ge=0)
    """Iterations between two looks; 0: none."""
    prompts: int = Field(64, ge=1)


class PpoSettings(StageSettings):
    iterations: int = identity(ge=1)
    prompts_per_iteration: int = identity(ge=1)
    max_new_tokens: int = identity(24, ge=1)
    temperature: float = identity(1.0, gt=0)
    epochs: int = identity(1, ge=1)
    minibatch: int = identity(ge=1)
    learning_rate: float = identity(gt=0)
    critic_learning_rate: float = identity(gt=0)
    kl: KlSettings = identity(KlSettings())
    clip: float = identity(0.2, gt=0)
    value_clip: float = identity(0.5, gt=0)
    gamma: float = identity(1.0, gt=0, le=1)
    lam: float = identity(0.95, gt=0, le=1)
    value_coefficient: float = identity(0.5, ge=0)
    whiten: bool = identity(True)
    reward: PpoRewardSettings = identity(PpoRewardSettings())
    max_grad_norm: float = identity(1.0, gt=0)
    weight_decay: float = identity(0.0, ge=0)
    betas: tuple[float, float] = identity((0.9, 0.95))
    max_length: int = identity(256, ge=8)
    precision: Precision = identity("fp32")
    engine: Literal["deepspeed"] = identity("deepspeed")
    zero_stage: Literal[0, 1, 2, 3] = identity(0)
    optimizer: Literal["torch_adamw"] = identity("torch_adamw")
    attention: Literal["sdpa", "eager"] = identity("sdpa")
    deterministic: bool = added_identity(False)
    ratio_tolerance: float = identity(1e-4, gt=0)
    """In fp32: largest |ratio − 1| of one token, of the update's first minibatch and between sampler and trainer; more stops the run."""
    ratio_tolerance_bf16: float = added_identity(0.2, gt=0)
    """In bf16_autocast: the same limit for the first minibatch; between sampler and trainer that of an answer's mean, above which the answer
    is masked and counted."""
    guards: PpoGuards = identity(PpoGuards())
    generation: Literal["apart", "in_process", "own_process"] = added_identity("apart", unsaid="in_process")
    """Who draws: generators beside the trainer, each iteration by the version `lag.limit` behind it, while the trainer learns from the last
    one (apart); the trainer itself (in_process); or one generator that always takes the newest weights (own_process)."""
    lag: PpoLag = added_identity(PpoLag())
    eval_rows: int = added_identity(0, ge=0)
    """So many validation prompts are answered before and after; 0: none."""
    heldout: PpoHeldout = added_identity(PpoHeldout())
    """A reward that rises while answers to the same validation prompts get worse stops the run (`guards.hacking_…`)."""
    lora: LoraSettings | None = added_identity(None)
    """Actor and critic learn adapters of this rank, the critic's head whole; the reference is the actor's frozen base."""
    micro_batch: int = placement(8, ge=1)
    generation_batch: int = placement(32, ge=1)
    generators: int = added_placement(1, ge=1)
    """So many processes draw where generation is apart, each on a GPU that no rank has, where there are any."""
    offload: Literal["none", "optimizer", "parameters"] = added_placement("none")
    """What of actor and critic lies in the CPU's memory between its uses. `parameters` (ZeRO 3) takes the optimiser along."""
    frozen: Literal["device", "host"] = added_placement("device")
    """host: reference and reward models lie in the CPU's memory and are brought to the device one after the other, each while it scores."""
    reuse_first_pass: bool = added_placement(False)
    """The first minibatch learns from the passes that gave its old log-probabilities and values: less time, more memory, the same bits."""

    def no_best(self) -> str | None:
        return None if self.heldout.every else "the best is told by looks at validation prompts; set `heldout.every` too"

    @model_validator(mode="after")
    def _no_chance_in_adapters(self) -> "PpoSettings":
        if self.lora is not None and self.lora.dropout:
            raise ValueError(
                f"lora.dropout is {self.lora.dropout:g}: PPO needs 0, as the first minibatch of an update must repeat the pass that gave the "
                "old log-probabilities (ratio 1)"
            )
        return self

    @model_validator(mode="after")
    def _whole_weights(self) -> "PpoSettings":
        check_offload(self.offload, self.zero_stage)
        if self.reuse_first_pass and self.zero_stage == 3:
            raise ValueError("reuse_first_pass needs zero_stage 0 to 2: at 3 a pass gives its weights up before the next one begins")
        return self

    @model_validator(mode="after")
    def _who_draws(self) -> "PpoSettings":
        if self.generation == "apart" and (self.lag.ahead not in (None, self.lag.limit) or self.lag.too_old != "drop"):
            raise ValueError(
                "lag.ahead and lag.too_old are for generation own_process: apart, each iteration is drawn by the version `limit` behind it"
            )
        if self.generation != "apart" and self.generators > 1:
            raise ValueError(f"generators is {self.generators}: several of them need generation apart")
        return self

    @model_validator(mode="after")
    def _shared_equally(self) -> "PpoSettings":
        if self.minibatch % (self.job.tasks or 1):
            raise ValueError(f"minibatch {self.minibatch} is no multiple of job.tasks {self.job.tasks}: ranks learn from equal parts of it")
        return self
