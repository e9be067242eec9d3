"""Batch scripts: nothing of a value is executed, nothing of it is lost, no directive is smuggled in."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_slurm.containers import WRONG_IMAGE
from airflow_slurm.errors import InvalidSpec
from airflow_slurm.requests import JobRequest
from airflow_slurm.slurm.names import job_name_for
from airflow_slurm.slurm.script import NO_ENV_FILE, NO_MODULE, own_exits, quote_directive, render
from airflow_slurm.spec import JobSpec, check_job_name, check_sent
from airflow_slurm.watch.lines import Lines

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"))
NASTY = 'it is "fine"; rm -rf $HOME `id` \\ it\'s\n#SBATCH --qos=admin'


def run(script: str, cwd: Path) -> str:
    """What a script prints, run by the shell it names."""
    done = subprocess.run(
        ["/bin/bash", "-s"], input=script, cwd=cwd, capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"}
    )
    return done.stdout


def directives(script: str) -> list[str]:
    """The lines that sbatch reads: those before the first command."""
    found = []
    for line in script.split("\n")[1:]:
        if line and not line.startswith("#"):
            break
        found += [line.removeprefix("#SBATCH ")] if line.startswith("#SBATCH ") else []
    return found


@settings(max_examples=30, deadline=None)
@given(value=TEXT, arguments=st.lists(TEXT, max_size=3))
def test_variables_and_arguments_arrive_byte_for_byte(tmp_path_factory: pytest.TempPathFactory, value: str, arguments: list[str]) -> None:
    dump = "import json, os, sys; print(json.dumps([os.environ['NOTE'], sys.argv[1:]]))"
    spec = JobSpec(command=(sys.executable, "-c", dump, *arguments), env={"NOTE": value})
    assert json.loads(run(render(spec), tmp_path_factory.getbasetemp())) == [value, arguments]


def test_a_value_that_looks_like_shell_executes_nothing(tmp_path: Path) -> None:
    value = f"$(touch {tmp_path}/pwned) `touch {tmp_path}/pwned`; touch {tmp_path}/pwned"
    script = render(JobSpec(command=("true", value), env={"NOTE": value}, comment=value))
    run(script, tmp_path)
    assert not (tmp_path / "pwned").exists()


def test_a_value_with_a_directive_in_it_adds_none() -> None:
    spec = JobSpec(command=("echo", NASTY), env={"NOTE": NASTY}, nodes=2, mem="64G", chdir="/scratch/team x/run 1")
    assert directives(render(spec)) == [
        '--nodes="2"', '--mem="64G"', '--chdir="/scratch/team x/run 1"', "--no-requeue", "--open-mode=append", "--export=NONE",
    ]  # fmt: skip


def test_windows_line_ends_of_setup_lines_are_dropped(tmp_path: Path) -> None:
    script = render(JobSpec(body="echo $A\r\necho two\r\n", setup=("export A=1\r",)))
    assert "\r" not in script
    assert run(script, tmp_path) == "1\ntwo\n"


def test_the_environment_of_the_submitter_stays_out_and_steps_still_get_theirs() -> None:
    script = render(JobSpec(command=("srun", "true")))
    assert "#SBATCH --export=NONE" in script
    assert script.index("export SLURM_EXPORT_ENV=ALL") < script.index("srun true")


def test_the_program_takes_the_place_of_the_shell_so_that_signals_reach_it(tmp_path: Path) -> None:
    assert render(JobSpec(command=("train", "--lr", "1e-4"))).endswith("\nexec train --lr 1e-4\n")


def test_a_warning_before_the_time_limit() -> None:
    assert "#SBATCH --signal=B:USR1@90" in render(JobSpec(command=("true",), signal_lead_s=90))
    assert "--signal" not in render(JobSpec(command=("true",)))


def test_requeue_is_off_unless_asked_for() -> None:
    assert "--no-requeue" in directives(render(JobSpec(command=("true",))))
    assert "--requeue" in directives(render(JobSpec(command=("true",), requeue=True)))


@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc",))))
def test_a_quoted_directive_reads_back(value: str) -> None:
    quoted = quote_directive(value)
    assert quoted[0] == quoted[-1] == '"'
    read, escaped = "", False
    for char in quoted[1:-1]:
        if escaped:
            read, escaped = read + char, False
        elif char == "\\":
            escaped = True
        else:
            assert char != '"'
            read += char
    assert (read, escaped) == (value, False)


@pytest.mark.parametrize("name", ["sft (run 1)", "a b", "$(id)", "a\nb", "", "-n", "x" * 201, "a;b", "a|b"])
def test_a_name_that_is_not_safe_is_refused_by_field(name: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        check_job_name(name)
    assert caught.value.field == "job_name"


def test_the_default_name_depends_on_key_and_number_alone() -> None:
    assert job_name_for("sft/run-12", 3) == job_name_for("sft/run-12", 3)
    assert len({job_name_for("a", 1), job_name_for("a", 2), job_name_for("b", 1)}) == 3


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("partition", {"partition": "batch --qos=admin"}),
        ("nodes", {"nodes": 0}),
        ("nodes", {"nodes": True}),
        ("mem", {"mem": "64 GB"}),
        ("mem", {"mem": "1G", "mem_per_cpu": "1G"}),
        ("time_limit", {"time_limit": "soon"}),
        ("env", {"env": {"A B": "1"}}),
        ("env", {"env": {"SLURM_JOB_ID": "1"}}),
        ("env", {"env": {"A": "x\x00y"}}),
        ("signal", {"signal": "USR1; id"}),
        ("comment", {"comment": "a\nb"}),
        ("output", {"output": "log.txt"}),
        ("output", {"output": "/runs/%u.log"}),
        ("output", {"output": "/runs/../etc/x", "root": "/runs"}),
        ("output", {"output": "/elsewhere/x.log", "root": "/runs"}),
        ("chdir", {"chdir": "/a\nb"}),
        ("env_files", {"env_files": "/secrets"}),
        ("env_files", {"env_files": ["secrets"]}),
        ("env_files", {"env_files": ["/a/../secrets"]}),
        ("env_files", {"env_files": [7]}),
        ("command", {"body": "true"}),
    ],
)
def test_a_field_that_cant_be_meant_is_refused_by_name(field: str, values: dict[str, object]) -> None:
    with pytest.raises(InvalidSpec) as caught:
        JobSpec(command=("true",), **values)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_an_unknown_field_names_the_known_ones() -> None:
    with pytest.raises(InvalidSpec, match="partition"):
        JobSpec.from_mapping({"command": ["true"], "partion": "batch"})


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("output", {"command": ["true"], "root": "/runs"}),
        ("signal_lead_s", {"body": "python train.py", "signal_lead_s": 60}),
    ],
)
def test_what_an_earlier_version_sent_is_described_still_and_not_sent_again(field: str, values: dict[str, object]) -> None:
    with pytest.raises(InvalidSpec) as caught:
        check_sent(JobSpec.from_mapping(values))
    assert caught.value.field == field
    check_sent(JobSpec.from_mapping({**values, "chdir": "/runs"} | ({"body": "exec python train.py"} if "body" in values else {})))


def test_the_log_is_where_the_pattern_says() -> None:
    spec = JobSpec(command=("true",), output="/runs/50%%/slurm-%j.log", root="/runs")
    assert spec.log_path("77") == "/runs/50%/slurm-77.log"


def test_a_folder_to_run_in_keeps_slurms_own_output_below_the_root() -> None:
    assert JobSpec(command=("true",), chdir="/runs/x", root="/runs").output is None


@pytest.mark.parametrize(("path", "said"), [("/models/done", "does not lie below"), ("/runs/../models/done", "climbs up")])
def test_an_expected_output_lies_below_the_root_of_job_or_connection(path: str, said: str) -> None:
    for root, of_connection in (("/runs", None), (None, "/runs")):
        spec = JobSpec(command=("true",), output="/runs/%j.log", root=root)
        request = JobRequest("k", spec, "x", {}, expected_output=path)
        with pytest.raises(InvalidSpec, match=f"expected_output.*{said}"):
            request.work(lambda *_: None, of_connection).spec_for(1)
        assert replace(request, expected_output="/runs/done").work(lambda *_: None, of_connection).spec_for(1).root == "/runs"


@pytest.mark.parametrize("root", ["/", "/run"])
def test_a_root_of_the_jobs_own_lies_below_that_of_the_connection(root: str) -> None:
    with pytest.raises(InvalidSpec, match="'root'.*does not lie below '/runs'"):
        JobRequest("k", JobSpec(command=("true",), output="/run/%j.log", root=root), "x", {}).work(lambda *_: None, "/runs").spec_for(1)
    spec = JobSpec(command=("true",), output="/runs/mine/%j.log", root="/runs/mine")
    assert JobRequest("k", spec, "x", {}).work(lambda *_: None, "/runs").spec_for(1).root == "/runs/mine"
    with pytest.raises(InvalidSpec, match="expected_output.*'/runs/mine'"):
        JobRequest("k", spec, "x", {}, expected_output="/runs/done").work(lambda *_: None, "/runs").spec_for(1)


def test_the_lines_that_a_job_writes_lie_below_the_root_too() -> None:
    for path, root, said in (
        ("/etc/{n}-{job_id}", "/runs", "below '/runs'"),
        ("/runs/../{n}", "/runs", "climbs up"),
        ("/x/../{n}", None, "climbs up"),
    ):
        request = JobRequest("k", JobSpec(command=("true",), output="/runs/%j.log"), "x", {}, lines=Lines(path, "taker"))
        with pytest.raises(InvalidSpec, match=f"lines.*{said}"):
            request.work(lambda *_: None, root).spec_for(1)
        replace(request, lines=Lines("/runs/{n}-{job_id}.{restarts}", "taker")).work(lambda *_: None, root).spec_for(1)


def test_the_scripts_own_exit_codes_are_those_of_what_it_has_to_load() -> None:
    image = {"runtime": "apptainer", "image": "/images/a.sif", "sha256": "0" * 64}
    assert own_exits(JobSpec(command=("true",))) == {}
    assert own_exits(JobSpec(command=("true",), modules=("cuda",))) == {NO_MODULE: "no_module"}
    assert own_exits(JobSpec.from_mapping({"command": ["true"], "container": image})) == {WRONG_IMAGE: "wrong_image"}
    assert own_exits(JobSpec.from_mapping({"command": ["true"], "container": image | {"image": f"a/b@sha256:{'0' * 64}"}})) == {}


def test_variables_of_a_file_on_the_cluster_reach_the_program_and_stand_in_no_script(tmp_path: Path) -> None:
    secret = tmp_path / "it's a file"
    secret.write_text("TOKEN='s3cr$t \"x\"'\nPLAIN=1\n")
    program = (sys.executable, "-c", "import json, os; print(json.dumps([os.environ.get(n) for n in ('TOKEN', 'PLAIN', 'OWN')]))")
    script = render(JobSpec(command=program, env={"OWN": "y"}, env_files=(str(secret),)))
    assert "s3cr" not in script
    assert json.loads(run(script, tmp_path)) == ['s3cr$t "x"', "1", "y"]


def test_a_file_of_variables_may_end_with_a_test_that_fails(tmp_path: Path) -> None:
    (tmp_path / "env").write_text('A=1\n[ -n "$NONE" ] && B=2\n')
    program = (sys.executable, "-c", "import os; print(os.environ['A'])")
    assert run(render(JobSpec(command=program, env_files=(str(tmp_path / "env"),))), tmp_path).strip() == "1"


def test_the_scripts_own_exit_codes_are_nobody_elses() -> None:
    assert {NO_MODULE, NO_ENV_FILE, WRONG_IMAGE}.isdisjoint(errno.errorcode)
    assert all(128 + 64 < code < 255 for code in (NO_MODULE, NO_ENV_FILE, WRONG_IMAGE))


@pytest.mark.parametrize("folder", [True, False])
def test_a_file_of_variables_that_cant_be_read_ends_the_job_before_its_program(tmp_path: Path, folder: bool) -> None:
    if folder:
        (tmp_path / "env").mkdir()
    spec = JobSpec(command=("touch", str(tmp_path / "ran")), env_files=(str(tmp_path / "env"),))
    done = subprocess.run(["/bin/bash", "-c", render(spec)], capture_output=True, text=True)
    assert done.returncode == NO_ENV_FILE
    assert f"the environment file {tmp_path}/env could not be read" in done.stderr
    assert not (tmp_path / "ran").exists()
    assert own_exits(spec) == {NO_ENV_FILE: "no_env_file"}
