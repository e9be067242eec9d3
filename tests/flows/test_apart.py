"""Suites are apart from what was trained on, one prompt has one use, and how far annotators agree is written down: in the tasks themselves."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from include.data.annotation_client import Snapshot
from include.data.errors import DataError
from include.data.suites import require_uses_apart
from include.domain.records import Message
from include.flows import data_tasks, evaluation_tasks, links, services
from include.flows.apart import require_suites_apart
from include.flows.errors import FlowError
from include.flows.label_sensor import LabelSensor
from include.transforms.datasets_io import DatasetHeader, SidedRow, write_dataset
from include.transforms.draft import Draft
from tests.data.conftest import demonstrations, jsonl, sentence
from tests.data.labels import candidate, label, prompt
from tests.flows.conftest import Plane
from tests.flows.things import BASE, POLICY, REWARD, result
from tests.stores.things import some_digest, spec

WRITER = "dag:build_dataset/manual__1/data.build_datasets/1"


@pytest.fixture
def control(plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plane:
    monkeypatch.setenv("ALIGN_SOURCES", str(tmp_path))
    monkeypatch.setenv("ALIGN_WORK", str(tmp_path / "work"))
    monkeypatch.setattr(links, "get_current_context", lambda: {"ti": SimpleNamespace(xcom_push=lambda key, value: None)})
    return plane


def dataset(folder: Path, rows: str, texts: list[str], side: str, use: str = "evaluation") -> dict[str, Any]:
    """A stored dataset version of these prompts."""
    drafts = [Draft("made", n, (Message("user", t),), "CC0", "licence", response=(Message("assistant", "x"),)) for n, t in enumerate(texts)]
    records = [draft.suite_item("g") if rows == "suite" else draft.demonstration("g") for draft in drafts]
    ids = [str(record.to_json().get("item_id") or record.to_json()["example_id"]) for record in records]
    made = [SidedRow(i, side, f"g{t}", use, record.to_json()) for i, record, t in zip(ids, records, texts, strict=True)]
    info = write_dataset(folder, DatasetHeader(folder.name, rows, "filters@1"), made)
    return data_tasks.publish(info, "tiny", WRITER)


def test_a_training_row_that_says_a_suites_item_again_stops_the_evaluation(control: Plane, tmp_path: Path) -> None:
    suites = ("word_problems", "choices", "names")
    control.gates_on_few_items()
    datasets = {name: dataset(tmp_path / name, "suite", [sentence(n) for n in (1, 2, 3)], "holdout") for name in suites}
    datasets["demonstrations"] = dataset(tmp_path / "demonstrations", "demonstration", [sentence(n) for n in range(10, 30)], "train")
    run = control.run()
    parts = result("base_import", "base", BASE, "base"), result("sft", "policy", BASE), result("dpo", "policy", POLICY)
    reward = result("reward_model", "reward_model", REWARD, "reward_model")
    found = evaluation_tasks.wanted(run, *parts, reward, datasets)
    assert set(found["suites"]) == set(suites)
    again = f"{sentence(2)} Now"
    datasets["demonstrations"] = dataset(tmp_path / "more/demonstrations", "demonstration", [again], "train")
    with pytest.raises(DataError, match="1 training rows overlap with evaluation suites: demonstrations row"):
        evaluation_tasks.wanted(run, *parts, reward, datasets)


def test_what_a_mixture_brought_in_counts_as_trained_on(control: Plane, tmp_path: Path) -> None:
    suites = ("word_problems", "choices", "names")
    control.gates_on_few_items()
    datasets = {name: dataset(tmp_path / name, "suite", [sentence(n) for n in (1, 2, 3)], "holdout") for name in suites}
    extra = dataset(tmp_path / "extra", "demonstration", [f"{sentence(2)} Now"], "train")
    asked = spec("sft", inputs={"base": BASE, "demonstrations": some_digest("own"), "demonstrations_1": extra["content_hash"]})
    services.catalog().runs.plan(asked)
    sft = result("sft", "policy", BASE) | {"key": asked.key}
    reward = result("reward_model", "reward_model", REWARD, "reward_model")
    base, policy = result("base_import", "base", BASE, "base"), result("dpo", "policy", POLICY)
    with pytest.raises(DataError, match="1 training rows overlap with evaluation suites: extra row"):
        evaluation_tasks.wanted(control.run(), base, sft, policy, reward, datasets)


def test_pairs_that_the_policy_learnt_from_count_as_trained_on(control: Plane, tmp_path: Path) -> None:
    suites = ("word_problems", "choices", "names")
    control.gates_on_few_items()
    datasets = {name: dataset(tmp_path / name, "suite", [sentence(n) for n in (1, 2, 3)], "holdout") for name in suites}
    pairs = dataset(tmp_path / "preferences", "demonstration", [f"{sentence(2)} Now"], "train")
    asked = spec("dpo", inputs={"policy": BASE, "reference": BASE, "preferences": pairs["content_hash"]})
    services.catalog().runs.plan(asked)
    policy = result("dpo", "policy", POLICY) | {"key": asked.key}
    base, sft = result("base_import", "base", BASE, "base"), result("sft", "policy", BASE)
    with pytest.raises(DataError, match="1 training rows overlap with evaluation suites: preferences row"):
        evaluation_tasks.wanted(control.run(), base, sft, policy, result("reward_model", "reward_model", REWARD, "reward_model"), datasets)


def test_suites_too_small_for_the_gates_stop_before_anything_is_measured(control: Plane, tmp_path: Path) -> None:
    suites = ("word_problems", "choices", "names")
    datasets = {name: dataset(tmp_path / name, "suite", [sentence(n) for n in (1, 2, 3)], "holdout") for name in suites}
    results = (result("base_import", "base", BASE, "base"), result("sft", "policy", BASE), result("dpo", "policy", POLICY))
    reward = result("reward_model", "reward_model", REWARD, "reward_model")
    with pytest.raises(FlowError, match=r"gates tiny@1 cannot pass, whatever is trained: gate asked_form_better needs 100 items \(min_n\)"):
        evaluation_tasks.wanted(control.run(), *results, reward, datasets)


def test_held_out_rows_and_other_suites_are_no_training_rows(control: Plane, tmp_path: Path) -> None:
    suite = dataset(tmp_path / "word_problems", "suite", [sentence(1)], "holdout")
    others = {"names": dataset(tmp_path / "names", "suite", [sentence(1)], "safety_holdout")}
    others["held"] = dataset(tmp_path / "held", "demonstration", [sentence(1)], "holdout")
    assert require_suites_apart(control.run(), {"word_problems": suite}, {"word_problems": suite, **others}) == 1


def test_what_the_build_stores_is_apart_by_use_and_from_its_suites(control: Plane, capsys: pytest.CaptureFixture[str]) -> None:
    source = {
        "name": "arithmetic",
        "kind": "generated",
        "mapping": "arithmetic",
        "licence": "Apache-2.0",
        "options": {"seed": 7, "rows": 400},
    }
    uses = {"demonstration": 0.5, "preference": 0.3, "rl": 0.2}
    data = {
        "project": "tiny",
        "split_salt": "s",
        "licences": ["Apache-2.0"],
        "use_shares": uses,
        "sources": [source],
        "synthetic_pairs": 50,
    }
    control.change_recipe("tiny", data=data)
    run = control.run()
    built = data_tasks.build(run, WRITER)
    said = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Training prompts by use, apart"))
    assert all(f"{use} 0" not in said for use in uses)
    suites = {name: built[name] for name in ("word_problems", "choices", "names")}
    assert require_suites_apart(run, suites, built) > 0


def test_a_prompt_that_is_for_two_uses_is_refused(tmp_path: Path, control: Plane) -> None:
    def folder(name: str, use: str, numbers: range) -> Path:
        dataset(tmp_path / name, "demonstration", [sentence(n) for n in numbers], "train", use)
        return tmp_path / name

    first, second = folder("demonstrations", "demonstration", range(5)), folder("rl_prompts", "rl", range(5, 9))
    assert require_uses_apart([first, second]) == {"demonstration": 5, "preference": 0, "rl": 4}
    both = folder("preference_prompts", "preference", range(4, 6))
    with pytest.raises(DataError, match="preference_prompts row .* is for preference, and demonstrations has its prompt for demonstration"):
        require_uses_apart([first, both])


def test_a_build_whose_prompts_have_two_uses_stores_nothing(control: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_bytes(jsonl(demonstrations(30)))
    source = {"name": "own", "kind": "jsonl", "mapping": "rows", "path": "rows.jsonl", "licence": "CC0-1.0"}
    source["options"] = {"dataset": "demonstrations", "rows": "demonstration"}  # type: ignore[assignment]
    data = {"project": "tiny", "split_salt": "s", "licences": ["CC0-1.0"], "use_shares": {"demonstration": 1.0}, "sources": [source]}
    control.change_recipe("tiny", data=data)

    def two_uses(folders: Any) -> Any:
        raise DataError("one prompt, one use")

    monkeypatch.setattr("include.data.suites.require_uses_apart", two_uses)
    with pytest.raises(DataError, match="one use"):
        data_tasks.build(control.run(), WRITER)
    assert services.catalog().datasets.latest("tiny-demonstrations") is None


class Service:
    """The annotation service's answers for one batch that is ready."""

    def __init__(self, labels: tuple[Any, ...]) -> None:
        self.labels = labels

    def progress(self, batch_id: str) -> dict[str, Any]:
        now = "2099-01-01T00:00:00+00:00"
        counted = {"current": 99, "by_verdict": {"A": 50, "B": 49}}
        agreement = {"applicable": True, "share": 0.9}
        return {
            "labels": counted,
            "missing": {"human": 0, "total": 0},
            "agreement": agreement,
            "freshest_label_at": now,
            "decided_share": 1.0,
        }

    def withdrawals(self, batch_id: str) -> list[dict[str, Any]]:
        return []

    def snapshot(self, batch_id: str) -> Snapshot:
        return Snapshot(batch_id, "train", "r@1", 9, POLICY, self.labels)


