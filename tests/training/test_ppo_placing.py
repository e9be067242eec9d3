"""Where PPO's frozen models and its drawing copy lie changes no bit of what they say; what is given up is gone."""

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from include.runtime.settings import Settings  # noqa: E402
from include.training.engines.deepspeed import DeepSpeedEngine  # noqa: E402
from include.training.engines.engine import EngineSettings  # noqa: E402
from include.training.engines.precision import keep_cast, precision_context  # noqa: E402
from include.training.lora import learnt_weights  # noqa: E402
from include.training.model_io import load_causal_lm  # noqa: E402
from include.training.rl.actor import DrawingActor  # noqa: E402
from include.training.rl.adapters import load_actor  # noqa: E402
from include.training.rl.checks import freeze  # noqa: E402
from include.training.rl.placing import Frozen, present  # noqa: E402
from include.training.rl.settings import PpoSettings  # noqa: E402
from include.training.scoring import AnswerScorer  # noqa: E402
from tests.training.align_store import PPO, _joined, curve, killed, ppo_spec, rewarded_store, run_here, shared_root, weights_of  # noqa: E402
from tests.training.harness import Store  # noqa: E402
from tests.training.resume_matrix import outcomes  # noqa: E402
from tests.training.resume_matrix_cells import Cell  # noqa: E402

CPU = torch.device("cpu")
SMALL = {"iterations": 3, "prompts_per_iteration": 8, "minibatch": 4, "heldout": {"every": 2, "prompts": 2}}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """With time enough for pairs of runs on two ranks."""
    return replace(rewarded_store(shared_root(tmp_path_factory)), timeout_s=300)


