"""PPO with adapters: the reference is the actor's frozen base, only adapters and the critic's head learn, and both are handed on."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from include.domain.errors import IntegrityError  # noqa: E402
from include.domain.manifest import MANIFEST  # noqa: E402
from include.runtime.checkpoint import Checkpoint  # noqa: E402
from include.training.lora import LoraSettings, adapters_of, add_adapters, frozen_digest, learnt_weights  # noqa: E402
from include.training.model_io import load_causal_lm, probe_ids  # noqa: E402
from include.training.rl import program as ppo_program  # noqa: E402
from include.training.rl.adapters import OwnBase, learnt_names, load_actor  # noqa: E402
from include.training.rl.checks import ModelsError  # noqa: E402
from include.training.rl.exchange import Exchange  # noqa: E402
from include.training.rl.models import Models  # noqa: E402
from include.training.rl.rollouts import read_rollouts  # noqa: E402
from tests.training.align_store import curve, ppo_spec, rewarded_store, run_here, shared_root, weights_of  # noqa: E402
from tests.training.harness import Started, Store  # noqa: E402
from tests.training.small_llama import small_llama  # noqa: E402

LORA = {"lora": {"rank": 4}, "learning_rate": 2e-3}
SMALL = {"iterations": 3, "prompts_per_iteration": 8, "minibatch": 4, "eval_rows": 4, "heldout": {"every": 3, "prompts": 4}}
FIGURES = ("kl", "policy_loss", "value_loss", "score", "entropy", "ratio", "actor_gradient_norm", "critic_gradient_norm", "value_explained")
NAME = "model.layers.0.mlp.up_proj"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return rewarded_store(shared_root(tmp_path_factory))


@pytest.fixture(scope="module")
def adapted(store: Store) -> Started:
    done = run_here(store, ppo_spec(store, salt="alone", **LORA, **SMALL))
    assert done.code == 0, done.report.message
    return done


def test_the_kl_starts_at_exactly_0_and_the_first_ratio_at_one(adapted: Started) -> None:
    first, *rest = adapted.lines
    assert first["kl"] == first["kl_p05"] == first["kl_p95"] == 0.0
    assert max(abs(line["kl"]) for line in rest) > 1e-4
    for line in adapted.lines:
        assert line["first_ratio_gap"] < 1e-6
        assert line["sampler_ratio_gap"] < 1e-4


def test_validation_prompts_are_answered_by_base_and_adapters(adapted: Started) -> None:
    first, last = adapted.lines[0], adapted.lines[-1]
    assert {"heldout_reward_first", "heldout_tokens_first"} <= first.keys()
    assert {"heldout_reward", "heldout_tokens"} <= last.keys()
    assert "heldout_form_after" in adapted.report.metrics


def test_first_passes_that_serve_the_update_too_change_no_bit(store: Store, adapted: Started) -> None:
    again = run_here(store, ppo_spec(store, salt="reused", **LORA, **SMALL), reuse_first_pass=True)
    assert again.code == 0, again.report.message
    assert curve(again) == curve(adapted)
    assert weights_of(again) == weights_of(adapted)


def test_the_policy_is_its_base_plus_an_adapter_that_names_it(store: Store, adapted: Started) -> None:
    assert set(adapted.report.outputs) == {"policy", "adapter", "rollouts"}
    manifest = json.loads((adapted.output("adapter") / MANIFEST).read_text())
    assert (manifest["kind"], manifest["meta"]["base"]) == ("adapter", store.places["policy"].digest)
    folder = Path(store.places["policy"].path)
    base, policy = (load_file(at / "model.safetensors") for at in (folder, adapted.output("policy")))
    assert all("_proj" in name for name in base if not torch.equal(base[name], policy[name]))
    tensors = load_file(adapted.output("adapter") / "adapter_model.safetensors")
    apart = load_actor(folder, "sdpa", LoraSettings(4, 8.0))
    with torch.no_grad():
        for name, layer in adapters_of(apart).items():
            layer.lora_A.copy_(tensors[f"base_model.model.{name}.lora_A.weight"])
            layer.lora_B.copy_(tensors[f"base_model.model.{name}.lora_B.weight"])
        merged, untouched = load_causal_lm(adapted.output("policy")), load_causal_lm(folder)
        ids = probe_ids(merged)
        logits, expected, before = (model(input_ids=ids).logits for model in (merged, apart, untouched))
    assert torch.allclose(logits, expected, atol=1e-4)
    assert not torch.allclose(logits, before, atol=1e-3)
    assert adapted.report.metrics["adapter_merge_difference"] < 1e-5


def test_a_checkpoint_holds_the_adapters_and_the_critics_head_and_no_frozen_weight(adapted: Started) -> None:
    saved = Checkpoint(adapted.folder / "checkpoints" / "step-3", 3, "", {}, {})
    actor, critic = (saved.load(f"{role}.model") for role in ("actor", "critic"))
    assert actor
    assert all(name.endswith(("lora_A", "lora_B")) for name in actor)
    assert {name for name in critic if not name.endswith(("lora_A", "lora_B"))} == {"model.score.weight"}
    assert {name.replace("model.model.", "", 1) for name in critic if "lora" in name} == {n.replace("model.model.", "", 1) for n in actor}


def test_a_frozen_weight_that_moved_is_said_at_the_end_and_nothing_is_handed_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Models.load.__func__  # type: ignore[attr-defined]

    def moved(job: Any, settings: Any) -> Models:
        models: Models = load(Models, job, settings)
        models.actor.get_submodule(NAME).base.weight.data[0, 0] += 1e-3
        return models

    monkeypatch.setattr(ppo_program.Models, "load", moved)
    done = run_here(store, ppo_spec(store, salt="moved", **LORA, **{**SMALL, "iterations": 1}))
    assert done.code == 1
    assert "the actor's frozen weights have changed under training" in done.report.message
    assert "policy" not in done.report.outputs


def test_dropout_in_adapters_is_refused_by_name(store: Store) -> None:
    done = run_here(store, ppo_spec(store, lora={"rank": 4, "dropout": 0.1}))
    assert "config.lora.dropout is 0.1: PPO needs 0" in done.report.message


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_two_ranks_learn_what_one_learns(store: Store, adapted: Started, stage: int) -> None:
    two = store.run_ranks(ppo_spec(store, salt="on two", zero_stage=stage, **LORA, **SMALL), 2)
    assert two.code == 0, two.stderr
    assert two.lines[0]["kl"] == 0.0
    for line, other in zip(two.lines, adapted.lines, strict=True):
        assert {name: line[name] for name in FIGURES} == pytest.approx({name: other[name] for name in FIGURES}, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("stage", [0, 3])
def test_in_bf16_too_the_kl_starts_at_0_and_the_base_stays(store: Store, stage: int) -> None:
    two = store.run_ranks(ppo_spec(store, salt="bf16", zero_stage=stage, precision="bf16_autocast", **LORA, **SMALL), 2)
    assert two.code == 0, two.stderr
    assert two.lines[0]["kl"] == 0.0


def test_a_generator_beside_draws_with_published_adapters(store: Store) -> None:
    done = run_here(store, ppo_spec(store, salt="apart", generation="own_process", **LORA, **SMALL), generation_batch=4)
    assert done.code == 0, done.report.message
    assert max(line["policy_lag_max"] for line in done.lines) == 1.0
    assert max(line["behaviour_ratio_gap"] for line in done.lines if "behaviour_ratio_gap" in line) < 1e-4
    digests = {(r.actor_checkpoint["published_version"], r.actor_checkpoint["digest"]) for r in read_rollouts(done.output("rollouts"))}
    assert (0, store.places["policy"].digest) in digests
    assert len(digests) == len({digest for _, digest in digests}) > 1


def test_published_are_adapters_alone_and_another_actor_is_refused(tmp_path: Path) -> None:
    model, other, whole = small_llama(), small_llama(), small_llama()
    add_adapters(model, LoraSettings(2, 4.0), 1)
    add_adapters(other, LoraSettings(2, 4.0), 2)
    exchange = Exchange.fresh(tmp_path)
    exchange.publish(1, 4, learnt_weights(model), keep=1)
    written = load_file(tmp_path / "exchange/weights/v00001/actor.safetensors")
    assert written.keys() == learnt_names(model)
    assert all(name.endswith(("lora_A", "lora_B")) for name in written)
    assert exchange.load(1, other)[0] == 4
    assert torch.equal(*(adapters_of(one)[NAME].lora_A for one in (model, other)))
    with pytest.raises(IntegrityError, match="holds other weights than this model has"):
        exchange.load(1, whole)


class Inside:
    """An engine that only holds its module."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, ids: Any) -> Any:
        return self.module(input_ids=ids).logits


