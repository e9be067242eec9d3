"""DeepSpeed as an engine: the same arithmetic as plain torch, whatever the micro-batches; guards before an update."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from include.runtime.chat import Encoded
from include.runtime.checkpoint import CheckpointStore, Snapshot
from include.runtime.errors import CheckpointError, GuardTripped
from include.training.engines.deepspeed import DeepSpeedEngine, engines
from include.training.engines.engine import EngineSettings
from include.training.errors import TrainingError
from include.training.examples.batching import Batch, collate, micro_batches
from include.training.scoring import AnswerScorer, sum_by_row

SETTINGS = EngineSettings(learning_rate=1e-2, weight_decay=0.1, betas=(0.9, 0.95), max_grad_norm=0.5)


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    with engines():
        yield


def _model(seed: int = 1) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def _items(count: int = 6) -> list[Encoded]:
    draw = torch.Generator().manual_seed(9)
    lengths = [5 + 3 * i for i in range(count)]
    return [
        Encoded(tuple(torch.randint(0, 40, (n,), generator=draw).tolist()), tuple(i >= n // 2 for i in range(n)), n // 2) for n in lengths
    ]


def _score(scorer: Any, batch: Batch) -> torch.Tensor:
    log_probs: torch.Tensor = scorer(batch.input_ids, batch.attention_mask, batch.rows, batch.columns, batch.targets)
    return log_probs


def _train(micro: int, steps: int = 3, settings: EngineSettings = SETTINGS) -> tuple[list[float], dict[str, torch.Tensor]]:
    return _train_with(DeepSpeedEngine(AnswerScorer(_model()), settings), micro, steps)


def _train_with(engine: DeepSpeedEngine, micro: int, steps: int = 3) -> tuple[list[float], dict[str, torch.Tensor]]:
    engine.train()
    items, norms = _items(), []
    learned = sum(item.trained_tokens for item in items)
    for _ in range(steps):
        for part in micro_batches(items, micro):
            engine.backward(-_score(engine, collate(part, 0)).sum() / learned)
        norms.append(engine.step(1e-2))
    return norms, dict(engine.weights())


def test_it_updates_as_plain_adamw_does() -> None:
    scorer = AnswerScorer(_model()).train()
    optimizer = torch.optim.AdamW(scorer.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    batch = collate(_items(), 0)
    for _ in range(3):
        (-_score(scorer, batch).sum() / len(batch.targets)).backward()
        torch.nn.utils.clip_grad_norm_(scorer.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    _, weights = _train(micro=6)
    assert all(torch.equal(weights[name], value) for name, value in scorer.named_parameters())


@pytest.mark.parametrize("micro", [1, 2, 4])
def test_micro_batches_change_nothing_but_rounding(micro: int) -> None:
    norms, weights = _train(micro)
    whole_norms, whole = _train(6)
    assert norms == pytest.approx(whole_norms, rel=1e-4)
    assert all(torch.allclose(weights[name], whole[name], atol=2e-4) for name in whole)


def test_the_loss_of_an_answer_is_the_one_that_all_positions_give() -> None:
    model = _model().eval()
    item = _items()[3]
    batch = collate([item], 0)
    with torch.no_grad():
        every = torch.log_softmax(model(input_ids=batch.input_ids).logits[0].float(), -1)
        picked = _score(AnswerScorer(model), batch)
    expected = [float(every[at - 1, item.ids[at]]) for at in range(1, len(item)) if item.loss_mask[at]]
    assert picked.tolist() == pytest.approx(expected, abs=1e-5)


def test_scores_are_summed_by_row() -> None:
    sums = sum_by_row(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 2, 2]), 3)
    assert sums.tolist() == [1.0, 0.0, 6.0]


def test_autocast_computes_in_bfloat16_and_keeps_float32_weights() -> None:
    settings = EngineSettings(learning_rate=1e-2, precision="bf16_autocast")
    engine = DeepSpeedEngine(AnswerScorer(_model()), settings)
    engine.eval()
    batch = collate(_items(), 0)
    found, exact = _score(engine, batch), _score(AnswerScorer(_model()).eval(), batch)
    assert 0 < float((found - exact).abs().max().detach()) < 0.1
    assert {value.dtype for value in engine.module.parameters()} == {torch.float32}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_after_restoring_the_next_updates_are_the_same_to_the_last_bit(tmp_path: Path, stage: int) -> None:
    settings = replace(SETTINGS, zero_stage=stage)
    (tmp_path / "1-1.0").mkdir()
    store = CheckpointStore(tmp_path, "1-1.0", "sha256:" + "0" * 64)
    batch = collate(_items(), 0)
    engine = DeepSpeedEngine(AnswerScorer(_model()), settings)
    _update(engine, batch)
    store.save(1, Snapshot(engine.capture("actor")), {})
    _update(engine, batch)
    other = DeepSpeedEngine(AnswerScorer(_model(seed=2)), settings)
    other.restore(store.at(1), "actor")
    _update(other, batch)
    pairs = zip(engine.weights().values(), other.weights().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_checkpoint_of_another_model_is_refused_by_the_name_of_a_parameter(tmp_path: Path) -> None:
    (tmp_path / "1-1.0").mkdir()
    store = CheckpointStore(tmp_path, "1-1.0", "sha256:" + "0" * 64)
    store.save(1, Snapshot({"model": {"strange": torch.ones(1)}, "optimizer": {}}), {})
    with pytest.raises(CheckpointError, match="is only in the checkpoint or only in the model"):
        DeepSpeedEngine(AnswerScorer(_model()), SETTINGS).restore(store.at(1))


def _update(engine: DeepSpeedEngine, batch: Batch) -> None:
    engine.train()
    engine.backward(-_score(engine, batch).mean())
    engine.step(1e-2)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_part_that_somebody_set_to_eval_trains_again_and_no_gradient_outlives_its_update(stage: int) -> None:
    engine = DeepSpeedEngine(AnswerScorer(_model()), replace(SETTINGS, zero_stage=stage))
    engine.train()
    engine.module.model.model.layers[1].eval()
    engine.train()
    assert all(part.training for part in engine.module.modules())
    engine.module.eval()
    engine.train()
    assert all(part.training for part in engine.module.modules())
    batch = collate(_items(), 0)
    engine.backward(-_score(engine, batch).mean())
    assert stage or all(weight.grad is not None for weight in engine.module.parameters())
    engine.step(1e-2)
    assert all(weight.grad is None for weight in engine.module.parameters())


def test_two_engines_in_one_process_do_not_touch_each_other() -> None:
    batch = collate(_items(), 0)
    alone = DeepSpeedEngine(AnswerScorer(_model()), SETTINGS)
    _update(alone, batch)
    first, second = DeepSpeedEngine(AnswerScorer(_model()), SETTINGS), DeepSpeedEngine(AnswerScorer(_model(3)), SETTINGS)
    first.train()
    first.backward(-_score(first, batch).mean())
    _update(second, batch)
    first.step(1e-2)
    pairs = zip(alone.module.parameters(), first.module.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_loss_that_is_not_finite_is_refused_by_name() -> None:
    engine = DeepSpeedEngine(AnswerScorer(_model()), SETTINGS)
    with pytest.raises(GuardTripped, match="non_finite_loss"):
        engine.backward(next(iter(engine.module.parameters())).sum() * float("nan"))


def test_a_gradient_that_is_not_finite_is_refused_before_any_weight_moves() -> None:
    engine = DeepSpeedEngine(AnswerScorer(_model()), SETTINGS)
    before = [value.detach().clone() for value in engine.module.parameters()]
    engine.backward(_score(engine, collate(_items(), 0)).sum())
    next(iter(engine.module.parameters())).grad[0, 0] = float("inf")  # type: ignore[index]
    with pytest.raises(GuardTripped, match="non_finite_gradient"):
        engine.step(1e-2)
    assert all(torch.equal(a, b) for a, b in zip(before, engine.module.parameters(), strict=True))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_zero_stage_updates_as_stage_0_but_for_rounding(stage: int) -> None:
    norms, whole = _train(2)
    engine = DeepSpeedEngine(AnswerScorer(_model()), replace(SETTINGS, zero_stage=stage))
    found, weights = _train_with(engine, 2)
    assert found == pytest.approx(norms, rel=1e-4)
    assert sorted(weights) == sorted(whole)
    assert all(torch.allclose(weights[name], whole[name], atol=2e-4) for name in whole)


OFFLOADS = [(1, "optimizer"), (2, "optimizer"), (3, "optimizer"), (3, "parameters")]


@pytest.mark.parametrize(("stage", "offload"), OFFLOADS)
@pytest.mark.parametrize("micro", [2, 6])
def test_state_in_the_cpus_memory_changes_nothing_but_rounding(stage: int, offload: str, micro: int) -> None:
    settings = replace(SETTINGS, zero_stage=stage)
    norms, here = _train_with(DeepSpeedEngine(AnswerScorer(_model()), settings), micro)
    engine = DeepSpeedEngine(AnswerScorer(_model()), settings, offload)
    found, weights = _train_with(engine, micro)
    assert found == pytest.approx(norms, rel=1e-5)
    assert all(torch.allclose(weights[name], here[name], rtol=1e-5, atol=1e-6) for name in here)
    engine.publish()
    assert all(torch.equal(weights[name], value) for name, value in engine.module.named_parameters())


@pytest.mark.parametrize(("stage", "offload"), OFFLOADS)
def test_offloaded_moments_and_weights_are_put_back_bit_by_bit(tmp_path: Path, stage: int, offload: str) -> None:
    settings = replace(SETTINGS, zero_stage=stage)
    engine = DeepSpeedEngine(AnswerScorer(_model()), settings, offload)
    _train_with(engine, 2)
    store = CheckpointStore(tmp_path, "1-1.0", "key")
    store.save(3, Snapshot(engine.capture()).copied(), {})
    other = DeepSpeedEngine(AnswerScorer(_model(seed=2)), settings, offload)
    other.restore(store.at(3))
    norms, further = _train_with(engine, 2)
    again, also = _train_with(other, 2)
    assert norms == again
    assert all(torch.equal(further[name], also[name]) for name in further)


@pytest.mark.parametrize(("stage", "offload"), OFFLOADS)
def test_a_gradient_that_is_not_finite_is_refused_with_state_in_the_cpus_memory_too(stage: int, offload: str) -> None:
    engine = DeepSpeedEngine(AnswerScorer(_model()), replace(SETTINGS, zero_stage=stage), offload)
    loss = _score(engine, collate(_items(), 0)).sum()
    loss.register_hook(lambda gradient: gradient * float("inf"))
    engine.backward(loss)
    with pytest.raises(GuardTripped, match="non_finite_gradient"):
        engine.step(1e-2)


@pytest.mark.parametrize(("stage", "offload", "lowest"), [(0, "optimizer", 1), (0, "parameters", 3), (2, "parameters", 3)])
def test_an_offload_that_the_stage_cannot_do_is_refused(stage: int, offload: str, lowest: int) -> None:
    with pytest.raises(TrainingError, match=f"offload: {offload} needs zero_stage {lowest} at least, this run has {stage}"):
        DeepSpeedEngine(AnswerScorer(_model()), replace(SETTINGS, zero_stage=stage), offload)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_after_training_the_given_module_has_the_weights_whatever_the_stage(stage: int) -> None:
    module = AnswerScorer(_model())
    engine = DeepSpeedEngine(module, replace(SETTINGS, zero_stage=stage))
    _, weights = _train_with(engine, 2)
    engine.publish()
    assert engine.module is module
    assert all(torch.equal(weights[name], value) for name, value in module.named_parameters())
    assert module.model.lm_head.weight is module.model.model.embed_tokens.weight
    batch = collate(_items(), 0)
    assert torch.equal(_score(engine, batch), _score(module, batch))


def test_a_model_without_trainable_parameters_is_refused() -> None:
    frozen = AnswerScorer(_model()).requires_grad_(False)
    with pytest.raises(TrainingError, match="no parameter of the model can be trained"):
        DeepSpeedEngine(frozen, SETTINGS)


def test_nothing_is_compiled_for_one_process() -> None:
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR", Path.home() / ".cache" / "torch_extensions"))
    assert not list(folder.rglob("deepspeed_shm_comm*.so"))
