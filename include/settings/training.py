"""Settings of the stages that run as jobs. Each field is identity or placement; a test snapshots the identity set."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from include.settings.base import Settings, added_identity, added_placement, identity, placement
from include.settings.dimensions import DimensionSettings
from include.settings.evaluation import EvaluationSettings, ShadowSettings
from include.settings.lora import LoraSettings
from include.settings.ppo import PpoSettings
from include.settings.stage import Precision, StageSettings, check_offload

Schedule = Literal["constant", "linear", "cosine"]


class OptimiserSettings(StageSettings):
    """Shared by the trainers. Batches are counted in examples over all ranks."""

    learning_rate: float = identity(gt=0)
    steps: int = identity(ge=1)
    global_batch: int = identity(ge=1)
    warmup_steps: int = identity(0, ge=0)
    schedule: Schedule = identity("constant")
    max_grad_norm: float = identity(1.0, gt=0)
    weight_decay: float = identity(0.0, ge=0)
    betas: tuple[float, float] = identity((0.9, 0.999))
    max_length: int = identity(256, ge=8)
    precision: Literal[Precision, "bf16"] = identity("fp32")
    """bf16 belongs to engine megatron, bf16_autocast to deepspeed."""
    engine: Literal["deepspeed", "megatron"] = identity("deepspeed")
    zero_stage: Literal[0, 1, 2, 3] = identity(0)
    optimizer: Literal["torch_adamw"] = identity("torch_adamw")
    attention: Literal["sdpa", "eager"] = identity("sdpa")
    micro_batch: int = placement(8, ge=1)
    tensor_parallel: int = added_placement(1, ge=1)
    """Megatron alone: so many neighbouring processes share the weights of each layer."""
    pipeline_parallel: int = added_placement(1, ge=1)
    """Megatron alone: so many stages share the layers. `job.tasks` is a multiple of tensor_parallel × pipeline_parallel."""
    distributed_optimizer: bool = added_identity(False)
    """Megatron alone: moments shared out over data-parallel ranks; needs TransformerEngine in the cluster's environment."""
    deterministic: bool = added_identity(False)
    """Only kernels that add in a fixed order: what makes a resumed run on GPUs equal to the bit, and slower."""
    offload: Literal["none", "optimizer", "parameters"] = added_placement("none")
    """DeepSpeed alone: what lies in the CPU's memory between its uses. `parameters` (ZeRO 3) takes the optimiser along."""

    @model_validator(mode="after")
    def _what_the_engine_can(self) -> "OptimiserSettings":
        cut = {"tensor_parallel": self.tensor_parallel, "pipeline_parallel": self.pipeline_parallel}
        if self.engine != "megatron":
            asked = [name for name, value in cut.items() if value > 1] + ["distributed_optimizer"] * self.distributed_optimizer
            if asked or self.precision == "bf16":
                what = asked[0] if asked else "precision bf16"
                raise ValueError(f"{what} belongs to engine megatron; {self.engine} has zero_stage, and precision bf16_autocast")
            check_offload(self.offload, self.zero_stage)
            return self
        if self.offload != "none":
            raise ValueError(f"engine megatron has no offload; offload: {self.offload} belongs to deepspeed with zero_stage")
        if self.zero_stage or self.precision == "bf16_autocast" or getattr(self, "lora", None):
            raise ValueError("engine megatron: zero_stage 0, precision fp32 or bf16, no lora in this version")
        if self.job.tasks is not None and self.job.tasks % (self.tensor_parallel * self.pipeline_parallel):
            asked = [f"{name} {value}" for name, value in cut.items()]
            raise ValueError(f"{' × '.join(asked)} does not divide job.tasks {self.job.tasks}")
        return self


class TinyModel(Settings):
    """Shape and training of the model that base import makes from a seed, below one million parameters."""

    hidden_size: int = 128
    layers: int = 4
    heads: int = 4
    steps: int = 300
    batch: int = 64
    learning_rate: float = 3e-3
    max_length: int = 64
    vocab_size: int = added_identity(512, ge=300)


class BaseImportSettings(StageSettings):
    kind: Literal["gguf", "tiny", "safetensors"] = identity()
    file: str = identity()
    """The raw file's name; of safetensors the model's, as its folder is called in the store."""
    dtype: Literal["float32"] = identity("float32")
    chat_template: Literal["chatml", "source"] = added_identity("chatml")
    """ChatML as this project renders it, or the template that the raw file brings."""
    tiny: TinyModel | None = identity(None)

    @model_validator(mode="after")
    def _tiny_has_a_shape(self) -> "BaseImportSettings":
        if (self.kind == "tiny") != (self.tiny is not None):
            raise ValueError("`tiny` belongs to kind: tiny, and only there")
        return self


