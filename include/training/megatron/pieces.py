"""How a Llama's weights lie in Megatron's GPTModel: by stages of a pipeline, and each cut over tensor-parallel ranks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from include.runtime.pieces import Place
from include.training.errors import TrainingError

ROPE_TYPES = ("default", "linear", "llama3")
"""Those whose frequencies do not depend on the length of a sequence."""


def check_supported(model: Any, tensor_parallel: int, stages: int = 1) -> None:
    """Refuses a model that the mapping below would change, or that cannot be cut so.

    Raises:
        TrainingError: what is not supported, and the value.
    """
    config = model.config
    rope = (config.rope_parameters or {}).get("rope_type", "default") if config.model_type == "llama" else "default"
    for name, value, wanted in (
        ("model_type", config.model_type, ("llama",)),
        ("hidden_act", getattr(config, "hidden_act", None), ("silu",)),
        ("attention_bias", getattr(config, "attention_bias", False), (False,)),
        ("mlp_bias", getattr(config, "mlp_bias", False), (False,)),
        ("attention_dropout", getattr(config, "attention_dropout", 0.0), (0.0,)),
        ("rope_type", rope, ROPE_TYPES),
    ):
        if value not in wanted:
            raise TrainingError(f"engine megatron: {name} is {value!r}, only {', '.join(map(repr, wanted))} is supported")
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        if getattr(config, name) % tensor_parallel:
            raise TrainingError(f"tensor_parallel {tensor_parallel} does not divide {name} {getattr(config, name)}")
    if config.num_hidden_layers % stages:
        raise TrainingError(f"pipeline_parallel {stages} does not divide num_hidden_layers {config.num_hidden_layers}")


@dataclass(frozen=True)
class Piece:
    """One parameter of a stage's GPTModel, the Hugging Face parameters it holds, and how it is cut over ranks.

    copy: held by another stage too, which speaks for it: a tied embedding, as the last stage's output layer.
    """

    name: str
    sources: tuple[str, ...]
    how: str
    stage: int = 0
    copy: bool = False


@dataclass(frozen=True)
class LlamaPieces:
    """Cuts whole tensors and joins them again; moments of an optimiser are cut like their weights."""

    layers: int
    groups: int
    queries_a_group: int
    vocabulary: int
    output: str
    ranks: int
    stages: int = 1
    """output: tokens (an output layer of its own), tied (the embedding serves as one), or score (a reward model's head)."""

    @classmethod
    def of(cls, model: Any, ranks: int, stages: int = 1) -> "LlamaPieces":
        config = model.config
        groups = config.num_key_value_heads
        queries = config.num_attention_heads // groups
        output = "score" if hasattr(model, "score") else "tied" if config.tie_word_embeddings else "tokens"
        return cls(config.num_hidden_layers, groups, queries, config.vocab_size, output, ranks, stages)

    @property
    def padded_vocabulary(self) -> int:
        """The vocabulary with as many empty rows as its cutting needs."""
        return -(-self.vocabulary // self.ranks) * self.ranks

    @property
    def shares_embedding(self) -> bool:
        """Whether the embedding is the output layer as well, in the same stage: one parameter."""
        return self.output == "tied" and self.stages == 1

    def __iter__(self) -> Iterator[Piece]:
        """Of all stages, in one order on every rank; without copies."""
        return (piece for stage in range(self.stages) for piece in self.of_stage(stage) if not piece.copy)

    def of_stage(self, stage: int) -> Iterator[Piece]:
        """Every parameter of a stage; its layers are numbered from 0."""
        share, last = self.layers // self.stages, self.stages - 1
        if stage == 0:
            yield Piece("embedding.word_embeddings.weight", ("model.embed_tokens.weight",), "vocabulary")
        for i in range(share):
            yield from _of_layer(i, stage * share + i, stage)
        if stage != last:
            return
        yield Piece("decoder.final_layernorm.weight", ("model.norm.weight",), "whole", last)
        if self.output == "tokens":
            yield Piece("output_layer.weight", ("lm_head.weight",), "vocabulary", last)
        if self.output == "tied" and last:
            yield Piece("output_layer.weight", ("model.embed_tokens.weight",), "vocabulary", last, copy=True)
        if self.output == "score":
            yield Piece("score.weight", ("score.weight",), "whole", last)

    def cut(self, piece: Piece, whole: Sequence[Tensor]) -> Sequence[Tensor]:
        """The part of each rank."""
        first = whole[0]
        match piece.how:
            case "whole":
                return [first] * self.ranks
            case "columns":
                return first.chunk(self.ranks, 1)
            case "vocabulary":
                return torch.cat([first, first.new_zeros(self.padded_vocabulary - len(first), first.shape[1])]).chunk(self.ranks)
            case "gate_up":
                return [torch.cat(both) for both in zip(*(part.chunk(self.ranks) for part in whole), strict=True)]
        width = first.shape[1]  # qkv: by groups of heads, each with its queries, its key and its value
        by_group = [part.reshape(self.groups, -1, width) for part in whole]
        return torch.cat(by_group, 1).reshape(-1, width).chunk(self.ranks)

    def join(self, piece: Piece, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        """The whole tensors, in the order of the piece's sources; copies."""
        match piece.how:
            case "whole":
                found: Sequence[Tensor] = [parts[0]]
            case "columns":
                found = [torch.cat(list(parts), 1)]
            case "vocabulary":
                found = [torch.cat(list(parts))[: self.vocabulary]]
            case "gate_up":
                found = [torch.cat(half) for half in zip(*(part.chunk(2) for part in parts), strict=True)]
            case _:
                found = self._join_heads(torch.cat(list(parts)), self.groups)
        return [part.clone(memory_format=torch.contiguous_format) for part in found]

    def placed(self, piece: Piece, own: Tensor, rank: int) -> Iterator[tuple[str, Tensor, Place]]:
        """What of each source a rank's part of a piece is, and where in the whole it lies; nothing of rows that only fill up."""
        match piece.how:
            case "whole":
                yield piece.sources[0], own, Place.all_of(own)
            case "columns":
                rows, width = own.shape
                yield piece.sources[0], own, Place((rows, width * self.ranks), (0, width * rank))
            case "vocabulary":
                there = own[: max(0, self.vocabulary - rank * len(own))]
                if len(there):
                    yield piece.sources[0], there, Place((self.vocabulary, own.shape[1]), (len(own) * rank, 0))
            case _:
                parts = own.chunk(2) if piece.how == "gate_up" else self._join_heads(own, self.groups // self.ranks)
                for name, part in zip(piece.sources, parts, strict=True):
                    rows, width = part.shape
                    yield name, part, Place((rows * self.ranks, width), (rows * rank, 0))

    def _join_heads(self, whole: Tensor, groups: int) -> Sequence[Tensor]:
        """Queries, keys and values of so many groups of heads."""
        by_group = whole.view(groups, -1, whole.shape[1])
        head = by_group.shape[1] // (self.queries_a_group + 2)
        split = by_group.split([by_group.shape[1] - 2 * head, head, head], 1)
        return [part.reshape(-1, whole.shape[1]) for part in split]


def _of_layer(own: int, whole: int, stage: int) -> Iterator[Piece]:
    """The pieces of layer `own` of a stage, which is layer `whole` of the model."""
    ours, theirs = f"decoder.layers.{own}.", f"model.layers.{whole}."
    attention = tuple(f"{theirs}self_attn.{which}_proj.weight" for which in "qkv")
    yield Piece(f"{ours}input_layernorm.weight", (f"{theirs}input_layernorm.weight",), "whole", stage)
    yield Piece(f"{ours}self_attention.linear_qkv.weight", attention, "qkv", stage)
    yield Piece(f"{ours}self_attention.linear_proj.weight", (f"{theirs}self_attn.o_proj.weight",), "columns", stage)
    yield Piece(f"{ours}pre_mlp_layernorm.weight", (f"{theirs}post_attention_layernorm.weight",), "whole", stage)
    yield Piece(f"{ours}mlp.linear_fc1.weight", (f"{theirs}mlp.gate_proj.weight", f"{theirs}mlp.up_proj.weight"), "gate_up", stage)
    yield Piece(f"{ours}mlp.linear_fc2.weight", (f"{theirs}mlp.down_proj.weight",), "columns", stage)
