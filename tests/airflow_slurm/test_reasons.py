"""Why a job waits: every reason of two Slurm versions is in the table, and only those that never clear end a wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_slurm.slurm.parse import queue_rows
from airflow_slurm.slurm.reasons import TABLE, Clears, explain, in_words
from airflow_slurm.slurm.states import Phase

from .conftest import recorded
from .sites import VERSIONS

BOTH = pytest.mark.parametrize("version", VERSIONS)
#: In the library these stand elsewhere, as they are words of other tables too (job_reason_codes of Slurm's documentation).
ELSEWHERE = (
    "None", "Prolog", "Priority", "Dependency", "Resources", "Licenses", "Reservation", "TimeLimit", "InactiveLimit", "RaisedSignal",
    "AssocMaxWallDurationPerJobLimit", "Constraints", "WaitingForScheduling",
)  # fmt: skip


@BOTH
def test_every_reason_of_the_version_is_known(version: str) -> None:
    names = [*recorded(f"site_{version}/reasons.txt").split(), *ELSEWHERE]
    assert len(names) > 190
    assert [name for name in names if explain(name).clears is Clears.UNKNOWN] == []


@pytest.mark.parametrize(
    "reason",
    [
        "BadConstraints", "PartitionTimeLimit", "PartitionNodeLimit", "InvalidQOS", "InvalidAccount", "DependencyNeverSatisfied",
        "QOSMaxWallDurationPerJobLimit", "QOSMaxGRESPerJob", "AssocMaxCpuPerJobLimit", "QOSMaxMemoryPerNode", "QOSMinGRES", "MaxMemPerLimit",
        "QOSMinCpuNotSatisfied",
    ],
)  # fmt: skip
def test_what_never_clears(reason: str) -> None:
    assert explain(reason).hopeless


@pytest.mark.parametrize(
    "reason",
    [
        "Priority", "Resources", "AssocMaxJobsLimit", "QOSMaxJobsPerUserLimit", "QOSMaxGRESPerUser", "MaxGRESPerAccount", "QOSGrpGRES",
        "ReqNodeNotAvail, UnavailableNodes:n[1-3]", "AssocGrpCPURunMinutesLimit", "QOSMaxSubmitJobPerUserLimit", "MaxSubmitJobsPerAccount",
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
        "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions", "MaxCpuRunMinsPerUser", "",
    ],
)  # fmt: skip
def test_what_clears_by_itself(reason: str) -> None:
    assert explain(reason).clears is Clears.ITSELF


@pytest.mark.parametrize(
    "reason",
    ["JobHeldUser", "JobHeldAdmin", "PartitionDown", "AssocGrpCPUMinutesLimit", "launch failed requeued held", "ReservationDeleted"],
)
def test_what_somebody_has_to_clear(reason: str) -> None:
    assert explain(reason).clears is Clears.OPERATOR


def test_a_reason_that_is_also_shown_while_nodes_are_down_is_believed_later() -> None:
    assert explain("PartitionNodeLimit").confirm_s >= 300
    assert explain("BadConstraints").confirm_s == 0


@given(st.text())
def test_no_text_is_hopeless_unless_it_names_a_reason(text: str) -> None:
    if explain(text).hopeless:
        assert any(name.strip("*").partition("*")[0] in text.replace("_", " ") for name, row in TABLE if row.hopeless)


@BOTH
def test_recorded_waiting_jobs_are_judged_by_their_reason(version: str) -> None:
    rows = {row.name: row for row in queue_rows(recorded(f"site_{version}/squeue.txt")) if row.state.info.phase is Phase.WAITING}
    hopeless = {name for name, row in rows.items() if explain(row.reason).hopeless}
    assert hopeless == {"never", "too_long", "too_wide"}
    assert {"licence_2", "qos_2", "held", "later", "closed", "shards"} <= set(rows) - hopeless


def test_words_for_a_log() -> None:
    assert in_words("Licenses") == "the licences are in use; clears by itself"
    assert in_words("BadConstraints") == "no set of nodes fits what it asks for; never clears"
    assert in_words("JobHeldAdmin") == "an administrator holds it; clears by a person"
    assert in_words("None") == in_words("") == in_words("SomethingNew") == ""
