"""The DAG files as Airflow reads them: in a fresh interpreter, without any service."""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from include.flows.errors import FlowError
from include.flows.scheduled import scheduled
from tests.flows.things import ROOT

DAGS = {
    "align_policy",
    "alignment_refresh",
    "apply_retention",
    "audit_annotation",
    "build_dataset",
    "collect_preferences",
    "erase_data",
    "evaluate_policy",
    "reconcile_slurm",
    "release_policy",
    "rollback_release",
    "train_reward_model",
    "train_sft",
    "withdraw_labels",
}
HEAVY = (
    "torch",
    "transformers",
    "deepspeed",
    "megatron",
    "mlflow",
    "great_expectations",
    "datasets",
    "pandas",
    "pyarrow",
    "numpy",
    "scipy",
    "s3fs",
    "boto3",
)
ALLOWED_ROOMS = {"include", "include.domain", "include.flows"}
"""Rooms of ours that parsing may enter; models, stores and gates wait for a task."""
NEEDS_A_DATE = {"ds", "ds_nodash", "ts", "ts_nodash", "logical_date", "execution_date", "data_interval_start", "data_interval_end"}


@pytest.fixture(scope="module")
def loaded() -> Mapping[str, Any]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW__", "ALIGN_"))}
    settings = {
        **kept,
        "PYTHONPATH": f"{ROOT}:{ROOT}/plugins",
        "AIRFLOW__CORE__DAGS_FOLDER": f"{ROOT}/dags",
        "AIRFLOW__CORE__PLUGINS_FOLDER": f"{ROOT}/plugins",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    program = str(Path(__file__).with_name("load_dags.py"))
    done = subprocess.run([sys.executable, program, str(ROOT)], env=settings, text=True, capture_output=True, check=False, cwd="/")
    answers = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    assert answers, done.stderr[-3000:]
    found: Mapping[str, Any] = json.loads(answers[0].removeprefix("ANSWER "))
    return found


@pytest.fixture(scope="module")
def dags(loaded: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = loaded["dags"]["dags"]
    return found


def test_every_dag_file_loads_and_gives_its_dag(loaded: Mapping[str, Any], dags: Mapping[str, Any]) -> None:
    files = loaded["dags"]["files"]
    for name, file in files.items():
        print(f"{name}: {file['cpu_seconds']:.2f} s of CPU beside Airflow's own import")
    assert {name: file["errors"] for name, file in files.items() if file["errors"]} == {}
    assert {dag: found["file"] for dag, found in dags.items()} == {dag: f"{dag}.py" for dag in DAGS}


def test_parsing_loads_nothing_heavy_and_no_room_of_services(loaded: Mapping[str, Any], dags: Mapping[str, Any]) -> None:
    waiting_for_buckets = {dag["file"] for dag in dags.values() if any("wait_for_exports" in task["id"] for task in dag["tasks"])}
    for name, file in loaded["dags"]["files"].items():
        heavy = set(HEAVY) & set(file["modules"])
        assert heavy <= ({"boto3"} if name in waiting_for_buckets else set()), name
        rooms = {".".join(module.split(".")[:2]) for module in file["modules"] if module.split(".")[0] == "include"}
        assert rooms <= ALLOWED_ROOMS, name


def test_the_whole_chain_emits_no_asset_and_every_phase_ends_with_its_own(dags: Mapping[str, Any]) -> None:
    outlets = {dag: [o for task in found["tasks"] for o in task["outlets"]] for dag, found in dags.items()}
    assert outlets["alignment_refresh"] == []
    emitting = {dag: re.findall(r"alignment_\w+", str(names)) for dag, names in outlets.items() if names}
    assert {dag: names[0] for dag, names in emitting.items()} == {
        "build_dataset": "alignment_datasets",
        "train_sft": "alignment_sft",
        "collect_preferences": "alignment_preferences",
        "train_reward_model": "alignment_reward_model",
        "align_policy": "alignment_policy",
    }


def test_the_audit_asks_a_service_again_that_is_away_and_says_at_once_what_it_found(dags: Mapping[str, Any]) -> None:
    assert {task["id"]: task["retries"] for task in dags["audit_annotation"]["tasks"]} == {"audit": 3, "review": 0}


def test_only_time_starts_an_evaluation_or_an_audit_and_no_asset_the_whole_chain(dags: Mapping[str, Any]) -> None:
    assert {dags[name]["timetable"] for name in ("evaluate_policy", "audit_annotation")} == {"CronDataIntervalTimetable"}
    assert dags["alignment_refresh"]["timetable"] == "NullTimetable"
    assert {dag for dag, found in dags.items() if found["timetable"] == "AssetTriggeredTimetable"} == {
        "align_policy",
        "collect_preferences",
        "release_policy",
        "train_reward_model",
        "train_sft",
    }
    assert {dag for dag, found in dags.items() if found["catchup"]} == set()


def test_the_chain_has_its_groups_in_order(dags: Mapping[str, Any]) -> None:
    edges = dags["alignment_refresh"]["edges"]

    def reach(task: str) -> set[str]:
        found: set[str] = set()
        waiting = [task]
        while waiting:
            for following in edges[waiting.pop()]:
                if following not in found:
                    found.add(following)
                    waiting.append(following)
        return found

    order = ["resolve", "base.import_base", "sft.train", "candidates.generate", "preferences.wait_for_labels", "reward_model.gate"]
    order += [
        "policy.optimise",
        "evaluation.gates",
        "release.dossier",
        "release.approve",
        "release.start_canary",
        "release.promote",
        "outcome",
    ]
    for before, after in itertools.pairwise(order):
        assert after in reach(before), f"{after} does not follow {before}"
    assert len(edges) <= 30, "each task costs seconds"


def test_tasks_on_slurm_have_at_least_two_retries_and_human_tasks_none(dags: Mapping[str, Any]) -> None:
    tasks = [task for found in dags.values() for task in found["tasks"]]
    on_slurm = [task["retries"] for task in tasks if task["type"] in ("StageOperator", "ArrayStageOperator")]
    human = [task["retries"] for task in tasks if task["type"] == "ReleaseApproval"]
    assert len(on_slurm) >= 7
    assert min(on_slurm) >= 2
    assert human
    assert set(human) == {0}


def test_no_template_needs_a_logical_date(dags: Mapping[str, Any]) -> None:
    """Runs started by assets, by hand or by another DAG have none."""
    used = [
        (dag, task["id"], name)
        for dag, found in dags.items()
        for task in found["tasks"]
        for text in task["templates"]
        for expression in re.findall(r"{{.*?}}|{%.*?%}", text)
        for name in NEEDS_A_DATE & set(re.findall(r"\w+", expression))
    ]
    assert used == []


def test_no_code_of_a_dag_demands_a_logical_date() -> None:
    """``context["ds"]`` raises in such a run; ``context.get(…)`` lets the code say what happens then."""
    files = [*(ROOT / "dags").glob("*.py"), *(ROOT / "include/flows").glob("*.py"), *(ROOT / "plugins").rglob("*.py")]
    assert len(files) > 30
    assert [f"{path.relative_to(ROOT)}:{line}" for path in files for line in _demands(path)] == []


def _demands(path: Path) -> Iterator[int]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value in NEEDS_A_DATE:
            yield node.lineno
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any("task" in ast.unparse(d) for d in node.decorator_list):
            names = {argument.arg for argument in [*node.args.args, *node.args.kwonlyargs]}
            if names & NEEDS_A_DATE:
                yield node.lineno


def test_exactly_one_plugin_is_loaded_and_the_provider_under_its_own_name_alone(loaded: Mapping[str, Any]) -> None:
    plugins = loaded["plugins"]
    assert plugins["errors"] == {}
    ours = [plugin for plugin in plugins["found"] if "alignment_plugin" in plugin["source"] or "airflow_slurm" in plugin["source"]]
    # The provider's own plugin comes by its entry point, where the package is installed with it; never from the folder.
    from_folder = [plugin["name"] for plugin in ours if "EntryPoint" not in plugin["source"]]
    assert from_folder == ["alignment"]
    assert {plugin["name"] for plugin in ours} <= {"alignment", "slurm"}
    bare = [name for name in plugins["modules"] if name.split(".")[0] != "airflow_slurm"]
    assert [name for name in bare if "alignment_plugin" not in name] == []
    assert len(bare) == 1


def test_each_recipe_that_is_named_has_a_schedule_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "dags").mkdir()
    (tmp_path / "plugins").mkdir()
    for name in ("alignment_refresh", "evaluate_policy"):
        (tmp_path / f"dags/{name}.py").write_text((ROOT / f"dags/{name}.py").read_text())
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW__", "ALIGN_"))}
    asked = {"ALIGN_REFRESH_RECIPES": "assistant-7b, tiny", "ALIGN_REFRESH_SCHEDULE": "0 3 * * 1"}
    settings = {**kept, **asked, "PYTHONPATH": f"{ROOT}:{ROOT}/plugins", "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    program = str(Path(__file__).with_name("load_dags.py"))
    done = subprocess.run([sys.executable, program, str(tmp_path)], env=settings, text=True, capture_output=True, check=False, cwd="/")
    line = next(line for line in done.stdout.splitlines() if line.startswith("ANSWER "))
    found = json.loads(line.removeprefix("ANSWER "))["dags"]
    assert {name: file["errors"] for name, file in found["files"].items() if file["errors"]} == {}
    assert {name: dag["params"]["recipe"] for name, dag in found["dags"].items()} == {
        "alignment_refresh": "assistant-7b",
        "alignment_refresh_tiny": "tiny",
        "evaluate_policy": "assistant-7b",
        "evaluate_policy_tiny": "tiny",
    }
    assert {dag["timetable"] for name, dag in found["dags"].items() if name.startswith("alignment")} == {"CronTriggerTimetable"}


@pytest.mark.parametrize(
    ("named", "words"), [("tiny,../x", "'../x' is no recipe"), ("tiny,,x", "'' is no recipe"), ("tiny,tiny@v1", "twice")]
)
def test_schedules_of_no_recipe_are_refused(monkeypatch: pytest.MonkeyPatch, named: str, words: str) -> None:
    monkeypatch.setenv("ALIGN_REFRESH_RECIPES", named)
    with pytest.raises(FlowError, match=words):
        scheduled("alignment_refresh")


def test_a_site_that_names_no_recipe_has_the_quickstart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALIGN_REFRESH_RECIPES", raising=False)
    assert scheduled("evaluate_policy") == [("evaluate_policy", "quickstart")]
