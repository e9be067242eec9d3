"""SFT as a program: it learns, it replays, it hands on a folder that loads, and it refuses what cannot be right."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from include.domain.manifest import MANIFEST, Manifest
from include.domain.outcomes import Outcome
from include.domain.records import Demonstration, Message
from include.runtime.checkpoint import Checkpoint
from include.runtime.tokenizer import chat_template_digest, tokenizer_digest
from include.training.errors import TrainingError
from include.training.model_io import load_causal_lm, load_tokenizer
from include.training.sft_program import SftTrainer
from include.transforms.datasets_io import SidedRow
from tests.training.harness import SFT, Started, Store, question
from tests.training.rounding import to_rounding

INPUTS = {"base": "base", "demonstrations": "demonstrations"}
LONGER = {**SFT, "steps": 30}


@pytest.fixture(scope="module")
def trained(store: Store) -> Started:
    done = store.run(store.spec("sft", INPUTS, LONGER), save_every_steps=100)
    assert done.code == 0, done.stderr
    return done


def test_the_loss_on_rows_it_has_not_seen_falls(trained: Started) -> None:
    metrics = trained.report.metrics
    assert metrics["heldout_loss_after"] < 0.6 * metrics["heldout_loss_before"]
    losses = [line["loss"] for line in trained.lines]
    assert losses[-1] < 0.6 * losses[0]


def test_the_report_tells_steps_tokens_and_speed(trained: Started) -> None:
    report = trained.report
    assert (report.outcome, report.first_step, report.last_step, report.asked_steps) == (Outcome.COMPLETE, 0, 30, 30)
    assert report.summary["tokens"] == report.metrics["tokens"] == trained.lines[-1]["tokens"] > 0
    assert report.metrics["tokens_per_s"] == pytest.approx(report.metrics["tokens"] / report.metrics["train_seconds"])
    assert report.metrics["share_end_token_learned"] == 1.0
    assert {"heldout_exact_before", "heldout_exact_after", "heldout_form_before", "heldout_form_after"} <= set(report.metrics)


def test_the_learning_rate_warms_up_and_falls(trained: Started) -> None:
    rates = [line["learning_rate"] for line in trained.lines]
    assert rates[:3] == pytest.approx([1.5e-3, 3e-3, 3e-3])
    assert rates[-1] == pytest.approx(3e-3 / 28)


def test_the_policy_is_a_plain_folder_with_the_bases_tokenizer(store: Store, trained: Started) -> None:
    folder, base = trained.output("policy"), Path(store.places["base"].path)
    assert tokenizer_digest(folder) == tokenizer_digest(base)
    assert chat_template_digest(folder) == chat_template_digest(base)
    expected = {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }
    assert {path.name for path in folder.iterdir()} == {*expected, MANIFEST}
    manifest = Manifest.from_json(json.loads((folder / MANIFEST).read_text()))
    assert trained.report.outputs == {"policy": manifest.digest}
    assert {entry.path for entry in manifest.files} == expected


def test_the_policy_loads_offline_and_differs_from_its_base(store: Store, trained: Started) -> None:
    ids = torch.tensor([load_tokenizer(trained.output("policy"))("3 + 4 =")["input_ids"]])
    with torch.no_grad():
        policy, base = (
            load_causal_lm(folder)(input_ids=ids).logits for folder in (trained.output("policy"), Path(store.places["base"].path))
        )
    assert policy.dtype == torch.float32
    assert float((policy - base).abs().max()) > 0.1


def test_a_replay_under_another_salt_gives_the_same_digest(store: Store, trained: Started) -> None:
    again = store.run(store.spec("sft", INPUTS, LONGER, salt="again"), save_every_steps=7)
    assert again.report.outputs == trained.report.outputs


def test_deterministic_kernels_are_used_and_change_no_bit_on_a_cpu(store: Store, trained: Started) -> None:
    done = store.run(store.spec("sft", INPUTS, {**LONGER, "deterministic": True}), save_every_steps=100)
    assert done.code == 0, done.stderr
    assert [line["loss"] for line in done.lines] == [line["loss"] for line in trained.lines]
    assert done.report.outputs == trained.report.outputs


def test_another_seed_gives_another_policy(store: Store, trained: Started) -> None:
    other = store.run(store.spec("sft", INPUTS, LONGER, seed=6))
    assert other.report.outputs != trained.report.outputs


def test_the_micro_batch_changes_the_losses_by_rounding_only(store: Store, trained: Started) -> None:
    small = store.run(store.spec("sft", INPUTS, {**SFT, "eval_rows": 0}, salt="small"), micro_batch=3)
    whole = store.run(store.spec("sft", INPUTS, {**SFT, "eval_rows": 0}, salt="whole"), micro_batch=8)
    assert [line["loss"] for line in small.lines] == to_rounding([line["loss"] for line in whole.lines], rel=1e-4)
    assert [line["tokens"] for line in small.lines] == [line["tokens"] for line in whole.lines]


def _refused(store: Store, config: dict[str, Any], inputs: dict[str, str] = INPUTS) -> str:
    done = store.run(store.spec("sft", inputs, config))
    assert (done.code, done.report.outcome) == (1, "failed")
    assert done.report.outputs == {}
    return done.report.message


def test_a_setting_that_is_unknown_is_refused(store: Store) -> None:
    assert "config.learning_rat is not a setting of this program" in _refused(store, {**SFT, "learning_rat": 1.0})


def test_a_length_that_leaves_nothing_to_learn_is_refused(store: Store) -> None:
    assert "nothing would be learned" in _refused(store, {**SFT, "max_length": 4})


def test_a_length_that_cuts_every_end_token_is_refused(store: Store) -> None:
    assert "never learn to stop" in _refused(store, {**SFT, "max_length": 16})


def test_a_dataset_without_training_rows_is_refused(store: Store) -> None:
    record = Demonstration("e", question(1, 2), (Message("assistant", "3"),), "made here", "CC0-1.0")
    store.dataset("empty", "demonstration", [SidedRow("e", "validation", "g", "demonstration", record.to_json())])
    assert "no row on side train" in _refused(store, SFT, {"base": "base", "demonstrations": "empty"})


def test_a_dataset_without_validation_rows_trains_and_says_that_it_was_not_looked_at(store: Store) -> None:
    record = Demonstration("e", question(1, 2), (Message("assistant", "3"),), "made here", "CC0-1.0")
    store.dataset("unseen", "demonstration", [SidedRow("e", "train", "g", "demonstration", record.to_json())])
    done = store.run(store.spec("sft", {"base": "base", "demonstrations": "unseen"}, SFT))
    assert done.code == 0, done.stderr
    assert "no look at validation rows" in done.report.summary["warnings"][0]
    assert "heldout_loss_after" not in done.report.metrics


def test_a_base_with_one_wrong_byte_is_refused_by_name(store: Store, tmp_path: Path) -> None:
    copy = tmp_path / "base"
    copy.mkdir()
    for path in Path(store.places["base"].path).iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    place = store.artifact("copy", copy)
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (copy / "model.safetensors").write_bytes(bytes(data))
    original, store.places["base"] = store.places["base"], place
    try:
        message = _refused(store, {**SFT, "steps": 3}, {"base": "copy", "demonstrations": "demonstrations"})
    finally:
        store.places["base"] = original
        del store.places["copy"]
    assert "input base" in message
    assert "model.safetensors is corrupt" in message


def test_a_position_in_another_dataset_is_refused() -> None:
    trainer = SftTrainer.__new__(SftTrainer)
    trainer.dataset, trainer.rows = "sha256:bb22", [None] * 300  # type: ignore[assignment]
    checkpoint = Checkpoint(Path("step-15"), 15, "1-1.0", {"dataset": "sha256:aa11", "rows": 900}, {})
    with pytest.raises(TrainingError, match=r"made on \('sha256:aa11', 900\), this run reads \('sha256:bb22', 300\)"):
        trainer.restore(checkpoint)
