"""The tab *Slurm*: what it shows, to whom, and that it asks no cluster. Airflow's own auth manager decides who may see it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient

from airflow_slurm.errors import FileUnreadable
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.links import OUTPUT_KEY, POINTER_KEY, keep_links
from airflow_slurm.operators import SlurmJobOperator
from airflow_slurm.receipts import JobEnd, Receipt
from airflow_slurm.settings import task_address
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.shards import ShardEnd
from airflow_slurm.truth.view import Incarnation, JobView
from airflow_slurm.web import reading
from airflow_slurm.work.submit import Submitted
from tests import airflow_database as airflow_database_of_tests

from .conftest import OTHER, OWNER
from .tasks import Task

RUN = "manual__2026-11-29T10:00:00+00:00"
MINE = OWNER | {"run_id": RUN}
URL = "/slurm/dags/d/runs/manual__2026-11-29T10%3A00%3A00%2B00%3A00/tasks/t/%7BMAP_INDEX%7D"
HOSTILE = "<script>alert(1)</script>"
Visitor = Callable[[str | None], TestClient]


@pytest.fixture(scope="module")
def airflow_database() -> None:
    """Airflow's database and auth manager, as its API server has them."""
    from airflow.api_fastapi.app import init_auth_manager

    airflow_database_of_tests.prepare()
    init_auth_manager()


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileReceipts:
    """The store that Airflow's configuration names."""
    monkeypatch.setenv("AIRFLOW__SLURM__RECEIPTS_CONFIG", json.dumps({"root": str(tmp_path / "kept")}))
    return FileReceipts(str(tmp_path / "kept"))


