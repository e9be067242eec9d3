"""What a recipe may ask of SFT beside the plain thing: packing, mixtures, windows, an early stop, adapters, guards."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from include.domain.manifest import MANIFEST
from include.domain.records import Demonstration, Message, Prompt, prompt_id_of
from include.runtime.checkpoint import Checkpoint
from include.training.examples.batching import Batch
from include.training.model_io import load_causal_lm
from include.transforms.datasets_io import SidedRow
from tests.training.align_store import curve, killed, run_here, signalled
from tests.training.harness import SFT, Started, Store, demonstrations, question, sums
from tests.training.rounding import to_rounding

INPUTS = {"base": "base", "demonstrations": "demonstrations"}
PLAIN = {**SFT, "eval_rows": 0}
LORA = {**PLAIN, "steps": 12, "learning_rate": 1e-2, "lora": {"rank": 4, "dropout": 0.1}}


def _run(
    store: Store, n: int = 1, salt: str = "", inputs: dict[str, str] = INPUTS, config: dict[str, Any] = PLAIN, **settings: Any
) -> Started:
    return run_here(store, store.spec("sft", inputs, config, salt=salt), n, **settings)


def _losses(started: Started) -> list[float]:
    return [line["loss"] for line in started.lines]


@pytest.fixture(scope="module")
def plain(store: Store) -> Started:
    return _run(store, salt="plain options")


@pytest.fixture(scope="module")
def adapted(store: Store) -> Started:
    done = _run(store, config=LORA)
    assert done.code == 0, done.report.message
    return done


def test_packed_rows_give_the_losses_and_token_counts_of_single_ones(store: Store, plain: Started) -> None:
    packed = _run(store, config={**PLAIN, "packing": True}, micro_batch=2)
    assert _losses(packed) == to_rounding(_losses(plain), rel=1e-4)
    assert [line["tokens"] for line in packed.lines] == [line["tokens"] for line in plain.lines]


def test_packing_needs_fewer_rows(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    scored_by = Batch.scored_by

    def counted(self: Batch, scorer: Any) -> torch.Tensor:
        seen.append(self.size)
        return scored_by(self, scorer)

    monkeypatch.setattr(Batch, "scored_by", counted)
    _run(store, salt="counted", config={**PLAIN, "packing": True, "steps": 2})
    assert sum(seen) < 2 * PLAIN["global_batch"] / 1.5


def test_a_length_window_has_the_same_examples_in_other_batches(store: Store, plain: Started) -> None:
    windowed = _run(store, config={**PLAIN, "length_window": 4})
    assert windowed.lines[-1]["tokens"] == plain.lines[-1]["tokens"]
    assert _losses(windowed) != _losses(plain)


def _second_set(store: Store) -> None:
    rows = []
    for first, second in sums()[60:72]:
        prompt = question(first, second)
        record = Demonstration(f"extra-{first}-{second}", prompt, (Message("assistant", str(first + second)),), "made here", "CC0-1.0")
        rows.append(SidedRow(record.example_id, "train", prompt.split_group, "demonstration", record.to_json()))
    store.dataset("more", "demonstration", sorted(rows, key=lambda row: row.id))


def test_a_mixture_is_trained_on_in_its_shares_and_the_report_tells_them(store: Store) -> None:
    _second_set(store)
    inputs = {**INPUTS, "demonstrations_1": "more"}
    parts = [{"input": "demonstrations", "weight": 3}, {"input": "demonstrations_1", "weight": 1, "max_epochs": None}]
    done = _run(store, inputs=inputs, config={**PLAIN, "mixture": {"parts": parts, "seed": 2}})
    assert done.code == 0, done.report.message
    assert done.report.metrics["share_demonstrations_1"] == 0.25
    assert done.report.metrics["epochs_demonstrations_1"] == pytest.approx(16 / 12)
    assert done.report.metrics["demonstrations_1_rows_checked"] == 12.0
    refused = _run(store, inputs=inputs)
    assert "config.mixture does not say how they are mixed" in refused.report.message


def test_an_early_stop_hands_on_the_state_with_the_smallest_validation_loss(store: Store) -> None:
    # Validation rows answer otherwise than all that is learnt from: the more is learnt, the worse they come out.
    demonstrations(store, "contradicted", wrong=range(48, 60))
    config = {**SFT, "steps": 40, "learning_rate": 1e-2, "warmup_steps": 0, "schedule": "constant", "eval_rows": 12}
    inputs = {**INPUTS, "demonstrations": "contradicted"}
    done = _run(store, inputs=inputs, config={**config, "early_stop": {"every_steps": 2, "patience": 2}})
    assert (done.code, done.report.stop_reason) == (0, "early_stop")
    metrics = done.report.metrics
    assert done.report.last_step == metrics["best_step"] + 4 < 40
    assert metrics["heldout_loss_after"] == pytest.approx(metrics["validation_loss_best"], rel=1e-4)
    assert "over-fitting: the validation loss is" in done.report.summary["warnings"][-1]


def test_a_healthy_run_with_early_stop_reaches_its_last_step_and_resumes_to_the_same_bits(store: Store) -> None:
    config = {**PLAIN, "early_stop": {"every_steps": 3, "patience": 2}}
    whole = _run(store, salt="whole early", config=config)
    assert (whole.report.stop_reason, whole.report.last_step) == ("last_step", 8)
    assert "validation_loss" in whole.lines[2]
    spec = store.spec("sft", INPUTS, config, salt="killed early")
    first = killed(store, spec, "half-saved", 2, save_every_steps=2)
    second = run_here(store, spec, n=2, save_every_steps=2)
    assert curve(first, second) == curve(whole)
    assert second.report.outputs == whole.report.outputs


def test_with_lora_the_adapter_learns_and_is_an_artifact_that_names_its_base(store: Store, adapted: Started) -> None:
    assert _losses(adapted)[-1] < 0.9 * _losses(adapted)[0]
    assert set(adapted.report.outputs) == {"policy", "adapter"}
    manifest = json.loads((adapted.output("adapter") / MANIFEST).read_text())
    assert (manifest["kind"], manifest["meta"]["base"]) == ("adapter", store.places["base"].digest)
    assert adapted.report.metrics["adapter_merge_difference"] < 1e-5


def test_the_merged_policy_is_base_plus_adapter_and_nothing_else(store: Store, adapted: Started) -> None:
    base, policy = (load_file(folder / "model.safetensors") for folder in (Path(store.places["base"].path), adapted.output("policy")))
    adapter = load_file(adapted.output("adapter") / "adapter_model.safetensors")
    config = json.loads((adapted.output("adapter") / "adapter_config.json").read_text())
    name = "model.layers.0.mlp.up_proj"
    low = adapter[f"base_model.model.{name}.lora_B.weight"] @ adapter[f"base_model.model.{name}.lora_A.weight"]
    expected = base[f"{name}.weight"] + config["lora_alpha"] / config["r"] * low
    assert torch.allclose(policy[f"{name}.weight"], expected, atol=1e-6)
    assert torch.equal(policy["model.embed_tokens.weight"], base["model.embed_tokens.weight"])
    assert load_causal_lm(adapted.output("policy")).dtype == torch.float32


def test_a_checkpoint_of_adapters_holds_no_frozen_weight(adapted: Started) -> None:
    saved = Checkpoint(adapted.folder / "checkpoints" / "step-12", 12, "", {}, {}).load("model")
    assert saved
    assert all(name.endswith(("lora_A", "lora_B")) for name in saved)


def test_an_interrupted_lora_run_ends_in_the_same_bits_dropout_included(
    store: Store, adapted: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = store.spec("sft", INPUTS, LORA, salt="usr1")
    first = signalled(store, spec, 5, monkeypatch)
    assert (first.code, first.report.last_step) == (75, 5)
    second = run_here(store, spec, n=2)
    assert curve(first, second) == curve(adapted)
    assert second.report.outputs == adapted.report.outputs


def test_a_loss_that_never_moves_ends_the_run_under_its_name_and_the_last_checkpoint_stays(store: Store) -> None:
    config = {**PLAIN, "learning_rate": 1e-30, "global_batch": 48, "steps": 12, "guards": {"flat_steps": 6, "flat_tolerance": 1e-4}}
    done = _run(store, config=config, save_every_steps=2)
    assert (done.code, done.report.outcome, done.report.stop_reason) == (1, "failed", "guard")
    assert done.report.summary["guard"] == "loss_never_moves"
    assert "Check in this order: (1) learning rate" in done.report.message
    assert [path.name for path in sorted((done.folder / "checkpoints").iterdir())][-1] == "step-4"


def test_weights_that_are_not_finite_stop_before_an_update(store: Store) -> None:
    done = _run(store, salt="inf", config={**PLAIN, "learning_rate": 1e30, "max_grad_norm": 0.0, "steps": 4})
    assert (done.code, done.report.stop_reason) == (1, "guard")
    assert done.report.summary["guard"] in ("non_finite_loss", "non_finite_gradient")


def _conversation(store: Store, name: str) -> None:
    first, second = question(2, 3), question(4, 4)
    turns = (Message("system", "Add."), *first.messages, Message("assistant", "5"), *second.messages)
    rows = []
    for at in range(8):
        messages = (*turns[:-1], Message("user", f"4 + {at} ="))
        prompt = Prompt(prompt_id_of(messages), messages, "made here", "CC0-1.0", "test", f"talk-{at}", pii="none")
        record = Demonstration(f"talk-{at}", prompt, (Message("assistant", str(4 + at)),), "made here", "CC0-1.0")
        rows.append(SidedRow(record.example_id, "train", prompt.split_group, "demonstration", record.to_json()))
    store.dataset(name, "demonstration", rows)


def test_the_chosen_turns_of_a_conversation_are_learned(store: Store) -> None:
    _conversation(store, "talks")
    inputs = {"base": "base", "demonstrations": "talks"}
    learned = {}
    for turns in ("response", "last", "all"):
        done = _run(store, salt=turns, inputs=inputs, config={**PLAIN, "learned_turns": turns, "steps": 1})
        assert done.code == 0, done.report.message
        learned[turns] = done.lines[0]["learned_tokens"]
    assert learned["last"] == learned["response"]
    assert learned["all"] == learned["response"] + 8 * 2  # "5" and its end token, in each of eight conversations
