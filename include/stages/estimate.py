"""What a recipe will cost, before anything is paid: tokens, device-hours, memory, checkpoint bytes, and where it is slow.

Upper bounds from the recipe's own numbers: every sequence is taken as long as it may be. Arithmetic of a token, with N
parameters: 2N forward, 6N forward and backward (Kaplan et al. 2020, section 2.1); with frozen weights under adapters 4N.
Decoding is bound by the weights that must be read for each step, until its batch is large enough for the arithmetic.
Memory is in `memory`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from include.settings.ppo import PpoSettings
from include.settings.recipes import Recipe
from include.settings.stage import StageSettings
from include.settings.training import DpoSettings, GenerateSettings, OptimiserSettings, SftSettings
from include.stages import memory, ppo_memory
from include.stages.hardware import FORWARD, HASH_GB_S, At, Hardware
from include.stages.memory import Layout, Shape

TRAIN, TRAIN_ADAPTER = 6.0, 4.0
PROMPT_SHARE = 0.5
"""Of a sequence's longest length, what is taken to be prompt where answers are drawn."""
GB = 1e9


@dataclass(frozen=True)
class StageCost:
    """Of one stage: tokens it computes on, seconds by part, memory of a device by part, and its checkpoints.

    state_gb: what of the memory no choice of batch can avoid. host_gb: what processes of a node have of its memory for themselves, at its
    peak. mapped_gb: files mapped beside that, once for all processes of a node; the kernel may drop their pages.
    interval_s: between two saves. save_s: for the store to take one, whoever writes. capture_s: for each writer to copy its pieces, while
    the work stands still; without `background` it does while they are written too. phases: of a stage whose memory comes and goes, GB of a
    device in each of them; `memory` is the largest one's. host_phases: the same of `host_gb`.
    """

    stage: str
    tokens: float
    seconds: Mapping[str, float]
    memory: Mapping[str, float]
    state_gb: float
    host_gb: float
    checkpoint_gb: float
    interval_s: float
    save_s: float
    hardware: Hardware
    phases: Mapping[str, float] = field(default_factory=dict)
    host_phases: Mapping[str, float] = field(default_factory=dict)
    capture_s: float = 0.0
    background: bool = True
    mapped_gb: float = 0.0

    @property
    def total_s(self) -> float:
        return math.fsum(self.seconds.values())

    @property
    def device_hours(self) -> float:
        """Of all devices that the job holds."""
        return self.total_s * self.hardware.counted / 3600

    @property
    def memory_gb(self) -> float:
        return math.fsum(self.memory.values())

    @property
    def checkpoint_mb_s(self) -> float:
        return self.checkpoint_gb * 1e3 / max(self.interval_s, 1e-9)

    def stall_share(self, save_s: float | None = None) -> float:
        """Of the whole time, the share for which the work stands still for saves; the last one, after which no work follows, is not in it.

        Args:
            save_s: seconds to write one as somebody measured them, in place of the estimate's.
        """
        writing = self.save_s if save_s is None else save_s
        saves = max(0, math.ceil(self.total_s / max(self.interval_s, 1e-9) - 1e-9) - 1) if self.checkpoint_gb else 0
        stalls = saves * (self.capture_s + (max(0.0, writing - self.interval_s) if self.background else writing))
        return stalls / (self.total_s + stalls) if stalls else 0.0

    @property
    def bottleneck(self) -> str:
        return max(self.seconds, key=lambda part: self.seconds[part])


def estimate(recipe: Recipe, shape: Shape, at: At, method: str | None = None) -> list[StageCost]:
    """The stages that train or generate, in their order; `method`: dpo or ppo, by default the recipe's."""
    return [of_stage(stage, recipe, shape, at) for stage in ("sft", "generate", "reward_model", method or recipe.method)]


def of_stage(stage: str, recipe: Recipe, shape: Shape, at: At) -> StageCost:
    """One of sft, generate, reward_model, dpo and ppo."""
    hardware = at(getattr(recipe, stage))
    if stage == "generate":
        return _generate(recipe, shape, hardware)
    if stage == "ppo":
        return _ppo(recipe, shape, hardware)
    return _trained(stage, recipe, shape, hardware)


