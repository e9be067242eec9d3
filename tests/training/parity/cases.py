"""The models and batches that both sides compute on. Nothing random."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import LlamaForSequenceClassification

from include.runtime.chat import Encoded
from tests.training.small_llama import dialogue_ids, fill, small_config, small_llama

PAD = 0
BETA = 0.1
DPO_SETTINGS = {
    "sigmoid": {},
    "ipo": {"loss": "ipo"},
    "robust": {"loss": "robust", "label_smoothing": 0.1},
    "hinge": {"loss": "hinge"},
    "apo_zero": {"loss": "apo_zero"},
    "apo_down": {"loss": "apo_down"},
    "exo_pair": {"loss": "exo_pair", "label_smoothing": 0.1},
    "nca_pair": {"loss": "nca_pair"},
    "sppo_hard": {"loss": "sppo_hard"},
    "bco_pair": {"loss": "bco_pair"},
    "sigmoid_norm": {"loss": "sigmoid_norm"},
    "rpo": {"nll_weight": 0.5},
}
"""Name of a case → the settings of `DpoObjective` beside beta. cDPO is not among them: TRL 1.16 takes no notice of label_smoothing there."""

KTO_WEIGHTS = {"desirable_weight": 1.3, "undesirable_weight": 0.8}
KTO_CASES = {"kto": False, "kto_exchanged": True}
"""Name of a case → whether policy and reference change places: in one of the two the reference point is above 0, in the other at 0."""

DIALOGUES = [dialogue_ids(number, 4 + number % 3, 3 + number * 3 % 8) for number in range(6)]


def pairs() -> list[tuple[Encoded, Encoded]]:
    """(chosen, rejected): the same prompt before two answers of different lengths."""
    made = []
    for number in range(5):
        chosen, other = dialogue_ids(number, 5, 3 + number % 4), dialogue_ids(number + 40, 5, 2 + number * 2 % 5)
        ids = (*chosen.ids[:5], *other.ids[5:])
        made.append((chosen, Encoded(ids, other.loss_mask, 5)))
    return made


def mismatched(of: Sequence[tuple[Encoded, Encoded]]) -> list[tuple[Encoded, Encoded]]:
    """Each prompt before the answers of the next pair."""
    made = []
    for (own, _), others in zip(of, [*of[1:], *of[:1]], strict=True):
        sides = [(*own.ids[: own.prompt_length], *other.ids[other.prompt_length :]) for other in others]
        chosen, rejected = (Encoded(ids, tuple(at >= own.prompt_length for at in range(len(ids))), own.prompt_length) for ids in sides)
        made.append((chosen, rejected))
    return made


@dataclass(frozen=True)
class Setup:
    """What both sides are given: models, made anew at each call, and ids. learned from: `dialogues`; compared: `pairs` (chosen, rejected)."""

    policy: Callable[[], Any]
    reference: Callable[[], Any]
    reward_model: Callable[[], Any]
    dialogues: Sequence[Encoded]
    pairs: Sequence[tuple[Encoded, Encoded]]

    def exchanged(self) -> "Setup":
        """Policy and reference in each other's place."""
        return replace(self, policy=self.reference, reference=self.policy)


SMALL = Setup(
    policy=small_llama,
    reference=lambda: small_llama(phase=0.02),
    reward_model=lambda: fill(LlamaForSequenceClassification(small_config(num_labels=1))),
    dialogues=DIALOGUES,
    pairs=pairs(),
)
"""Weights and tokens follow from formulas."""


def gradients(named: Iterable[tuple[str, torch.nn.Parameter]]) -> dict[str, list[float]]:
    """Of each parameter's gradient: its norm and its products with two fixed waves, which move when any one entry does."""
    told = {}
    for name, value in named:
        assert value.grad is not None, name
        flat = value.grad.detach().double().flatten()
        places = torch.arange(len(flat), dtype=torch.float64)
        told[name] = [float(flat.norm()), float(flat @ torch.sin(places + 1)), float(flat @ torch.cos(places * 2.3))]
    return told
