"""States in every spelling that Slurm prints."""

from __future__ import annotations

import re

import pytest

from airflow_slurm.slurm.states import TABLE, Phase, parse_state

from .conftest import recorded
from .sites import VERSIONS


def test_the_user_who_cancelled_is_information_and_the_job_has_ended() -> None:
    state = parse_state("CANCELLED by 61017")
    assert (state.name, state.cancelled_by_uid, state.info.phase) == ("CANCELLED", 61017, Phase.FAILED)
    assert state.info.phase.ended


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("CANCELLED+", "CANCELLED"),
        ("OUT_OF_ME+", "OUT_OF_MEMORY"),
        ("NODE_FAI", "NODE_FAIL"),
        (" RUNNING ", "RUNNING"),
        ("completed", "COMPLETED"),
    ],
)
def test_a_state_cut_to_its_column_is_recognised(text: str, name: str) -> None:
    assert parse_state(text).name == name


@pytest.mark.parametrize("text", ["", "COMP", "REQUEUE", "SOMETHING_NEW", "CO+"])
def test_a_state_that_fits_none_or_several_is_unknown(text: str) -> None:
    assert parse_state(text).info.phase is Phase.UNKNOWN
    assert not parse_state(text).info.phase.ended


def test_a_job_that_is_still_completing_has_not_ended() -> None:
    assert parse_state("COMPLETED,COMPLETING").info.phase is Phase.ENDING


def test_a_harmless_flag_leaves_the_base_state() -> None:
    assert parse_state("RUNNING,SIGNALING").name == "RUNNING"


def test_only_completed_is_success() -> None:
    assert [name for name, info in TABLE.items() if info.phase is Phase.SUCCEEDED] == ["COMPLETED"]


def test_every_end_but_success_names_its_cause() -> None:
    assert [name for name, info in TABLE.items() if info.phase.ended and name != "COMPLETED" and not info.cause] == []


@pytest.mark.parametrize(
    ("name", "retryable", "may_return"),
    [
        ("PREEMPTED", True, True),
        ("NODE_FAIL", True, True),
        ("TIMEOUT", True, False),
        ("OUT_OF_MEMORY", False, False),
        ("CANCELLED", False, False),
    ],
)
def test_whether_another_try_makes_sense(name: str, retryable: bool, may_return: bool) -> None:
    assert (TABLE[name].retryable, TABLE[name].may_return) == (retryable, may_return)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_state_of_the_manual_pages_is_in_the_table(version: str) -> None:
    listed = re.findall(r"^ +[A-Z]{1,3}  *([A-Z_]{5,})  ", recorded(f"site_{version}/states.txt"), re.MULTILINE)
    assert len(set(listed)) >= 23
    assert [name for name in listed if name not in TABLE] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_every_flag_of_a_state_is_in_the_table(version: str) -> None:
    flags = recorded(f"site_{version}/state_flags.txt").replace(",", "").split()
    assert len(flags) >= 15
    assert [name for name in flags if name not in TABLE] == []


@pytest.mark.parametrize("name", sorted(TABLE))
def test_a_state_that_slurm_may_bring_back_is_worth_another_try(name: str) -> None:
    info = TABLE[name]
    assert not info.may_return or (info.retryable and info.phase is Phase.LOST)
    assert not info.retryable or info.cause