class EarlyStop(Settings):
    every_steps: int = Field(10, ge=1)
    patience: int = Field(3, ge=1)


class LearningGuardSettings(Settings):
    """Limits past which SFT, a reward model or DPO stops with its last good checkpoint kept; see `include.training.learning_guards`."""

    consecutive: int = Field(5, ge=1)
    flat_steps: int = Field(50, ge=0)
    flat_tolerance: float = Field(1e-6, ge=0)
    loss_factor: float = Field(3.0, gt=1)
    kl_max: float = Field(500.0, gt=0)


class MixturePart(Settings):
    """`dataset`: own (the run's demonstrations), or a version in the catalog, as id@3."""

    dataset: str
    weight: float = Field(1.0, gt=0)
    max_epochs: float | None = Field(None, gt=0)


class Mixture(Settings):
    """Demonstrations of several data sets in fixed shares."""

    parts: tuple[MixturePart, ...] = Field(min_length=1)
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _each_once(self) -> "Mixture":
        names = [part.dataset for part in self.parts]
        if names.count("own") != 1 or len(set(names)) != len(names):
            raise ValueError(f"parts must name `own` once and every other data set once, got {', '.join(names)}")
        if open_ended := [name for name in names if name != "own" and "@" not in name]:
            raise ValueError(f"{open_ended[0]}: name a version, as {open_ended[0]}@3: the newest would change under a recipe")
        return self


class SftSettings(OptimiserSettings):
    eval_rows: int = identity(0, ge=0)
    eval_max_new_tokens: int = identity(40, ge=1)
    trainer: Literal["own", "trl"] = added_identity("own")
    """Whose loop trains. `trl`: a wrapper under the same contract, for clusters whose environment holds TRL."""
    learned_turns: Literal["response", "last", "all"] = added_identity("response")
    """The assistant turns of a demonstration's response, its last one alone, or those among the prompt's turns too."""
    packing: bool = added_identity(False)
    """The dialogues of a batch share rows of `max_length` tokens; none sees another."""
    length_window: int = added_identity(0, ge=0)
    """So many batches are sorted by length and dealt out anew; 0: as they are drawn."""
    mixture: Mixture | None = added_identity(None)
    early_stop: EarlyStop | None = added_identity(None)
    """By the loss on validation rows; the best state is handed on."""
    guards: LearningGuardSettings = added_identity(LearningGuardSettings())
    lora: LoraSettings | None = added_identity(None)

    @model_validator(mode="after")
    def _only_ours(self) -> "SftSettings":
        ours = ("packing", "length_window", "mixture", "early_stop", "lora", "zero_stage")
        if self.trainer != "own" and (any(getattr(self, name) for name in ours) or self.engine != "deepspeed"):
            raise ValueError(f"trainer {self.trainer}: {', '.join(ours)} and engine belong to our own")
        return self

    def no_best(self) -> str | None:
        return None if self.early_stop else "the best is told by the validation loss, which `early_stop` looks at; set that too"


