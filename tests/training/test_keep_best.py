"""`keep_best`: the checkpoint with the best validation figure outlives the newer ones, and nothing else of the run changes."""

from typing import Any

import pytest

pytest.importorskip("torch")

from include.training.validation import BestState
from tests.training.align_store import aligned_store, preferences, reward_spec, run_here, shared_root
from tests.training.harness import SFT, Started, Store, demonstrations

LOOKS = {"early_stop": {"every_steps": 1, "patience": 99}}
INPUTS = {"base": "policy", "demonstrations": "demonstrations"}
PLACED: dict[str, Any] = {"save_every_steps": 1, "keep_checkpoints": 1}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = aligned_store(shared_root(tmp_path_factory))
    demonstrations(made)
    return made


def _left(started: Started) -> set[int]:
    assert started.code == 0, started.report.message
    return {int(path.name.removeprefix("step-")) for path in (started.folder / "checkpoints").iterdir()}


def test_of_sft_the_best_so_far_stay_beside_the_latest(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # Which looks are better is given, as what a tiny model learns hangs on the CPU's rounding.
    losses, look = {1: 4.0, 2: 2.0, 3: 3.0, 4: 1.0, 5: 1.5}, BestState.look

    def given(self: BestState, step: int, module: Any, weights: Any) -> None:
        self.loss_of = lambda _: losses[step]
        look(self, step, module, weights)

    monkeypatch.setattr(BestState, "look", given)
    plain, one, two = (
        run_here(store, store.spec("sft", INPUTS, {**SFT, **LOOKS, "steps": 5}, salt=f"best {kept}"), 1, **PLACED, keep_best=kept)
        for kept in (0, 1, 2)
    )
    assert [line["validation_loss"] for line in plain.lines] == list(losses.values())
    assert [_left(started) for started in (plain, one, two)] == [{5}, {4, 5}, {2, 4, 5}]
    assert one.report.outputs == two.report.outputs == plain.report.outputs


def test_of_a_reward_model_too(store: Store) -> None:
    changes: dict[str, Any] = {"early_stop": {"every_steps": 1, "patience": 99}, "steps": 6}
    # Validation pairs prefer the other side: the more is learnt, the worse it gets.
    preferences(store, "contradicted", swapped=range(48, 60))
    changes["data"] = "contradicted"
    plain = run_here(store, reward_spec(store, salt="best", **changes), 1, **PLACED)
    best = int(plain.report.summary["best_step"])
    kept = run_here(store, reward_spec(store, salt="best, kept", **changes), 1, **PLACED, keep_best=1)
    assert _left(plain) == {6}
    assert best < 6, "the best is an earlier one"
    assert _left(kept) == {best, 6}
    assert kept.report.outputs == plain.report.outputs


def test_a_member_that_is_done_is_kept_whatever_its_own_best_were(store: Store) -> None:
    changes: dict[str, Any] = {"early_stop": {"every_steps": 1, "patience": 99}, "steps": 3, "seeds": [11, 12, 13]}
    started = run_here(store, reward_spec(store, salt="members kept", **changes), 1, **PLACED, keep_best=3)
    assert _left(started) == {3, 6, 9}
