"""A Llama as Megatron's GPTModel: the layers of one stage, cut over tensor-parallel ranks.

Local layer specification: neither TransformerEngine nor Apex is asked for.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from include.training.megatron.pieces import LlamaPieces
from include.training.megatron.place import Place


class Stages(Protocol):
    """Passes through all stages (`megatron.pipeline.Pipeline`)."""

    def learn(self, parts: Sequence[Any]) -> dict[str, float]: ...

    def answer(self, inputs: Mapping[str, Any]) -> Tensor: ...


class MegatronLlama(torch.nn.Module):
    """What both scorers below share: this stage's layers of `model`, a Llama of transformers, without its weights.

    `stage` computes what this stage computes: the scorer's answer on the last one, else what the next one goes on from.
    Called itself, it gives the scorer's answer; where there are several stages only without gradients, and on each of them.
    answers: the shape of one answer; () for a number.
    """

    pipeline: Stages | None = None

    def __init__(self, model: Any, pieces: LlamaPieces, place: Place, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        config = model.config
        self.config = config
        self.vocabulary = pieces.vocabulary
        self.first_column = place.tensor.rank * pieces.padded_vocabulary // pieces.ranks
        self.last = place.last_stage
        self.answers = (config.num_labels,) if pieces.output == "score" and config.num_labels > 1 else ()
        self.gpt = GPTModel(
            _transformer_config(config, pieces, dtype),
            get_gpt_layer_local_spec(normalization="RMSNorm"),
            vocab_size=pieces.padded_vocabulary,
            max_sequence_length=config.max_position_embeddings,
            pre_process=place.pipeline.main,
            post_process=self.last,
            position_embedding_type="rope",
            share_embeddings_and_output_weights=pieces.shares_embedding,
        ).to(dtype)
        if self.last and pieces.output == "score":
            del self.gpt.output_layer
            self.gpt.score = torch.nn.Linear(config.hidden_size, config.num_labels, bias=False)  # float32, whatever the layers are in
        self.register_buffer("frequencies", model.base_model.rotary_emb.inv_freq.detach().float().clone(), persistent=False)

    @property
    def model(self) -> "MegatronLlama":
        """What is asked for its `config`, as `AnswerScorer.model` is."""
        return self

    def stage(self, **inputs: Any) -> Tensor:
        raise NotImplementedError

    def through(self, **inputs: Any) -> Tensor:
        """The answer of the last stage, on every stage."""
        return self.stage(**inputs) if self.pipeline is None else self.pipeline.answer(inputs)

    def hidden(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None) -> Tensor:
        """[position, row, hidden] after this stage's layers, and after the last norm on the last one."""
        found: Tensor = self.gpt.decoder(
            hidden_states=self.gpt.embedding(input_ids=input_ids, position_ids=None) if self.gpt.pre_process else None,
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
        shown = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        return self.through(**shown, rows=rows, columns=columns, targets=targets, temperature=temperature)

    def stage(self, **inputs: Any) -> Tensor:
        hidden = self.hidden(inputs["input_ids"], inputs["attention_mask"], inputs.get("position_ids"))
        if not self.last:
            return hidden
        shared = self.gpt.shared_embedding_or_output_weight() if self.gpt.share_embeddings_and_output_weights else None
        logits, _ = self.gpt.output_layer(hidden[inputs["columns"], inputs["rows"]][:, None], weight=shared)
        logits = logits[:, 0].float()
        # Rows that only fill the vocabulary up are on the last ranks.
        over = self.first_column + logits.shape[1] - self.vocabulary
        if over > 0:
            logits = logits.masked_fill(torch.arange(logits.shape[1], device=logits.device) >= logits.shape[1] - over, -1e30)
        if (temperature := inputs.get("temperature", 1.0)) != 1.0:
            logits = logits / temperature
        return -vocab_parallel_cross_entropy(logits, inputs["targets"])


class MegatronScores(MegatronLlama):
    """Scores at (row, column), float32, of all labels: the same forward as `reward.head.SequenceScores`. Each rank holds the head whole."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, rows: Tensor, columns: Tensor, position_ids: Tensor | None = None
    ) -> Tensor:
        shown = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        return self.through(**shown, rows=rows, columns=columns)

    def stage(self, **inputs: Any) -> Tensor:
        hidden = self.hidden(inputs["input_ids"], inputs["attention_mask"], inputs.get("position_ids"))
        if not self.last:
            return hidden
        scores: Tensor = self.gpt.score(hidden[inputs["columns"], inputs["rows"]].float())
        return scores.squeeze(-1)


def _unseen(mask: Tensor, *, packed: bool) -> Tensor:
    """[row or 1, 1, query, key], true where a query does not see a key; see `scoring.AnswerScorer` for what comes in.

    Without packing, padding is on the right, where no earlier position sees it.
    """
    if mask.dim() == 4:
        return ~mask if mask.dtype == torch.bool else mask < 0
    later = torch.ones(mask.shape[1], mask.shape[1], dtype=torch.bool, device=mask.device).triu(1)[None]
    return (later | (mask[:, :, None] != mask[:, None, :]) if packed else later)[:, None]


def _transformer_config(config: Any, pieces: LlamaPieces, dtype: torch.dtype) -> Any:
    """calculate_per_token_loss: losses come divided by the whole batch already, Megatron must divide them by nothing."""
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
        tensor_model_parallel_size=pieces.ranks,
        pipeline_model_parallel_size=pieces.stages,
        pipeline_dtype=dtype,
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",  # noqa: S106 - there are no experts, but the default refuses variable lengths
        calculate_per_token_loss=True,
        params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        use_cpu_initialization=True,
        perform_initialization=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
    )