def _layout(settings: OptimiserSettings, hardware: Hardware) -> Layout:
    adapters = isinstance(settings, (SftSettings, DpoSettings)) and settings.lora is not None
    pipeline = getattr(settings, "pipeline_parallel", 1)
    data = max(1, hardware.devices // (settings.tensor_parallel * pipeline))
    return Layout(
        ranks=hardware.devices,
        tensor=settings.tensor_parallel,
        pipeline=pipeline,
        zero_stage=settings.zero_stage,
        offload=settings.offload,
        precision=settings.precision,
        rows=min(settings.micro_batch, math.ceil(settings.global_batch / data)),
        length=settings.max_length,
        trained_share=memory.ADAPTER_SHARE if adapters else 1.0,
        background=settings.save_in_background,
        deepspeed=settings.engine == "deepspeed",
        shared_optimizer=bool(getattr(settings, "distributed_optimizer", False)),
    )


def _trained(stage: str, recipe: Recipe, shape: Shape, hardware: Hardware) -> StageCost:
    """SFT, a reward model (two sides of a pair, all members one after the other), DPO (two sides, and once as its own reference)."""
    settings: OptimiserSettings = getattr(recipe, stage)
    layout = _layout(settings, hardware)
    sides = 1 if stage == "sft" else 2
    members = max(1, len(recipe.reward_model.seeds)) if stage == "reward_model" else 1
    tokens = float(sides * settings.steps * settings.global_batch * settings.max_length)
    flop = (TRAIN if layout.trained_share == 1 else TRAIN_ADAPTER) * shape.parameters * tokens * members
    seconds = {"training": hardware.seconds(flop, settings.precision)}
    doubled = Layout(**{**vars(layout), "rows": sides * layout.rows})
    parts = memory.training(shape, doubled)
    if stage == "dpo":
        mismatched = recipe.dpo.loss == "kto"  # each pair's prompt once more, before the answers of another
        forward = hardware.seconds(FORWARD * shape.parameters * tokens, settings.precision)
        seconds["reference"] = (2 if mismatched else 1) * forward
        if mismatched:
            seconds["reference point"] = forward
    if stage == "reward_model":
        parts["logits"] = 0.0
    steps = settings.steps * members
    spent = Spent(members * tokens, seconds, _interval(settings, math.fsum(seconds.values()) / steps), parts)
    best = stage == "reward_model" or getattr(settings, "early_stop", None) is not None
    return _with_export(_cost(stage, spent, shape, [layout], hardware, best=best), shape, layout, best=best)


def _generate(recipe: Recipe, shape: Shape, hardware: Hardware) -> StageCost:
    """Jobs of an array share the prompts; a server of vLLM may share the weights among several devices of one."""
    settings = recipe.generate
    hardware = hardware.times(settings.shards)
    rows, share = settings.prompts * settings.candidates_per_prompt, _served_by(settings)
    new, dtype = settings.sampling.max_new_tokens, settings.dtype
    held = replace(shape, parameters=shape.parameters / share, kv_width=max(1, shape.kv_width // share))
    seconds = {
        "prompts": hardware.seconds(FORWARD * held.parameters * rows * recipe.sft.max_length * PROMPT_SHARE, dtype),
        "decoding": hardware.decoding_seconds(held.parameters, rows, new, settings.generation_batch, dtype),
    }
    parts = memory.answering(held, min(rows, settings.generation_batch), recipe.sft.max_length + new, 2 if dtype == "bfloat16" else 4)
    spent = Spent(float(rows * new), seconds, math.fsum(seconds.values()), parts)
    return _cost("generate", spent, shape, [], replace(hardware, devices=share * hardware.devices))


def _served_by(settings: GenerateSettings) -> int:
    """Devices that hold one copy of the weights: what the server's command says after --tensor-parallel-size."""
    command = list(settings.server_command)
    flag = "--tensor-parallel-size"
    if settings.backend != "vllm" or flag not in command[:-1]:
        return 1
    said = command[command.index(flag) + 1]
    return int(said) if said.isdecimal() and int(said) > 0 else 1


def _ppo(recipe: Recipe, shape: Shape, hardware: Hardware) -> StageCost:
    """Actor and critic are trained, reference and reward models score; the sampler reads the actor, rounded where autocast rounds it."""
    settings = recipe.ppo
    members = max(1, len(recipe.reward_model.seeds))
    tokens = float(settings.iterations * settings.prompts_per_iteration * settings.max_length)
    dtype = "bfloat16" if settings.precision == "bf16_autocast" else "float32"

    def writing(rows: int, on: Hardware = hardware) -> float:
        return on.decoding_seconds(shape.parameters, rows, settings.max_new_tokens, settings.generation_batch, dtype)

    # reference and rewards; values and the actor's own log-probabilities, of which the first minibatch's may serve the update too
    reused = min(1.0, settings.minibatch / settings.prompts_per_iteration) if settings.reuse_first_pass else 0.0
    passes = 3 + members - 2 * reused + _earlier_passes(settings) / settings.iterations
    scored = passes * FORWARD * shape.parameters * tokens
    read = FORWARD * shape.parameters * settings.iterations * settings.prompts_per_iteration * settings.max_length * PROMPT_SHARE
    looks = 1 + settings.iterations // settings.heldout.every if settings.heldout.every else 0
    looked = looks * writing(settings.heldout.prompts)
    learning = {
        "scoring": hardware.seconds(scored, settings.precision),
        "training": hardware.seconds(
            2 * (TRAIN_ADAPTER if settings.lora else TRAIN) * shape.parameters * settings.epochs * tokens, settings.precision
        ),
    }
    if brought := ppo_memory.brought_bytes(settings, shape, members):
        learning["bringing"] = 0.0 if hardware.cpu else brought / (hardware.host_gb_s * GB)
    layout = ppo_memory.layout_of(settings, hardware)
    if settings.generation != "in_process":
        learning["publishing"] = _publishing(settings, shape, layout, hardware)
    if settings.generation == "in_process" or hardware.cpu:  # on a CPU generators take turns with the ranks
        drawing = {
            "prompts": hardware.seconds(read, settings.precision),
            "decoding": settings.iterations * writing(settings.prompts_per_iteration) + looked,
        }
    else:
        generators = replace(hardware, devices=settings.generators)
        drawn = generators.seconds(read, settings.precision) + settings.iterations * writing(settings.prompts_per_iteration, generators)
        drawn += settings.iterations * _taking(ppo_memory.version_bytes(shape, layout), hardware)
        ahead = settings.lag.limit if settings.lag.ahead is None else settings.lag.ahead
        beyond = max(0.0, drawn - (math.fsum(learning.values()) if ahead else 0.0))  # what is not drawn while others learn
        drawing = {"prompts": 0.0, "decoding": looked + beyond}
    seconds = drawing | learning
    found = ppo_memory.phases(settings, shape, hardware, members)
    interval = _interval(settings, math.fsum(seconds.values()) / settings.iterations)
    earlier = ppo_memory.earlier_bytes(settings, shape, layout)
    cost = _cost("ppo", Spent(tokens, seconds, interval, ppo_memory.largest(found), earlier), shape, [layout, layout], hardware)
    if hardware.held is None and ppo_memory.own_gpus(settings, hardware):
        cost = replace(cost, hardware=replace(hardware, held=hardware.devices + settings.generators))
    held = ppo_memory.held_bytes(settings, shape, members) / GB
    shared = {"mapped files": held / hardware.processes_a_node} if hardware.cpu and held else {}
    generator = ppo_memory.generator_host(settings, shape, layout) / GB
    nodes = {"training": cost.host_gb + generator, "export": memory.export_host(shape) / GB}
    if loading := memory.flattening_host(shape, layout, _room(hardware)):
        nodes["loading"] = hardware.processes_a_node * (memory.PROCESS + loading) / GB
    return replace(
        cost if hardware.cpu else _on_nodes(cost, nodes),
        memory={**cost.memory, **shared},
        mapped_gb=0.0 if hardware.cpu else ppo_memory.mapped_bytes(settings, shape, layout, members) / GB,
        state_gb=ppo_memory.state_bytes(found) / GB,
        phases={name: math.fsum(parts.values()) / GB for name, parts in found.items() if parts},
    )


@dataclass(frozen=True)
class Spent:
    """Tokens, seconds by part, seconds between two saves, and bytes of a device by part. first: bytes of a checkpoint that the first process
    copies and writes beside its pieces."""

    tokens: float
    seconds: Mapping[str, float]
    interval_s: float
    memory: Mapping[str, float]
    first: float = 0.0


def _earlier_passes(settings: PpoSettings) -> int:
    """Forward passes over an iteration's answers by the earlier actors that drew them: from the second iteration on, where none is drawn by
    the present one. Where timing decides, each age up to the limit may be among an iteration's answers."""
    ages = {"in_process": 0, "apart": min(1, settings.lag.limit), "own_process": settings.lag.limit}[settings.generation]
    return ages * (settings.iterations - 1)


def _taking(size: float, hardware: Hardware) -> float:
    """Seconds in which a process takes published weights whose pages its node has: hashed, and brought to its device."""
    return size / (HASH_GB_S * GB) + (0.0 if hardware.cpu else size / (hardware.host_gb_s * GB))


def _publishing(settings: PpoSettings, shape: Shape, layout: Layout, hardware: Hardware) -> float:
    """Seconds in which ranks learn nothing as the first one copies, writes and hashes the actor for each iteration, and all read and hash an
    earlier one, the other nodes from the store."""
    size = ppo_memory.version_bytes(shape, layout)
    stored = size / 1e6 / hardware.store_mb_s
    return settings.iterations * (stored + _taking(size, hardware)) + _earlier_passes(settings) * (
        _taking(size, hardware) + (hardware.nodes - 1) * stored
    )


def _interval(settings: StageSettings, step_s: float) -> float:
    """Seconds between two saves: by steps or by minutes, whichever comes first, and never less than a step."""
    by_steps = settings.save_every_steps * step_s
    return max(step_s, min(by_steps, 60 * settings.save_every_minutes)) if settings.save_every_minutes else by_steps


def _cost(stage: str, spent: Spent, shape: Shape, trained: list[Layout], hardware: Hardware, *, best: bool = False) -> StageCost:
    """`trained`: how each trained model is dealt out, after its file was mapped.

    best: the weights of the best look travel along, whole, in the first process and in each checkpoint.
    """
    kept = sum(_best(shape, layout) for layout in trained) if best else 0.0
    checkpoint = sum(memory.pieces(shape, layout) * layout.writers for layout in trained) + kept + spent.first
    away = sum(memory.offloaded(shape, layout) for layout in trained)
    looks = kept * (2 if trained and trained[0].background else 1)
    a_node = hardware.processes_a_node
    saving = sum(memory.saving(shape, layout) * layout.writers_among(a_node) for layout in trained)
    host = a_node * (memory.PROCESS + away) + saving + looks
    parts = dict(spent.memory)
    if hardware.cpu:
        own = sum(memory.saving(shape, layout) for layout in trained)
        stays = sum(memory.file(shape) for layout in trained if not layout.deepspeed)  # as it was loaded, beside what is trained
        parts = {
            **parts,
            "process": memory.PROCESS,
            "checkpoint": own + looks + spent.first,
            "offloaded": away,
            "mapped files": stays / a_node,
        }
    state = sum(sum(memory.state(shape, layout).values()) for layout in trained) or parts["weights"]
    return StageCost(
        stage=stage,
        tokens=spent.tokens,
        seconds=spent.seconds,
        memory={name: value / GB for name, value in parts.items() if value},
        state_gb=state / GB,
        host_gb=0.0 if hardware.cpu else host / GB,
        checkpoint_gb=checkpoint / GB,
        interval_s=spent.interval_s,
        save_s=checkpoint / 1e6 / hardware.store_mb_s,
        hardware=hardware,
        capture_s=(sum(memory.pieces(shape, layout) for layout in trained) + spent.first) / (hardware.host_gb_s * GB),
        background=not trained or trained[0].background,
        mapped_gb=0.0 if hardware.cpu else memory.file(shape) / GB,
    )


def _best(shape: Shape, layout: Layout) -> float:
    """Bytes of the weights of the best look."""
    return memory.FP32 * shape.parameters * layout.trained_share


def _with_export(cost: StageCost, shape: Shape, layout: Layout, *, best: bool) -> StageCost:
    """The same with the time after the last step: the best weights are put back, and the first process hands the whole model on."""
    hardware, kept = cost.hardware, _best(shape, layout) if best else 0.0
    parts = memory.export(shape, layout, _room(hardware))
    if hardware.cpu:
        parts = {**parts, "read back": memory.FP32 * shape.parameters, "process": memory.PROCESS, "best": kept}
    held = {name: value / GB for name, value in parts.items() if value}
    phases = {"training": cost.memory_gb, "export": math.fsum(held.values())}
    return replace(
        cost if hardware.cpu else _on_nodes(cost, _node_phases(cost, shape, layout, kept)),
        memory=cost.memory if phases["training"] >= phases["export"] else held,
        phases=phases,
    )


def _room(hardware: Hardware) -> float | None:
    """Bytes of a device; None where they are not known, and on CPUs, where all memory is the CPU's."""
    return None if hardware.cpu or hardware.memory_gb is None else hardware.memory_gb * GB


def _node_phases(cost: StageCost, shape: Shape, layout: Layout, kept: float) -> dict[str, float]:
    """GB of the first node that are its processes' own, by phase; `kept`: bytes of the best weights."""
    a_node, nodes = cost.hardware.processes_a_node, {"training": cost.host_gb}
    if loading := memory.flattening_host(shape, layout, _room(cost.hardware)):
        nodes["loading"] = a_node * (memory.PROCESS + loading) / GB
    return {**nodes, "export": (memory.export_host(shape) + kept) / GB}


def _on_nodes(cost: StageCost, nodes: Mapping[str, float]) -> StageCost:
    return replace(cost, host_gb=max(nodes.values()), host_phases=nodes)
