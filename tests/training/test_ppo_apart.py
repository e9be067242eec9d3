"""PPO's usual way: generators beside the trainer, each iteration by a version that is known beforehand. Whatever happens to them, the bits are the same."""

from collections.abc import Mapping
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from include.domain.errors import SpecError  # noqa: E402
from include.runtime.settings import Settings  # noqa: E402
from include.training.rl import apart, generators  # noqa: E402
from include.training.rl.settings import LagSettings  # noqa: E402
from tests.training.align_store import (  # noqa: E402
    curve,
    hardly_learnt_store,
    killed,
    ppo_spec,
    rollouts_of,
    run_here,
    signalled,
    weights_of,
)
from tests.training.harness import Started, Store  # noqa: E402

COUNT = 4 * 12
PORTIONS = {"generation_batch": 4}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return hardly_learnt_store(tmp_path_factory.mktemp("apart"))


@pytest.fixture(scope="module")
def plain(store: Store) -> Started:
    started = run_here(store, ppo_spec(store, salt="plain", generation="apart"), **PORTIONS)
    assert started.code == 0, started.report.message
    return started


def _apart(store: Store, salt: str, config: Mapping[str, Any] | None = None, **settings: Any) -> Started:
    return run_here(store, ppo_spec(store, salt=salt, generation="apart", **(config or {})), **(PORTIONS | settings))


def _versions(started: Started) -> list[int]:
    return [row["actor_checkpoint"]["published_version"] for row in rollouts_of(started)]


def _same(one: Started, other: Started) -> bool:
    return (weights_of(one), curve(one), rollouts_of(one)) == (weights_of(other), curve(other), rollouts_of(other))


def test_each_iteration_is_drawn_by_the_version_behind_it(store: Store, plain: Started) -> None:
    assert _versions(plain) == [0] * 12 + [0] * 12 + [1] * 12 + [2] * 12
    assert [line["policy_lag_max"] for line in plain.lines] == [0.0, 1.0, 1.0, 1.0]
    metrics = plain.report.metrics
    assert metrics["rollouts_count"] == metrics["rollouts_expected"] == COUNT
    assert (metrics["answers_dropped"], metrics["answers_made_again"], metrics["answers_kept_old"]) == (0, 0, 0)
    assert max(line["behaviour_ratio_gap"] for line in plain.lines[1:]) < 1e-4
    assert all(0 < line["importance_weight"] <= 2 for line in plain.lines[1:])
    assert len({row["actor_checkpoint"]["digest"] for row in rollouts_of(plain)}) == 3
    assert not (plain.folder / "exchange").exists()


def test_the_kl_is_that_of_the_version_that_drew(plain: Started) -> None:
    """The reference itself drew the second batch too; the present actor's log-probabilities of it would say −KL(reference ‖ actor)."""
    kl = [line["kl"] for line in plain.lines]
    assert kl[:2] == pytest.approx([0.0, 0.0], abs=1e-5)
    assert kl[2] > 1e-3
    entropy = [line["entropy"] for line in plain.lines]
    rows = rollouts_of(plain)
    batches = [[value for row in rows[first : first + 12] for value in row["token_log_probs"]] for first in range(0, COUNT, 12)]
    assert entropy == pytest.approx([-sum(batch) / len(batch) for batch in batches], abs=1e-4)


def test_several_generators_draw_the_same_answers(store: Store, plain: Started) -> None:
    several = _apart(store, "three of them", generators=3)
    assert several.code == 0, several.report.message
    assert _same(several, plain)


@pytest.mark.parametrize("trouble", ["die-once 2 1", "hang-once 1 0"])
def test_a_generator_that_dies_or_hangs_is_started_again_and_draws_the_same(
    store: Store, plain: Started, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    monkeypatch.setattr(generators, "GENERATOR", "tests.training.slow_generator")
    monkeypatch.setenv("ALIGN_TEST_GENERATOR", trouble)
    lag = {"lag": {"wait_s": 5.0}} if trouble.startswith("hang") else {}
    started = _apart(store, trouble, lag)
    assert started.code == 0, started.report.message
    assert sum("is started again" in words for words in started.report.summary["warnings"]) >= 1
    assert _same(started, plain)


@pytest.mark.slow
def test_a_generator_that_has_drawn_its_last_answers_is_not_taken_for_dead(
    store: Store, plain: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generators, "GENERATOR", "tests.training.slow_generator")
    monkeypatch.setenv("ALIGN_TEST_GENERATOR", "hang-once 3 0")
    started = _apart(store, "the last is late", {"lag": {"wait_s": 8.0}}, generators=3)
    assert started.code == 0, started.report.message
    assert len([words for words in started.report.summary["warnings"] if "is started again" in words]) == 1
    assert _same(started, plain)


def test_generators_that_die_each_time_end_the_run_and_the_last_checkpoint_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generators, "GENERATOR", "tests.training.slow_generator")
    monkeypatch.setenv("ALIGN_TEST_GENERATOR", "die 2")
    monkeypatch.setattr(apart, "RESTARTS", 1)
    started = _apart(store, "dies each time", save_every_steps=1)
    assert started.code == 1
    assert "ended with code 3, after 1 new starts" in started.report.message
    assert max(int(path.name.removeprefix("step-")) for path in (started.folder / "checkpoints").glob("step-*")) == 2
    monkeypatch.setenv("ALIGN_TEST_GENERATOR", "none")
    second = run_here(store, ppo_spec(store, salt="dies each time", generation="apart"), 2, **PORTIONS)
    assert (second.code, second.report.first_step) == (0, 2), second.report.message


@pytest.mark.parametrize("limit", [pytest.param(0, marks=pytest.mark.slow), 1, pytest.param(3, marks=pytest.mark.slow)])
def test_after_a_death_a_new_attempt_draws_by_the_versions_that_were_due(store: Store, limit: int) -> None:
    config = {"generation": "apart", "lag": {"limit": limit}, "iterations": 6}
    whole = run_here(store, ppo_spec(store, salt=f"limit {limit} in one go", **config), **PORTIONS)
    assert _versions(whole) == [max(0, k - limit) for k in range(6) for _ in range(12)]
    spec = ppo_spec(store, salt=f"limit {limit}", **config)
    first = killed(store, spec, "recorded", 5, save_every_steps=2, **PORTIONS)
    second = run_here(store, spec, 2, save_every_steps=2, **PORTIONS)
    assert (first.code, second.code, second.report.first_step) == (-9, 0, 4), second.report.message
    assert weights_of(second) == weights_of(whole)
    assert rollouts_of(second) == rollouts_of(whole)


@pytest.mark.slow
def test_a_signal_before_anything_is_drawn_keeps_the_versions_that_are_due(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"generation": "apart", "iterations": 5}
    whole = run_here(store, ppo_spec(store, salt="unwarned", **config), **PORTIONS)
    spec = ppo_spec(store, salt="warned", **config)
    first = signalled(store, spec, 2, monkeypatch, save_every_steps=9, **PORTIONS)
    second = signalled(store, spec, 3, monkeypatch, 2, save_every_steps=9, **PORTIONS)
    third = run_here(store, spec, 3, **PORTIONS)
    assert (first.code, second.code, third.code, third.report.first_step) == (75, 75, 0, 3), third.report.message
    assert weights_of(third) == weights_of(whole)


@pytest.mark.parametrize("lag", [{"ahead": 2}, {"too_old": "weight"}])
def test_what_only_a_generator_by_the_clock_has_is_refused(lag: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"config\.lag: with generation apart"):
        LagSettings.of(Settings({"generation": "apart", "lag": lag}, "config"))