class SamplingSettings(Settings):
    """temperature 0 is greedy; top_p 1 and top_k None cut nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    max_new_tokens: int = 32


class GenerateSettings(StageSettings):
    sampling: SamplingSettings = identity(SamplingSettings())
    candidates_per_prompt: int = identity(2, ge=2)
    prompt_limit: int = identity(64, ge=1)
    side: Literal["train"] = identity("train")
    sides: dict[Literal["validation", "holdout"], Annotated[int, Field(ge=1)]] = added_identity({})
    """Prompts of further sides that are answered too, at most so many of each: what people say of these answers is what the reward
    model stops on (validation) and is measured on (holdout, safety_holdout with it). Nothing is trained on them."""
    use: Literal["preference", "rl"] = identity("preference")
    dtype: Literal["float32", "bfloat16"] = identity("float32")
    safety_filter_version: str = identity("none@1")
    portion_prompts: int = added_identity(32, ge=1)
    """So many prompts are answered before what was answered is written down."""
    backend: Literal["transformers", "vllm"] = added_identity("transformers")
    """vllm: a server of the OpenAI completions protocol, started beside the program on the verified folder."""
    shards: int = added_placement(1, ge=1)
    """So many jobs, one array, share the prompts; the answers are the same ones."""
    generation_batch: int = placement(96, ge=1)
    server_command: tuple[str, ...] = placement(("vllm", "serve"), min_length=1)
    server_start_s: float = placement(900.0, gt=0)

    @model_validator(mode="after")
    def _something_for_each(self) -> "GenerateSettings":
        portions = -(-self.prompts // self.portion_prompts)
        if self.shards > portions:
            raise ValueError(
                f"shards {self.shards}: {self.prompts} prompts make {portions} portions of {self.portion_prompts}, "
                "and a shard has at least one; lower shards, or portion_prompts"
            )
        return self

    @property
    def prompts(self) -> int:
        """So many are answered at most, over all sides."""
        return self.prompt_limit + sum(self.sides.values())


class RewardModelSettings(OptimiserSettings, DimensionSettings):
    clip: float = identity(5.0, gt=0)
    epsilon: float = identity(1e-8, gt=0)
    early_stop: EarlyStop = identity(EarlyStop())
    eval_pairs: int = identity(64, ge=1)
    max_identical_share: float = identity(0.2, ge=0, le=1)
    seeds: tuple[int, ...] = added_identity(())
    """An ensemble: one member for each seed. Left out: one, by the recipe's seed."""
    members: Literal["in_turn", "array"] = added_placement("in_turn")
    """Members are trained one after the other in one job, or each in a job of its own, all of them one array."""
    guards: LearningGuardSettings = added_identity(LearningGuardSettings())
    """Of each member's own training; `kl_max` has nothing to look at here."""

    @model_validator(mode="after")
    def _an_ensemble(self) -> "RewardModelSettings":
        if self.members == "array" and not self.seeds:
            raise ValueError("members array: name the members' seeds")
        if self.seeds and (len(set(self.seeds)) != len(self.seeds) or not 3 <= len(self.seeds) <= 5 or min(self.seeds) < 0):
            raise ValueError(f"seeds {list(self.seeds)}: an ensemble has 3 to 5 different seeds, none below 0")
        return self

    def no_best(self) -> str | None:
        return "the members of an ensemble are kept until all are trained; leave it out" if self.seeds else None


class DpoSettings(OptimiserSettings):
    beta: float = identity(0.1, gt=0)
    loss: Literal[
        "sigmoid",
        "ipo",
        "robust",
        "hinge",
        "apo_zero",
        "apo_down",
        "sigmoid_norm",
        "exo_pair",
        "nca_pair",
        "sppo_hard",
        "simpo",
        "orpo",
        "bco_pair",
        "kto",
    ] = identity("sigmoid")
    label_smoothing: float = identity(0.0, ge=0, lt=0.5)
    max_identical_share: float = identity(0.2, ge=0, le=1)
    eval_pairs: int = added_identity(64, ge=1)
    """So many validation pairs are looked at in the end."""
    eval_rows: int = added_identity(0, ge=0)
    """So many validation prompts are answered before and after; 0: none."""
    eval_max_new_tokens: int = added_identity(32, ge=1)
    nll_weight: float = added_identity(0.0, ge=0)
    simpo_gamma: float = added_identity(0.0, ge=0)
    """The margin that the loss `simpo` asks for."""
    desirable_weight: float = added_identity(1.0, gt=0)
    """Of the loss `kto` alone, as the next: what a chosen answer's part of it weighs."""
    undesirable_weight: float = added_identity(1.0, gt=0)
    guards: LearningGuardSettings = added_identity(LearningGuardSettings())
    lora: LoraSettings | None = added_identity(None)

    @model_validator(mode="after")
    def _weights_of_kto(self) -> "DpoSettings":
        if (self.desirable_weight, self.undesirable_weight) != (1.0, 1.0) and self.loss != "kto":
            raise ValueError(f"desirable_weight and undesirable_weight belong to loss kto, this recipe has {self.loss}")
        return self


STAGE_SETTINGS: dict[str, type[StageSettings]] = {
    "base_import": BaseImportSettings,
    "sft": SftSettings,
    "generate": GenerateSettings,
    "reward_model": RewardModelSettings,
    "dpo": DpoSettings,
    "ppo": PpoSettings,
    "evaluate": EvaluationSettings,
    "shadow": ShadowSettings,
}


def sampling_json(sampling: SamplingSettings) -> dict[str, Any]:
    return sampling.model_dump(mode="json")
