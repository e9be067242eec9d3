"""One job, whatever dies at whatever line; against a real Slurm behind a real sshd."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_slurm.errors import SubmissionUncertain, SubmitRefused
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.hook import SlurmHook
from airflow_slurm.receipts import JobEnd
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.slurm.names import job_name_for
from airflow_slurm.slurm.script import render
from airflow_slurm.spec import JobSpec
from airflow_slurm.work.submit import Submitted, Work, submit
from local.slurm_cluster import PrivateSlurm

from .conftest import CONN_ID, HASTY, OTHER, OWNER, QUICK, connection_uri
from .faults.helpers import DiesAt, Killed, appears, slow_command, until
from .faults.proxy import Proxy
from .looking import owners_of, submit_held

pytestmark = pytest.mark.slurm
JobsNamed = Callable[[str], list[tuple[str, str]]]


def work_of(key: str, spec: JobSpec | None = None, **kwargs: object) -> Work:
    return Work(key, lambda n: spec or JobSpec(command=("sleep", "60"), output="/dev/null"), lambda n: job_name_for(key, n), **kwargs)  # type: ignore[arg-type]


async def sent(client: SlurmClient, store: FileReceipts, key: str, **kwargs: object) -> Submitted:
    return await submit(client, store, work_of(key), OWNER, look_up=QUICK, stop=HASTY, **kwargs)  # type: ignore[arg-type]


async def test_a_job_is_queued_recorded_and_released(client: SlurmClient, store: FileReceipts, key: str, jobs_named: JobsNamed) -> None:
    staged: list[int] = []
    done = await submit(client, store, work_of(key, stage_in=staged.append), OWNER, look_up=QUICK)
    live = store.get(key)
    assert live is not None
    assert live.receipt == done.receipt
    assert done.receipt.released_at is not None
    assert staged == [1]
    [(job_id, state)] = jobs_named(done.receipt.job_name)
    assert job_id == done.receipt.job_id
    assert state in ("PENDING", "RUNNING")


@pytest.mark.parametrize(
    ("victim", "method", "before"),
    [
        ("store", "claim", False),
        ("client", "submit_and_look", True),
        ("client", "submit_and_look", False),
        ("store", "record", False),
        ("client", "release", True),
        ("client", "release", False),
    ],
)
async def test_after_a_death_at_any_line_the_next_try_ends_with_one_job(
    client: SlurmClient, store: FileReceipts, key: str, jobs_named: JobsNamed, victim: str, method: str, before: bool
) -> None:
    dying_client = DiesAt(client, method, before=before) if victim == "client" else client
    dying_store = DiesAt(store, method, before=before) if victim == "store" else store
    with pytest.raises(Killed):
        await sent(dying_client, dying_store, key)  # type: ignore[arg-type]
    done = await sent(client, store, key)
    assert done.n == 1
    jobs = jobs_named(job_name_for(key, 1))
    assert [job_id for job_id, _ in jobs] == [done.receipt.job_id]
    row = (await client.queue(done.receipt.job_name))[0]
    assert not row.held_by_us


async def test_an_answer_that_is_cut_off_is_looked_up_and_not_sent_again(
    slurm: PrivateSlurm, store: FileReceipts, key: str, jobs_named: JobsNamed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = slow_command(tmp_path / "bin", "sbatch", after_s=2)
    async with Proxy(slurm.ssh_port) as proxy:
        monkeypatch.setenv(
            f"AIRFLOW_CONN_{CONN_ID.upper()}", connection_uri(slurm, slurm_bin=str(slow)).replace(str(slurm.ssh_port), str(proxy.port))
        )
        async with SlurmHook(CONN_ID).get_client() as client:
            task = asyncio.create_task(sent(client, store, key))
            await appears(slow / "done")
            proxy.cut()
            done = await task
        assert proxy.connections == 2
    assert [job_id for job_id, _ in jobs_named(job_name_for(key, 1))] == [done.receipt.job_id]
    assert store.incidents(key, 1) == []


async def test_a_question_that_never_arrived_is_sent_again(
    slurm: PrivateSlurm, store: FileReceipts, key: str, jobs_named: JobsNamed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = tmp_path / "bin"
    refused.mkdir()
    (refused / "sbatch").write_text(
        '#!/bin/sh\necho x >> "$0.calls"\n[ $(wc -l < "$0.calls") -gt 1 ] || exit 1\nPATH="${PATH#*:}" exec sbatch "$@"\n'
    )
    (refused / "sbatch").chmod(0o755)
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", connection_uri(slurm, slurm_bin=str(refused)))
    async with SlurmHook(CONN_ID).get_client() as client:
        done = await sent(client, store, key)
    assert (refused / "sbatch.calls").read_text() == "x\nx\n"
    assert [job_id for job_id, _ in jobs_named(job_name_for(key, 1))] == [done.receipt.job_id]


async def test_two_runs_that_share_a_key_share_a_job(client: SlurmClient, store: FileReceipts, key: str, jobs_named: JobsNamed) -> None:
    first, second = await asyncio.gather(
        submit(client, store, work_of(key), OWNER, look_up=QUICK, stop=HASTY),
        submit(client, store, work_of(key), OTHER, look_up=QUICK, stop=HASTY),
    )
    alive = [job_id for job_id, state in jobs_named(job_name_for(key, 1)) if state != "CANCELLED"]
    assert alive == [first.receipt.job_id] == [second.receipt.job_id]
    assert len(owners_of(store, key)) == 2


async def test_of_several_jobs_of_one_name_the_oldest_stays_and_it_is_written_down(
    slurm: PrivateSlurm, client: SlurmClient, store: FileReceipts, key: str, jobs_named: JobsNamed
) -> None:
    store.claim(key, OWNER)
    first = await submit_held(client, JobSpec(command=("sleep", "60"), output="/dev/null"), job_name_for(key, 1))
    second = await submit_held(client, JobSpec(command=("sleep", "60"), output="/dev/null"), job_name_for(key, 1))
    done = await sent(client, store, key)
    assert done.receipt.job_id == first.job_id
    assert dict(jobs_named(job_name_for(key, 1)))[second.job_id] == "CANCELLED"
    assert store.incidents(key, 1)[0]["detail"] == {"kept": first.job_id, "cancelled": [second.job_id]}


async def test_a_job_that_has_ended_meanwhile_is_found_and_not_sent_again(client: SlurmClient, store: FileReceipts, key: str) -> None:
    store.claim(key, OWNER)
    old = await submit_held(client, JobSpec(command=("true",), output="/dev/null"), job_name_for(key, 1))
    await client.release(old.job_id)

    async def completed() -> bool:
        return (await client.queue(old.job_name))[0].state.name == "COMPLETED"

    await until(completed)
    assert (await sent(client, store, key)).receipt.job_id == old.job_id


async def test_a_refusal_is_final_and_closes_the_submission(
    client: SlurmClient, store: FileReceipts, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_records", None)  # as at a site of which nothing is known
    spec = JobSpec(command=("true",), partition="nowhere")
    with pytest.raises(SubmitRefused, match="Invalid partition name specified"):
        await submit(client, store, work_of(key, spec), OWNER, look_up=QUICK)
    end = store.end_of(key, 1)
    assert end is not None
    assert (end.outcome, end.cause) == ("failed", "refused")
    assert (await sent(client, store, key)).n == 2


async def test_while_nobody_can_be_asked_nothing_is_sent_twice(
    slurm: PrivateSlurm, client: SlurmClient, store: FileReceipts, key: str, jobs_named: JobsNamed
) -> None:
    slurm.kill("slurmctld")
    with pytest.raises(SubmissionUncertain):
        await sent(client, store, key)
    slurm.spawn("slurmctld")
    done = await sent(client, store, key)
    assert [job_id for job_id, _ in jobs_named(job_name_for(key, 1))] == [done.receipt.job_id]


async def test_somebody_elses_hold_is_not_lifted(slurm: PrivateSlurm, client: SlurmClient, store: FileReceipts, key: str) -> None:
    spec = JobSpec(command=("true",), output="/dev/null", nodes=2, exclusive=True)
    blocker = await submit_held(
        client, JobSpec(command=("sleep", "60"), output="/dev/null", nodes=2, exclusive=True), f"{job_name_for(key, 9)}"
    )
    await client.release(blocker.job_id)
    done = await submit(client, store, work_of(key, spec), OWNER, look_up=QUICK)
    slurm.run("scontrol", "hold", done.receipt.job_id)
    again = await submit(client, store, work_of(key, spec), OWNER, look_up=QUICK)
    assert again.receipt == done.receipt
    assert (await client.queue(done.receipt.job_name))[0].reason in ("JobHeldAdmin", "JobHeldUser")


async def test_a_submission_that_was_closed_meanwhile_releases_nothing(
    client: SlurmClient, store: FileReceipts, key: str, jobs_named: JobsNamed
) -> None:
    class ClosesFirst(FileReceipts):
        def record(self, key: str, n: int, receipt: object) -> None:
            super().record(key, n, receipt)  # type: ignore[arg-type]
            if n == 1:
                self.close(key, 1, JobEnd("cancelled"))

    done = await submit(client, ClosesFirst(str(store.root)), work_of(key), OWNER, look_up=QUICK)
    assert done.n == 2
    assert [state for _, state in jobs_named(job_name_for(key, 1))] == ["CANCELLED"]


async def test_no_value_of_a_job_is_executed_and_none_is_changed(client: SlurmClient, store: FileReceipts, key: str, shared: Path) -> None:
    folder = shared / "team x" / "run $(touch pwned) 50%"
    folder.mkdir(parents=True)
    note = 'it\'s "fine"; rm -rf $HOME `id`\\ \n#SBATCH --qos=admin ü'
    spec = JobSpec(
        command=("/bin/sh", "-c", 'printf %s "$NOTE" > note; printf "%s|" "$@" > args; pwd > where', "sh", note, "a b"),
        env={"NOTE": note}, chdir=str(folder), output=str(folder).replace("%", "%%") + "/log %% %j.txt", comment=note.replace("\n", " "),
    )  # fmt: skip
    assert "admin" in render(spec)
    done = await submit(client, store, work_of(key, spec), OWNER, look_up=QUICK)
    await appears(folder / "where")
    assert (folder / "note").read_text() == note
    assert (folder / "args").read_text() == f"{note}|a b|"
    assert (folder / "where").read_text().strip() == str(folder)
    assert done.receipt.log_path == f"{folder}/log % {done.receipt.job_id}.txt"
    assert sorted(p.name for p in everything_below(shared)) == sorted(
        ["team x", folder.name, "note", "args", "where", f"log % {done.receipt.job_id}.txt"]
    )


def everything_below(folder: Path) -> list[Path]:
    return list(folder.rglob("*"))


NAMES = ("line\nfeed", "x|\n{id}|{id}|COMPLETED|0|0|1|1|1|1|n1|None|{name}", "a\u2028b", "\x85", "\x0b\x0c\r", "\n", " ", "")


async def test_names_of_other_jobs_hide_nothing_and_forge_nothing(
    slurm: PrivateSlurm, client: SlurmClient, store: FileReceipts, key: str
) -> None:
    done = await sent(client, store, key)
    ours = done.receipt
    names = [name.format(id=ours.job_id, name=ours.job_name) for name in NAMES]
    ids = [slurm.run("sbatch", "--parsable", "--hold", f"--job-name={name}", "--wrap=true").stdout.strip() for name in names]
    rows = {row.job_id: row for row in await client.queue()}
    assert [rows[job_id].name for job_id in ids] == names
    assert (rows[ours.job_id].name, rows[ours.job_id].state.info.phase.ended) == (ours.job_name, False)
    assert len(await client.queue_of_all(ids=[*ids, ours.job_id])) == len(names) + 1
    # accounting_storage keeps no character beyond latin1, and calls an empty name "allocation".
    known = [name.replace("\u2028", "?").replace("\x85", "?") or "allocation" for name in names]

    async def all_there() -> bool:
        return {row.job_id: row.name for row in await client.accounting(done.since, ids=ids)} == dict(zip(ids, known, strict=True))

    await until(all_there)
    assert done.receipt.queued_at == rows[ours.job_id].submit_time
