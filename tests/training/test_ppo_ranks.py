"""PPO on two ranks: the answers, figures and statistics of one rank, guards over both, and exact after a death."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")


from include.runtime.pieces import Stored
from include.training.rl.weights_digest import weights_digest
from tests.training.align_store import PPO, curve, ppo_spec, rewarded_store, rollouts_of, run_here, shared_root, weights_of
from tests.training.harness import Started, Store
from tests.training.resume_matrix import outcomes
from tests.training.resume_matrix_cells import Cell

SMALL = {"iterations": 3, "prompts_per_iteration": 8, "minibatch": 4}
FIGURES = ("kl", "policy_loss", "value_loss", "score", "entropy", "ratio", "actor_gradient_norm", "critic_gradient_norm", "value_explained")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return rewarded_store(shared_root(tmp_path_factory))


@pytest.fixture(scope="module")
def alone(store: Store) -> Started:
    """On one rank."""
    done = run_here(store, ppo_spec(store, salt="alone", **SMALL))
    assert done.code == 0, done.report.message
    return done


@pytest.mark.parametrize("stage", [0, 2])
def test_two_ranks_that_learn_from_their_first_passes_change_no_bit(store: Store, stage: int) -> None:
    twice, reused = (
        store.run_ranks(ppo_spec(store, salt=f"first passes {reuse}", zero_stage=stage, **SMALL), 2, reuse_first_pass=reuse, micro_batch=1)
        for reuse in (False, True)
    )
    assert reused.code == 0, reused.stderr
    assert weights_of(reused) == weights_of(twice)
    assert curve(reused) == curve(twice)


def _saved(started: Started) -> dict[str, Any]:
    """The trainer's own state in the last checkpoint."""
    path = started.folder / "checkpoints" / f"step-{started.report.last_step}" / "state.json"
    state: dict[str, Any] = json.loads(path.read_text())["program"]
    return state


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_two_ranks_draw_the_answers_of_one_and_learn_the_same(store: Store, alone: Started, stage: int) -> None:
    two = store.run_ranks(ppo_spec(store, salt="on two", zero_stage=stage, **SMALL), 2, save_every_steps=1)
    assert two.code == 0, two.stderr
    ours, theirs = rollouts_of(two), rollouts_of(alone)
    assert [(row["prompt_id"], row["tokens"]) for row in ours] == [(row["prompt_id"], row["tokens"]) for row in theirs]
    for line, other in zip(two.lines, alone.lines, strict=True):
        assert {name: line[name] for name in FIGURES} == pytest.approx({name: other[name] for name in FIGURES}, rel=1e-3, abs=1e-4)
        assert line["first_ratio_gap"] < 1e-6
    assert [line["tokens"] for line in two.lines] == [line["tokens"] for line in alone.lines]
    assert two.report.summary["ranks"] == 2
    assert two.report.metrics["rollouts_count"] == two.report.metrics["rollouts_expected"] == 3 * 8
    mine, other = (_saved(started)["normalisers"]["reward_model"] for started in (two, alone))
    assert mine["count"] == other["count"]
    assert (mine["mean"], mine["squares"]) == pytest.approx((other["mean"], other["squares"]), rel=1e-6)
    saved = Stored(two.folder / "checkpoints" / "step-2", "actor.model")
    named = weights_digest({name.removeprefix("model."): value for name, value in saved.items()})
    assert {row["actor_checkpoint"]["digest"] for row in ours[-8:]} == {named}
    shards = json.loads((two.output("rollouts") / "rollouts.json").read_text())["iterations"]
    assert [(shard["iteration"], shard["expected"], shard["count"]) for shard in shards] == [(1, 8, 8), (2, 8, 8), (3, 8, 8)]


@pytest.mark.parametrize(
    ("stage", "moments"), [pytest.param(0, ("update", "generating"), marks=pytest.mark.slow), (3, ("generating", "export"))]
)
def test_after_a_death_two_ranks_go_on_to_the_same_bits(store: Store, stage: int, moments: tuple[str, ...]) -> None:
    seen = list(outcomes(store, Cell("ppo", 2, stage), {**PPO, **SMALL}, moments))
    assert [(outcome.moment, outcome.exact) for outcome in seen] == [(moment, True) for moment in moments]
    assert [outcome.resumed_at for outcome in seen] == [8 if moment == "export" else 3 for moment in moments]


def test_what_two_ranks_began_one_ends_with_the_figures_of_one(store: Store) -> None:
    one, two = Cell("ppo", 1, 3), Cell("ppo", 2, 3)
    config = {**PPO, **SMALL}
    whole = one.run(store, one.spec(store, config, "ppo on one rank, in one go"))
    spec = one.spec(store, config, "ppo on two ranks, then one")
    two.run(store, spec, 1, "after-rename")
    rest = one.run(store, spec, 2)
    assert (rest.code, rest.report.first_step) == (0, 3), rest.stderr
    for line, other in zip(rest.lines, whole.lines[3:], strict=True):
        assert {name: line[name] for name in FIGURES} == pytest.approx({name: other[name] for name in FIGURES}, rel=1e-3, abs=1e-4)


def test_a_first_ratio_away_from_one_on_any_rank_stops_all(store: Store) -> None:
    spec = ppo_spec(store, salt="odd on one rank", **SMALL)
    stopped = store.run_ranks(spec, 2, 1, {1: [str(Path(__file__).with_name("odd_ratios.py")), spec.program]})
    assert (stopped.code, stopped.report.stop_reason, stopped.report.last_step) == (1, "guard", 0), stopped.stderr
    assert stopped.report.summary["guard"] == "ratio_at_lag_0"
    assert "is 0.5" in stopped.report.message


def test_a_minibatch_that_the_ranks_cannot_share_equally_is_refused(store: Store) -> None:
    refused = store.run_ranks(ppo_spec(store, **{**SMALL, "minibatch": 1}), 2)
    assert refused.code == 1
    assert "config.minibatch 1 cannot be shared equally by 2 ranks" in refused.report.message


def test_two_ranks_share_what_one_generator_draws_for_both(store: Store) -> None:
    spec = ppo_spec(store, salt="beside two", generation="own_process", lag={"limit": 1}, zero_stage=3, **SMALL)
    done = store.run_ranks(spec, 2, generation_batch=3)
    assert done.code == 0, done.stderr
    assert done.report.metrics["rollouts_count"] == 3 * 8
    assert max(line["policy_lag_max"] for line in done.lines) <= 1
    assert [row["actor_checkpoint"]["published_version"] for row in rollouts_of(done)[:8]] == [0] * 8
    assert all(line.get("behaviour_ratio_gap", 0.0) < 1e-4 for line in done.lines)
    assert not (done.folder / "exchange").exists()
