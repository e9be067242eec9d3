"""A policy that turns odd under a reward model that looks too good is warned of; neither alone is."""

import json
from pathlib import Path

from include.runtime.reward_stats import RewardNormaliser, RunningStats
from include.training.rl.oddness import Oddness, known_accuracies

FIRST = {"distinct_share": 0.9, "answer_tokens": 10.0, "cut_share": 0.1, "verified_share": 0.5, "kl": 1.0}


def _seen(**last: float) -> Oddness:
    oddness = Oddness()
    oddness.see(FIRST)
    oddness.see({**FIRST, **last})
    return oddness


def test_each_sign_is_named_with_both_figures() -> None:
    odd = _seen(distinct_share=0.3, answer_tokens=25.0, cut_share=0.6, verified_share=0.2)
    said = odd.warning([0.7, 0.78])
    assert said is not None
    for words in ("0.78", "0.90 → 0.30", "10.0 → 25.0", "0.10 → 0.60", "0.50 → 0.20"):
        assert words in said


def test_a_good_reward_model_with_sound_answers_and_a_modest_one_with_odd_answers_are_no_warning() -> None:
    assert _seen().warning([0.9]) is None
    assert _seen(answer_tokens=25.0).warning([0.75]) is None
    assert _seen(answer_tokens=25.0).warning([]) is None
    assert Oddness().signs() == []


def test_what_was_first_survives_a_checkpoint() -> None:
    again = Oddness()
    again.load_state(json.loads(json.dumps(_seen(answer_tokens=25.0).state())))
    again.see({**FIRST, "answer_tokens": 22.0})
    assert again.signs() == ["answers become long (10.0 → 22.0 tokens)"]


def test_a_reward_models_folder_states_its_accuracy_and_older_ones_state_none(tmp_path: Path) -> None:
    normaliser = RewardNormaliser(RunningStats.of([1.0, 2.0]))
    for name, also in (("old", None), ("new", {"validation_accuracy": 0.8})):
        (tmp_path / name).mkdir()
        normaliser.write(tmp_path / name, also)
        assert RewardNormaliser.read(tmp_path / name).stats.mean == 1.5
    assert known_accuracies([tmp_path / "old", tmp_path / "new"]) == [0.8]
