"""Candidate generation in three shards on a real Slurm: one array, a shard is killed, only that one runs again, the whole is as in one."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.sdk.exceptions import TaskDeferred

from include.domain.layout import RunDir
from include.domain.parts import parts_of
from include.flows import services
from include.flows.array_stage_operator import ArrayStageOperator
from include.flows.planners import plan
from include.runtime.tokenizer import chat_template_digest, tokenizer_digest
from include.settings.catalogue import lock_file
from include.stores.catalog.receipts import CatalogReceipts
from local.slurm_cluster import PrivateSlurm
from tests.airflow_slurm.conftest import cluster, connection_uri, slurm  # noqa: F401 - fixtures
from tests.airflow_slurm.tasks import Task
from tests.flows.conftest import Plane
from tests.flows.things import ROOT, result
from tests.training.harness import Store, prompts, tiny_base

pytestmark = pytest.mark.slurm
GENERATE = {
    "sampling": {"temperature": 0.9, "max_new_tokens": 24},
    "prompt_limit": 30,
    "portion_prompts": 2,
    "threads": 1,
    "save_every_steps": 1,
}
END_S = 400.0


@pytest.fixture
def given(plane: Plane, slurm: PrivateSlurm, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:  # noqa: F811 - the fixture
    """A store with a base and prompts, a cluster environment in it, and the connection; what `resolve` and earlier stages gave."""
    plane.store_root.chmod(0o755)
    built = ROOT / ".local/store/env"
    if not list(built.glob(f"*/{lock_file().name}")):
        pytest.skip("the cluster's environment is not built: make cluster-env")
    (plane.store_root / "env").symlink_to(built.resolve())
    site = yaml.safe_load((plane.configs / "clusters/here.yaml").read_text())
    site |= {"heavy_licence": None, "visibility_deadline_s": 10, "defaults": {"cpus": 1, "memory_gb": 3, "time_limit_minutes": 10}}
    (plane.configs / "clusters/here.yaml").write_text(yaml.safe_dump(site))
    monkeypatch.setenv(f"AIRFLOW_CONN_{site['slurm_conn_id'].upper()}", connection_uri(slurm))
    store = Store(plane.store_root)
    tiny_base(store)
    prompts(store, count=30)
    base, asked = store.places["base"], store.places["prompts"]
    places = {place.artifact: str(Path(place.path).relative_to(plane.store_root)) for place in (base, asked)}
    known = type(services.catalog().artifacts).locate
    monkeypatch.setattr(type(services.catalog().artifacts), "locate", lambda self, d, uri: places.get(d) or known(self, d, uri))
    policy = result("sft", "policy", base.digest) | {
        "tokenizer": tokenizer_digest(Path(base.path)),
        "chat_template": chat_template_digest(Path(base.path)),
    }
    ref = {"dataset_id": "tiny-prompts", "version": 1, "content_hash": asked.digest, "artifact": asked.artifact, "counts": {}}
    return {"sft": policy, "datasets": {"preference_prompts": ref}}


def kill_task(run_root: Path, index: int) -> None:
    """Ends the program of one array task as a lack of memory would: no signal that it could act on."""
    until = time.monotonic() + END_S
    while time.monotonic() < until:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                told = (folder / "environ").read_bytes().split(b"\0")
                words = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if f"SLURM_ARRAY_TASK_ID={index}".encode() in told and str(run_root).encode() in words and b"generate" in words:
                os.kill(int(folder.name), signal.SIGKILL)
                return
        time.sleep(0.2)
    raise AssertionError("the task's program was never seen")


def attempts_of(plane: Plane, key: str) -> list[str]:
    return sorted(path.name for path in (plane.store_root / RunDir(key).attempts).iterdir())


def test_of_three_shards_the_killed_one_runs_again_alone(plane: Plane, given: dict[str, Any], slurm: PrivateSlurm) -> None:  # noqa: F811
    plane.change_recipe("tiny", generate=GENERATE | {"shards": 3})
    run = plane.run()
    whole = plan("generate", run, given)
    parts = parts_of(whole.spec, whole.settings)
    task = Task(lambda: ArrayStageOperator(task_id="generate", stage="generate", run=run, given=given, pool="default_pool"))

    first = task.execute()
    state = first.kwargs["request_state"]
    assert (state["array"], state["n"]) == ("0-2", 1)
    kill_task(plane.store_root / RunDir(parts[1].spec.key).root, 1)
    with pytest.raises(TaskDeferred) as caught:
        task.resume(first, task.wait(first, END_S))
    again = caught.value.kwargs["request_state"]
    assert (again["key"], again["array"], again["n"], again["resubmits"]) == (state["key"], "1", 2, 1)
    with pytest.raises(TaskDeferred) as last:
        task.resume(caught.value, task.wait(caught.value, END_S))
    joining = last.value.kwargs["request_state"]
    assert (joining["key"], joining["array"]) == (whole.key, None)
    done = task.resume(last.value, task.wait(last.value, END_S))

    assert [len(attempts_of(plane, part.spec.key)) for part in parts] == [1, 2, 1]
    assert done["key"] == whole.key
    assert done["summary"]["parts"] == ["1 of 3", "2 of 3", "3 of 3"]
    receipts = CatalogReceipts(plane.catalog_url)
    ends = [record["end"] for record in receipts.history(state["key"])]
    assert [(end["outcome"], sorted(end["shards"])) for end in ends] == [("interrupted", ["0", "1", "2"]), ("succeeded", ["1"])]
    assert "part 2 of 3" in ends[0]["shards"]["1"]["detail"]
    assert [receipts.history(part.spec.key)[0]["receipt"]["job_id"] for part in parts] == [f"{state['job_id']}_{i}" for i in range(3)]
    assert receipts.live() == []

    in_one = Store(plane.store_root)
    in_one.places = _places(plane, whole.key)
    alone = in_one.run(whole.spec, n=9)
    assert alone.code == 0, alone.stderr
    assert alone.report.outputs["candidates"] == done["outputs"]["candidates"]["digest"], "as in one, to the byte"


def _places(plane: Plane, key: str) -> dict[str, Any]:
    from include.domain.spec import Placement

    placed = json.loads((plane.store_root / RunDir(key).submission(1) / "placement.json").read_text())
    return dict(Placement.from_json(placed).inputs)