def _adapted() -> Any:
    model = small_llama()
    add_adapters(model, LoraSettings(2, 4.0), 1)
    with torch.no_grad():
        for layer in adapters_of(model).values():
            layer.lora_B.fill_(0.1)
    return model.eval()


def test_a_reference_that_is_the_base_answers_as_the_base_to_the_bit() -> None:
    model = _adapted()
    ids = torch.arange(12)[None]
    reference = OwnBase(Inside(model))  # type: ignore[arg-type]
    with torch.no_grad():
        assert torch.equal(reference(ids), small_llama()(input_ids=ids).logits)
        assert not torch.allclose(model(input_ids=ids).logits, reference(ids), atol=1e-3)
    model.train()
    with pytest.raises(ModelsError, match="reference is in train mode"):
        reference(ids)


def test_a_reference_with_a_trained_weight_is_refused() -> None:
    model = _adapted()
    model.get_submodule(NAME).base.weight.requires_grad_(True)
    with pytest.raises(ModelsError, match=f"reference shares the trained weight {NAME}.base.weight"):
        OwnBase(Inside(model))  # type: ignore[arg-type]
    shared = _adapted()
    layer = shared.get_submodule(NAME)
    layer.lora_B = torch.nn.Parameter(layer.base.weight.data[:, :2])
    with pytest.raises(ModelsError, match="reference shares the trained weight"):
        OwnBase(Inside(shared))  # type: ignore[arg-type]
    with pytest.raises(ModelsError, match="no base beside adapters"):
        OwnBase(Inside(small_llama()))  # type: ignore[arg-type]


def test_the_digest_of_what_is_frozen_tells_one_bit_and_no_adapter() -> None:
    model, other = _adapted(), _adapted()
    before = frozen_digest(model)
    with torch.no_grad():
        adapters_of(other)[NAME].lora_A.zero_()
    assert frozen_digest(other) == before
    other.lm_head.weight.data[0, 0] += 1e-6
    assert frozen_digest(other) != before