@pytest.fixture(params=[True, False], ids=["shared output layer", "output layer of its own"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A model with biases in its linear layers, as Qwen2 has."""
    torch.manual_seed(1)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 96}
    model = LlamaForCausalLM(LlamaConfig(**shape, attention_bias=True, tie_word_embeddings=request.param))
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value) / 10)
    model.save_pretrained(str(tmp_path / "model"))
    return tmp_path / "model"


def _said(model: Any, precision: str) -> Any:
    ids = torch.arange(24).reshape(2, 12) * 7 % 96
    with torch.no_grad(), precision_context(precision):
        return model(input_ids=ids).logits


@pytest.mark.parametrize("precision", ["fp32", "bf16_autocast"])
def test_a_frozen_model_says_the_same_wherever_it_lies(folder: Path, precision: str) -> None:
    plain = freeze(load_causal_lm(folder))
    expected = _said(plain, precision)
    keep_cast(plain, precision)
    assert torch.equal(_said(plain, precision), expected)
    for stays in (True, False):
        kept = Frozen(freeze(load_causal_lm(folder)), precision, CPU, stays=stays)
        for _ in range(2):
            with present(kept) as model:
                assert torch.equal(_said(model, precision), expected)
                assert {name: value.dtype for name, value in model.named_parameters(remove_duplicate=False)} == {
                    name: value.dtype for name, value in plain.named_parameters(remove_duplicate=False)
                }
                assert not any(value.requires_grad for value in model.parameters())


def test_between_its_uses_a_frozen_model_holds_mapped_memory_alone_and_nobody_computes_with_it(folder: Path) -> None:
    kept = Frozen(freeze(load_causal_lm(folder)), "bf16_autocast", CPU, stays=False)
    mapped = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]
    assert all(any(int(a, 16) <= value.data_ptr() < int(b, 16) for a, b in mapped) for value in kept._weights.values())
    with kept.here() as model:
        seen = [weakref.ref(value) for value in model.parameters()]
    assert all(value.device.type == "meta" for value in model.parameters())
    assert [one for one in seen if one() is not None] == []
    with pytest.raises(RuntimeError), kept.here():
        raise RuntimeError("in the middle of a score")
    assert all(value.device.type == "meta" for value in model.parameters())
    kept.leave()
    with pytest.raises(KeyError, match="no weights were given"), kept.here():
        pass


@pytest.mark.parametrize("precision", ["fp32", "bf16_autocast"])
def test_the_copy_that_draws_says_what_the_actor_says_and_holds_rounded_linear_weights(folder: Path, precision: str) -> None:
    _joined()
    engine = DeepSpeedEngine(
        AnswerScorer(load_causal_lm(folder).requires_grad_(True)), EngineSettings(1e-2, precision=precision, zero_stage=3)
    )
    drawing = DrawingActor(engine, folder, _settings(precision))
    assert torch.equal(_said(drawing.model(), precision), _said(load_causal_lm(folder), precision))
    _learn(engine)
    drawing.release()
    learnt = load_causal_lm(folder)
    exact = dict(drawing.weights())
    assert set(exact) == {name for name, _ in learnt.named_parameters()}
    with torch.no_grad():
        for name, value in learnt.named_parameters():
            assert not torch.equal(value, exact[name])
            value.copy_(exact[name])
    copy = drawing.model()
    assert torch.equal(_said(copy, precision), _said(learnt, precision))
    rounded = torch.bfloat16 if precision == "bf16_autocast" else torch.float32
    assert copy.lm_head.weight.dtype == copy.model.layers[0].mlp.up_proj.weight.dtype == rounded
    assert copy.model.embed_tokens.weight.dtype == copy.model.norm.weight.dtype == torch.float32
    drawing.release()
    assert all(value.device.type == "meta" for value in copy.parameters())


@pytest.mark.parametrize("precision", ["fp32", "bf16_autocast"])
def test_under_adapters_the_copys_base_stays_and_only_adapters_are_filled_in(folder: Path, precision: str) -> None:
    _joined()
    settings = _settings(precision, lora={"rank": 2})
    engine = DeepSpeedEngine(
        AnswerScorer(load_actor(folder, "sdpa", settings.lora, seed=3)), EngineSettings(1e-1, precision=precision, zero_stage=3)
    )
    drawing = DrawingActor(engine, folder, settings)
    before = _said(drawing.model(), precision)
    assert torch.equal(before, _said(load_causal_lm(folder), precision))
    _learn(engine)
    drawing.release()
    learnt = load_actor(folder, "sdpa", settings.lora)
    with torch.no_grad():
        for name, value in learnt_weights(learnt).items():
            value.copy_(drawing.weights()[name])
    assert not torch.equal(_said(learnt, precision), before)
    assert torch.equal(_said(drawing.model(), precision), _said(learnt, precision))


def _settings(precision: str, **more: Any) -> PpoSettings:
    plain = {"iterations": 1, "prompts_per_iteration": 8, "max_new_tokens": 4, "learning_rate": 1e-4, "critic_learning_rate": 1e-4}
    return PpoSettings.of(Settings({**plain, "precision": precision, **more}, "config"))


def _learn(engine: DeepSpeedEngine) -> None:
    ids, at = torch.arange(16).reshape(2, 8), torch.arange(2)
    engine.train()
    engine.backward(-engine(ids, torch.ones_like(ids), at, at, at).sum())
    engine.step(1e-2)
    engine.eval()


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_closed_engine_holds_nothing(folder: Path, stage: int) -> None:
    _joined()
    engine = DeepSpeedEngine(AnswerScorer(load_causal_lm(folder).requires_grad_(True)), EngineSettings(1e-2, zero_stage=stage))
    _learn(engine)
    held = [weakref.ref(value) for state in engine.optimizer.state.values() for value in state.values()]
    held += [weakref.ref(value) for value in engine.module.parameters()]
    assert len(held) > 3
    engine.close()
    del engine
    gc.collect()
    assert [one for one in held if one() is not None] == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("precision", ["fp32", "bf16_autocast"])
def test_on_one_rank_frozen_models_off_the_device_change_no_bit(store: Store, precision: str) -> None:
    there, away = (
        run_here(store, ppo_spec(store, salt=f"frozen {place}", precision=precision, **SMALL), micro_batch=2, frozen=place)
        for place in ("device", "host")
    )
    assert there.code == away.code == 0, away.report.message
    assert weights_of(away) == weights_of(there)
    assert curve(away) == curve(there)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("stage", "precision"), [(0, "fp32"), pytest.param(2, "bf16_autocast", marks=pytest.mark.slow), (3, "bf16_autocast")]
)
def test_on_two_ranks_frozen_models_off_the_device_change_no_bit(store: Store, stage: int, precision: str) -> None:
    there, away = (
        store.run_ranks(ppo_spec(store, salt=f"frozen {place} on two", zero_stage=stage, precision=precision, **SMALL), 2, frozen=place)
        for place in ("device", "host")
    )
    assert away.code == 0, away.stderr
    assert weights_of(away) == weights_of(there)
    assert curve(away) == curve(there)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("stage", "offload"), [(2, "optimizer"), pytest.param(3, "optimizer", marks=pytest.mark.slow), (3, "parameters")])
def test_an_offload_changes_where_the_optimiser_lies_and_nothing_that_is_learnt(store: Store, stage: int, offload: str) -> None:
    plain, away = (
        run_here(store, ppo_spec(store, salt=f"{offload} {stage} {what}", zero_stage=stage, **SMALL), offload=what)
        for what in ("none", offload)
    )
    assert away.code == 0, away.report.message
    for line, other in zip(away.lines, plain.lines, strict=True):
        for name in ("kl", "policy_loss", "value_loss", "score", "actor_gradient_norm"):
            assert line[name] == pytest.approx(other[name], rel=1e-4, abs=1e-5)


@pytest.mark.timeout(600)
def test_what_began_on_the_device_goes_on_from_the_host_to_the_same_bits(store: Store) -> None:
    spec = ppo_spec(store, salt="moved", precision="bf16_autocast", **SMALL)
    whole = run_here(store, ppo_spec(store, salt="stayed", precision="bf16_autocast", **SMALL), save_every_steps=1)
    assert killed(store, spec, "after-rename", 2, save_every_steps=1).code != 0
    rest = run_here(store, spec, 2, save_every_steps=1, frozen="host")
    assert (rest.code, rest.report.first_step) == (0, 2), rest.report.message
    assert weights_of(rest) == weights_of(whole)


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_after_a_death_two_ranks_with_frozen_models_off_the_device_go_on_to_the_same_bits(store: Store) -> None:
    cell = Cell("ppo", 2, 3, precision="bf16_autocast", variant="frozen")
    config = {**PPO, "prompts_per_iteration": 8, "minibatch": 4}
    seen = list(outcomes(store, cell, config, ("generating", "export")))
    assert [(outcome.moment, outcome.exact) for outcome in seen] == [("generating", True), ("export", True)]


def test_a_place_that_is_none_is_named(store: Store) -> None:
    refused = run_here(store, ppo_spec(store, salt="nowhere", **SMALL), frozen="attic")
    assert refused.code != 0
    assert "settings.frozen" in refused.report.message
