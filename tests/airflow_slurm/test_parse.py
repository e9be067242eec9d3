"""Answers of real commands, and the forms that other sites print."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_slurm.errors import AnswerLost, UnreadableAnswer
from airflow_slurm.slurm import parse
from airflow_slurm.slurm.commands import ACCOUNTING_COLUMNS, QUEUE_COLUMNS
from airflow_slurm.slurm.states import Phase

from .conftest import recorded
from .sites import VERSIONS


@pytest.mark.parametrize(
    ("text", "receipt"),
    [
        ("771203;borealis\n", ("771203", "borealis")),
        ("Submitted batch job 771203 on cluster borealis\n", ("771203", "borealis")),
        ("771204\n", ("771204", None)),
        ("Submitted batch job 8\n", ("8", None)),
        ("** maintenance on 12 May **\n42;north-2\n", ("42", "north-2")),
    ],
)
def test_every_confirmation_of_sbatch_gives_job_and_cluster(text: str, receipt: tuple[str, str | None]) -> None:
    assert parse.sbatch_receipt(text) == receipt


@pytest.mark.parametrize("text", ["", "borealis\n", "Welcome, you have 3 messages\n", "-7\n"])
def test_what_confirms_nothing_is_a_lost_answer_and_not_an_id(text: str) -> None:
    with pytest.raises(AnswerLost):
        parse.sbatch_receipt(text)


def test_recorded_queue_of_22_05() -> None:
    rows = {row.name: row for row in parse.queue_rows(recorded("squeue_22.05.txt")) if not row.array_id.startswith("7_")}
    assert rows["we|ird; name"].state.name == "RUNNING"
    assert rows["held"].held_by_us
    assert not rows["runs"].held_by_us
    assert (rows["fails"].exit_code, rows["fails"].signal) == (7, 0)
    assert (rows["killed"].exit_code, rows["killed"].signal) == (0, 9)
    assert rows["runs"].submit_time == 1795978505.0
    assert rows["runs"].node_list == "n1"
    assert rows["timed"].reason == "Priority"
    assert rows["timed"].start_time == 1795980600.0  # the controller's estimate
    assert rows["held"].start_time is None


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_queue_of_either_version(version: str) -> None:
    rows = {row.name: row for row in parse.queue_rows(recorded(f"site_{version}/squeue.txt")) if not row.array_id.startswith("8_")}
    assert (rows["exit7"].exit_code, rows["exit7"].signal) == (7, 0)
    assert (rows["killed"].exit_code, rows["killed"].signal) == (0, 9)
    assert rows["name|with bars"].state.name == "COMPLETED"
    assert (rows["requeued"].restarts, rows["requeued"].state.name) == (1, "RUNNING")
    assert rows["held"].held_by_us
    assert rows["too_long"].reason == "PartitionTimeLimit"
    assert rows["later"].start_time is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_accounting_of_either_version(version: str) -> None:
    rows = parse.accounting_rows(recorded(f"site_{version}/sacct.txt"))
    by_name = {row.name: row for row in rows}
    assert (by_name["exit7"].exit_code, by_name["killed"].signal) == (7, 9)
    assert by_name["cancelled"].state.cancelled_by_uid == 0
    assert [row.state.name for row in rows if row.name == "requeued"] == ["REQUEUED", "RUNNING"]
    assert by_name["unknown_gpu"].state.name == "FAILED"


def test_recorded_array_of_22_05() -> None:
    rows = [row for row in parse.queue_rows(recorded("squeue_22.05.txt")) if row.name == "shards"]
    states = {task: row.state.name for row in rows for task in parse.array_tasks(row.array_id)}
    assert states == {3: "RUNNING", 4: "RUNNING", 7: "PENDING", 8: "PENDING", 9: "PENDING", 12: "PENDING"}
    assert [row.job_id for row in rows if row.array_id == "7_3"] == ["15"]


def test_recorded_accounting_of_22_05() -> None:
    rows = {row.name: row for row in parse.accounting_rows(recorded("sacct_22.05.txt"))}
    assert (rows["fails"].exit_code, rows["fails"].state.info.phase) == (7, Phase.FAILED)
    assert (rows["killed"].exit_code, rows["killed"].signal) == (0, 9)
    assert rows["cancelled"].state.cancelled_by_uid == 0
    assert rows["cancelled"].node_list == ""  # "None assigned"
    assert rows["we|ird; name"].state.name == "RUNNING"
    assert rows["mixed"].array_id == "12+1"


def test_recorded_requeue_has_one_row_an_incarnation() -> None:
    rows = parse.accounting_rows(recorded("sacct_requeued_22.05.txt"))
    assert [(row.job_id, row.state.name, row.elapsed_s) for row in rows] == [("20", "REQUEUED", 3.0), ("20", "CANCELLED", 5.0)]


def test_steps_are_no_jobs() -> None:
    line = "5508.batch|5501_3.batch|COMPLETED|0:0|1|1|1|0|1|n1|batch\n"
    assert parse.accounting_rows(line) == []


def test_a_heading_of_a_cluster_is_passed_over() -> None:
    assert parse.queue_rows("CLUSTER: c1\n1|1|RUNNING|0|0|1|1|1|1|n1|None|x\n")[0].name == "x"


@pytest.mark.parametrize("text", ["slurm_load_jobs error\n", "1|2|3\n", "|||||||||||\n"])
def test_a_line_of_unknown_form_is_an_error_and_not_an_empty_queue(text: str) -> None:
    with pytest.raises(UnreadableAnswer):
        parse.queue_rows(text)


MARK = "5f0c9d2e7b1a4483"
#: A name that 22.05 takes (seen on a private Slurm), and that looks like another job's row.
FORGED = "x|\n5|5|COMPLETED|0|0|1|1|1|1|n1|None|ours"
NAMES = st.text(st.characters(codec="utf-8"))


def answered(rows: list[list[str]], last: str = "") -> str:
    """What comes of a whole answer whose rows end with the mark of the call."""
    printed = "".join("|".join(row) + f"|{MARK}\n" for row in rows) + last
    return parse.with_row_ends(parse.between_marks(f"hello\n\n{MARK}B\n{printed}\n{MARK}E:0\n", MARK)[0], MARK)


def queued(job_id: str, name: str) -> list[str]:
    row = [job_id, job_id, "RUNNING", "2", "0", "100", "200", "300", "4", "n[1-4]", "None", name]
    assert len(row) == len(QUEUE_COLUMNS)
    return row


def recorded_row(job_id: str, name: str, allocated: str = "") -> str:
    row = [job_id, job_id, "COMPLETED", "0:0", "100", "200", "300", "100", "4", "n[1-4]", name, allocated]
    assert len(row) == len(ACCOUNTING_COLUMNS)
    return f"|{MARK}".join(row) + f"|{MARK}\n"


@given(st.lists(NAMES, max_size=5))
@example([FORGED, "a\u2028b", "\x85", "\x0b\x0c\r", "\n", "", "|\x1e\n5|5|COMPLETED|", "CLUSTER: x\n"])
def test_any_job_names_come_through_the_queue_and_make_no_rows_of_their_own(names: list[str]) -> None:
    rows = parse.queue_rows(answered([queued(str(number), name) for number, name in enumerate(names)]))
    assert [(row.job_id, row.name) for row in rows] == [(str(n), name.replace("\x1e", "\ufffd")) for n, name in enumerate(names)]
    assert all((row.restarts, row.nodes, row.state.name) == (2, 4, "RUNNING") for row in rows)


@given(st.lists(NAMES, max_size=5))
@example([FORGED, "a\u2028b", "\x85", "\x0b\x0c\r", "\n", "", "|\x1e|\x1e\n5|5|"])
def test_any_job_names_come_through_accounting_and_make_no_rows_of_their_own(names: list[str]) -> None:
    text = answered([], "".join(recorded_row(str(n), name) for n, name in enumerate(names)))
    found = [(row.job_id, row.name) for row in parse.accounting_rows(text)]
    assert found == [(str(n), name.replace("\x1e", "\ufffd")) for n, name in enumerate(names)]


@given(NAMES)
def test_a_row_without_its_end_is_an_error_and_not_a_job(name: str) -> None:
    with pytest.raises(UnreadableAnswer):
        parse.queue_rows(answered([queued("1", "a")], "|".join(queued("2", name))))


def test_headings_of_clusters_stand_before_rows_that_end_with_the_mark() -> None:
    text = answered([], "".join(f"CLUSTER: {name}\n" + "|".join(queued(name[1:], "a\nb")) + f"|{MARK}\n" for name in ("c1", "c2")))
    assert [(row.job_id, row.name) for row in parse.queue_rows(text)] == [("1", "a\nb"), ("2", "a\nb")]
    assert parse.queue_rows(answered([], "CLUSTER: c1\nCLUSTER: c2\n")) == []


@pytest.mark.parametrize(
    ("allocated", "gpus"),
    [
        ("billing=1,cpu=1,gres/gpu=2,mem=1000M,node=1", 2),  # 22.05
        ("billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=64G,node=1", 4),
        ("cpu=8,gres/gpu:a100=2,gres/gpu:h100=1,node=1", 3),  # a site that counts types only
        ("billing=1,cpu=1,mem=1000M,node=1", 0),
        ("", None),
    ],
)
def test_the_gpus_of_a_run_are_those_it_was_given(allocated: str, gpus: int | None) -> None:
    [row] = parse.accounting_rows(answered([], recorded_row("7", "a", allocated)))
    assert row.gpus == gpus


@pytest.mark.parametrize("text", ["Unknown", "None", "N/A", ""])
def test_no_time_is_none(text: str) -> None:
    assert parse.epoch(text) is None


def test_a_time_that_is_not_in_the_asked_form_is_refused() -> None:
    with pytest.raises(UnreadableAnswer):
        parse.epoch("2026-10-25T02:30:00")


@pytest.mark.parametrize(
    ("text", "tasks"),
    [("5501_3", [3]), ("5501_[7-9,12%2]", [7, 8, 9, 12]), ("5501_[0-8:4]", [0, 4, 8]), ("5501", []), ("5501_[1-3,...]", [1, 2, 3])],
)
def test_array_ids_in_every_form(text: str, tasks: list[int]) -> None:
    assert parse.array_tasks(text) == tasks


def test_text_around_the_marks_is_not_part_of_the_answer() -> None:
    text = "Welcome to c1!\n1|not|a|row\n\nabcB\n12\n\nabcE:0\nlogout\n"
    assert parse.between_marks(text, "abc") == ("12", 0)


def test_an_answer_of_nothing_is_whole() -> None:
    assert parse.between_marks("\nabcB\n\nabcE:1\n", "abc") == ("", 1)


@given(cut=st.integers(min_value=0, max_value=24))
def test_an_answer_that_was_cut_anywhere_is_lost(cut: int) -> None:
    whole = "\nabcB\n12345;c1\n\nabcE:0\n"
    if cut < len(whole) - 1:
        with pytest.raises(AnswerLost):
            parse.between_marks(whole[:cut], "abc")


@given(st.text().filter(lambda t: "abcB" not in t and "abcE" not in t and "\r" not in t))
def test_whatever_a_command_prints_comes_back(printed: str) -> None:
    assert parse.between_marks(f"banner\n\nabcB\n{printed}\nabcE:3\n", "abc") == (printed.removesuffix("\n"), 3)
