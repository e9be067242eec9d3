"""Which state of the chain a run of a phase takes."""

from __future__ import annotations

from typing import Any

import pytest

from include.flows.errors import FlowError
from include.flows.phases import asked_for_by, choose, newest_by_recipe


def state(recipe: str, number: int) -> dict[str, Any]:
    return {"run": {"recipe": recipe}, "sft": number}


def test_of_several_events_the_newest_of_each_recipe_counts() -> None:
    events = [state("tiny", 1), state("quickstart", 2), state("tiny", 3)]
    assert newest_by_recipe(events) == [state("quickstart", 2), state("tiny", 3)]
    assert newest_by_recipe([]) == []


def test_a_state_in_the_configuration_comes_before_everything() -> None:
    chosen = choose({"state": state("tiny", 9), "recipe": "quickstart"}, [state("tiny", 1)], [state("tiny", 2)], "sft")
    assert chosen == [state("tiny", 9)]


def test_events_that_triggered_the_run_come_before_older_ones() -> None:
    triggering = [state("tiny", 1), state("quickstart", 2), state("tiny", 3)]
    assert choose({}, triggering, [state("tiny", 0)], "sft") == [state("quickstart", 2), state("tiny", 3)]


def test_by_hand_the_newest_of_the_recipe_is_taken_or_the_newest_of_all() -> None:
    known = [state("tiny", 1), state("quickstart", 2), state("tiny", 3), state("quickstart", 4)]
    assert choose({"recipe": "tiny"}, [], known, "sft") == [state("tiny", 3)]
    assert choose({"recipe": None}, [], known, "sft") == [state("quickstart", 4)]


def test_where_there_is_nothing_to_start_from_the_run_says_what_is_missing() -> None:
    with pytest.raises(FlowError, match="no alignment_sft yet of recipe tiny"):
        choose({"recipe": "tiny"}, [], [state("quickstart", 2)], "alignment_sft")
    with pytest.raises(FlowError, match="no alignment_sft yet: run the DAG before this one first"):
        choose({}, [], [], "alignment_sft")


def test_a_run_never_changes_the_state_it_was_given() -> None:
    given = state("tiny", 9)
    choose({"state": given}, [], [], "sft")[0]["sft"] = 0
    assert given == state("tiny", 9)


def test_who_starts_a_phase_by_hand_is_the_one_who_asks_and_who_asked_before_still_is() -> None:
    run = {"recipe": "tiny", "requested_by": "ada", "ask_again": True}
    assert asked_for_by(run, None) == run
    assert asked_for_by(run, "ada") == run
    by_ben = asked_for_by(run, "ben")
    assert (by_ben["requested_by"], by_ben["also_requested_by"]) == ("ben", ["ada"])
    by_ada_again = asked_for_by(by_ben, "ada")
    assert (by_ada_again["requested_by"], by_ada_again["also_requested_by"]) == ("ada", ["ben"])
