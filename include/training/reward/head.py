"""The reward model: the base with a head read at the last real token (`include.runtime.reward_model`).

Its first output is the preference; where the rubric's dimensions are learnt too, each has one more.

Where padding and end token are one id, Hugging Face's own forward reads one token too early. So the saved configuration
has no padding id: that forward then takes single sequences only, and gives for each the very score that is read here.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification
from transformers.utils import logging as transformers_logging

from include.domain.errors import IntegrityError
from include.runtime.reward_model import PREFERENCE, dimensions_of, output_sequences, token_values
from include.runtime.reward_stats import RewardNormaliser
from include.training.model_io import copy_tokenizer

TOLERANCE = 1e-4


def new_reward_model(base: Path, seed: int, attention: str = "sdpa", dimensions: Sequence[str] = ()) -> Any:
    """The base's weights under a new head, drawn from `seed` with deviation 1/√(hidden + 1) (Stiennon et al. 2020).

    Rows of dimensions begin at 0, the middle of their scale: until they say something they pull at no layer, and the
    preference begins as it does without them.
    """
    config = AutoConfig.from_pretrained(base, local_files_only=True)
    config.num_labels, config.pad_token_id = 1 + len(dimensions), None
    if dimensions:
        config.id2label = dict(enumerate((PREFERENCE, *dimensions)))
        config.label2id = {name: at for at, name in config.id2label.items()}
    told = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # that the head is not in the file is meant
    model = AutoModelForSequenceClassification.from_pretrained(
        base, config=config, dtype=torch.float32, attn_implementation=attention, local_files_only=True
    )
    transformers_logging.set_verbosity(told)
    head: Tensor = model.score.weight
    with torch.no_grad():
        head[:1].normal_(0.0, (head.shape[1] + 1) ** -0.5, generator=torch.Generator().manual_seed(seed))
        head[1:] = 0.0
    return model.eval()


def load_reward_model(folder: Path, attention: str = "sdpa") -> Any:
    """A reward model's folder, fp32 and in eval mode; refuses one whose head is not in the file."""
    model, report = AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention, local_files_only=True, output_loading_info=True
    )
    if missing := sorted(str(key) for key in report["missing_keys"]):
        raise IntegrityError(f"{folder} is not a reward model: missing weights {missing}")
    dimensions_of(model.config, folder)
    return model.eval()


def save_reward_model(
    model: Any, tokenizer_folder: Path, out: Path, normaliser: RewardNormaliser, also: Mapping[str, float] | None = None
) -> None:
    """Writes the Hugging Face folder, the tokenizer byte for byte, and reward.json; reads it back and compares."""
    model.eval().save_pretrained(out)
    copy_tokenizer(tokenizer_folder, out)
    normaliser.write(out, also)
    probe = [[i % model.config.vocab_size for i in range(1, 8)]]
    (before,), (after,) = output_sequences(model, probe, 0), output_sequences(load_reward_model(out), probe, 0)
    if any(not abs(a - b) <= TOLERANCE * max(1.0, abs(a)) for a, b in zip(before, after, strict=True)):
        raise IntegrityError(f"{out}: read back it scores {after}, before saving {before}")


class SequenceScores(nn.Module):
    """Scores at (row, column), shape N; N × labels where the head has several. What the engine trains. Masks and positions as the
    model takes them."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, rows: Tensor, columns: Tensor, position_ids: Tensor | None = None
    ) -> Tensor:
        hidden = self.model.base_model(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=False)
        return self.model.score(hidden.last_hidden_state[rows, columns]).squeeze(-1).float()


class Critic(nn.Module):
    """A value at each asked position, in the units of normalised rewards; starts as the reward model itself (its preference).

    value = (head − mean) / (std + ε) with the reward model's stored statistics, which stay fixed here: the scale in
    which the first advantages are measured is then right from the first step.
    """

    def __init__(self, model: Any, normaliser: RewardNormaliser) -> None:
        super().__init__()
        self.model = model
        self._mean = normaliser.stats.mean
        self._scale = normaliser.stats.std + normaliser.epsilon

    def forward(self, input_ids: Tensor, attention_mask: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Values at (row, column), shape N."""
        return (token_values(self.model, input_ids, attention_mask)[rows, columns] - self._mean) / self._scale
