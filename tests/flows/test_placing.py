"""A plan on a cluster: what Slurm is asked for, and that only placement changes with the place."""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_slurm.errors import InvalidSpec
from airflow_slurm.slurm.script import render
from include.domain.canonical import hex_of
from include.flows import services
from include.flows.placing import Placed, place
from include.flows.planners import plan
from include.settings.catalogue import cluster, store_root
from include.settings.clusters import ContainerSettings, PreemptibleSettings, StageDefaults
from include.stages.plan import Plan
from tests.flows.conftest import Plane
from tests.flows.things import SFT_GIVEN


def placed(plane: Plane, **site: Any) -> Placed:
    made = plan("sft", plane.run(), SFT_GIVEN)
    where = cluster().model_copy(update=site)
    return place(made, where, store_root(where), lambda digest: f"runs/{hex_of(digest)[-4:]}")


def sft_plan(plane: Plane, **settings: Any) -> Plan:
    recipe = yaml.safe_load((plane.configs / "recipes/tiny.yaml").read_text())
    plane.change_recipe("tiny", sft=recipe["sft"] | settings)
    return plan("sft", plane.run(), SFT_GIVEN)


def test_the_job_asks_for_what_recipe_and_site_say(plane: Plane) -> None:
    job = placed(plane).job(3)
    assert (job.partition, job.account, job.licenses, job.gres) == ("batch", "ml", "heavy:1", None)
    assert (job.nodes, job.ntasks, job.cpus_per_task, job.mem, job.time_limit) == (1, 1, 2, "6144M", 60)
    assert (job.requeue, job.signal, job.signal_lead_s) == (False, "USR1", 60)
    assert job.env["DS_ACCELERATOR"] == "cpu"
    assert job.chdir == job.root == str(plane.store_root)


def test_the_command_names_code_environment_and_submission(plane: Plane) -> None:
    at = placed(plane)
    command = at.command(3)
    arguments = dict(zip(command[2::2], command[3::2], strict=True))
    assert command[0].startswith(f"{plane.store_root}/env/")
    assert command[1] == f"{plane.store_root}/{at.run.root}/submissions/3/bootstrap.py"
    assert arguments["--run"] == at.run.root
    assert (arguments["--n"], arguments["--program"]) == ("3", "include.training.sft")
    assert arguments["--code-sha256"] == hex_of(at.code.sha256)
    assert arguments["--environment"] == at.plan.spec.environment


def test_several_tasks_are_asked_for_and_started_by_the_bootstrap(plane: Plane) -> None:
    at = placed(plane, defaults=StageDefaults(tasks=2))
    assert at.job(1).ntasks == 2
    assert at.command(1)[-2:] == ("--ranks", "2")
    assert "--ranks" not in placed(plane).command(1)


def test_no_setting_of_a_recipe_reaches_the_script_unquoted(plane: Plane) -> None:
    """A store whose path a shell would take apart, and settings that would do harm in a script."""
    evil = "/srv/it's $(touch /tmp/owned) here"
    at = placed(plane, store_root=evil)
    script = render(at.job(1))
    line = next(line for line in script.splitlines() if "bootstrap.py" in line)
    assert shlex.split(line.removeprefix("exec "))[: len(at.command(1))] == list(at.command(1))
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("field", ["partition", "account", "qos"])
def test_a_word_that_would_add_a_line_to_the_script_is_refused(plane: Plane, field: str) -> None:
    with pytest.raises(InvalidSpec, match=field):
        placed(plane, **{field: "batch\n#SBATCH --uid=0"}).job(1)


def test_another_partition_changes_the_job_and_no_key(plane: Plane) -> None:
    here, there = placed(plane), placed(plane, partition="other", account="someone", nice=7)
    assert here.plan.key == there.plan.key
    changed = {f.name for f in dataclasses.fields(here.job(1)) if getattr(here.job(1), f.name) != getattr(there.job(1), f.name)}
    assert changed == {"partition", "account", "nice"}


def test_what_the_site_asks_for_reaches_the_job_and_no_key(plane: Plane) -> None:
    site = {
        "gpu_type": "h100", "constraint": "h100&ib", "reservation": "week_48", "exclusive": True, "switches": 1, "modules": ("cuda/12.4",),
        "defaults": StageDefaults(gpus=4),
    }  # fmt: skip
    here, there = placed(plane), placed(plane, **site)
    job = there.job(1)
    assert here.plan.key == there.plan.key
    assert (job.gpus_per_node, job.gpu_type, job.gres) == (4, "h100", None)
    assert (job.constraint, job.reservation, job.exclusive, job.modules) == ("h100&ib", "week_48", True, ("cuda/12.4",))
    assert job.switches is None  # one node
    of_blocks = placed(plane, segment=4)
    asked = {nodes: dataclasses.replace(of_blocks.plan, job=of_blocks.plan.job.model_copy(update={"nodes": nodes})) for nodes in (1, 2, 8)}
    assert {nodes: dataclasses.replace(of_blocks, plan=made).job(1).segment for nodes, made in asked.items()} == {1: None, 2: 2, 8: 4}


