"""A reward model that learns dimensions of the rubric beside the preference; without any, nothing is another."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from include.domain.parts import parts_of  # noqa: E402
from include.runtime.reward_model import output_sequences  # noqa: E402
from include.training.examples.batching import rows_at  # noqa: E402
from include.training.pairs.rows import TokenPair  # noqa: E402
from include.training.reward.dimension_report import HeldDimension, correlation  # noqa: E402
from include.training.reward.head import load_reward_model, new_reward_model  # noqa: E402
from tests.training.align_store import (  # noqa: E402
    REWARD,
    PlantedPair,
    aligned_store,
    curve,
    killed,
    planted_pairs,
    planted_scores,
    preferences,
    reward_spec,
    run_here,
    shared_root,
)
from tests.training.harness import Started, Store, sums  # noqa: E402
from tests.training.rounding import to_rounding  # noqa: E402

DIMENSIONS = ["clarity", "safety"]
LEARNT = {"data": "scored", "dimensions": DIMENSIONS}


def _late(first: int, second: int) -> dict[str, float]:
    """Of 60 pairs the held-out ones have a score for clarity, the others for safety."""
    return {"clarity" if sums().index((first, second)) >= 45 else "safety": 3.0}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = aligned_store(shared_root(tmp_path_factory))
    preferences(made, "scored", scored=planted_scores)
    preferences(made, "unscored", 60)
    preferences(made, "scored late", 60, scored=_late)
    return made


@pytest.fixture(scope="module")
def done(store: Store) -> Started:
    """Twelve steps, as those of the tests without dimensions."""
    return run_here(store, reward_spec(store, **LEARNT))


@pytest.fixture(scope="module")
def longer(store: Store) -> Started:
    early = {"every_steps": 20, "patience": 20}
    return run_here(store, reward_spec(store, **LEARNT, steps=60, dimension_weight=1.0, early_stop=early))


def _held(store: Store) -> list[PlantedPair]:
    return planted_pairs(store, "holdout")


def test_the_data_are_the_same_with_scores_and_so_is_their_content_hash(store: Store) -> None:
    assert store.places["scored"].digest == store.places["preferences"].digest
    assert store.places["scored"].artifact != store.places["preferences"].artifact


def test_the_first_steps_loss_and_gradient_equal_an_independent_computation(store: Store, done: Started) -> None:
    model = new_reward_model(Path(store.places["policy"].path), 5, dimensions=DIMENSIONS)
    pairs, preferred, squares = planted_pairs(store, "train"), [], []
    for index in rows_at(0, REWARD["global_batch"], len(pairs), 5):
        _, chosen, rejected, planted = pairs[index]
        good, bad = (model.score(model.model(torch.tensor([ids])).last_hidden_state[0, -1]) for ids in (chosen, rejected))
        preferred.append(torch.log1p(torch.exp(bad[0] - good[0])))
        squares += [(good[1 + DIMENSIONS.index(name)] - (score - 3) / 2) ** 2 for name, score in planted.items()]
    error = torch.stack(squares).mean()
    loss = torch.stack(preferred).mean() + 0.1 * error
    loss.backward()
    norm = torch.sqrt(sum((p.grad**2).sum() for p in model.parameters() if p.grad is not None))
    first = done.lines[0]
    assert first["dimension_scores"] == len(squares) < 2 * len(preferred), "not every pair has a score for clarity"
    assert first["dimension_loss"] == pytest.approx(float(error.detach()), abs=1e-6)
    assert first["loss"] == pytest.approx(float(loss.detach()), abs=1e-6)
    assert first["grad_norm"] == pytest.approx(float(norm), rel=1e-5)


def test_a_planted_dimension_is_foretold_better_than_by_the_training_mean(longer: Started) -> None:
    metrics = longer.report.metrics
    assert longer.code == 0
    assert metrics["holdout_dimension_clarity_error"] < 0.6 * metrics["holdout_dimension_clarity_baseline_error"]
    assert metrics["holdout_dimension_clarity_correlation"] > 0.7
    assert metrics["holdout_accuracy"] > 0.9, "the preference is learnt all the same"


def test_the_report_and_the_measurements_hold_the_pairs_that_have_a_score(store: Store, longer: Started) -> None:
    planted = {name: of["clarity"] for name, _, _, of in _held(store) if "clarity" in of}
    rows = {row["metric"]: row for row in json.loads((longer.output("measurements") / "measurements.json").read_text())["rows"]}
    model = load_reward_model(longer.output("reward_model"))
    said = output_sequences(model, [chosen for name, chosen, *_ in _held(store) if name in planted], 0)
    items = rows["dimension_error.clarity"]["items"]
    assert {item["id"] for item in items} == set(planted)
    assert [item["value"] for item in items] == pytest.approx(
        [abs(3 + 2 * outputs[1] - score) for outputs, score in zip(said, planted.values(), strict=True)], abs=1e-4
    )
    taught = [of["clarity"] for *_, of in planted_pairs(store, "train") if "clarity" in of]
    usual = sum(taught) / len(taught)
    baseline = [item["value"] for item in rows["dimension_baseline_error.clarity"]["items"]]
    assert baseline == pytest.approx([abs(usual - score) for score in planted.values()])
    told = longer.report.summary["holdout"]["dimensions"]
    assert told["clarity"]["scored"] == len(planted) < told["safety"]["scored"] == len(_held(store))
    assert told["clarity"]["error"] == pytest.approx(sum(item["value"] for item in items) / len(items))
    assert told["clarity"]["training_mean"] == pytest.approx(usual)
    assert "correlation" not in told["safety"], "scores that do not vary correlate with nothing"
    assert told["safety"]["baseline_error"] == 0


def test_micro_batches_of_any_size_have_the_losses_of_the_whole_step(store: Store, done: Started) -> None:
    for size in (1, 3):
        other = run_here(store, reward_spec(store, **LEARNT, steps=3, salt=f"micro {size}"), micro_batch=size)
        for name in ("loss", "dimension_loss", "dimension_scores", "grad_norm"):
            assert [line[name] for line in other.lines] == to_rounding([line[name] for line in done.lines[:3]], rel=1e-4), name


def test_two_ranks_have_the_losses_of_one(store: Store, done: Started) -> None:
    both = store.run_ranks(reward_spec(store, **LEARNT, steps=4, salt="two ranks"), 2, micro_batch=2)
    assert both.code == 0, both.stderr
    for name in ("loss", "dimension_loss", "dimension_scores"):
        assert [line[name] for line in both.lines] == to_rounding([line[name] for line in done.lines[:4]], rel=1e-4), name


def test_without_dimensions_scores_beside_the_pairs_change_no_bit(store: Store) -> None:
    plain, beside = (run_here(store, reward_spec(store, data=data, steps=4, salt=f"none of {data}")) for data in ("preferences", "scored"))
    assert curve(plain) == curve(beside)
    assert not {"dimension_loss", "dimension_scores"} & set(plain.lines[0])
    assert plain.report.outputs["reward_model"] == beside.report.outputs["reward_model"]
    assert json.loads((plain.output("reward_model") / "config.json").read_text())["id2label"] == {"0": "LABEL_0"}
    assert "dimensions" not in plain.report.summary["holdout"]


def test_the_preference_begins_as_it_does_alone_and_dimensions_in_the_middle_of_their_scale(store: Store) -> None:
    base = Path(store.places["policy"].path)
    alone, beside = new_reward_model(base, 1).score.weight, new_reward_model(base, 1, dimensions=DIMENSIONS).score.weight
    assert torch.equal(beside[:1], alone)
    assert not beside[1:].any()


def test_killed_between_two_saves_it_goes_on_to_the_same_bits(store: Store, done: Started) -> None:
    spec = reward_spec(store, **LEARNT, salt="killed")
    first = killed(store, spec, "recorded", 6, save_every_steps=2)
    assert first.code == -9
    second = run_here(store, spec, n=2, save_every_steps=2)
    assert second.report.first_step == 4
    assert curve(first, second) == curve(done)
    assert second.report.outputs["reward_model"] == done.report.outputs["reward_model"]


def test_an_ensembles_members_are_put_together_whether_trained_in_turn_or_apart(store: Store) -> None:
    whole, spec = (reward_spec(store, **LEARNT, seeds=[11, 12, 13], steps=3, salt=salt) for salt in ("in turn", "members"))
    in_turn, cut = run_here(store, whole), {"members": "array"}
    parts = parts_of(spec, cut)
    members = [run_here(store, part.spec) for part in parts]
    taken = {
        part.name: {"key": part.spec.key, "path": str(member.output("reward_model")), "artifact": member.report.outputs["reward_model"]}
        for part, member in zip(parts, members, strict=True)
    }
    joined = run_here(store, spec, **cut, taken=taken)
    assert joined.code == 0, joined.report.message
    assert joined.report.outputs == in_turn.report.outputs
    assert joined.report.summary["holdout"] == in_turn.report.summary["holdout"]
    assert joined.report.metrics["holdout_dimension_clarity_error"] > 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": "scored", "dimensions": ["grammar"]}, "grammar has 0 scores on 48 training pairs, .*: clarity \\d+, safety 48"),
        ({"data": "scored late", "dimensions": ["clarity"]}, "clarity has 0 scores on 36 training pairs"),
        ({"data": "unscored", "dimensions": ["clarity"]}, "asks for clarity, and the dataset has 0 scores"),
        ({"data": "scored", "dimensions": ["clarity", "clarity"]}, "give different names"),
        ({"data": "scored", "dimensions": ["preference"]}, "none of them preference"),
        ({"data": "scored", "dimensions": ["clarity"], "dimension_weight": 0}, "dimension_weight 0.0 must be above 0"),
        ({"data": "scored", "dimension_weight": 0.5}, "weighs config.dimensions, and there are none"),
    ],
)
def test_what_cannot_be_learnt_is_refused_before_the_first_step(store: Store, changes: dict[str, Any], words: str) -> None:
    refused = run_here(store, reward_spec(store, **changes, salt=words))
    assert (refused.code, refused.report.last_step) == (1, 0)
    assert re.search(words, refused.report.message), refused.report.message


def test_correlation_is_that_of_pearson_or_not_told() -> None:
    assert correlation([1, 2, 3, 5], [2, 4, 6, 10]) == pytest.approx(1.0)
    assert correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert correlation([1, 2, 3, 4], [1, 3, 2, 5]) == pytest.approx(5.5 / math.sqrt(5 * 8.75))
    assert correlation([4, 4, 4], [1, 2, 3]) is None
    assert correlation([1], [1]) is None


def test_a_dimension_without_a_held_out_score_says_so_and_nothing_else() -> None:
    assert HeldDimension("clarity", [], [], [], 3.5).figures == {"scored": 0.0}
    pair = TokenPair("a", "g", 1, (0, 1), (0, 2), 1.0, {}, ())
    assert HeldDimension("clarity", [pair], [4.0], [3.0], 2.0).figures == {"scored": 1.0, "error": 1.0, "baseline_error": 2.0}
