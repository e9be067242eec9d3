"""The order of examples: by step alone, in the wanted shares, within the caps."""

import pytest

from include.domain.errors import SpecError
from include.runtime.settings import Settings
from include.training.examples.batching import rows_at
from include.training.examples.example_order import ExampleOrder, Part, mixture_parts

OWN, OTHER = Part("demonstrations", 30, 3.0), Part("demonstrations_1", 8, 1.0)


def _drawn(order: ExampleOrder, steps: int) -> list[int]:
    return [example for step in range(steps) for example in order.of_step(step)]


def test_one_data_set_is_drawn_as_before_there_were_mixtures() -> None:
    order = ExampleOrder([Part("demonstrations", 30)], 6, 8, seed=3)
    assert [order.of_step(step) for step in range(6)] == [rows_at(step, 8, 30, 3) for step in range(6)]
    assert order.shares() == {}


def test_a_mixture_has_its_shares_in_every_step() -> None:
    order = ExampleOrder([OWN, OTHER], 10, 8, seed=3, mixture_seed=5)
    for step in range(10):
        assert sum(example >= 30 for example in order.of_step(step)) == 2
    assert order.shares()["share_demonstrations"] == 0.75
    assert order.shares()["epochs_demonstrations_1"] == 20 / 8


def test_every_row_of_a_part_is_seen_before_one_is_seen_again() -> None:
    drawn = _drawn(ExampleOrder([OWN, OTHER], 10, 8, seed=3, mixture_seed=5), 10)
    others = [example for example in drawn if example >= 30]
    assert sorted(others[:8]) == sorted(others[8:16]) == list(range(30, 38))
    assert others[:8] != others[8:16]


def test_the_mixtures_seed_gives_another_order_and_the_same_one_again() -> None:
    first, again, other = (ExampleOrder([OWN, OTHER], 4, 8, seed=3, mixture_seed=seed) for seed in (5, 5, 6))
    assert _drawn(first, 4) == _drawn(again, 4) != _drawn(other, 4)


def test_a_part_that_has_given_all_it_may_leaves_its_share_to_the_others() -> None:
    order = ExampleOrder([OWN, Part("demonstrations_1", 8, 1.0, max_epochs=0.5)], 10, 8, seed=3, mixture_seed=5)
    drawn = _drawn(order, 10)
    assert sum(example >= 30 for example in drawn) == 4
    assert order.shares()["epochs_demonstrations_1"] == 0.5


def test_more_examples_than_the_caps_allow_are_refused_with_the_numbers() -> None:
    parts = [Part("demonstrations", 30, 1.0, 2.0), Part("demonstrations_1", 8, 1.0, 1.0)]
    with pytest.raises(SpecError, match=r"80 examples are needed, its caps allow demonstrations 60, demonstrations_1 8"):
        ExampleOrder(parts, 10, 8, seed=3, mixture_seed=5)


def test_a_window_holds_the_examples_it_would_have_had_sorted_into_batches_of_like_length() -> None:
    order = ExampleOrder([Part("demonstrations", 64)], 7, 8, seed=3)
    batches = [order.of_step_by_length(step, 4, lambda example: example % 16) for step in range(7)]
    assert sorted(example for batch in batches[:4] for example in batch) == sorted(_drawn(order, 4))
    assert sorted(example for batch in batches[4:] for example in batch) == sorted(e for step in (4, 5, 6) for e in order.of_step(step))
    assert max(max(e % 16 for e in batch) - min(e % 16 for e in batch) for batch in batches[:4]) <= 5
    late = ExampleOrder([Part("demonstrations", 64)], 7, 8, seed=3)
    assert late.of_step_by_length(6, 4, lambda example: example % 16) == batches[6]


def _config(parts: object) -> Settings:
    return Settings({"mixture": {"parts": parts, "seed": 9}}, "config")


def test_a_mixture_is_read_from_the_configuration() -> None:
    listed = [{"input": "demonstrations", "weight": 3}, {"input": "demonstrations_1", "weight": 1, "max_epochs": 2}]
    parts, seed = mixture_parts(_config(listed), {"demonstrations": 30, "demonstrations_1": 8})
    assert parts == [Part("demonstrations", 30, 3.0), Part("demonstrations_1", 8, 1.0, 2.0)]
    assert seed == 9


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ([], "expected 1 to 255 parts"),
        ([{"input": "demonstrations"}], "the run's data sets are demonstrations, demonstrations_1, each wanted once"),
        ([{"input": "elsewhere"}], r"parts\[0\].input is 'elsewhere', expected one of demonstrations, demonstrations_1"),
        ([{"input": "demonstrations", "weight": 0}], "must be above 0"),
        ([{"input": "demonstrations", "share": 1}], r"parts\[0\].share is not a setting"),
        (["demonstrations"], "expected input, weight and max_epochs"),
    ],
)
def test_a_mixture_that_does_not_fit_the_run_is_refused(listed: object, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        mixture_parts(_config(listed), {"demonstrations": 30, "demonstrations_1": 8})
