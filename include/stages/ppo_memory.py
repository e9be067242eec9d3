"""Memory of a device while PPO loads its models, draws, scores, learns and hands its policy on: by phase and part. Upper bounds, in bytes.

Actor and critic hold their state all the time; the rest comes and goes, so the largest phase counts and not the sum of all.
"""

import math

from include.settings.ppo import PpoSettings
from include.stages import memory
from include.stages.hardware import Hardware
from include.stages.memory import Layout, Shape

Parts = dict[str, float]
PASSING = ("activations", "logits", "bf16 copies", "buckets", "gathered", "cache", "prompt pass", "generator's passes")
"""Parts that a smaller batch or bucket makes smaller; the others are there whatever is chosen."""
_TAKE_TURNS = ("activations", "logits", "bf16 copies", "gathered")
"""What the trained one of actor and critic needs while the other waits."""
_NO_GRAD_LAYERS = 2
"""Without gradients the activations of one layer are alive; twice a layer's, since its block may be wider than four times the model."""
_CHOICE_COPIES = 6
"""Of a next token's logits while it is drawn: float32, scaled, probabilities, log-softmax, and a cumulative sum in float64."""


def layout_of(settings: PpoSettings, hardware: Hardware) -> Layout:
    """How actor and critic are dealt out, each."""
    return Layout(
        ranks=hardware.devices,
        zero_stage=settings.zero_stage,
        offload=settings.offload,
        precision=settings.precision,
        rows=min(settings.micro_batch, math.ceil(settings.minibatch / hardware.devices)),
        length=settings.max_length,
        background=settings.save_in_background,
        trained_share=memory.ADAPTER_SHARE if settings.lora else 1.0,
    )


def phases(settings: PpoSettings, shape: Shape, hardware: Hardware, members: int) -> dict[str, Parts]:
    """Phase → part → bytes; of the device of the first rank, which alone reads its policy back, and of one that generators have to themselves."""
    layout = layout_of(settings, hardware)
    both = {name: 2 * value for name, value in memory.state(shape, layout).items()}
    stays, comes = _frozen(settings, shape, members)
    beside = _beside(settings, shape, hardware, layout)
    held = {**both, **_buckets(shape, layout), **stays, **beside}
    if settings.lora and settings.zero_stage == 3:
        held["drawing"] = memory.frozen(shape, settings.precision)  # its base stays, the adapters alone are filled in
    alone = {"drawing beside": _on_a_gpu_of_their_own(settings, shape, hardware, layout)} if own_gpus(settings, hardware) else {}
    return {
        **alone,
        "loading": _loading(settings, shape, layout, stays),
        "drawing": {**held, **_drawing(settings, shape, _rows(settings, hardware))},
        "scoring": {**held, **comes, **_scoring(settings, shape, layout)},
        "update": {**held, **_update(settings, shape, layout, hardware)},
        "export": _export(shape, layout, hardware),
    }


def state_bytes(found: dict[str, Parts]) -> float:
    """What no choice of batch avoids, in the phase that has most of it."""
    return max(math.fsum(value for name, value in parts.items() if name not in PASSING) for parts in found.values())


def largest(found: dict[str, Parts]) -> Parts:
    return max(found.values(), key=lambda parts: math.fsum(parts.values()))


def held_bytes(settings: PpoSettings, shape: Shape, members: int) -> float:
    """The files of frozen models that are brought to the device again and again, once for all processes of a node."""
    return (_references(settings) + members) * memory.file(shape) if settings.frozen == "host" else 0.0


def mapped_bytes(settings: PpoSettings, shape: Shape, layout: Layout, members: int) -> float:
    """All files that the processes of a node map, once: the policy's, which is the reference's, the members', of which the critic's is the
    first, and the weights that a generator of its own is handed."""
    return (1 + members) * memory.file(shape) + _published(settings, shape, layout)


