"""What a recipe may ask of DPO beside the plain thing: other losses, the chosen answers' own loss, adapters, guards."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from include.domain.manifest import MANIFEST  # noqa: E402
from include.transforms.datasets_io import SidedRow  # noqa: E402
from tests.training.align_store import KTO, aligned_store, candidate, curve, dpo_spec, pair, preferences, run_here, shared_root, signalled  # noqa: E402
from tests.training.harness import TINY, Started, Store, sums  # noqa: E402
from tests.training.rounding import to_rounding  # noqa: E402

LORA = {"lora": {"rank": 4, "dropout": 0.1}, "learning_rate": 5e-3}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return aligned_store(shared_root(tmp_path_factory))


@pytest.fixture(scope="module")
def adapted(store: Store) -> Started:
    done = run_here(store, dpo_spec(store, **LORA))
    assert done.code == 0, done.report.message
    return done


FIRST = {
    "robust": 0.6931472,
    "hinge": 1.0,
    "apo_zero": 1.0,
    "apo_down": 1.0,
    "sigmoid_norm": 0.6931472,
    "exo_pair": 0.5108256,
    "nca_pair": 1.3862944,
    "sppo_hard": 50.0,
    "bco_pair": 1.3862944,
    "kto": 0.5,
}


@pytest.mark.parametrize(("loss", "first"), FIRST.items())
def test_each_loss_starts_at_its_hand_worked_value_and_falls(store: Store, loss: str, first: float) -> None:
    done = run_here(store, dpo_spec(store, loss=loss, steps=3, label_smoothing=0.1 if loss in ("robust", "exo_pair") else 0.0))
    assert done.lines[0]["loss"] == pytest.approx(first, abs=1e-5)
    assert done.lines[2]["loss"] < done.lines[0]["loss"]


@pytest.mark.parametrize(("loss", "more"), [("simpo", {"simpo_gamma": 0.5}), ("orpo", {"nll_weight": 1.0})])
def test_losses_without_a_reference_start_where_the_policy_is_and_fall(store: Store, loss: str, more: dict[str, float]) -> None:
    done = run_here(store, dpo_spec(store, loss=loss, steps=3, **more))
    assert done.lines[0]["margin"] == pytest.approx(0.0, abs=1e-6), "the figures are still told beside the reference"
    assert done.lines[2]["loss"] < done.lines[0]["loss"]


def test_the_chosen_answers_own_loss_is_added_by_its_weight(store: Store) -> None:
    whole, half = (run_here(store, dpo_spec(store, nll_weight=weight, steps=1)).lines[0]["loss"] for weight in (1.0, 0.5))
    assert half - 0.6931472 == pytest.approx((whole - 0.6931472) / 2, abs=1e-5)
    assert whole - 0.6931472 > 0.05


def test_with_lora_the_reference_is_the_base_and_the_adapter_names_it(store: Store, adapted: Started) -> None:
    assert adapted.lines[0]["loss"] == pytest.approx(0.6931472, abs=1e-6)
    assert adapted.lines[-1]["loss"] < 0.6
    manifest = json.loads((adapted.output("adapter") / MANIFEST).read_text())
    assert manifest["meta"]["base"] == store.places["policy"].digest
    base, policy = (load_file(folder / "model.safetensors") for folder in (Path(store.places["policy"].path), adapted.output("policy")))
    moved = {name for name in base if not torch.equal(base[name], policy[name])}
    assert moved
    assert all("_proj" in name for name in moved)


def test_an_interrupted_lora_run_ends_in_the_same_bits(store: Store, adapted: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = dpo_spec(store, salt="usr1 lora", **LORA)
    first = signalled(store, spec, 4, monkeypatch)
    second = run_here(store, spec, n=2)
    assert (first.report.last_step, second.report.last_step) == (4, 10)
    assert curve(first, second) == curve(adapted)
    assert second.report.outputs == adapted.report.outputs


def test_with_every_pair_swapped_the_policy_moves_the_other_way(store: Store) -> None:
    preferences(store, "all swapped", swapped=range(80))
    plain, swapped = (run_here(store, dpo_spec(store, data=data, steps=2)) for data in ("preferences", "all swapped"))
    assert swapped.lines[0]["grad_norm"] == pytest.approx(plain.lines[0]["grad_norm"], rel=1e-4)
    assert swapped.lines[0]["loss"] == pytest.approx(plain.lines[0]["loss"], abs=1e-6)
    chosen, rejected = (line["reward_chosen"] for line in (plain.lines[1], swapped.lines[1]))
    assert swapped.lines[1]["loss"] < plain.lines[0]["loss"]
    assert chosen > 0
    assert rejected > 0


def test_a_policy_that_leaves_its_reference_behind_ends_the_run_under_its_name(store: Store) -> None:
    done = run_here(store, dpo_spec(store, guards={"kl_max": 1e-3, "consecutive": 2}), save_every_steps=1)
    assert (done.code, done.report.summary["guard"]) == (1, "kl_exploding")
    assert "nats an answer apart" in done.report.message
    assert (done.folder / "checkpoints" / f"step-{done.report.last_step}").is_dir()


def test_answers_that_the_reference_would_hardly_write_are_counted_and_warned_of(store: Store, adapted: Started) -> None:
    assert adapted.report.metrics["far_share"] < 0.1
    rows = []
    for first, second in sums()[:16]:
        sides = [candidate(store, "sha256:" + "0" * 64, text) for text in (f"{first} + {second} = {first + second}", "zq xv! kj? wy;")]
        made = pair(store, first, second, sides[0], sides[1])
        rows.append(SidedRow(made.pair_id, "train", f"{first}+{second}", "preference", made.to_json()))
    store.dataset("far pairs", "pair", rows)
    done = run_here(store, dpo_spec(store, data="far pairs", steps=2))
    assert done.report.metrics["far_share"] >= 0.5
    assert any(warning.startswith("far pairs: to a share of") for warning in done.report.summary["warnings"])


def test_a_dpo_loss_that_stays_at_ln_2_ends_the_run(store: Store) -> None:
    done = run_here(store, dpo_spec(store, learning_rate=1e-30, guards={"flat_steps": 4}))
    assert (done.code, done.report.summary["guard"]) == (1, "loss_never_moves")


@pytest.fixture(scope="module")
def far_apart(store: Store) -> dict[str, str]:
    """Inputs whose reference has learnt hardly anything, so that to the policy any answer, to whichever prompt, is likelier by far."""
    config = {"kind": "tiny", "file": "corpus.jsonl", "dtype": "float32", "tiny": {**TINY, "steps": 4, "max_length": 64}}
    made = run_here(store, store.spec("base_import", {"source": "source"}, config, salt="hardly learnt"))
    assert made.code == 0, made.report.message
    store.artifact("hardly learnt", made.output("base"))
    return {"policy": "policy", "reference": "hardly learnt", "preferences": "preferences"}


def test_kto_measures_its_reference_point_on_other_prompts_and_resumes_to_the_same_bits(
    store: Store, far_apart: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = run_here(store, store.spec("dpo", far_apart, {**KTO, "steps": 1}, salt="kto far apart"))
    assert apart.lines[0]["reference_point"] > 1.0
    whole = run_here(store, dpo_spec(store, loss="kto", steps=6, undesirable_weight=1.5, salt="kto whole"), save_every_steps=2)
    assert whole.code == 0, whole.report.message
    points = [line["reference_point"] for line in whole.lines]
    assert points[0] == pytest.approx(0.0, abs=1e-5)
    assert all(point >= 0.0 for point in points)
    cached = whole.report.summary["reference_cache"]
    assert cached["pairs_taken"] + cached["pairs_computed"] == 2 * (48 + 12), "each pair, and its prompt with other answers"
    assert "validation_loss" in whole.report.metrics
    assert any(said.startswith("kto: desirable_weight / undesirable_weight is 0.667") for said in whole.report.summary["warnings"])
    spec = dpo_spec(store, loss="kto", steps=6, undesirable_weight=1.5, salt="kto usr1")
    first = signalled(store, spec, 3, monkeypatch)
    second = run_here(store, spec, n=2)
    assert (first.report.last_step, second.report.last_step) == (3, 6)
    assert curve(first, second) == curve(whole)
    assert second.report.outputs == whole.report.outputs


def test_ktos_loss_does_not_hang_on_the_micro_batch(store: Store, far_apart: dict[str, str]) -> None:
    config = {**KTO, "learning_rate": 1e-4, "steps": 4}
    one, other = (run_here(store, store.spec("dpo", far_apart, config, salt=f"kto {size}"), micro_batch=size).lines for size in (8, 3))
    assert all(line["reference_point"] > 1.0 for line in one), "a point that stays at 0 would be the same however it is added up"
    for name in ("loss", "reference_point"):
        assert [line[name] for line in one] == to_rounding([line[name] for line in other], abs=1e-4), name
