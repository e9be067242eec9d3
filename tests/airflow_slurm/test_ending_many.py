"""Fifty tasks that are failed at once: one connection, looks for all of them, and each job ended in order."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from airflow_slurm import triggers
from airflow_slurm.errors import CommandRefused, ControllerUnreachable
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.remote.client import ALREADY_DONE, IDS_A_SCANCEL, Answer
from airflow_slurm.triggers import SlurmJobTrigger, Wait, as_json
from airflow_slurm.work import cancelling, looking, shared, stop
from airflow_slurm.work.cancelling import cancel
from airflow_slurm.work.stop import end_job

from .crowd import Client, Crowd, Hook
from .tasks import OWNER

STOP = {"signal": "USR1", "grace_s": 3.0, "cancel_wait_s": 3.0, "pause_s": 0.5}


def _wait(store: FileReceipts, key: str) -> Wait:
    live = store.get(key)
    assert live is not None
    assert live.receipt is not None
    config = {"root": str(store.root)}
    path = "airflow_slurm.file_receipts.FileReceipts"
    return Wait(key, 1, live.receipt.job_id, live.receipt.job_name, 1.0, OWNER | {"task_id": key}, path, config, stop=STOP)


async def failed_at_once(crowd: Crowd, store: FileReceipts, keys: list[str], monkeypatch: pytest.MonkeyPatch) -> float:
    """Airflow tells the triggers of all these tasks in the same moment; seconds until all was done."""
    monkeypatch.setattr(triggers, "task_state", lambda owner: "failed")
    monkeypatch.setattr(shared, "SlurmHook", lambda conn_id: Hook(crowd, conn_id))
    waits = [_wait(store, key) for key in keys]
    began = time.monotonic()
    await asyncio.gather(*(SlurmJobTrigger("c1", as_json(wait)).on_kill() for wait in waits))
    while triggers._DETACHED:
        await asyncio.gather(*triggers._DETACHED)
    return time.monotonic() - began


def all_gather(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The first look, and each kind of command, waits until so many want it, however long these take to come by: GATHER_S is for machines at rest."""

    async def first_look(seconds: float) -> None:
        if all(each.last == float("-inf") for each in looking._LOOKS.values()):
            while not any(len(each.wanted or ()) == count for each in looking._LOOKS.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.sleep(seconds)

    async def command(seconds: float) -> None:
        while not any(len(batch.ids) == count for kinds in cancelling._BATCHES.values() for batch in kinds.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(seconds)

    looking._LOOKS.clear()
    cancelling._BATCHES.clear()
    for module, sleep in ((looking, first_look), (cancelling, command)):
        monkeypatch.setattr(module, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": sleep}))


async def test_fifty_share_one_connection_and_its_looks(store: FileReceipts, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd()
    keys = crowd.submitted(store, 50)
    all_gather(monkeypatch, 50)
    took_s = await failed_at_once(crowd, store, keys, monkeypatch)
    assert crowd.jobs == {}
    assert crowd.connections == 1
    assert crowd.open == 0
    assert crowd.count("squeue") <= took_s / STOP["pause_s"] + 2
    assert crowd.count("sacct") <= crowd.count("squeue")
    assert [sorted(argv[3:]) for argv in crowd.asked if argv[0] == "scancel"] == [[str(1000 + i) for i in range(50)]]
    assert all(argv[1:3] == ["--batch", "--signal=USR1"] for argv in crowd.asked if argv[0] == "scancel")
    assert all((end := store.end_of(key, 1)) is not None and end.closed_by == "on_kill" for key in keys)


async def test_no_store_is_opened_in_the_loops_own_thread(store: FileReceipts, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd, opened, of = Crowd(), [], Wait.store
    monkeypatch.setattr(Wait, "store", lambda wait: opened.append(threading.current_thread() is threading.main_thread()) or of(wait))
    await failed_at_once(crowd, store, crowd.submitted(store, 2), monkeypatch)
    assert opened == [False, False]


async def test_those_that_do_not_save_are_cancelled_in_order(store: FileReceipts, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(saves=False)
    keys = crowd.submitted(store, 50)
    all_gather(monkeypatch, 50)
    took_s = await failed_at_once(crowd, store, keys, monkeypatch)
    assert crowd.jobs == {}
    assert took_s >= STOP["grace_s"]
    assert crowd.connections == 1
    assert crowd.count("squeue") <= took_s / STOP["pause_s"] + 2
    for job_id in ("1000", "1049"):
        mine = [[word for word in argv[1:] if word.startswith("-")] for argv in crowd.asked if argv[0] == "scancel" and job_id in argv]
        assert mine == [["--batch", "--signal=USR1"], []]
    assert crowd.count("scancel") == 2


async def test_what_is_refused_of_one_is_said_of_that_one_alone(store: FileReceipts) -> None:
    crowd = Crowd(saves=False)
    crowd.submitted(store, 5)
    crowd.others, client = ("1002",), Client(crowd)
    del crowd.jobs["1004"]  # has ended, and is not there any more
    said = await asyncio.gather(*(cancel(client, str(1000 + i)) for i in range(5)), return_exceptions=True)
    assert [type(answer).__name__ for answer in said] == ["NoneType", "NoneType", "CommandRefused", "NoneType", "NoneType"]
    assert list(crowd.jobs) == ["1002"]
    assert crowd.count("scancel") == 1


async def test_where_slurm_does_not_say_of_which_each_is_cancelled_by_itself(store: FileReceipts, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd()
    crowd.submitted(store, 3)
    answer = crowd.answer

    async def refuses(argv: Sequence[str]) -> Answer:
        said = await answer(argv)
        return Answer("", "scancel: error: Access/permission denied\n", 1) if "1001" in argv else said

    monkeypatch.setattr(crowd, "answer", refuses)
    client = Client(crowd)
    said = await asyncio.gather(*(cancel(client, str(1000 + i)) for i in range(3)), return_exceptions=True)
    assert [isinstance(answer, CommandRefused) for answer in said] == [False, True, False]
    assert crowd.count("scancel") == 4


async def test_one_that_is_refused_keeps_no_later_command_from_the_others(store: FileReceipts) -> None:
    crowd = Crowd()
    crowd.submitted(store, 2 * IDS_A_SCANCEL + 1)
    crowd.others = ("1000",)
    with pytest.raises(CommandRefused, match="1000"):
        await Client(crowd).cancel(list(crowd.jobs))
    assert list(crowd.jobs) == ["1000"]


async def test_of_hundreds_that_have_ended_already_no_command_is_made_for_each(store: FileReceipts) -> None:
    crowd = Crowd()
    crowd.submitted(store, IDS_A_SCANCEL)
    ids, crowd.others, crowd.jobs = list(crowd.jobs), ("1007",), {"1007": crowd.jobs["1007"]}
    client = Client(crowd)
    said = await asyncio.gather(*(cancel(client, job_id) for job_id in ids), return_exceptions=True)
    assert [job_id for job_id, answer in zip(ids, said, strict=True) if answer is not None] == ["1007"]
    assert crowd.count("scancel") == 1


async def test_what_is_no_job_id_is_said_of_that_one_alone(store: FileReceipts) -> None:
    crowd = Crowd()
    crowd.submitted(store, 1)
    client = Client(crowd)
    said = await asyncio.gather(cancel(client, "1000"), cancel(client, "-a"), return_exceptions=True)
    assert [type(answer).__name__ for answer in said] == ["NoneType", "InvalidSpec"]
    assert crowd.jobs == {}


async def test_a_refusal_is_told_though_scancel_ends_as_for_one_that_is_over(store: FileReceipts, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd()
    crowd.submitted(store, 2)
    answer = crowd.answer

    async def mixed(argv: Sequence[str]) -> Answer:
        said = await answer(argv)
        return Answer(said.stdout, said.stderr or "a banner\n", ALREADY_DONE) if argv[0] == "scancel" else said

    monkeypatch.setattr(crowd, "answer", mixed)
    await Client(crowd).cancel(["1001"])
    crowd.others = ("1000",)
    with pytest.raises(CommandRefused, match="denied"):
        await Client(crowd).cancel(["1000", "1001"])


async def test_a_thousand_take_no_line_longer_than_any_shell_allows(store: FileReceipts) -> None:
    crowd = Crowd()
    crowd.submitted(store, 1000)
    client = Client(crowd)
    await asyncio.gather(*(cancel(client, job_id) for job_id in list(crowd.jobs)))
    assert crowd.jobs == {}
    assert crowd.count("scancel") == 1000 / IDS_A_SCANCEL
    # Another signal, or another cluster, is another command.
    await asyncio.gather(cancel(client, "1"), cancel(client, "1"), cancel(client, "1", signal="KILL"), cancel(client, "1", cluster="c2"))
    assert crowd.count("scancel") == 1000 / IDS_A_SCANCEL + 3


async def test_a_later_one_opens_a_new_connection_when_the_last_has_left(store: FileReceipts, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd()
    first, second = crowd.submitted(store, 2)
    await failed_at_once(crowd, store, [first], monkeypatch)
    assert shared._SHARED == {}
    await failed_at_once(crowd, store, [second], monkeypatch)
    assert (crowd.connections, crowd.most, crowd.open) == (2, 1, 0)


async def test_a_cluster_that_does_not_answer_is_asked_once_for_all(store: FileReceipts, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd()
    keys = crowd.submitted(store, 50)
    all_gather(monkeypatch, 50)

    async def nobody(argv: object) -> None:
        crowd.asked.append(list(argv))  # type: ignore[call-overload]
        raise ControllerUnreachable("nobody there")

    monkeypatch.setattr(crowd, "answer", nobody)
    await failed_at_once(crowd, store, keys, monkeypatch)
    assert len(crowd.asked) <= 2
    assert all((live := store.get(key)) is not None and live.ending for key in keys)


async def test_a_program_that_takes_long_to_save_is_looked_at_less_and_less(store: FileReceipts, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(saves=False)
    crowd.submitted(store, 1)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(stop, "asyncio", SimpleNamespace(sleep=sleep, to_thread=asyncio.to_thread))
    monkeypatch.setattr(stop, "time", SimpleNamespace(monotonic=lambda: sum(slept)))
    monkeypatch.setattr(looking, "time", SimpleNamespace(monotonic=lambda: sum(slept), time=time.time))
    monkeypatch.setattr(
        looking, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": lambda seconds: sleep(max(0.0, seconds - looking.GATHER_S))})
    )
    receipt = store.live()[0].receipt
    assert receipt is not None
    await end_job(Client(crowd), receipt, 1.0, stop.StopPolicy(grace_s=300.0, pause_s=2.0))
    assert sum(slept) >= 300.0
    assert max(slept) <= stop.LONGEST_PAUSE_S
    assert crowd.count("squeue") <= 35