def test_the_image_is_part_of_the_key_and_reaches_the_job(plane: Plane) -> None:
    """Two images are two environments, whatever their names; a mount or the runtime is not."""
    bare = placed(plane)
    pinned, other = (in_container(plane, f"r.example/team/align@sha256:{digit * 64}") for digit in "01")
    assert len({bare.plan.key, pinned.plan.key, other.plan.key}) == 3
    renamed = in_container(plane, "elsewhere.example/align:v3@sha256:" + "0" * 64, runtime="pyxis", mounts=["/data:/data:ro"])
    assert renamed.plan.key == pinned.plan.key
    job = pinned.job(1)
    assert job.container is not None
    assert job.container.mounts == (f"{plane.store_root}:{plane.store_root}",)
    assert " apptainer exec " in render(job).splitlines()[-1]
    assert pinned.command(1)[-2:] == ("--image", "sha256:" + "0" * 64)
    assert "--image" not in bare.command(1)


def in_container(plane: Plane, image: str, **more: Any) -> Placed:
    plane.change_cluster(container={"runtime": "apptainer", "image": image, **more})
    return placed(plane)


@pytest.mark.parametrize("runtime", ["apptainer", "pyxis"])
def test_ranks_in_containers_are_started_around_them_and_meet_by_themselves(plane: Plane, runtime: str) -> None:
    alone = in_container(plane, "r.example/align@sha256:" + "0" * 64, runtime=runtime)
    two = dataclasses.replace(alone, plan=dataclasses.replace(alone.plan, job=alone.plan.job.model_copy(update={"tasks": 2})))
    arguments = two.command(1)
    assert arguments[arguments.index("--ranks") :][:3] == ("--ranks", "2", "--together")
    job = two.job(1)
    assert (job.ntasks, job.env["SLURM_MPI_TYPE"]) == (2, "none")
    last = shlex.split(render(job).splitlines()[-1])
    assert last[:2] == ["exec", "srun"]
    assert {"--kill-on-bad-exit=1", f"--cpus-per-task={job.cpus_per_task}"} <= set(last[: last.index(arguments[0])])
    assert last[last.index(arguments[0]) :] == list(arguments)
    assert "--together" not in alone.command(1)
    assert "SLURM_MPI_TYPE" not in alone.job(1).env


@pytest.mark.parametrize("image", ["r.example/team/align:v3", "/images/align.sif", "r.example/align@sha256:123"])
def test_an_image_that_is_not_pinned_is_refused_where_it_is_written(image: str) -> None:
    with pytest.raises(ValueError, match="image` must end in @sha256"):
        ContainerSettings(runtime="apptainer", image=image)
    assert ContainerSettings(runtime="apptainer", image="/images/align.sif", sha256="a" * 64).digest == "sha256:" + "a" * 64


def test_a_preemptible_recipe_goes_where_the_site_says(plane: Plane) -> None:
    recipe = yaml.safe_load((plane.configs / "recipes/tiny.yaml").read_text())
    site = {"qos": "normal", "preemptible": PreemptibleSettings(partition="spot", qos="scavenger", requeue=True)}
    before = placed(plane, **site)
    plane.change_recipe("tiny", sft=recipe["sft"] | {"job": recipe["sft"].get("job", {}) | {"preemptible": True}})
    after = placed(plane, **site)
    assert before.plan.key == after.plan.key
    assert [(j.partition, j.qos, j.requeue) for j in (before.job(1), after.job(1))] == [
        ("batch", "normal", False),
        ("spot", "scavenger", True),
    ]
    assert after.resources()["partition"] == "spot"


def test_another_log_interval_changes_the_placement_and_no_key(plane: Plane) -> None:
    before, after = sft_plan(plane, log_every_steps=1), sft_plan(plane, log_every_steps=7)
    assert before.key == after.key
    assert before.spec.to_json() == after.spec.to_json() | {"note": before.spec.note}
    assert (before.settings["log_every_steps"], after.settings["log_every_steps"]) == (1, 7)


def test_a_wish_of_the_recipe_comes_before_the_sites_default(plane: Plane) -> None:
    job = {"partition": "big", "cpus": 8, "gpus": 2, "memory_gb": 64, "time_limit_minutes": 600, "heavy": False}
    made = sft_plan(plane, job=job)
    asked = place(made, cluster(), store_root(cluster()), lambda digest: "x").job(1)
    assert (asked.partition, asked.cpus_per_task, asked.gres, asked.mem) == ("big", 8, "gpu:2", "65536M")
    assert (asked.time_limit, asked.licenses) == (600, None)
    assert "DS_ACCELERATOR" not in asked.env


def test_files_beside_the_job_are_put_once_and_the_same_again(plane: Plane) -> None:
    at, store = placed(plane), services.store()
    put = at.stage_in(store)
    put(1)
    first = {path: path.read_bytes() for path in sorted(Path(plane.store_root).rglob("*")) if path.is_file()}
    put(1)
    assert {path: path.read_bytes() for path in sorted(Path(plane.store_root).rglob("*")) if path.is_file()} == first
    spec = json.loads((plane.store_root / at.run.spec).read_text())
    assert spec["key"] == at.plan.key
    put(2)
    placement = json.loads((plane.store_root / at.run.submission(2) / "placement.json").read_text())
    assert (placement["key"], placement["n"]) == (at.plan.key, 2)
    assert placement["inputs"]["base"]["path"].startswith(f"{plane.store_root}/runs/")