def generator_host(settings: PpoSettings, shape: Shape, layout: Layout) -> float:
    """Private bytes of a node for generators beside the trainer: their processes, the first rank's copy of the weights they are handed, and,
    where each iteration has its version, those of earlier versions that a checkpoint takes along."""
    return 0.0 if settings.generation == "in_process" else settings.generators * memory.PROCESS + _published(settings, shape, layout)


def _published(settings: PpoSettings, shape: Shape, layout: Layout) -> float:
    return int(settings.generation != "in_process") * version_bytes(shape, layout) + earlier_bytes(settings, shape, layout)


def version_bytes(shape: Shape, layout: Layout) -> float:
    """Of the actor as it is published: what it learns, exact."""
    return memory.FP32 * shape.parameters * layout.trained_share


def earlier_bytes(settings: PpoSettings, shape: Shape, layout: Layout) -> float:
    """Of the earlier versions in a checkpoint, by which the next iterations are drawn; the first rank alone has them."""
    return settings.lag.limit * version_bytes(shape, layout) if settings.generation == "apart" else 0.0


def brought_bytes(settings: PpoSettings, shape: Shape, members: int) -> float:
    """What each process copies to its device in all: the reference and the members for each iteration, the members for each look."""
    looks = 1 + settings.iterations // settings.heldout.every if settings.heldout.every else 0
    models = settings.iterations * (_references(settings) + members) + looks * members
    return models * memory.FP32 * shape.parameters if settings.frozen == "host" else 0.0


def _references(settings: PpoSettings) -> int:
    """Models that are the reference alone: under adapters it is the actor's own base."""
    return 0 if settings.lora else 1


def _frozen(settings: PpoSettings, shape: Shape, members: int) -> tuple[Parts, Parts]:
    """(What lies there all the time, what comes while a model scores: rounded weights, and the output layer before it is rounded.)"""
    whole = memory.frozen(shape, settings.precision)
    if settings.frozen == "device":
        return {"reference": _references(settings) * whole, "rewards": members * whole}, {}
    unrounded = memory.FP32 * shape.vocabulary * shape.hidden if settings.precision == "bf16_autocast" else 0.0
    return {}, {"frozen model": whole + unrounded}


def _buckets(shape: Shape, layout: Layout) -> Parts:
    """Those of each engine; ZeRO 3 keeps them."""
    found = memory.training(shape, layout)
    return {"buckets": 2 * found["buckets"]} if "buckets" in found else {}


def _rows(settings: PpoSettings, hardware: Hardware) -> int:
    """Answers that a rank writes side by side: the ranks share those of an iteration, and those of a look."""
    most = max(settings.prompts_per_iteration, settings.heldout.prompts if settings.heldout.every else 0)
    return min(settings.generation_batch, math.ceil(most / hardware.devices))


def _passing(settings: PpoSettings, shape: Shape, tokens: float) -> float:
    """Activations of a pass without gradients."""
    width = memory.width(Layout(precision=settings.precision))
    return tokens * shape.hidden * width * _NO_GRAD_LAYERS


def _writing(settings: PpoSettings, shape: Shape, rows: int) -> Parts:
    """Of a model that writes so many answers side by side, beside its weights."""
    prompt = max(1, settings.max_length - settings.max_new_tokens)
    return {
        "cache": memory.answering(shape, rows, settings.max_length, memory.FP32)["cache"],
        "prompt pass": _passing(settings, shape, rows * prompt),
        "logits": rows * shape.vocabulary * memory.FP32 * _CHOICE_COPIES,
    }


def _drawing(settings: PpoSettings, shape: Shape, rows: int) -> Parts:
    """A whole copy of the actor where it is cut up; else autocast's copies of the actor's own weights."""
    parts = _writing(settings, shape, rows)
    if settings.zero_stage == 3:
        parts["drawing"] = memory.frozen(shape, settings.precision)
    elif settings.precision == "bf16_autocast":
        parts["bf16 copies"] = 2 * shape.parameters
    return parts


def _answer_layout(settings: PpoSettings, layout: Layout) -> Layout:
    """The output layer is applied to answers' tokens alone."""
    return Layout(**{**vars(layout), "length": min(settings.max_new_tokens, settings.max_length)})


