"""The same last line ends a submission that may be tried again, and one that never may."""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_slurm import errors
from airflow_slurm.slurm.failures import query_failure, says_error, submission_failure, words_of

from .conftest import recorded
from .sites import VERSIONS

POLICY = (
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)\n"
)


@pytest.mark.parametrize(
    "limit", ["QOSMaxSubmitJobPerUserLimit", "AssocMaxSubmitJobLimit", "QOSGrpSubmitJobsLimit", "AssocGrpSubmitJobsLimit"]
)
def test_a_full_queue_is_waited_for(limit: str) -> None:
    error = submission_failure(f"sbatch: error: {limit}\n{POLICY}", 1)
    assert isinstance(error, errors.SubmitBusy)
    assert limit in str(error)
    assert not isinstance(error, AirflowFailException)


@pytest.mark.parametrize("limit", ["QOSMaxWallDurationPerJobLimit", "QOSMaxCpuPerJobLimit", "AssocMaxNodePerJobLimit"])
def test_a_request_that_is_too_big_fails_for_good(limit: str) -> None:
    error = submission_failure(f"sbatch: error: {limit}\n{POLICY}", 1)
    assert isinstance(error, errors.SubmitRefused)
    assert isinstance(error, AirflowFailException)
    assert limit in str(error)


@pytest.mark.parametrize(
    ("name", "code", "quoted"),
    [
        ("account", 1, "Invalid account or account/partition combination specified"),
        ("partition", 1, "Invalid partition name specified"),
        ("qos", 1, "Invalid qos specification"),
        ("constraint", 1, "Invalid feature specification"),
        ("time_text", 255, "Invalid --time specification"),
        ("option", 255, "unrecognized option '--no-such-option'"),
    ],
)
def test_recorded_refusals_are_final_and_quoted(name: str, code: int, quoted: str) -> None:
    error = submission_failure(recorded(f"sbatch_{name}.stderr.txt"), code)
    assert isinstance(error, errors.SubmitRefused)
    assert quoted in error.words


@pytest.mark.parametrize("version", VERSIONS)
def test_a_recorded_full_queue_is_waited_for(version: str) -> None:
    error = submission_failure(recorded(f"site_{version}/sbatch_qos_full.stderr.txt"), 1)
    assert isinstance(error, errors.SubmitBusy)
    assert "QOSMaxSubmitJobPerUserLimit" in str(error)


def test_a_recorded_request_beyond_its_qos_is_final_though_it_ends_in_the_same_line() -> None:
    too_big = recorded("sbatch_qos_too_big.stderr.txt")
    assert too_big.splitlines()[-1] == recorded("site_22.05/sbatch_qos_full.stderr.txt").splitlines()[-1]
    error = submission_failure(too_big, 1)
    assert isinstance(error, errors.SubmitRefused)
    assert "QOSMaxGRESPerJob" in error.words


def test_a_controller_whose_disk_takes_no_script_now_is_waited_for() -> None:
    error = submission_failure("sbatch: error: Batch job submission failed: I/O error writing script/environment to file\n", 1)
    assert isinstance(error, errors.SubmitBusy)


@pytest.mark.parametrize(
    ("stderr", "said"),
    [
        (recorded("squeue_controller_down.stderr.txt"), True),
        ("squeue: error: Invalid user: nobody\n", True),
        ("welcomesqueue: error: Unable to contact slurm controller\n", True),
        ("conda: error: no environment\nmodule load cuda\n", False),
        ("last error: none\n", False),
        ("", False),
    ],
)
def test_what_start_up_files_print_is_no_error_of_slurms(stderr: str, said: bool) -> None:
    assert says_error(stderr) is said


def test_a_missing_command_is_final() -> None:
    assert isinstance(submission_failure("/bin/sh: 1: sbatch: not found\n", 127), errors.SubmitRefused)


@pytest.mark.parametrize(
    "stderr",
    [
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n",
        "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received\n",
        "sbatch: error: Batch job submission failed: Protocol authentication error\n",
        "Killed\n",
        "",
    ],
)
def test_when_the_job_may_be_queued_the_answer_is_lost(stderr: str) -> None:
    assert isinstance(submission_failure(stderr, 1), errors.AnswerLost)


def test_recorded_answers_without_a_controller() -> None:
    assert isinstance(submission_failure(recorded("sbatch_controller_down.stderr.txt"), 1), errors.AnswerLost)
    assert isinstance(query_failure("squeue", recorded("squeue_controller_down.stderr.txt"), 1), errors.ControllerUnreachable)
    assert isinstance(query_failure("scancel", recorded("scancel_controller_down.stderr.txt"), 8), errors.ControllerUnreachable)


def test_recorded_answer_without_a_database() -> None:
    assert isinstance(query_failure("sacct", recorded("sacct_database_down.stderr.txt"), 1), errors.AccountingUnreachable)


def test_accounting_that_is_switched_off_is_not_an_outage() -> None:
    assert isinstance(query_failure("sacct", "Slurm accounting storage is disabled\n", 1), errors.AccountingDisabled)


def test_other_refusals_keep_slurms_words() -> None:
    error = query_failure("scontrol", "scontrol: error: Access/permission denied for job 12\n", 1)
    assert isinstance(error, errors.CommandRefused)
    assert error.words == "Access/permission denied for job 12"


def test_a_banner_on_stderr_is_not_quoted_as_slurms_words() -> None:
    assert words_of("** Maintenance on Friday **\nsbatch: error: Invalid qos\n") == "Invalid qos"
