"""Megatron-core as an engine: DeepSpeed's losses, the same cut over two ranks, and exact after a death."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from transformers import LlamaForCausalLM  # noqa: E402

from include.runtime.checkpoint import CheckpointStore, Snapshot  # noqa: E402
from include.runtime.errors import GuardTripped  # noqa: E402
from include.runtime.pieces import Pieces, Stored, write_group  # noqa: E402
from include.runtime.ranks import Ranks  # noqa: E402
from include.training.engines.engine import EngineSettings  # noqa: E402
from include.training.errors import TrainingError  # noqa: E402
from include.training.examples.batching import Batch, collate, collate_packed  # noqa: E402
from include.training.lora import LoraSettings, add_adapters  # noqa: E402
from include.training.megatron.engine import MegatronEngine  # noqa: E402
from include.training.megatron.pieces import LlamaPieces  # noqa: E402
from include.training.megatron.place import engines  # noqa: E402
from include.training.model_io import load_causal_lm, probe_ids  # noqa: E402
from include.training.scoring import AnswerScorer  # noqa: E402
from tests.training import align_store  # noqa: E402
from tests.training.harness import SFT, Started, Store  # noqa: E402
from tests.training.resume_matrix import outcomes  # noqa: E402
from tests.training.resume_matrix_cells import Cell  # noqa: E402
from tests.training.rounding import to_rounding  # noqa: E402
from tests.training.small_llama import dialogue_ids, small_llama  # noqa: E402

SETTINGS = EngineSettings(learning_rate=1e-2, weight_decay=0.1, betas=(0.9, 0.95), max_grad_norm=0.5)
QUICK = {**SFT, "eval_rows": 0}
GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2}
LONG = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG["original_max_position_embeddings"] = 32
ITEMS = [dialogue_ids(i, 3 + i, 4) for i in range(4)]


@pytest.fixture
def group() -> Iterator[None]:
    with engines(Ranks(), 1):
        yield


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}, {"rope_parameters": LONG}, {"head_dim": 6}])
def test_log_probs_are_those_of_transformers(changes: dict[str, Any]) -> None:
    scorer = AnswerScorer(small_llama(**GROUPED, **changes))
    engine = MegatronEngine(scorer, SETTINGS)
    for batch in (collate(ITEMS, 0), collate_packed([ITEMS[:2], ITEMS[2:]], 0)):
        assert batch.scored_by(engine).tolist() == pytest.approx(batch.scored_by(scorer).tolist(), abs=1e-5)
    weights = engine.weights()
    assert all(torch.equal(weights.pop(name), value) for name, value in scorer.named_parameters())
    assert not weights


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("tied", [False, True])
def test_it_updates_as_plain_adamw_does(tied: bool) -> None:
    scorer = AnswerScorer(small_llama(**GROUPED, tie_word_embeddings=tied))
    engine = MegatronEngine(scorer, SETTINGS)
    optimizer = torch.optim.AdamW(scorer.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    batch = collate(ITEMS, 0)
    for _ in range(3):
        (-batch.scored_by(scorer).mean()).backward()
        norm = float(torch.nn.utils.clip_grad_norm_(scorer.parameters(), 0.5))
        assert norm > 0.5
        optimizer.step()
        optimizer.zero_grad()
        assert _update(engine, batch) == pytest.approx(norm, rel=1e-5)
    weights = engine.weights()
    assert all(torch.allclose(weights[name], value, atol=1e-4) for name, value in scorer.named_parameters())


def _update(engine: MegatronEngine, batch: Batch) -> float:
    engine.train()
    engine.backward(-batch.scored_by(engine).mean())
    return engine.step(1e-2)


@pytest.mark.usefixtures("group")
def test_after_restoring_the_next_updates_are_the_same_to_the_last_bit(tmp_path: Path) -> None:
    (tmp_path / "1-1.0").mkdir()
    store = CheckpointStore(tmp_path, "1-1.0", "sha256:" + "0" * 64)
    batch = collate(ITEMS, 0)
    engine = MegatronEngine(AnswerScorer(small_llama()), SETTINGS)
    _update(engine, batch)
    snapshot = Snapshot(engine.capture("actor"))
    store.save(1, snapshot, {})
    copied, best = snapshot.copied(), engine.weights()
    _update(engine, batch)
    for group, tensors in snapshot.groups.items():
        assert all(copied.groups[group][name].data_ptr() == value.data_ptr() for name, value in tensors.items()), "no second copy"
    assert all(torch.equal(copied.groups["actor.model"][name], value) for name, value in store.at(1).load("actor.model").items())
    now = engine.weights()
    engine.use(best)
    assert all(torch.equal(best[name], value) for name, value in engine.weights().items())
    assert not all(torch.equal(best[name], value) for name, value in now.items())
    engine.use(now)
    other = MegatronEngine(AnswerScorer(small_llama(phase=1.0)), SETTINGS)
    other.restore(store.at(1), "actor")
    _update(other, batch)
    whole, again = engine.capture(), other.capture()
    for kind in ("model", "optimizer"):
        assert whole[kind].keys() == again[kind].keys()
        assert all(torch.equal(value, again[kind][name]) for name, value in whole[kind].items())
    assert "model.model.layers.1.self_attn.k_proj.weight.exp_avg_sq" in whole["optimizer"]


@pytest.mark.parametrize(("ranks", "stages"), [(2, 1), (4, 1), (2, 2)])
def test_what_is_cut_over_ranks_and_stages_joins_to_the_same_bits_whatever_the_vocabulary(ranks: int, stages: int) -> None:
    model = small_llama(num_attention_heads=8, num_key_value_heads=4)
    pieces, whole = LlamaPieces.of(model, ranks, stages), dict(model.named_parameters())
    assert pieces.padded_vocabulary > pieces.vocabulary
    for piece in pieces:
        parts = pieces.cut(piece, [whole.pop(name) for name in piece.sources])
        sources = dict(model.named_parameters())
        assert len({part.shape for part in parts}) == 1
        joined = pieces.join(piece, parts)
        assert all(torch.equal(value, sources[name]) for name, value in zip(piece.sources, joined, strict=True))
    assert not whole


@pytest.mark.parametrize(("ranks", "stages"), [(1, 1), (2, 1), (4, 1), (2, 2)])
def test_what_each_rank_saves_is_the_whole_once_whatever_the_vocabulary(tmp_path: Path, ranks: int, stages: int) -> None:
    model = small_llama(num_attention_heads=8, num_key_value_heads=4)
    cut, whole = LlamaPieces.of(model, ranks, stages), dict(model.named_parameters())
    for rank in range(ranks):
        own = Pieces()
        for piece in cut:
            part = cut.cut(piece, [whole[name] for name in piece.sources])[rank]
            for name, value, place in cut.placed(piece, part, rank) if piece.how != "whole" or rank == 0 else ():
                own.add(name, value, place)
        write_group(tmp_path, "model", own, rank)
    stored = Stored(tmp_path, "model")
    assert set(stored) == set(whole)
    assert all(torch.equal(stored[name], value) for name, value in whole.items())


@pytest.mark.usefixtures("group")
def test_what_it_cannot_do_is_refused_in_words() -> None:
    adapted = small_llama()
    add_adapters(adapted, LoraSettings(2, 4.0), 1)
    for model, settings, words in (
        (small_llama(), replace(SETTINGS, zero_stage=1), "zero_stage 1 is DeepSpeed's"),
        (small_llama(), replace(SETTINGS, distributed_optimizer=True), "needs TransformerEngine's Adam, which is not installed here"),
        (small_llama(), replace(SETTINGS, precision="bf16_autocast"), "precision bf16_autocast is not supported, set fp32 or bf16"),
        (small_llama(attention_bias=True), SETTINGS, "attention_bias is True"),
        (small_llama(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}), SETTINGS, "rope_type is 'dynamic'"),
        (adapted, SETTINGS, "without adapters"),
    ):
        with pytest.raises(TrainingError, match=words):
            MegatronEngine(AnswerScorer(model), settings)
    with pytest.raises(TrainingError, match="it trains policies and reward models"):
        MegatronEngine(small_llama(), SETTINGS)
    with pytest.raises(TrainingError, match="does not divide 1 ranks"), engines(Ranks(), 2):
        pass


@pytest.mark.usefixtures("group")
def test_what_is_not_finite_is_refused_before_any_weight_moves() -> None:
    engine = MegatronEngine(AnswerScorer(small_llama()), SETTINGS)
    before = engine.weights()
    with pytest.raises(GuardTripped, match="non_finite_loss"):
        engine.backward(next(iter(engine.module.parameters())).sum() * float("nan"))
    engine.backward(-collate(ITEMS, 0).scored_by(engine).sum())
    next(iter(engine.module.parameters())).grad[0, 0] = float("inf")
    with pytest.raises(GuardTripped, match="non_finite_gradient"):
        engine.step(1e-2)
    assert all(torch.equal(before[name], value) for name, value in engine.weights().items())


def _curve(started: Started) -> list[float]:
    assert started.code == 0, started.stderr
    return [line["loss"] for line in started.lines]


def _megatron(program: str, ranks: int, tensor_parallel: int) -> Cell:
    return Cell(program, ranks, 0, "megatron", tensor_parallel)


@pytest.fixture(scope="module")
def alone(store: Store) -> Started:
    cell = _megatron("sft", 1, 1)
    return cell.run(store, cell.spec(store, QUICK, "megatron alone"))


def test_its_losses_are_deepspeeds(store: Store, alone: Started) -> None:
    cell = Cell("sft", 1)
    other = cell.run(store, cell.spec(store, QUICK, "deepspeed beside megatron"))
    assert _curve(alone)[:3] == pytest.approx(_curve(other)[:3], abs=1e-5)
    assert _curve(alone) == pytest.approx(_curve(other), rel=1e-3)
    for name in ("tokens", "learning_rate", "learned_tokens", "step"):
        assert [line[name] for line in alone.lines] == [line[name] for line in other.lines]


def test_its_policy_loads_offline_with_the_logits_of_its_last_checkpoint(alone: Started) -> None:
    assert alone.code == 0, alone.stderr
    policy = load_causal_lm(alone.output("policy"))
    saved = dict(Stored(alone.folder / "checkpoints" / "step-8", "model"))
    assert type(policy) is LlamaForCausalLM
    scorer = AnswerScorer(load_causal_lm(alone.output("policy")))
    with torch.no_grad():
        for name, value in scorer.named_parameters():
            value.copy_(saved.pop(name))
        assert not saved
        ids = probe_ids(policy)
        assert torch.allclose(policy(ids).logits, scorer.model(ids).logits, atol=1e-5)
        batch = collate(ITEMS, 0)
        with engines(Ranks(), 1):
            engine = MegatronEngine(AnswerScorer(policy), SETTINGS)
            assert batch.scored_by(engine).tolist() == pytest.approx(batch.scored_by(scorer).tolist(), abs=1e-5)


@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_two_ranks_have_the_losses_of_one(store: Store, alone: Started, tensor_parallel: int) -> None:
    assert load_causal_lm(Path(store.places["base"].path)).config.vocab_size % 2 == 1, "a vocabulary that two cannot share equally"
    cell = _megatron("sft", 2, tensor_parallel)
    both = cell.run(store, cell.spec(store, QUICK, f"megatron on two, tensor parallel {tensor_parallel}"))
    assert _curve(both) == to_rounding(_curve(alone), abs=1e-5)
    assert [line["grad_norm"] for line in both.lines] == to_rounding([line["grad_norm"] for line in alone.lines], rel=1e-4)
    assert [line["tokens"] for line in both.lines] == [line["tokens"] for line in alone.lines]
    assert both.report.summary["ranks"] == 2


@pytest.mark.parametrize(("ranks", "tensor_parallel"), [(1, 1), (2, 2)])
def test_after_a_death_it_goes_on_to_the_same_bits(store: Store, ranks: int, tensor_parallel: int) -> None:
    seen = list(outcomes(store, _megatron("sft", ranks, tensor_parallel), QUICK, ("update",)))
    assert [(outcome.moment, outcome.exact) for outcome in seen] == [("update", True)]


def test_one_rank_goes_on_from_what_two_saved(store: Store, alone: Started) -> None:
    two, one = _megatron("sft", 2, 2), _megatron("sft", 1, 1)
    spec = two.spec(store, QUICK, "megatron on two, then one")
    first = two.run(store, spec, 1, "after-rename")
    assert first.code != 0
    second = one.run(store, spec, 2)
    assert second.report.first_step == 3
    assert _curve(second) == to_rounding(_curve(alone), abs=1e-5)[3:]


def test_packing_early_stop_and_a_look_at_validation_rows_are_deepspeeds_on_two_ranks(store: Store) -> None:
    config = {**SFT, "packing": True, "early_stop": {"every_steps": 2, "patience": 2}, "attention": "eager"}
    cells = (Cell("sft", 1), _megatron("sft", 2, 2))
    own, cut = (cell.run(store, cell.spec(store, config, f"options {cell.engine}")) for cell in cells)
    assert _curve(cut) == to_rounding(_curve(own), abs=1e-4)
    for name in ("heldout_loss_before", "heldout_loss_after", "validation_loss_best", "best_step"):
        assert cut.report.metrics[name] == pytest.approx(own.report.metrics[name], abs=1e-4)


@pytest.mark.parametrize(("program", "config"), align_store.PAIRED)
def test_on_pairs_it_has_deepspeeds_losses_on_one_rank_and_on_two(paired: Store, program: str, config: dict[str, Any]) -> None:
    curves = []
    for cell in (Cell(program, 1), _megatron(program, 1, 1), _megatron(program, 2, 2)):
        started = cell.run(paired, cell.spec(paired, config, f"{program} {cell.engine} {cell.ranks}"))
        curves.append(_curve(started))
        assert {"policy", "reward_model"} & set(started.report.outputs)
    for curve in curves[1:]:
        assert curve[:3] == to_rounding(curves[0][:3], abs=1e-5)
        assert curve == to_rounding(curves[0], abs=1e-4)
