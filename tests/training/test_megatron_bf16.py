"""Megatron-core in bfloat16: near to DeepSpeed's autocast, exact weights saved and handed on, exact after a death."""

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from include.runtime.ranks import Ranks  # noqa: E402
from include.training.engines.engine import EngineSettings  # noqa: E402
from include.training.examples.batching import collate  # noqa: E402
from include.training.megatron.engine import MegatronEngine  # noqa: E402
from include.training.megatron.place import engines  # noqa: E402
from include.training.scoring import AnswerScorer  # noqa: E402
from tests.training.harness import SFT, Started, Store  # noqa: E402
from tests.training.resume_matrix import outcomes  # noqa: E402
from tests.training.resume_matrix_cells import Cell  # noqa: E402
from tests.training.small_llama import dialogue_ids, small_llama  # noqa: E402

SETTINGS = EngineSettings(learning_rate=1e-4, precision="bf16")
QUICK = {**SFT, "eval_rows": 0}
NEAR = 0.05
"""A bfloat16 has 8 bits; a loss here is a mean of dozens of log-probabilities around 1 to 3. Seen: 0.033 on a CPU with AMX."""


def cell(ranks: int, tensor_parallel: int, pipeline_parallel: int) -> Cell:
    return Cell("sft", ranks, 0, "megatron", tensor_parallel, pipeline_parallel, "bf16")


def curve(started: Started) -> list[float]:
    assert started.code == 0, started.stderr
    return [line["loss"] for line in started.lines]


@pytest.fixture
def engine() -> Iterator[MegatronEngine]:
    with engines(Ranks()):
        yield MegatronEngine(AnswerScorer(small_llama()), SETTINGS)


def test_layers_hold_rounded_weights_and_what_is_saved_is_exact(engine: MegatronEngine) -> None:
    own = dict(AnswerScorer(small_llama()).named_parameters())
    assert {value.dtype for value in engine.module.parameters()} == {torch.bfloat16}
    saved = engine.weights()
    assert all(torch.equal(saved[name], value) for name, value in own.items())
    assert any(not torch.equal(value, value.bfloat16().float()) for value in own.values())


def test_a_step_smaller_than_bfloat16_can_tell_is_not_lost(engine: MegatronEngine) -> None:
    before = engine.weights()
    for _ in range(2):
        engine.train()
        engine.backward(-collate([dialogue_ids(1, 4, 4)], 0).scored_by(engine).mean())
        engine.step(1e-6)
    moved = engine.weights()
    name = "model.model.layers.0.mlp.down_proj.weight"
    assert float((before[name] != moved[name]).float().mean()) > 0.9
    seen_moving = before[name].bfloat16() != moved[name].bfloat16()
    assert float(seen_moving.float().mean()) < 0.05


def test_gradients_of_micro_batches_are_added_up_in_float32(engine: MegatronEngine) -> None:
    batches = [collate([dialogue_ids(i, 4, 4)], 0) for i in range(6)]
    engine.train()
    for batch in batches:
        engine.backward(-batch.scored_by(engine).mean())
    assert all(value.grad is None for value in engine.module.parameters())
    norm = engine.step(0.0)
    whole = AnswerScorer(small_llama())
    for batch in batches:
        (-batch.scored_by(whole).mean()).backward()
    assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_(whole.parameters(), 1e9)), rel=0.02)


def test_on_two_ranks_however_cut_its_losses_are_near_deepspeeds_autocast(store: Store) -> None:
    beside = Cell("sft", 1, precision="bf16_autocast")
    wanted = curve(beside.run(store, beside.spec(store, QUICK, "autocast beside megatron")))
    exact = Cell("sft", 1, 0, "megatron")
    in_fp32 = curve(exact.run(store, exact.spec(store, QUICK, "fp32 beside bf16")))
    for cut in ((2, 1, 1), (2, 1, 2)):
        started = cell(*cut).run(store, cell(*cut).spec(store, QUICK, f"bf16 {cut}"))
        assert curve(started) == pytest.approx(wanted, abs=NEAR)
        assert curve(started) != pytest.approx(in_fp32, abs=1e-6), "nothing was rounded"
    assert {value.dtype for value in load_file(started.output("policy") / "model.safetensors").values()} == {torch.float32}


def test_tensor_parallel_it_goes_on_to_the_same_bits_after_a_death(store: Store) -> None:
    seen = list(outcomes(store, cell(2, 2, 1), QUICK, ("update",)))
    assert [(outcome.moment, outcome.exact) for outcome in seen] == [("update", True)]


def test_a_frozen_twin_gives_the_same_answers_to_the_last_bit(engine: MegatronEngine) -> None:
    """As a reference: pairs then begin with a distance of exactly 0."""
    batch = collate([dialogue_ids(i, 3 + i, 4) for i in range(4)], 0)
    twin = engine.frozen(AnswerScorer(small_llama()))
    with torch.no_grad():
        engine.eval()
        assert torch.equal(batch.scored_by(twin), batch.scored_by(engine))
    assert not any(value.requires_grad for value in twin.parameters())