@pytest.mark.parametrize(("second", "kappa", "doubt"), [("ABABABAB", 1.0, False), ("ABABBABA", -1 / 15, True), (None, None, False)])
def test_the_sensor_writes_down_how_far_annotators_agree(
    control: Plane, monkeypatch: pytest.MonkeyPatch, second: str | None, kappa: float | None, doubt: bool
) -> None:
    prompts = [prompt(n) for n in range(8)]
    said = {"ann": "ABABABAB"} | ({"bob": second} if second else {})
    labels = [
        label(candidate(p, "left"), candidate(p, "right"), verdict, annotator_id=who, label_id=f"{who}-{p.prompt_id}")
        for who, verdicts in said.items()
        for p, verdict in zip(prompts, verdicts, strict=True)
    ]

    @contextmanager
    def service(role: str) -> Any:
        yield Service(tuple(labels))

    monkeypatch.setattr(services, "annotation", service)
    sensor = LabelSensor(task_id="wait", run=control.run(), batch={"batch_id": "b1", "url": "http://here"})
    with capture_logs() as told:
        sensor.execute({"dag_run": SimpleNamespace(run_id="r1")})  # type: ignore[typeddict-item]
    kept = services.catalog().labels.snapshot("r1", "b1")
    assert kept is not None
    found = kept.body["agreement"]
    assert (found["applicable"], found["annotators"]) == (second is not None, len(said))
    assert found["kappa"] == (kappa if kappa is None else pytest.approx(kappa))
    assert "kappas" not in found
    assert [item["log_level"] for item in told if "review the rubric" in item["event"]] == ["warning"] * doubt
    assert ("not applicable" in str(told)) is (second is None)
