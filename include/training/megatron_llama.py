"""A Llama as Megatron's GPTModel, cut over tensor-parallel ranks, and its weights under their Hugging Face names.

Local layer specification: neither TransformerEngine nor Apex is asked for.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from include.training.errors import TrainingError

ROPE_TYPES = ("default", "linear", "llama3")
"""Those whose frequencies do not depend on the length of a sequence."""


def check_supported(model: Any, tensor_parallel: int) -> None:
    """Refuses a model that the mapping below would change.

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


@dataclass(frozen=True)
class Piece:
    """One parameter of GPTModel, the Hugging Face parameters it holds, and how it is cut over ranks."""

    name: str
    sources: tuple[str, ...]
    how: str


@dataclass(frozen=True)
class LlamaPieces:
    """Cuts whole tensors and joins them again; moments of an optimiser are cut like their weights."""

    layers: int
    groups: int
    queries_a_group: int
    vocabulary: int
    output: str
    ranks: int
    """output: tokens (an output layer of its own), tied (the embedding serves as one), or score (a reward model's head)."""

    @classmethod
    def of(cls, model: Any, ranks: int) -> "LlamaPieces":
        config = model.config
        groups = config.num_key_value_heads
        queries = config.num_attention_heads // groups
        output = "score" if hasattr(model, "score") else "tied" if config.tie_word_embeddings else "tokens"
        return cls(config.num_hidden_layers, groups, queries, config.vocab_size, output, ranks)

    @property
    def padded_vocabulary(self) -> int:
        """The vocabulary with as many empty rows as its cutting needs."""
        return -(-self.vocabulary // self.ranks) * self.ranks

    def __iter__(self) -> Iterator[Piece]:
        yield Piece("embedding.word_embeddings.weight", ("model.embed_tokens.weight",), "vocabulary")
        for i in range(self.layers):
            ours, theirs = f"decoder.layers.{i}.", f"model.layers.{i}."
            attention = tuple(f"{theirs}self_attn.{which}_proj.weight" for which in "qkv")
            yield Piece(f"{ours}input_layernorm.weight", (f"{theirs}input_layernorm.weight",), "whole")
            yield Piece(f"{ours}self_attention.linear_qkv.weight", attention, "qkv")
            yield Piece(f"{ours}self_attention.linear_proj.weight", (f"{theirs}self_attn.o_proj.weight",), "columns")
            yield Piece(f"{ours}pre_mlp_layernorm.weight", (f"{theirs}post_attention_layernorm.weight",), "whole")
            yield Piece(f"{ours}mlp.linear_fc1.weight", (f"{theirs}mlp.gate_proj.weight", f"{theirs}mlp.up_proj.weight"), "gate_up")
            yield Piece(f"{ours}mlp.linear_fc2.weight", (f"{theirs}mlp.down_proj.weight",), "columns")
        yield Piece("decoder.final_layernorm.weight", ("model.norm.weight",), "whole")
        if self.output == "tokens":
            yield Piece("output_layer.weight", ("lm_head.weight",), "vocabulary")
        if self.output == "score":
            yield Piece("score.weight", ("score.weight",), "whole")

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
                found = self._join_heads(torch.cat(list(parts)))
        return [part.clone(memory_format=torch.contiguous_format) for part in found]

    def _join_heads(self, whole: Tensor) -> Sequence[Tensor]:
        by_group = whole.view(self.groups, -1, whole.shape[1])
        head = by_group.shape[1] // (self.queries_a_group + 2)
        split = by_group.split([by_group.shape[1] - 2 * head, head, head], 1)
        return [part.reshape(-1, whole.shape[1]) for part in split]


class MegatronLlama(torch.nn.Module):
    """What both scorers below share: a GPTModel with the weights of `model`, a Llama of transformers, which keeps its own."""

    def __init__(self, model: Any, pieces: LlamaPieces, rank: int) -> None:
        super().__init__()
        config = model.config
        self.config = config
        self.vocabulary = pieces.vocabulary
        self.first_column = rank * pieces.padded_vocabulary // pieces.ranks
        self.gpt = GPTModel(
            _transformer_config(config, pieces.ranks),
            get_gpt_layer_local_spec(normalization="RMSNorm"),
            vocab_size=pieces.padded_vocabulary,
            max_sequence_length=config.max_position_embeddings,
            position_embedding_type="rope",
            share_embeddings_and_output_weights=pieces.output != "tokens",
        )
        if pieces.output == "score":
            self.gpt.score = torch.nn.Linear(config.hidden_size, 1, bias=False)
        self.register_buffer("frequencies", model.base_model.rotary_emb.inv_freq.detach().float().clone(), persistent=False)
        self.fill(dict(model.named_parameters()), pieces, rank)

    @property
    def model(self) -> "MegatronLlama":
        """What is asked for its `config`, as `AnswerScorer.model` is."""
        return self

    @torch.no_grad()
    def fill(self, weights: Mapping[str, Tensor], pieces: LlamaPieces, rank: int) -> None:
        """Takes this rank's part of whole weights."""
        own = dict(self.gpt.named_parameters())
        for piece in pieces:
            own[piece.name].copy_(pieces.cut(piece, [weights[name] for name in piece.sources])[rank])

    def hidden(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None) -> Tensor:
        """[position, row, hidden], after the last norm."""
        found: Tensor = self.gpt.decoder(
            hidden_states=self.gpt.embedding(input_ids=input_ids, position_ids=None),
            attention_mask=_unseen(attention_mask, packed=position_ids is not None),
            rotary_pos_emb=self._angles(input_ids, position_ids),
        )
        return found

    def _angles(self, input_ids: Tensor, position_ids: Tensor | None) -> Tensor:
        """[position, row or 1, 1, head size]: positions as they are told, from 0 in each row otherwise."""
        told = torch.arange(input_ids.shape[1], device=input_ids.device)[None] if position_ids is None else position_ids
        angles = told.T[..., None].float() * self.frequencies
        return torch.cat((angles, angles), -1)[:, :, None]


class MegatronScorer(MegatronLlama):
    """Log-probability of each learned token, [learned token], float32: the same forward as `scoring.AnswerScorer`."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        rows: Tensor,
        columns: Tensor,
        targets: Tensor,
        temperature: float = 1.0,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        hidden = self.hidden(input_ids, attention_mask, position_ids)
        shared = self.gpt.shared_embedding_or_output_weight() if self.gpt.share_embeddings_and_output_weights else None
        logits, _ = self.gpt.output_layer(hidden[columns, rows][:, None], weight=shared)
        logits = logits[:, 0].float()
        # Rows that only fill the vocabulary up are on the last ranks.
        over = self.first_column + logits.shape[1] - self.vocabulary
        if over > 0:
            logits = logits.masked_fill(torch.arange(logits.shape[1], device=logits.device) >= logits.shape[1] - over, -1e30)
        if temperature != 1.0:
            logits = logits / temperature
        return -vocab_parallel_cross_entropy(logits, targets)


class MegatronScores(MegatronLlama):
    """Scores at (row, column), float32: the same forward as `reward_head.SequenceScores`. Each rank holds the head whole."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, rows: Tensor, columns: Tensor, position_ids: Tensor | None = None
    ) -> Tensor:
        scores: Tensor = self.gpt.score(self.hidden(input_ids, attention_mask, position_ids)[columns, rows])
        return scores.squeeze(-1).float()


def _unseen(mask: Tensor, *, packed: bool) -> Tensor:
    """[row or 1, 1, query, key], true where a query does not see a key; see `scoring.AnswerScorer` for what comes in.

    Without packing, padding is on the right, where no earlier position sees it.
    """
    if mask.dim() == 4:
        return ~mask if mask.dtype == torch.bool else mask < 0
    later = torch.ones(mask.shape[1], mask.shape[1], dtype=torch.bool, device=mask.device).triu(1)[None]
    return (later | (mask[:, :, None] != mask[:, None, :]) if packed else later)[:, None]


def _transformer_config(config: Any, ranks: int) -> Any:
    heads = config.num_attention_heads
    return TransformerConfig(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        num_attention_heads=heads,
        num_query_groups=config.num_key_value_heads,
        kv_channels=getattr(config, "head_dim", None) or config.hidden_size // heads,
        ffn_hidden_size=config.intermediate_size,
        normalization="RMSNorm",
        layernorm_epsilon=config.rms_norm_eps,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=ranks,
        params_dtype=torch.float32,
        use_cpu_initialization=True,
        perform_initialization=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
    )
