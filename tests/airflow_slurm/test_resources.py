"""What a job asks for: every field arrives in its option, and a value that can't be meant is refused by name."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_slurm.containers import WRONG_IMAGE, Container
from airflow_slurm.errors import InvalidSpec
from airflow_slurm.site.preemptible import Preemptible
from airflow_slurm.slurm.script import NO_MODULE, render
from airflow_slurm.spec import JobSpec

from .test_script import directives, run

DIGEST = "0123456789abcdef" * 4
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"))


def options(**asked: Any) -> list[str]:
    always = {"--no-requeue", "--open-mode=append", "--export=NONE"}
    return [line for line in directives(render(JobSpec(command=("true",), **asked))) if line not in always]


@pytest.mark.parametrize(
    ("asked", "option"),
    [
        ({"gpus_per_node": 8, "gpu_type": "h100"}, "--gpus-per-node=h100:8"),
        ({"gpus_per_node": 2}, "--gpus-per-node=2"),
        ({"gpus": 64, "gpu_type": "a100"}, "--gpus=a100:64"),
        ({"switches": 1}, "--switches=1"),
        ({"switches": 2, "switches_wait_s": 5430}, "--switches=2@1:30:30"),
        ({"constraint": "[rack1*2&rack2*2]"}, '--constraint="[rack1*2&rack2*2]"'),
        ({"reservation": "week_48"}, '--reservation="week_48"'),
        ({"licenses": "matlab@flex:2"}, '--licenses="matlab@flex:2"'),
        ({"exclusive": True}, "--exclusive"),
        ({"account": "ml", "qos": None}, '--account="ml"'),
    ],
)
def test_a_field_becomes_its_option(asked: dict[str, Any], option: str) -> None:
    assert options(**asked) == [option]


def test_nodes_of_a_block_topology_come_in_segments() -> None:
    assert options(nodes=36, segment=18) == ['--nodes="36"', "--segment=18"]


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        ("gpu_type", {"gpu_type": "a100"}),
        ("gpu_type", {"gpu_type": "a100:8 --qos=x", "gpus": 1}),
        ("gpus", {"gpus": 0}),
        ("gpus_per_node", {"gpus_per_node": True}),
        ("gres", {"gres": "gpu:2", "gpus_per_node": 2}),
        ("switches", {"switches": "1@now"}),
        ("segment", {"segment": 4}),
        ("segment", {"nodes": 2, "segment": 4}),
        ("segment", {"nodes": 2, "segment": "2 --wrap"}),
        ("switches_wait_s", {"switches_wait_s": 60}),
        ("switches_wait_s", {"switches": 1, "switches_wait_s": -1}),
        ("constraint", {"constraint": "a\n#SBATCH --qos=x"}),
        ("dependency", {"dependency": "afterok:1;id"}),
        ("modules", {"modules": ["cuda; id"]}),
        ("modules", {"modules": "cuda"}),
        ("modules", {"modules": ["-f"]}),
        ("components", {"components": {"partition": "gpu"}}),
        ("components.command", {"components": [{"command": ["x"]}]}),
        ("mem", {"components": [{"mem": "lots"}]}),
        ("container.image", {"container": {"runtime": "pyxis", "image": "nvcr.io/nvidia/pytorch:24.05-py3"}}),
        ("container.image", {"container": {"runtime": "apptainer", "image": f"x@sha256:{DIGEST[:-1]}"}}),
        ("container.image", {"container": {"runtime": "pyxis", "image": f"oras://r.io/x@sha256:{DIGEST}"}}),
        ("container.image", {"container": {"runtime": "apptainer", "image": "/images/../x.sif", "sha256": DIGEST}}),
        ("container.image", {"container": {"runtime": "apptainer", "image": f"Bad Name@sha256:{DIGEST}"}}),
        ("container.sha256", {"container": {"runtime": "apptainer", "image": "/images/x.sif"}}),
        ("container.runtime", {"container": {"runtime": "docker", "image": f"x@sha256:{DIGEST}"}}),
        ("container.runtime", {"container": {"image": f"x@sha256:{DIGEST}"}}),
        ("container.mounts", {"container": {"runtime": "pyxis", "image": f"x@sha256:{DIGEST}", "mounts": ["/a:/b,/etc:/etc"]}}),
        ("container.mounts", {"container": {"runtime": "pyxis", "image": f"x@sha256:{DIGEST}", "mounts": "/a:/b"}}),
        ("container.size", {"container": {"runtime": "pyxis", "image": f"x@sha256:{DIGEST}", "size": 1}}),
    ],
)
def test_a_value_that_cant_be_meant_is_refused_by_its_field(field: str, asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec) as caught:
        JobSpec.from_mapping({"command": ("true",), **asked})
    assert caught.value.field == field


def test_a_container_needs_a_command() -> None:
    with pytest.raises(InvalidSpec, match="container"):
        JobSpec(body="true", container=Container("apptainer", f"x@sha256:{DIGEST}"))


def test_components_follow_the_first_in_directives_of_their_own() -> None:
    spec = JobSpec(command=("true",), nodes=1, components=[{"partition": "gpu", "gpus_per_node": 8, "gpu_type": "h100", "nodes": 4}])  # type: ignore[arg-type]
    lines = directives(render(spec))
    at = lines.index("hetjob")
    assert '--nodes="1"' in lines[:at]
    assert lines[at + 1 :] == ['--partition="gpu"', '--nodes="4"', "--gpus-per-node=h100:8"]


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from(["partition", "account", "qos", "reservation", "constraint", "licenses", "gres", "gpu_type", "mem", "time_limit"]),
        TEXT, max_size=3,
    )
)  # fmt: skip
def test_no_value_of_any_field_adds_a_directive_or_a_line(values: dict[str, str]) -> None:
    try:
        spec = JobSpec(command=("true",), gpus=1, components=[dict(values, gpus=1)], **values)  # type: ignore[arg-type]
    except InvalidSpec:
        return
    lines = render(spec).split("\n")
    given_options = 2 * (1 + len([n for n in values if n != "gpu_type"]))
    assert sum(line.startswith("#SBATCH --") for line in lines) == given_options + 3
    assert lines[-3:] == ["export SLURM_EXPORT_ENV=ALL", "exec true", ""]


def test_an_image_of_a_registry_is_named_by_digest_for_either_runtime() -> None:
    image = f"nvcr.io/nvidia/pytorch:24.05-py3@sha256:{DIGEST}"
    assert Container("pyxis", image, mounts=("/data:/data:ro", "/x:/y"), workdir="/w").command(("a", "b c"), False) == (
        "srun", f"--container-image=nvcr.io#nvidia/pytorch:sha256:{DIGEST}", "--container-mounts=/data:/data:ro,/x:/y",
        "--container-workdir=/w", "a", "b c",
    )  # fmt: skip
    assert Container("apptainer", image, mounts=("/data:/data:ro",), workdir="/w").command(("a", "b c"), False) == (
        "apptainer", "exec", "--no-eval", "--nv", "--bind", "/data:/data:ro", "--pwd", "/w", f"docker://nvcr.io/nvidia/pytorch@sha256:{DIGEST}",
        "a", "b c",
    )  # fmt: skip


def test_one_container_a_task_is_started_by_srun_with_the_cpus_of_the_task() -> None:
    image = f"x@sha256:{DIGEST}"
    srun = ("srun", "--cpus-per-task=4", "--kill-on-bad-exit=1", "--wait=0")
    assert Container("apptainer", image, gpus=False).command(("a",), True, 4) == (
        *srun, "apptainer", "exec", "--no-eval", f"docker://x@sha256:{DIGEST}", "a",
    )  # fmt: skip
    assert Container("pyxis", image).command(("a",), True, 4) == (*srun, f"--container-image=x:sha256:{DIGEST}", "a")
    assert Container("pyxis", image).command(("a",), False, 4)[:2] == ("srun", "--cpus-per-task=4")
    spec = JobSpec(command=("a",), ntasks=2, cpus_per_task=4, container=Container("pyxis", image))
    assert render(spec).splitlines()[-1] == f"exec {' '.join(srun)} --container-image=x:sha256:{DIGEST} a"


@pytest.mark.parametrize(
    ("image", "enroot"),
    [
        (f"ubuntu@sha256:{DIGEST}", f"ubuntu:sha256:{DIGEST}"),
        (f"docker://team/x:v1@sha256:{DIGEST}", f"team/x:sha256:{DIGEST}"),
        (f"localhost:5000/x@sha256:{DIGEST}", f"localhost:5000#x:sha256:{DIGEST}"),
    ],
)
def test_the_registry_is_told_from_the_name(image: str, enroot: str) -> None:
    assert Container("pyxis", image).command(("true",), False)[1] == f"--container-image={enroot}"


FAKE = """#!{python}
import json, sys
print(json.dumps(sys.argv[1:]))
"""


def with_program(folder: Path, name: str) -> str:
    """A line that puts a stand-in for a program first on the PATH; it prints its arguments."""
    path = folder / name
    path.write_text(FAKE.format(python=sys.executable))
    path.chmod(0o755)
    return f'PATH={folder}:"$PATH"'


@settings(max_examples=20, deadline=None)
@given(arguments=st.lists(TEXT, max_size=3))
def test_any_argument_reaches_the_container_unchanged(tmp_path_factory: pytest.TempPathFactory, arguments: list[str]) -> None:
    folder = tmp_path_factory.getbasetemp()
    spec = JobSpec(
        command=("prog", *arguments), setup=(with_program(folder, "apptainer"),), container=Container("apptainer", f"x@sha256:{DIGEST}")
    )
    printed = json.loads(run(render(spec), folder))
    assert printed[-len(arguments) - 1 :] == ["prog", *arguments]


def test_an_image_file_that_was_changed_is_not_run(tmp_path: Path) -> None:
    image = tmp_path / "it's an image.sif"
    image.write_bytes(b"good")
    container = Container("apptainer", str(image), sha256=hashlib.sha256(b"good").hexdigest())
    script = render(JobSpec(command=("prog",), setup=(with_program(tmp_path, "apptainer"),), container=container))
    assert json.loads(run(script, tmp_path))[-2:] == [str(image), "prog"]
    image.write_bytes(b"other")
    done = subprocess.run(["/bin/bash", "-s"], input=script, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert (done.returncode, done.stdout) == (WRONG_IMAGE, "")
    assert "not the image with sha256" in done.stderr


def test_modules_are_loaded_in_order_and_a_missing_one_ends_the_job(tmp_path: Path) -> None:
    module = 'module() { echo "$*"; [ "$2" != missing/1 ]; }; export -f module; '
    spec = JobSpec(command=("echo", "ran"), modules=("cuda/12.4", "gcc/13"))
    done = subprocess.run(["/bin/bash", "-c", module + "/bin/bash -s"], input=render(spec), capture_output=True, text=True)
    assert done.stdout.splitlines() == ["load cuda/12.4", "load gcc/13", "ran"]
    spec = JobSpec(command=("echo", "ran"), modules=("missing/1",))
    done = subprocess.run(["/bin/bash", "-c", module + "/bin/bash -s"], input=render(spec), capture_output=True, text=True)
    assert (done.returncode, "ran" in done.stdout) == (NO_MODULE, False)
    assert "missing/1 could not be loaded" in done.stderr


def test_a_preemptible_job_goes_where_the_site_says() -> None:
    site = Preemptible("spot", "scavenger", True)
    job = site.apply(JobSpec(command=("true",), partition="gpu", preemptible=True))
    assert (job.partition, job.qos, job.requeue) == ("gpu", "scavenger", True)
    assert site.apply(JobSpec(command=("true",))) == JobSpec(command=("true",))
    assert site.apply(job) == job
    assert Preemptible().apply(JobSpec(command=("true",), preemptible=True)) == JobSpec(command=("true",))
