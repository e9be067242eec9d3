"""TRL 1.9.2's side of a PPO turn (its last version with a PPO trainer, as `trl.experimental.ppo`); writes the ends of its iterations."""

import json
import sys
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer

from benchmarks.training.trl_times import Times
from benchmarks.training.workload import KL, PPO_LEARNING_RATE, Workload


def arguments(load: Workload, out: Path) -> PPOConfig:
    """Constants as on our side; recomputed activations and sample tables are switched off, as ours has none."""
    return PPOConfig(
        output_dir=str(out) + ".folder",
        per_device_train_batch_size=load.batch,
        gradient_accumulation_steps=1,
        num_mini_batches=1,
        num_ppo_epochs=load.epochs,
        total_episodes=load.batch * load.steps,
        local_rollout_forward_batch_size=load.batch,
        response_length=load.new_tokens,
        stop_token="eos",  # noqa: S106 - the name of a token of the vocabulary
        temperature=1.0,
        learning_rate=PPO_LEARNING_RATE,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        kl_coef=KL,
        vf_coef=0.5,
        cliprange_value=0.5,
        num_sample_generations=0,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=load.device == "cpu",
        bf16=load.precision == "bf16",
        disable_tqdm=True,
    )


def counted_answers() -> list[int]:
    """Tokens of every answer to come, its end token among them, as on our side: what the trainer is about to truncate."""
    lengths: list[int] = []
    truncate = ppo_trainer.truncate_response

    def counting(stop: int, pad: int, responses: torch.Tensor) -> torch.Tensor:
        ended = (responses == stop).cumsum(1) > 0
        lengths.extend((responses.shape[1] - ended.sum(1) + ended.any(1)).tolist())
        return truncate(stop, pad, responses)

    ppo_trainer.truncate_response = counting
    return lengths


def main(folder: Path, out: Path) -> None:
    load, told = Workload.read(folder), json.loads((folder / "rows.json").read_text("utf-8"))
    torch.set_num_threads(load.threads)
    tokenizer = AutoTokenizer.from_pretrained(told["base"], local_files_only=True, padding_side="left")
    policy, reference = (AutoModelForCausalLM.from_pretrained(told["base"], dtype=torch.float32, local_files_only=True) for _ in range(2))
    scorer = told["places"]["reward_model"]["path"]
    reward, value = (
        AutoModelForSequenceClassification.from_pretrained(scorer, dtype=torch.float32, local_files_only=True) for _ in range(2)
    )
    times = Times(load, "loss/value_avg")
    rows = Dataset.from_list([{"input_ids": row["input_ids"]} for row in told["rows"]])
    trainer = PPOTrainer(
        args=arguments(load, out),
        processing_class=tokenizer,
        model=policy,
        ref_model=reference,
        reward_model=reward,
        value_model=value,
        train_dataset=rows,
        eval_dataset=rows,
        callbacks=[times],
    )
    lengths = counted_answers()
    trainer.train()
    if len(lengths) != load.batch * load.steps:
        raise SystemExit(f"{len(lengths)} answers were drawn, {load.batch * load.steps} were meant")
    out.write_text(json.dumps({**times.to_json(), "answer_tokens": sum(lengths) / len(lengths)}), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
