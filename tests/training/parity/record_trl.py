"""The same cases by TRL's trainers: ``make peers``, then ``.local/venv-peers/bin/python -m tests.training.parity.record_trl``.

Writes golden.json beside this file; with a path as its argument, there; with the folder of a real case (`real.write`) after it, the values of
that one. The trainers' own collators and `compute_loss`
are used, in float32 on the CPU.
"""

import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

from tests.training.parity import real
from tests.training.parity.cases import BETA, DPO_SETTINGS, KTO_CASES, KTO_WEIGHTS, SMALL, Setup, gradients, mismatched
from tests.training.small_llama import VOCABULARY

GOLDEN = Path(__file__).with_name("golden.json")
PLAIN: dict[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "fp16": False,
    "report_to": [],
    "activation_checkpointing": False,
    "max_length": None,
}


def tokenizer() -> Any:
    """Numbers as words: its only use is to satisfy the trainers, which get ids."""
    words = {"<pad>": 0, "<s>": 1, "</s>": 2, **{f"w{i}": i for i in range(3, VOCABULARY)}}
    made = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def sft(folder: str, setup: Setup = SMALL) -> dict[str, Any]:
    labels = [[token if learned else -100 for token, learned in zip(d.ids, d.loss_mask, strict=True)] for d in setup.dialogues]
    rows = [{"input_ids": list(d.ids), "labels": row} for d, row in zip(setup.dialogues, labels, strict=True)]
    config = SFTConfig(output_dir=folder, per_device_train_batch_size=len(rows), dataset_kwargs={"skip_prepare_dataset": True}, **PLAIN)
    trainer = SFTTrainer(model=setup.policy(), args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer())
    trainer.model.eval()
    batch = trainer.data_collator(rows)
    with torch.no_grad():
        outputs = trainer.model(**batch, use_cache=False, fused_lm_head=True)
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    kept = outputs.log_probs[outputs.label_mask.bool()]
    return {"loss": float(loss.detach()), "log_probs": kept.tolist(), "gradients": gradients(trainer.model.named_parameters())}


def _dpo_arguments(name: str) -> dict[str, Any]:
    settings: dict[str, Any] = DPO_SETTINGS[name]
    loss, weights = [settings.get("loss", "sigmoid")], [1.0]
    if settings.get("nll_weight"):
        loss, weights = [*loss, "sft"], [*weights, settings["nll_weight"]]
    return {"loss_type": loss, "loss_weights": weights, "label_smoothing": settings.get("label_smoothing", 0.0), "beta": BETA}


def dpo(folder: str, name: str, setup: Setup = SMALL) -> dict[str, Any]:
    texts = Dataset.from_list([{"prompt": "w3 w4", "chosen": "w5", "rejected": "w6"}])
    config = DPOConfig(output_dir=folder, **_dpo_arguments(name), **PLAIN)
    trainer = DPOTrainer(model=setup.policy(), ref_model=setup.reference(), args=config, train_dataset=texts, processing_class=tokenizer())
    trainer.model.eval()
    examples = [
        {
            "prompt_ids": list(a.ids[: a.prompt_length]),
            "chosen_ids": list(a.ids[a.prompt_length :]),
            "rejected_ids": list(b.ids[b.prompt_length :]),
        }
        for a, b in setup.pairs
    ]
    batch = trainer.data_collator(examples)
    frozen = torch.cat(trainer.compute_ref_log_probs(trainer.ref_model, batch))
    own = torch.cat(trainer.compute_ref_log_probs(trainer.model, batch))
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    told = gradients(trainer.model.named_parameters())
    return {"loss": float(loss.detach()), "log_probs": own.tolist(), "reference_log_probs": frozen.tolist(), "gradients": told}


def kto(folder: str, name: str, setup: Setup = SMALL) -> dict[str, Any]:
    """All chosen answers first, then the rejected ones, as single answers with labels."""
    setup = setup.exchanged() if KTO_CASES[name] else setup
    texts = Dataset.from_list(
        [{"prompt": "w3 w4", "completion": "w5", "label": True}, {"prompt": "w7", "completion": "w6", "label": False}]
    )
    config = KTOConfig(output_dir=folder, loss_type="kto", beta=BETA, per_device_train_batch_size=2, **KTO_WEIGHTS, **PLAIN)
    trainer = KTOTrainer(model=setup.policy(), ref_model=setup.reference(), args=config, train_dataset=texts, processing_class=tokenizer())
    trainer.model.eval()
    examples = [
        {
            "prompt_ids": list(pair[side].ids[: pair[side].prompt_length]),
            "completion_ids": list(pair[side].ids[pair[side].prompt_length :]),
            "KL_completion_ids": list(apart[side].ids[apart[side].prompt_length :]),
            "label": side == 0,
        }
        for side in (0, 1)
        for pair, apart in zip(setup.pairs, mismatched(setup.pairs), strict=True)
    ]
    batch = trainer.data_collator(examples)
    frozen, _ = trainer.compute_ref_log_probs(trainer.ref_model, batch)
    own, _ = trainer.compute_ref_log_probs(trainer.model, batch)
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    return {
        "loss": float(loss.detach()),
        "reference_point": trainer._metrics["eval"]["kl"][-1],
        "log_probs": own.tolist(),
        "reference_log_probs": frozen.tolist(),
        "gradients": gradients(trainer.model.named_parameters()),
    }


def reward(folder: str, setup: Setup = SMALL) -> dict[str, Any]:
    rows = [{"chosen_ids": list(a.ids), "rejected_ids": list(b.ids)} for a, b in setup.pairs]
    config = RewardConfig(output_dir=folder, **PLAIN)
    trainer = RewardTrainer(model=setup.reward_model(), args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer())
    trainer.model.eval()
    loss, outputs = trainer.compute_loss(trainer.model, trainer.data_collator(rows), return_outputs=True)
    loss.backward()
    scores = outputs.logits.squeeze(-1)
    return {"loss": float(loss.detach()), "scores": scores.tolist(), "gradients": gradients(trainer.model.named_parameters())}


def record() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        values = {"sft": sft(folder), "reward": reward(folder), **{f"dpo_{name}": dpo(folder, name) for name in DPO_SETTINGS}}
        values |= {name: kto(folder, name) for name in KTO_CASES}
    return {"made_by": {name: version(name) for name in ("trl", "transformers", "torch")}, "values": values}


def record_real(folder: Path) -> dict[str, Any]:
    setup = real.read(folder)
    with tempfile.TemporaryDirectory() as aside:
        values = {"sft": sft(aside, setup), "reward": reward(aside, setup), "dpo_sigmoid": dpo(aside, "sigmoid", setup)}
    return {"made_by": {name: version(name) for name in ("trl", "transformers", "torch")}, "values": values}


def rounded(value: Any) -> Any:
    """Nine digits: far below what is compared, and the file stays readable."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


if __name__ == "__main__":
    torch.set_num_threads(1)
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN
    found = record_real(Path(sys.argv[2])) if len(sys.argv) > 2 else record()
    target.write_text(json.dumps(rounded(found), separators=(",", ":")).replace('],"', '],\n"') + "\n", "utf-8")
    print(f"written: {target}")
