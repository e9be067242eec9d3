"""TRL's side of a turn: the trainer's own loop on the prepared ids; writes the ends of its updates and its losses."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

from benchmarks.training.trl_times import Times
from benchmarks.training.workload import BETA, LOGGED, REWARD_SEED, Workload


def arguments(load: Workload, out: Path) -> dict[str, Any]:
    """As near to our side as the trainer's settings go; what it recomputes by default is switched off, as ours has none."""
    return {
        "output_dir": str(out) + ".folder",
        "per_device_train_batch_size": load.batch // load.ranks,
        "num_train_epochs": 1,
        "learning_rate": load.learning_rate,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "logging_steps": LOGGED,
        "train_sampling_strategy": "sequential",
        "save_strategy": "steps" if load.save_every else "no",
        "save_steps": load.save_every or 500,
        "save_total_limit": 1,
        "report_to": [],
        "use_cpu": load.device == "cpu",
        "bf16": load.precision == "bf16",
        "activation_checkpointing": False,
        "max_length": None,
        "disable_tqdm": True,
        **({"ddp_backend": "gloo"} if load.ranks > 1 and load.device == "cpu" else {}),
    }


def model_of(told: dict[str, Any]) -> Any:
    return AutoModelForCausalLM.from_pretrained(told["base"], dtype=torch.float32, local_files_only=True)


def _tokenizer(told: dict[str, Any]) -> Any:
    return AutoTokenizer.from_pretrained(told["base"], local_files_only=True)


def sft(load: Workload, told: dict[str, Any], out: Path) -> Any:
    config = SFTConfig(dataset_kwargs={"skip_prepare_dataset": True}, **arguments(load, out))
    return SFTTrainer(model=model_of(told), args=config, train_dataset=Dataset.from_list(told["rows"]), processing_class=_tokenizer(told))


def reward(load: Workload, told: dict[str, Any], out: Path) -> Any:
    """Under the very head that our side begins with. Padding is told apart from the end of an answer: where both are one token, as in SmolLM2's
    tokenizer, the head would be read a token too early."""
    tokenizer = _tokenizer(told)
    if tokenizer.pad_token_id == tokenizer.eos_token_id:
        tokenizer.pad_token = tokenizer.unk_token
    shape = AutoConfig.from_pretrained(told["base"], local_files_only=True, num_labels=1)
    model = AutoModelForSequenceClassification.from_pretrained(told["base"], config=shape, dtype=torch.float32, local_files_only=True)
    with torch.no_grad():
        head = model.score.weight
        head.normal_(0.0, (head.shape[1] + 1) ** -0.5, generator=torch.Generator().manual_seed(REWARD_SEED))
    rows = [{f"{side}_ids": row["prompt_ids"] + row[f"{side}_ids"] for side in ("chosen", "rejected")} for row in told["rows"]]
    config = RewardConfig(**arguments(load, out))
    return RewardTrainer(model=model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)


def dpo(load: Workload, told: dict[str, Any], out: Path) -> Any:
    """The reference's log-probabilities are computed before the clock runs, as ours are before the third update."""
    texts = Dataset.from_list([{"prompt": "red", "chosen": " stone", "rejected": " river"}])
    config = DPOConfig(beta=BETA, **arguments(load, out))
    trainer = DPOTrainer(
        model=model_of(told), ref_model=model_of(told), args=config, train_dataset=texts, processing_class=_tokenizer(told)
    )
    rows = []
    for at in range(0, len(told["rows"]), load.batch):
        part = told["rows"][at : at + load.batch]
        batch = {name: value.to(trainer.args.device) for name, value in trainer.data_collator(part).items()}
        chosen, rejected = (side.tolist() for side in trainer.compute_ref_log_probs(trainer.ref_model, batch))
        rows += [{**row, "ref_chosen_logps": a, "ref_rejected_logps": b} for row, a, b in zip(part, chosen, rejected, strict=True)]
    trainer.train_dataset, trainer.precompute_ref_logps = Dataset.from_list(rows), True
    return trainer


def main(folder: Path, out: Path) -> None:
    load, told = Workload.read(folder), json.loads((folder / "rows.json").read_text("utf-8"))
    torch.set_num_threads(load.threads)
    trainer = {"sft": sft, "reward": reward, "dpo": dpo}[load.program](load, told, out)
    times = Times(load)
    trainer.add_callback(times)
    trainer.train()
    if trainer.is_world_process_zero():
        out.write_text(json.dumps(times.to_json()), "utf-8")
    if load.ranks > 1:
        os._exit(0)  # what gloo's threads do as the interpreter is taken down now and then never ends


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