def _scoring(settings: PpoSettings, shape: Shape, layout: Layout) -> Parts:
    """Passes of frozen models over the micro-batches of the update; actor and critic, who come after them, need less than to learn."""
    logits = memory.training(shape, _answer_layout(settings, layout))["logits"]
    return {"activations": _passing(settings, shape, layout.rows * layout.length), "logits": logits}


def _update(settings: PpoSettings, shape: Shape, layout: Layout, hardware: Hardware) -> Parts:
    once = memory.training(shape, layout)
    once["logits"] = memory.training(shape, _answer_layout(settings, layout))["logits"]
    parts = {name: once[name] for name in _TAKE_TURNS if name in once}
    if settings.reuse_first_pass:
        passes = math.ceil(settings.minibatch / hardware.devices / settings.micro_batch)
        for name, models in (("activations", 2), ("bf16 copies", 2), ("logits", 1)):
            parts[name] = models * passes * parts.get(name, 0.0)
    return parts


def _loading(settings: PpoSettings, shape: Shape, layout: Layout, stays: Parts) -> Parts:
    """At ZeRO 3 the critic is whole on the device when the actor is dealt out already."""
    if settings.zero_stage < 3:
        return {}
    one = memory.state(shape, layout)
    return {**one, **stays, "whole model": memory.FP32 * shape.parameters, "dealt out": one["weights"]}


def _export(shape: Shape, layout: Layout, hardware: Hardware) -> Parts:
    """Critic and frozen models are gone; where the device is the CPU, the policy lies there once more as it is read back."""
    room = None if hardware.cpu or hardware.memory_gb is None else hardware.memory_gb * 1e9
    return {**memory.export(shape, layout, room), **({"read back": memory.FP32 * shape.parameters} if hardware.cpu else {})}


def own_gpus(settings: PpoSettings, hardware: Hardware) -> bool:
    """Whether generators have GPUs that no rank has. Where the site is not known the recipe alone says how many there are."""
    return settings.generation != "in_process" and not hardware.cpu and _free_gpus(settings, hardware) > 0


def _free_gpus(settings: PpoSettings, hardware: Hardware) -> int:
    """GPUs of a node that no rank has; below 1 where there is none, or nobody says how many there are."""
    gpus = settings.job.gpus if hardware.gpus_a_node is None else hardware.gpus_a_node
    return (gpus or 0) - hardware.processes_a_node


def _on_a_gpu_of_their_own(settings: PpoSettings, shape: Shape, hardware: Hardware, layout: Layout) -> Parts:
    """The most of them that share one, as they are dealt out over the GPUs that no rank has."""
    return _generators(settings, shape, layout, math.ceil(settings.generators / _free_gpus(settings, hardware)))


def _generators(settings: PpoSettings, shape: Shape, layout: Layout, count: int, process: float = 0.0) -> Parts:
    """So many on one device: each a whole float32 actor, and what it needs to write with it."""
    passes = _writing(settings, shape, min(settings.generation_batch, settings.prompts_per_iteration))
    # autocast keeps the rounded copies of weights that can be trained, from one token to the next
    rounded = 2 * shape.parameters * layout.trained_share if settings.precision == "bf16_autocast" else 0.0
    return {
        "generator": count * (memory.FP32 * shape.parameters + process),
        "generator's passes": count * (math.fsum(passes.values()) + rounded),
    }


def _beside(settings: PpoSettings, shape: Shape, hardware: Hardware, layout: Layout) -> Parts:
    """With generators beside the trainer: each rank holds a copy of an earlier actor to check old answers with, and where every GPU
    of a node has its rank (or nobody says how many there are) the first one's holds the generators too."""
    if settings.generation == "in_process":
        return {}
    earlier = {"earlier actor": memory.FP32 * shape.parameters}
    if own_gpus(settings, hardware):
        return earlier
    return earlier | _generators(settings, shape, layout, settings.generators, memory.PROCESS if hardware.cpu else 0.0)