@pytest.fixture
def pointer(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the task said about its work; asked of Airflow's database otherwise."""
    said: dict[str, Any] = {"key": "k", "n": 1, "job_id": "9912", "conn_id": "c1"}
    monkeypatch.setattr(reading, "pointer_of", lambda task: said if task == reading.TaskKey("d", RUN, "t", -1) else None)
    return said


class NoCluster:
    """At the process edge: a cluster that must not be asked."""

    def __init__(self, conn_id: str) -> None:
        raise AssertionError("a page load asked the cluster")


@pytest.fixture
def visitor(airflow_database: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Visitor]:
    """A browser of somebody with a role in Airflow's simple auth manager; of nobody, with None."""
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.api_fastapi.core_api.security import get_user

    from airflow_slurm.web.app import create_app

    monkeypatch.setattr(reading, "SlurmHook", NoCluster)
    app = create_app()
    outer = FastAPI()
    outer.mount("/slurm", app)

    def who(request: Request) -> SimpleAuthManagerUser:
        return SimpleAuthManagerUser(username="somebody", role=request.headers["x-role"] or None)

    def made(role: str | None) -> TestClient:
        if role is not None:
            app.dependency_overrides[get_user] = who
        return TestClient(outer, headers={"x-role": role or ""}, raise_server_exceptions=False)

    yield made
    app.dependency_overrides.clear()


def submitted(store: FileReceipts, view: JobView, receipt: Receipt | None = None) -> None:
    store.claim("k", MINE)
    store.record("k", 1, receipt or Receipt("9912", "job-k-1", "c1", "c1", 1.7e9, 1.7e9, "/logs/9912.log"))
    store.observe("k", 1, view)


def waiting(**values: Any) -> JobView:
    return JobView("9912", "c1", state="PENDING", reason="Priority", estimated_start=1.8e9, observed_at=1.7e9, **values)


def test_the_page_shows_what_was_last_seen(visitor: Visitor, kept: FileReceipts, pointer: dict[str, Any]) -> None:
    queued = waiting().remembering(JobView("9912"))
    runs = replace(queued, phase=Phase.RUNNING, state="RUNNING", reason="None", node_list="n[1-4]", restarts=1, observed_at=1.7e9 + 60)
    ran = (Incarnation(0, "PREEMPTED", 1.7e9, 1.7e9 + 30, 30.0, 4, "n[5-8]"), Incarnation(1, "RUNNING", 1.7e9 + 40))
    submitted(kept, replace(runs.remembering(queued), incarnations=ran))
    page = visitor("viewer").get(URL)
    assert page.status_code == 200
    for shown in (
        "job 9912",
        "RUNNING",
        "n[1-4]",
        "PREEMPTED",
        "n[5-8]",
        "Priority",
        "0:00:30",
        "/logs/9912.log",
        "2023-11-14 22:13:20 UTC",
    ):
        assert shown in page.text, shown
    assert "PENDING" in page.text.partition("Seen at")[2]
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_a_waiting_job_shows_its_reason_and_its_estimated_start(visitor: Visitor, kept: FileReceipts, pointer: dict[str, Any]) -> None:
    submitted(kept, waiting())
    text = visitor("viewer").get(URL).text
    assert "Priority" in text
    assert "jobs of higher priority come first; clears by itself" in text
    assert "2027-01-15 08:00:00 UTC" in text


def test_nothing_from_outside_becomes_markup(visitor: Visitor, kept: FileReceipts, pointer: dict[str, Any]) -> None:
    hostile = JobView("9912", state=HOSTILE, reason=HOSTILE, node_list=HOSTILE, cause=HOSTILE, tasks={HOSTILE: HOSTILE}, observed_at=1.0)
    receipt = Receipt(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1.0, 1.0, f"/logs/{HOSTILE}")
    submitted(kept, hostile.remembering(JobView("9912")), receipt)
    kept.incident("k", 1, HOSTILE, {"why": HOSTILE})
    kept.close("k", 1, JobEnd("failed", HOSTILE, HOSTILE, hostile, HOSTILE))
    pointer["seen"] = HOSTILE
    text = visitor("viewer").get(URL).text
    assert "&lt;script&gt;" in text
    assert "<script" not in text


def test_who_is_not_signed_in_or_may_not_read_the_dag_sees_nothing(visitor: Visitor, kept: FileReceipts, pointer: dict[str, Any]) -> None:
    submitted(kept, waiting())
    for path in (URL, f"{URL}/job.json", f"{URL}/output/1", f"{URL}/tail/1"):
        assert visitor(None).get(path).status_code == 401
    for path in (URL, f"{URL}/job.json", f"{URL}/output/1", f"{URL}/tail/1"):
        assert visitor("").get(path).status_code == 403


def test_a_key_that_a_task_only_names_shows_it_nothing(visitor: Visitor, kept: FileReceipts, pointer: dict[str, Any]) -> None:
    kept.claim("k", OTHER)
    kept.record("k", 1, Receipt("9912", "job-k-1", "c1", log_path="/secret.log"))
    page = visitor("admin").get(URL)
    assert "knows of no submission that this task waited for" in page.text
    assert "9912" not in page.text
    assert visitor("admin").get(f"{URL}/output/1").status_code == 404


def test_a_task_that_gave_its_job_up_still_sees_it(visitor: Visitor, kept: FileReceipts, pointer: dict[str, Any]) -> None:
    submitted(kept, waiting())
    kept.drop_owner("k", MINE)
    kept.close("k", 1, JobEnd("cancelled", "given_up", view=waiting(), closed_by="on_kill"))
    text = visitor("viewer").get(URL).text
    assert "cancelled" in text
    assert "by on_kill" in text


def test_a_task_without_a_job_says_so(visitor: Visitor, kept: FileReceipts, pointer: dict[str, Any]) -> None:
    page = visitor("viewer").get(URL.replace("/t/", "/another/"))
    assert page.status_code == 200
    assert "No try of this task has submitted a job" in page.text


def test_a_store_that_cannot_be_read_is_a_sentence_and_no_error(
    visitor: Visitor, pointer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__SLURM__RECEIPTS", "no.such.Store")
    page = visitor("viewer").get(URL)
    assert page.status_code == 200
    assert "No receipt store &#39;no.such.Store&#39;" in page.text


def test_programs_get_json(visitor: Visitor, kept: FileReceipts, pointer: dict[str, Any]) -> None:
    submitted(kept, waiting())
    body = visitor("viewer").get(f"{URL}/job.json").json()
    assert body["key"] == "k"
    assert body["submissions"][0]["receipt"]["job_id"] == "9912"
    assert body["submissions"][0]["view"]["phase"] == "waiting"


class Cluster:
    """At the process edge: a login node with one file, or one that doesn't answer."""

    data = b""
    silent = False

    def __init__(self, conn_id: str) -> None:
        assert conn_id == "c1"

    def get_client(self) -> Cluster:
        return self

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def size_of(self, path: str) -> int:
        if self.silent:
            raise TimeoutError
        assert path == "/logs/9912.log"
        return len(self.data)

    async def read_from(self, path: str, offset: int, limit: int) -> bytes:
        return self.data[offset : offset + limit]


def test_the_output_comes_a_piece_at_a_time(
    visitor: Visitor, kept: FileReceipts, pointer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(kept, waiting())
    client = visitor("viewer")
    monkeypatch.setattr(reading, "SlurmHook", Cluster)
    monkeypatch.setattr(reading, "OUTPUT_BYTES", 40)
    monkeypatch.setattr(Cluster, "data", b"first\n" * 5 + f"{HOSTILE} last\n".encode())
    end = client.get(f"{URL}/output/1")
    assert "&lt;script&gt;alert(1)&lt;/script&gt; last" in end.text
    assert "Bytes 21 to 61 of 61" in end.text
    before = client.get(f"{URL}/output/1?before=21")
    assert "Bytes 0 to 21 of 61" in before.text
    assert "last" not in before.text
    assert "Earlier" not in before.text
    monkeypatch.setattr(Cluster, "silent", True)
    assert "did not answer within 10 seconds" in client.get(f"{URL}/output/1").text


def test_the_tab_frames_the_last_lines_and_asks_no_cluster_itself(
    visitor: Visitor, kept: FileReceipts, pointer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(kept, waiting())
    client = visitor("viewer")
    assert "<iframe" not in client.get(URL).text
    kept.observe("k", 1, replace(waiting(), phase=Phase.RUNNING, state="RUNNING"))
    page = client.get(URL)
    assert 'src="-1/tail/1"' in page.text
    assert "frame-src 'self'" in page.headers["content-security-policy"]
    monkeypatch.setattr(reading, "SlurmHook", Cluster)
    monkeypatch.setattr(Cluster, "data", b"".join(b"line %d\n" % number for number in range(40)) + f"{HOSTILE}\n".encode())
    tail = client.get(f"{URL}/tail/1").text
    assert "line 16\n" in tail
    assert "line 15\n" not in tail
    assert "&lt;script&gt;alert(1)&lt;/script&gt;</pre>" in tail
    monkeypatch.setattr(Cluster, "data", b"")
    assert "Nothing was written yet." in client.get(f"{URL}/tail/1").text


def test_the_output_of_an_array_is_asked_for_by_shard(visitor: Visitor, kept: FileReceipts, pointer: dict[str, Any]) -> None:
    submitted(kept, waiting(), Receipt("9912", "job-k-1", "c1", log_path="/logs/9912_%a.log", array="0-2,7%2"))
    text = visitor("viewer").get(URL).text
    assert "?shard=7" in text
    assert "?shard=3" not in text
    assert visitor("viewer").get(f"{URL}/output/1?shard=3").status_code == 404


class Shards(Cluster):
    """At the process edge: the files of an array's tasks; one may not be read."""

    async def size_of(self, path: str) -> int:
        if path == "/logs/9912_1.log":
            raise FileUnreadable(path, "c1", "Permission denied")
        return len(self.named(path))

    async def read_from(self, path: str, offset: int, limit: int) -> bytes:
        return self.named(path)[offset : offset + limit]

    def named(self, path: str) -> bytes:
        return b"".join(b"line %d\n" % number for number in range(20)) + f"{HOSTILE} of {path}\n".encode()


def test_the_tab_of_an_array_shows_the_last_lines_of_some_tasks_that_failed_and_some_that_run(
    visitor: Visitor, kept: FileReceipts, pointer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt = Receipt("9912", "job-k-1", "c1", log_path="/logs/9912_%a.log", array="0-9")
    tasks = {"COMPLETED": "0", "FAILED": "1", "TIMEOUT": "2-4,77", "RUNNING": "5-9", HOSTILE: HOSTILE, "NODE_FAIL": "$(id)"}
    submitted(kept, waiting(), receipt)
    client = visitor("viewer")
    assert "<iframe" not in client.get(URL).text
    kept.observe("k", 1, replace(waiting(), phase=Phase.RUNNING, state="RUNNING", tasks=tasks))
    assert 'src="-1/tails/1"' in client.get(URL).text
    monkeypatch.setattr(reading, "SlurmHook", Shards)
    text = client.get(f"{URL}/tails/1").text
    assert re.findall(r"<h2>Task (\d+): (\w+)</h2>", text) == [
        ("1", "FAILED"), ("2", "TIMEOUT"), ("3", "TIMEOUT"), ("5", "RUNNING"), ("6", "RUNNING"), ("7", "RUNNING"),
    ]  # fmt: skip
    assert "/logs/9912_1.log can&#39;t be read over connection &#39;c1&#39;: Permission denied" in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt; of /logs/9912_5.log</pre>" in text
    assert "line 13\n" in text
    assert "line 12\n" not in text
    assert "<script" not in text


def test_the_parts_of_a_work_are_still_shown_when_the_task_has_joined_them(
    visitor: Visitor, kept: FileReceipts, pointer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(kept, waiting(), Receipt("9912", "job-k-1", "c1", log_path="/logs/9912.log"))
    for key, owner in (("parts", MINE), ("somebody's", OTHER)):
        kept.claim(key, owner)
        kept.record(key, 1, Receipt("9900", "parts-1", "c1", log_path="/logs/9900_%a.log", array="0-1"))
        kept.observe(key, 1, JobView("9900", phase=Phase.FAILED, state="FAILED", tasks={"FAILED": "0", "COMPLETED": "1"}))
    pointer["before"] = ["somebody's", "parts", 7]
    client = visitor("viewer")
    text = client.get(URL).text
    assert "job 9900" in text
    assert "somebody" not in text
    assert 'src="-1/tails/1?earlier=1"' in text
    assert "-1/output/1?shard=1&amp;earlier=1" in text
    assert [work["key"] for work in client.get(f"{URL}/job.json").json()["earlier"]] == ["parts"]
    monkeypatch.setattr(reading, "SlurmHook", Shards)
    assert "of /logs/9900_0.log" in client.get(f"{URL}/tails/1?earlier=1").text
    assert "of /logs/9900_1.log" in client.get(f"{URL}/output/1?shard=1&earlier=1").text
    assert client.get(f"{URL}/output/1?shard=1&earlier=0").status_code == 404


def test_a_task_keeps_which_works_it_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_NOWHERE", '{"conn_type": "slurm", "host": "login", "login": "me"}')
    task = Task(lambda: SlurmJobOperator(task_id="t"))
    done = Submitted(1, Receipt("7", "a-1", "nowhere", log_path="/logs/7"), 0.0, False)
    for key in ("parts", "parts", "whole", "whole", "c", "d", "e"):
        keep_links(task.context, key, done)
        if key == "whole":
            assert task.xcoms[POINTER_KEY]["before"] == ["parts"]
    assert task.xcoms[POINTER_KEY] == {"key": "e", "n": 1, "job_id": "7", "conn_id": "nowhere", "before": ["d", "c", "whole"]}
    assert task.xcoms[OUTPUT_KEY].endswith("/slurm/dags/d/runs/r1/tasks/t/-1/output/1")


def test_the_figures_of_a_job_are_linked_where_its_connection_names_a_page(
    visitor: Visitor, kept: FileReceipts, pointer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "https://grafana.site/d/gpu?var-job={job_id}&var-nodes={nodes}&var-c={cluster}"
    monkeypatch.setenv(
        "AIRFLOW_CONN_C1", json.dumps({"conn_type": "slurm", "host": "login", "login": "me", "extra": {"metrics_url": address}})
    )
    task = Task(lambda: SlurmJobOperator(task_id="t"))
    keep_links(task.context, "k", Submitted(1, Receipt("9912", "a-1", "c1"), 0.0, False))
    assert task.xcoms[POINTER_KEY]["metrics_url"] == address
    submitted(kept, waiting(node_list='n[1-2]"><b>'))
    assert ">Metrics</th>" not in visitor("viewer").get(URL).text
    pointer["metrics_url"] = address
    linked = 'href="https://grafana.site/d/gpu?var-job=9912&amp;var-nodes=n%5B1-2%5D%22%3E%3Cb%3E&amp;var-c='
    assert linked in visitor("viewer").get(URL).text
    for other in ({"metrics_url": "javascript:alert(1)//{job_id}"}, {"conn_id": "another"}):
        before = {name: pointer[name] for name in other}
        pointer.update(other)
        assert ">Metrics</th>" not in visitor("viewer").get(URL).text
        pointer.update(before)


def test_gpu_time_of_runs_that_slurm_ended_is_shown_as_lost(visitor: Visitor, kept: FileReceipts, pointer: dict[str, Any]) -> None:
    runs = (
        Incarnation(0, "REQUEUED", 1.7e9, 1.7e9 + 100, 100.0, 1, "n1", 8),
        Incarnation(1, "PREEMPTED", 1.7e9, 1.7e9 + 60, 60.0, 1, "n1", 8),
        Incarnation(2, "COMPLETED", 1.7e9, 1.7e9 + 600, 600.0, 1, "n1", 8),
    )
    submitted(kept, waiting(incarnations=runs))
    text = visitor("viewer").get(URL).text
    assert "0:13:20 <span" in text.replace("\n", " ")
    assert text.count(">lost</span>") == 2
    assert "0:21:20 of GPU time went to runs that Slurm ended before the program had" in text
    assert "1:20:00" in text
    submitted(kept, waiting(incarnations=(replace(runs[0], gpus=None), runs[2])))
    assert "of GPU time went" not in visitor("viewer").get(URL).text
    submitted(kept, waiting(incarnations=(replace(runs[0], state="TIMEOUT"),)))
    assert "0:13:20 of GPU time went to runs that Slurm ended" in visitor("viewer").get(URL).text


def test_gpu_time_that_a_shard_lost_is_shown_with_its_end(visitor: Visitor, kept: FileReceipts, pointer: dict[str, Any]) -> None:
    submitted(kept, waiting())
    runs = (Incarnation(0, "PREEMPTED", elapsed_s=100.0, gpus=8), Incarnation(1, "COMPLETED", elapsed_s=600.0, gpus=8))
    end = ShardEnd.of(3, 1, JobView("9912_3", phase=Phase.SUCCEEDED, state="COMPLETED", incarnations=runs))
    kept.close("k", 1, JobEnd("succeeded", shards={"3": end.to_json()}))
    text = visitor("viewer").get(URL).text
    assert "<td>1:33:20" in text
    assert "0:13:20 lost</span>" in text


def test_the_link_of_a_task_leads_to_its_page() -> None:
    assert task_address(MINE).endswith("/slurm/dags/d/runs/manual__2026-11-29T10%3A00%3A00%2B00%3A00/tasks/t/-1")


def test_airflow_takes_the_plugin_with_its_tab_app_and_links(airflow_database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.api_fastapi.core_api.datamodels.plugins import ExternalViewResponse

    from airflow_slurm import plugin

    view = ExternalViewResponse.model_validate(plugin.SlurmPlugin.external_views[0])
    assert view.destination == "task_instance"
    href = view.href.replace("{DAG_ID}", "d").replace("{RUN_ID}", "r").replace("{TASK_ID}", "t")
    monkeypatch.setattr("sys.argv", ["airflow", "api-server"])
    (mounted,) = plugin._apps()
    outer = FastAPI()
    outer.mount(mounted["url_prefix"], mounted["app"])
    assert TestClient(outer).get(href).status_code == 401
    monkeypatch.setattr("sys.argv", ["airflow", "triggerer"])
    monkeypatch.delitem(sys.modules, "airflow.api_fastapi.main", raising=False)
    assert plugin._apps() == []
