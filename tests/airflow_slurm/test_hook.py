"""The connection: which keys and hosts are trusted, what a site says of itself, and what Airflow shows of it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

import airflow
import jsonschema
import pytest

import airflow_slurm
from airflow_slurm.errors import BadConnection, LoginRefused
from airflow_slurm.hook import ClusterConfig, SlurmHook
from airflow_slurm.provider_info import get_provider_info
from airflow_slurm.site.preemptible import Preemptible
from local.slurm_cluster import PrivateSlurm
from tests import airflow_database

from .conftest import CONN_ID, connection_uri
from .test_keys import make_key

ENV = f"AIRFLOW_CONN_{CONN_ID.upper()}"


def test_empty_fields_of_the_form_count_as_not_given() -> None:
    extra = {"ssh_conn_id": "", "poll_interval_s": None, "cluster": "borealis", "private_key": "x"}
    assert ClusterConfig.from_extra(extra) == ClusterConfig(cluster="borealis")


def test_the_policy_for_preemptible_jobs_is_read_from_the_form() -> None:
    config = ClusterConfig.from_extra({"preemptible_qos": "scavenger", "preemptible_requeue": "True", "preemptible_partition": ""})
    assert config.preemptible == Preemptible(None, "scavenger", True)
    with pytest.raises(BadConnection, match="preemptible_requeue"):
        ClusterConfig.from_extra({"preemptible_requeue": "perhaps"})


@pytest.mark.timeout(300)  # a second Python that imports Airflow, on a machine that does other things
def test_importing_the_operators_imports_no_ssh_library() -> None:
    code = "import sys; from airflow_slurm import array_operator, decorators, operators, sensors; print([m for m in ('asyncssh', 'paramiko') if m in sys.modules])"
    path = os.pathsep.join([str(Path(airflow_slurm.__file__).parents[1]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True, timeout=280
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_connections_to_the_same_login_and_cluster_share_a_record_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def record_of(host: str, conn_id: str, **extra: object) -> Path:
        conn = {"conn_type": "slurm", "host": host, "login": "x", "extra": extra}
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(conn))
        records = SlurmHook(conn_id).get_conn()._records
        assert records is not None
        return records.path

    first = record_of("login.example", "one")
    assert record_of("login.example", "two") == first
    assert len({first, record_of("other.example", "one"), record_of("login.example", "one", cluster="b")}) == 3


def test_holding_requests_against_the_site_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for extra, checked in (({}, True), ({"check_requests": "false"}, False)):
        monkeypatch.setenv(ENV, json.dumps({"conn_type": "slurm", "host": "login.example", "login": "x", "extra": extra}))
        assert (SlurmHook(CONN_ID).get_conn()._records is not None) is checked


@pytest.mark.parametrize("value", [0, -1, "soon", float("inf"), float("nan")])
def test_a_time_that_is_no_positive_number_is_refused(value: object) -> None:
    with pytest.raises(BadConnection, match="poll_interval_s"):
        ClusterConfig.from_extra({"poll_interval_s": value})


def test_provider_info_is_what_airflow_expects() -> None:
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    info = get_provider_info()
    jsonschema.validate(info, schema)
    fields = info["connection-types"][0]["conn-fields"]
    assert {name for name, field in fields.items() if field["schema"].get("format") == "password"} == {
        "private_key",
        "private_key_passphrase",
    }
    assert set(ClusterConfig.__dataclass_fields__) <= set(fields)


def test_the_package_stands_alone() -> None:
    # Airflow itself asks for structlog and attrs; lineage is told where the OpenLineage provider is installed.
    known = set(sys.stdlib_module_names) | {"airflow", "asyncssh", "structlog", "attrs", "openlineage", "airflow_slurm"}
    for path in sorted(Path(str(resources.files(airflow_slurm))).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.partition(".")[0] for name in names} <= known, path.name


@pytest.mark.slurm
def test_the_test_button_reports_version_partitions_limits_and_accounting(connection: str) -> None:
    airflow_database.prepare()  # the button looks at Airflow's pools, too
    good, message = SlurmHook(connection).test_connection()
    assert good
    assert message.startswith("Slurm 2")
    assert "partition batch: up, 2 nodes, limit 2-00:00:00, gpu:2 a node" in message
    assert "accounting: kept" in message
    assert "not checked" not in message


@pytest.mark.slurm
def test_the_test_button_gives_up_in_time(connection: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_slurm.hook.TEST_TIMEOUT_S", 0.01)
    good, message = SlurmHook(connection).test_connection()
    assert (good, message) == (False, "The cluster did not answer within 0 seconds.")


@pytest.mark.slurm
def test_an_existing_ssh_connection_may_be_named(slurm: PrivateSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = json.loads(connection_uri(slurm)) | {"conn_type": "ssh"}
    monkeypatch.setenv("AIRFLOW_CONN_LOGIN_NODE", json.dumps(ssh))
    monkeypatch.setenv(ENV, json.dumps({"conn_type": "slurm", "extra": {"ssh_conn_id": "login_node"}}))
    assert SlurmHook(CONN_ID).test_connection()[0]


@pytest.mark.slurm
def test_a_known_hosts_file_does_as_well(slurm: PrivateSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV, connection_uri(slurm, host_key=None, known_hosts=str(slurm.known_hosts)))
    assert SlurmHook(CONN_ID).test_connection()[0]


@pytest.mark.slurm
def test_another_host_key_is_refused_for_good(slurm: PrivateSlurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_key(tmp_path, "ed25519")
    other = (tmp_path / "ed25519False.pub").read_text()
    monkeypatch.setenv(ENV, connection_uri(slurm, host_key=other))
    with pytest.raises(BadConnection, match="host key"):
        SlurmHook(CONN_ID).run(lambda client: client.version())


@pytest.mark.slurm
def test_an_unknown_host_key_is_refused(slurm: PrivateSlurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    empty = tmp_path / "known_hosts"
    empty.touch()
    monkeypatch.setenv(ENV, connection_uri(slurm, host_key=None, known_hosts=str(empty)))
    with pytest.raises(BadConnection, match="host key"):
        SlurmHook(CONN_ID).run(lambda client: client.version())


@pytest.mark.slurm
@pytest.mark.parametrize("name", ["no_host_key_check", "ignore_hostkey_verification"])
def test_the_host_key_check_cant_be_switched_off(slurm: PrivateSlurm, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(ENV, connection_uri(slurm, **{name: "true"}))
    good, message = SlurmHook(CONN_ID).test_connection()
    assert not good
    assert name in message


@pytest.mark.slurm
def test_a_key_that_the_server_does_not_know_is_refused(slurm: PrivateSlurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ENV, connection_uri(slurm, private_key=make_key(tmp_path, "ed25519")))
    with pytest.raises(LoginRefused):
        SlurmHook(CONN_ID).run(lambda client: client.version())


def test_a_missing_connection_is_named() -> None:
    with pytest.raises(BadConnection, match="no_such_connection"):
        SlurmHook("no_such_connection").run(lambda client: client.version())


@pytest.mark.slurm
def test_a_login_that_prints_a_banner_changes_no_answer(
    connection: str, slurm: PrivateSlurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "squeue").write_text('#!/bin/sh\necho "note on stderr" >&2\nPATH="${PATH#*:}" exec squeue "$@"\n')
    (folder / "squeue").chmod(0o755)
    monkeypatch.setenv(ENV, connection_uri(slurm, slurm_bin=str(folder)))
    assert SlurmHook(CONN_ID).run(lambda client: client.queue("no-such-job-1")) == []


@pytest.mark.slurm
def test_files_of_the_cluster_can_be_read(connection: str, shared: Path) -> None:
    (shared / "x").write_bytes(b"0123456789")
    hook = SlurmHook(connection)
    assert hook.run(lambda client: client.read_from(f"{shared}/x", 3, 4)) == b"3456"
    assert hook.run(lambda client: client.size_of(f"{shared}/nothing")) is None
    assert hook.run(lambda client: client.exists(f"{shared}/x"))
    os.utime(shared / "x", (1000.0, 1000.0))
    assert hook.missing([f"{shared}/x", f"{shared}/nothing"], 0.0, 1000.9) == {f"{shared}/nothing"}
    assert hook.missing([f"{shared}/x"], 0.0, 1001.0) == {f"{shared}/x"}
