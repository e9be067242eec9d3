"""An export in a bucket that arrives late: the data group of the chain runs in Airflow, the real sensor waits at a real S3 interface."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from include.flows import chain, services
from tests.airflow_database import serialize
from tests.data.conftest import demonstrations, jsonl
from tests.flows.conftest import Plane
from tests.stores.servers import free_port

BUCKET, KEY = "exports", "2026/demonstrations.jsonl"
DAG_FILE = """
from airflow.sdk import DAG, Param, task
from include.flows import chain

with DAG("wait_and_build", schedule=None, params={"run": Param({}, type="object")}):
    @task
    def pinned(**context):
        return dict(context["params"]["run"])

    chain.data(pinned())
"""


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket at an S3 server in this process, and the `aws` connection that leads there."""
    import boto3
    from moto.server import ThreadedMotoServer

    port = free_port()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    endpoint = f"http://127.0.0.1:{port}"
    extra = {"endpoint_url": endpoint, "region_name": "eu-central-1"}
    connection = {"conn_type": "aws", "login": "id-of-the-connection", "password": "secret-of-the-connection", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_EXPORTS", json.dumps(connection))
    client = boto3.client("s3", endpoint_url=endpoint, aws_access_key_id="x", aws_secret_access_key="y", region_name="eu-central-1")
    client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    yield client
    server.stop()


def recipe_with_export(plane: Plane, path: str) -> dict[str, Any]:
    source = {"name": "exported", "kind": "s3", "mapping": "rows", "path": path, "s3_conn_id": "exports", "licence": "CC0-1.0"}
    source["options"] = {"dataset": "demonstrations", "rows": "demonstration"}  # type: ignore[assignment]
    data = {"project": "tiny", "split_salt": "s", "licences": ["CC0-1.0"], "use_shares": {"demonstration": 1.0}, "sources": [source]}
    plane.change_recipe("tiny", data=data)
    return plane.run()


@pytest.mark.parametrize("path", [f"{BUCKET}/{KEY}", f"s3://{BUCKET}/{KEY}"])
def test_the_sensor_is_given_an_address_it_can_read(plane: Plane, path: str) -> None:
    from airflow.providers.amazon.aws.hooks.s3 import S3Hook

    from include.flows.data_tasks import awaited_exports

    (found,) = awaited_exports(recipe_with_export(plane, path))
    assert found["aws_conn_id"] == "exports"
    assert S3Hook.parse_s3_url(found["bucket_key"]) == (BUCKET, KEY)


@pytest.fixture
def deferred(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Set when the sensor has found nothing, has left its worker, and its trigger looks."""
    from airflow.providers.amazon.aws.triggers.s3 import S3KeyTrigger

    looked, run = Event(), S3KeyTrigger.run

    async def told(self: Any) -> AsyncIterator[Any]:
        looked.set()
        async for event in run(self):
            yield event

    monkeypatch.setattr(S3KeyTrigger, "run", told)
    return looked


def test_an_export_that_arrives_late_is_awaited_read_and_stored(
    plane: Plane, bucket: Any, deferred: Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(chain, "EXPORT_POKE_S", 0.2)
    monkeypatch.setenv("ALIGN_WORK", str(tmp_path / "work"))
    monkeypatch.setenv("ALIGN_SOURCES", str(tmp_path))
    folder = Path(os.environ["AIRFLOW_HOME"]) / "dags"
    folder.mkdir(exist_ok=True)
    (folder / "wait_and_build.py").write_text(DAG_FILE)
    dag = serialize(folder / "wait_and_build.py")["wait_and_build"]
    arrived: list[bool] = []

    def deliver() -> None:
        arrived.append(deferred.wait(60))
        time.sleep(0.5)
        bucket.put_object(Bucket=BUCKET, Key=KEY, Body=jsonl(demonstrations(40)))

    delivery = Thread(target=deliver)
    delivery.start()
    ended = dag.test(run_conf={"run": recipe_with_export(plane, f"{BUCKET}/{KEY}")})
    delivery.join()
    assert arrived == [True]
    assert str(ended.state) == "success"
    (version,) = [services.catalog().datasets.resolve("tiny-demonstrations")]
    assert sum(version.info["counts"].values()) == 40
    assert Path(plane.store_root, version.manifest_uri).is_file()
    assert version.writer.startswith("dag:wait_and_build/")
