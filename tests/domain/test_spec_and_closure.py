"""Keys: what moves them and what does not; code revision over the static import closure."""

from dataclasses import replace
from pathlib import Path

import pytest

from include.domain.closure import code_revision, import_closure
from include.domain.environment import Environment
from include.domain.errors import SpecError
from include.domain.spec import RunSpec

D = ["sha256:" + str(i) * 64 for i in range(10)]


def spec() -> RunSpec:
    return RunSpec(
        "sft", "include.training.sft", {"base": D[1], "demonstrations": D[2]}, D[3], {"learning_rate": 2e-5}, D[4], 42, D[5], D[6]
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"inputs": {"base": D[1], "demonstrations": D[7]}},
        {"code_revision": D[7]},
        {"config": {"learning_rate": 2.1e-5}},
        {"environment": D[7]},
        {"seed": 43},
        {"tokenizer": D[7]},
        {"chat_template": D[7]},
        {"rerun_salt": "again"},
        {"stage": "dpo"},
    ],
)
def test_everything_of_the_identity_moves_the_key(changed: dict[str, object]) -> None:
    assert replace(spec(), **changed).key != spec().key  # type: ignore[arg-type]


def test_what_is_recorded_beside_does_not_move_the_key() -> None:
    assert replace(spec(), note={"git_commit": "abc"}).key == spec().key


def test_the_key_is_pinned() -> None:
    """A literal: the form of a key is final from the first version."""
    assert spec().key == "sha256:c7062d7fcb4127a46abbc07f768afa714a6b70bc9862a932e0a1ed011a3ff34c"


def test_a_spec_survives_the_round_trip_and_a_changed_one_is_refused() -> None:
    value = spec().to_json()
    assert RunSpec.from_json(value) == spec()
    value["seed"] = 7
    with pytest.raises(SpecError, match="says key"):
        RunSpec.from_json(value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"inputs": {}}, "without an input"),
        ({"inputs": {"base": "latest"}}, "inputs.base"),
        ({"code_revision": ""}, "code_revision"),
        ({"environment": None}, "environment"),
        ({"tokenizer": None}, "tokenizer"),
        ({"chat_template": None}, "chat_template"),
        ({"seed": -1}, "seed"),
        ({"seed": True}, "seed"),
        ({"config": {}}, "configuration"),
        ({"stage": "train"}, "stage"),
    ],
)
def test_a_run_with_a_missing_pin_is_refused(changed: dict[str, object], words: str) -> None:
    with pytest.raises((SpecError, ValueError), match=words):
        replace(spec(), **changed)  # type: ignore[arg-type]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {
        "include/__init__.py": "",
        "include/a/__init__.py": "",
        "include/a/program.py": "from include.a import helper\nfrom include.b.maths import one\n",
        "include/a/helper.py": '"""Says."""\n\ndef help() -> int:\n    """Helps."""\n    return 1\n',
        "include/b/__init__.py": "",
        "include/b/maths.py": "one = 1\n",
        "include/b/metric.py": "two = 2\n",
        "lock.txt": "torch==2\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def revision(project: Path) -> str:
    return code_revision(project, "include.a.program", project / "lock.txt")


def test_the_closure_is_what_is_really_imported(project: Path) -> None:
    names = set(import_closure(project, "include.a.program"))
    assert names == {"include", "include.a", "include.a.program", "include.a.helper", "include.b", "include.b.maths"}


@pytest.mark.parametrize(
    ("file", "text", "moves"),
    [
        ("include/b/metric.py", "two = 3\n", False),
        ("include/a/helper.py", '"""Other words."""\n# a comment\n\ndef help() -> int:\n    return 1\n', False),
        ("include/a/helper.py", "def help() -> int:\n    return 2\n", True),
        ("include/b/maths.py", "one = 2\n", True),
        ("lock.txt", "torch==3\n", True),
    ],
)
def test_a_metric_nobody_imports_leaves_the_revision_alone(project: Path, file: str, text: str, moves: bool) -> None:
    before = revision(project)
    (project / file).write_text(text)
    assert (revision(project) != before) is moves


@pytest.mark.parametrize(
    "text",
    [
        "import importlib\nimportlib.import_module('include.b.metric')\n",
        "exec('x = 1')\n",
        "__import__('os')\n",
        "from . import helper\n",
        "import include.missing\n",
    ],
)
def test_what_would_be_outside_the_revision_is_refused(project: Path, text: str) -> None:
    (project / "include/a/helper.py").write_text(text)
    with pytest.raises(SpecError, match=r"helper\.py|include\.missing"):
        revision(project)


def test_model_eval_is_no_dynamic_import(project: Path) -> None:
    (project / "include/a/helper.py").write_text("def help(model):\n    model.eval()\n")
    assert revision(project)


def test_the_environment_has_a_digest_of_its_own() -> None:
    here = Environment(D[1], "linux", "x86_64", "3.11")
    assert here.digest != replace(here, python="3.12").digest
