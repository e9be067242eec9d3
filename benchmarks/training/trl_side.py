"""TRL's side of a turn: the trainer's own loop on the prepared ids; writes its times and losses."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from benchmarks.training.workload import BETA, LEARNING_RATE, WARM_UP, Workload


class Times(TrainerCallback):
    """When each update was done, and the losses that were logged."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.losses: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ends.append(time.time())

    def on_log(self, *_: Any, logs: dict[str, Any] | None = None, **__: Any) -> None:
        if logs and "loss" in logs:
            self.losses.append(float(logs["loss"]))


def arguments(load: Workload, out: Path) -> dict[str, Any]:
    """As near to our side as the trainer's settings go; what it recomputes by default is switched off, as ours has none."""
    return {
        "output_dir": str(out) + ".folder",
        "per_device_train_batch_size": load.batch,
        "num_train_epochs": 1,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "logging_steps": 5,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "bf16": load.precision == "bf16",
        "activation_checkpointing": False,
        "max_length": None,
        "disable_tqdm": True,
    }


def model_of(told: dict[str, Any]) -> Any:
    return AutoModelForCausalLM.from_pretrained(told["base"], dtype=torch.float32, local_files_only=True)


def sft(load: Workload, told: dict[str, Any], out: Path) -> Any:
    config = SFTConfig(dataset_kwargs={"skip_prepare_dataset": True}, **arguments(load, out))
    tokenizer = AutoTokenizer.from_pretrained(told["base"], local_files_only=True)
    return SFTTrainer(model=model_of(told), args=config, train_dataset=Dataset.from_list(told["rows"]), processing_class=tokenizer)


def dpo(load: Workload, told: dict[str, Any], out: Path) -> Any:
    """The reference's log-probabilities are computed before the clock runs, as ours are before the third update."""
    tokenizer = AutoTokenizer.from_pretrained(told["base"], local_files_only=True)
    texts = Dataset.from_list([{"prompt": "red", "chosen": " stone", "rejected": " river"}])
    config = DPOConfig(beta=BETA, **arguments(load, out))
    trainer = DPOTrainer(model=model_of(told), ref_model=model_of(told), args=config, train_dataset=texts, processing_class=tokenizer)
    rows = []
    for at in range(0, len(told["rows"]), load.batch):
        part = told["rows"][at : at + load.batch]
        chosen, rejected = (side.tolist() for side in trainer.compute_ref_log_probs(trainer.ref_model, trainer.data_collator(part)))
        rows += [{**row, "ref_chosen_logps": a, "ref_rejected_logps": b} for row, a, b in zip(part, chosen, rejected, strict=True)]
    trainer.train_dataset, trainer.precompute_ref_logps = Dataset.from_list(rows), True
    return trainer


def main(folder: Path, out: Path) -> None:
    load, told = Workload.read(folder), json.loads((folder / "rows.json").read_text("utf-8"))
    torch.set_num_threads(load.threads)
    trainer = {"sft": sft, "dpo": dpo}[load.program](load, told, out)
    times = Times()
    trainer.add_callback(times)
    trainer.train()
    if len(times.ends) != load.steps:
        raise SystemExit(f"{len(times.ends)} updates were made, {load.steps} were meant")
    found = {"seconds": times.ends[-1] - times.ends[WARM_UP - 1], "loss": times.losses[-1]}
    out.write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
