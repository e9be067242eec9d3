"""People compare the candidate's answers with others': blindly, once, by nobody who taught it; what they say is what the gate reads."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from airflow.sdk.exceptions import TaskDeferred

from include.data.annotation_client import AnnotationClient, Judgement
from include.domain.canonical import digest, sha256_bytes
from include.domain.layout import RunDir
from include.domain.manifest import FileEntry, Manifest
from include.domain.records import Label, Message, record_digest
from include.domain.spec import Report
from include.flows import data_tasks, panel, panel_result, services
from include.flows.benches import bench_of
from include.flows.errors import FlowError, NoAnswer, Rejected
from include.flows.evaluation_tasks import Asked, judge_candidate, register
from include.flows.gates_fit import require_gates_fit
from include.flows.panel_result import panel_of
from include.flows.panel_sensor import PanelSensor, PanelTrigger
from include.flows.planners import PLANNERS
from include.settings.catalogue import recipe
from include.stages.refs import ModelRef
from include.transforms.datasets_io import DatasetHeader, SidedRow, write_dataset
from include.transforms.draft import Draft
from tests.annotation.server import Server
from tests.annotation.support import World
from tests.flows.conftest import Plane
from tests.flows.releasing import ATTEMPT, weights
from tests.flows.test_people_reach import people  # noqa: F401  the fixture
from tests.flows.things import ROOT, TEMPLATE, TOKENIZER
from tests.stores.things import manifest

ITEMS = 16
CARD = "card 4111 1111 1111 1111"
PANEL: dict[str, Any] = {"rubric": "worked-answers@1", "min_labels": 10, "agreement_not_applicable_passes": True}
GATE = {"group": "human_pairwise", "metric": "human_win_rate", "suite": "chat", "min_n": 12}
GATES = [
    {**GATE, "name": "people_prefer_it", "kind": "superiority", "against": "sft"},
    {**GATE, "name": "people_like_it_no_less", "kind": "non_inferiority", "against": ["champion", "anchor"], "margin": 0.1},
]
OTHERS = ("capability_format", "safety_privacy_refusal", "multilingual_longtail", "cost_latency", "reward_hacking")
CONTEXT: Any = {
    "dag_run": SimpleNamespace(run_id="manual__1"),
    "ti": SimpleNamespace(dag_id="d", task_id="evaluation.ask_people", try_number=1),
}


def configure(plane: Plane, panel: dict[str, Any] | None = PANEL, gates: list[dict[str, Any]] = GATES) -> None:
    suites = {"name": "tiny", "version": 1, "suites": {"chat": {"dataset": "chat", "scorers": ["human_win_rate"]}}}
    body = {"name": "tiny", "version": 1, "demonstration": True, "gates": gates, "not_built": dict.fromkeys(OTHERS, "a test of people")}
    (plane.configs / "suites/tiny.yaml").write_text(yaml.safe_dump(suites))
    (plane.configs / "gates/tiny.yaml").write_text(yaml.safe_dump(body))
    plane.change_recipe("tiny", **({"human_pairwise": panel} if panel else {}))


def chat(folder: Path) -> dict[str, Any]:
    """A suite of requests that only people can tell the better answer of."""
    rows = []
    for n in range(ITEMS):
        item = (
            Draft("made", n, (Message("user", f"Tell me about {n}"),), "CC0", "licence").with_pii("none", "test").suite_item(f"chat-{n:02}")
        )
        rows.append(SidedRow(item.item_id, "holdout", item.prompt.split_group, "evaluation", item.to_json()))
    made = write_dataset(folder / "chat", DatasetHeader("chat", "suite", "filters@1"), rows)
    return data_tasks.publish(made, "tiny", "dag:build_dataset/1/b/1")


class Evaluated:
    """A candidate that was evaluated beside base, SFT model and anchor (the SFT model): what every one of them answered."""

    def __init__(self, plane: Plane, folder: Path, says: str = "a good answer", cards: int = 0, **run: Any) -> None:
        """cards: so many of the candidate's answers hold the number of a card."""
        self.run, self.cards = plane.run(auto=False, **run), cards
        refs = {role: ModelRef("model", weights(role)[0].digest, TOKENIZER, TEMPLATE) for role in ("base", "sft")}
        own = "sft" if says == "a bad answer" else "candidate"  # a copy answers the same
        refs["candidate"] = ModelRef("model", weights(own)[0].digest, TOKENIZER, TEMPLATE)
        refs["anchor"] = refs["sft"]
        self.deployments = {role: register(self.run, ref) for role, ref in refs.items()}
        reward = ModelRef("reward_model", manifest("reward", "reward_model").digest, TOKENIZER, TEMPLATE)
        self.wanted: dict[str, Any] = {
            "deployment": self.deployments["candidate"],
            "models": {role: ref.to_json() for role, ref in refs.items()},
            "suites": {"chat": chat(folder)},
            "suite_settings": {"chat": {"scorers": ["human_win_rate"]}},
            "reward": reward.to_json(),
            "learnt_from": {},
        }
        self.spec = PLANNERS["evaluate"](bench_of(self.run), self.run, {"wanted": self.wanted}).spec
        self.result = self._commit({"candidate": says, "base": "a poor answer", "sft": "a bad answer", "anchor": "a bad answer"})

    def _commit(self, said: dict[str, str]) -> dict[str, Any]:
        rows = {row["item_id"]: row["prompt"]["prompt_id"] for row in _records(self.wanted["suites"]["chat"])}
        ids = sorted(rows)
        items = [{"id": name, "prompt_id": rows[name], "group": name, "slices": {}} for name in ids]
        roles: dict[str, list[str]] = {}
        for role, of in self.deployments.items():
            roles.setdefault(of, []).append(role)
        generation = digest("generation", {"temperature": 0.0, "max_new_tokens": recipe("tiny").evaluation.max_new_tokens})
        answers = [
            {
                "suite": "chat",
                "deployment": of,
                "model": self.wanted["models"][names[0]]["digest"],
                "roles": names,
                "generation": generation,
                "backend": digest("test", "backend"),
                "texts": [
                    f"{said[names[0]]} to {name}" + (f", {CARD}" if "candidate" in names and at < self.cards else "")
                    for at, name in enumerate(ids)
                ],
                "finish_reasons": ["eos"] * ITEMS,
            }
            for of, names in roles.items()
        ]
        told = {"digest": self.wanted["suites"]["chat"]["content_hash"], "items": items}
        files = {
            "measurements": ("measurements.json", {"schema": "align/measurements/v1", "rows": [], "latency": []}, "report"),
            "answers": ("answers.json", {"schema": "align/answers/v1", "suites": {"chat": told}, "answers": answers}, "candidate_set"),
        }
        made, folder = {}, RunDir(self.spec.key).attempt(ATTEMPT)
        for name, (file, body, kind) in files.items():
            data = json.dumps(body).encode()
            made[name] = Manifest(kind, (FileEntry(file, len(data), sha256_bytes(data)),))
            services.store().put_bytes(f"{folder}/output/{name}/{file}", data)
        services.catalog().runs.plan(self.spec)
        plain, digests = {name: one.to_json() for name, one in made.items()}, {name: one.digest for name, one in made.items()}
        report = Report(self.spec.key, ATTEMPT, "complete", "last_step", 0, 10, 10, {}, digests).to_json()
        services.store().put_json(f"{folder}/report.json", report)
        services.store().put_json(f"{folder}/output/manifest.json", {"schema": "align/outputs/v1", "artifacts": plain})
        if services.catalog().runs.committed(self.spec.key) is None:
            services.catalog().runs.commit_attempt(self.spec.key, ATTEMPT, report, plain, services.store().uri)
        return {"key": self.spec.key, "attempt": ATTEMPT, "outputs": {name: {"digest": value} for name, value in digests.items()}}

    def sensor(self) -> PanelSensor:
        return PanelSensor(task_id="ask_people", run=self.run, wanted=self.wanted, measured=self.result)

    def judged(self, asked: Any) -> dict[str, Any]:
        return judge_candidate(self.run, self.wanted, self.result, Asked(asked, writer="dag:d/manual__1/evaluation.gates/1"))


def _records(ref: dict[str, Any]) -> list[dict[str, Any]]:
    from include.flows.preference_tasks import local_dataset
    from include.transforms.datasets_io import read_suite

    return [row.record for row in read_suite(local_dataset(ref))]


@pytest.fixture
def control(plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plane:
    monkeypatch.setenv("ALIGN_WORK", str(tmp_path / "work"))
    configure(plane)
    return plane


def waits(sensor: PanelSensor) -> PanelTrigger:
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(CONTEXT)
    trigger = deferred.value.trigger
    assert isinstance(trigger, PanelTrigger)
    return trigger


def compare(world: World, name: str, most: int, prefers: str = "good", batch_id: str | None = None) -> int:
    """Somebody compares at most so many answers, and always takes the one that says `prefers`."""
    done = 0
    while done < most and (shown := world.next(name, batch_id)["task"]):
        assert set(shown) >= {"task_id", "prompt", "left", "right", "rubric"}
        side = "left" if prefers in shown["left"]["text"] else "right" if prefers in shown["right"]["text"] else "tie"
        assert world.label(name, shown["task_id"], side).status_code == 201
        done += 1
    return done


def everybody(world: World, batches: list[str], prefers: str = "good") -> None:
    """Two people compare all there is, some of each batch."""
    world.add("other", "annotator", "human")
    for name in batches:
        compare(world, "annotator", 5, prefers, name)
    compare(world, "other", 10_000, prefers)


def test_what_people_prefer_passes_the_gate_and_leads_back_to_labels_people_and_deployments(
    control: Plane,
    people: World,  # noqa: F811
    tmp_path: Path,
) -> None:
    made = Evaluated(control, tmp_path)
    trigger = waits(made.sensor())
    assert [people.progress(name)["purpose"] for name in trigger.batches] == ["evaluation"] * 2, "SFT model (the anchor too), and the base"
    everybody(people, trigger.batches)
    assert trigger._look() == []
    asked = made.sensor().resume(CONTEXT, {"status": "ready"})
    panel = panel_of(made.run, asked, made.spec.config["scorers"], made.result).body
    assert {(row["against"], len(row["items"])) for row in panel["rows"]} == {("sft", ITEMS), ("anchor", ITEMS), ("base", ITEMS)}
    verdict = made.judged(asked)
    assert verdict["passed"]
    assert "people compared the candidate with sft, anchor on chat: win rate 1.000 on 16 of 16 items" in verdict["table"]

    catalog = services.catalog()
    of_sft = next(one for one in panel["comparisons"] if "sft" in one["roles"])
    assert sum(of_sft["annotators"].values()) == ITEMS
    assert of_sft["deployment"] == made.deployments["sft"]
    label = of_sft["items"][0]["labels"][0]
    found = catalog.lineage.impact(f"label:{label}")
    assert found.gate_reports == (verdict["digest"],)
    assert asked["digest"] in {name for name, _ in found.artifacts}
    behind = {node.ref for node in catalog.lineage.trace(verdict["digest"]).walk()}
    assert {
        made.deployments["candidate"],
        made.deployments["base"],
        f"label:{label}",
        made.result["outputs"]["answers"]["digest"],
    } <= behind
    assert {m.summary["against"] for m in catalog.measurements.of(made.deployments["candidate"])} >= {"base"}


def test_the_same_request_again_asks_nobody_anew_and_gives_the_same(control: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    made = Evaluated(control, tmp_path)
    first = waits(made.sensor())
    assert waits(made.sensor()).batches == first.batches, "a retry finds the same batches"
    everybody(people, first.batches)
    asked = made.sensor().execute(CONTEXT)
    assert made.sensor().execute(CONTEXT) == asked
    assert all(people.progress(name)["closed_at"] for name in first.batches), "nobody is asked until a number looks good"
    later: Any = {**CONTEXT, "dag_run": SimpleNamespace(run_id="scheduled__2")}
    assert made.sensor().execute(later) == asked
    assert made.judged(asked) == made.judged(asked)


def test_it_waits_for_every_comparison_and_for_two_people_and_silence_is_no_pass(control: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    made = Evaluated(control, tmp_path)
    trigger = waits(made.sensor())
    compare(people, "annotator", ITEMS + 3)
    missing = trigger._look()
    assert sorted(text.split(" (")[0] for text in missing) == [
        "1 more people",
        "1 more people",
        "13 comparisons by a person",
        "7 more labels",
    ]
    with pytest.raises(NoAnswer, match="not compared enough answers in time"):
        made.sensor().resume(CONTEXT, {"status": "timeout", "missing": missing})
    path, kwargs = trigger.serialize()
    assert PanelTrigger(**kwargs).serialize() == (path, kwargs)


def test_fewer_people_than_the_recipe_asks_for_are_no_panel(control: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    """Some may be held for review by the time that the labels are counted, or be of a kind that does not count."""
    configure(control, {**PANEL, "min_annotators": 3})
    made = Evaluated(control, tmp_path)
    trigger = waits(made.sensor())
    everybody(people, trigger.batches)
    assert all("1 more people (2 of 3)" in text for text in trigger._look())
    asked = made.sensor().resume(CONTEXT, {"status": "ready"})
    with pytest.raises(Rejected, match="16 labels of 2 people count beside sft, anchor, human_pairwise.min_annotators asks for 3") as no:
        made.judged(asked)
    assert no.value.reason.startswith("not evaluated: people_prefer_it")


def test_who_could_judge_nothing_is_none_of_the_people(control: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    made = Evaluated(control, tmp_path)
    trigger = waits(made.sensor())
    people.add("other", "annotator", "human")
    for name in trigger.batches:
        people.label("other", people.next("other", name)["task"]["task_id"], "cannot_judge")
        compare(people, "annotator", 100, batch_id=name)
    assert [text.split(" (batch")[0] for text in trigger._look()] == ["1 more people (1 of 2)"] * 2
    panel = panel_of(made.run, (asked := made.sensor().resume(CONTEXT, {"status": "ready"})), made.spec.config["scorers"], made.result).body
    assert [sorted(one["annotators"].values()) for one in panel["comparisons"]] == [[1, ITEMS - 1]] * 2
    assert [list(one["judged"].values()) for one in panel["comparisons"]] == [[ITEMS - 1]] * 2
    with pytest.raises(Rejected, match="15 labels of 1 people count beside sft, anchor, human_pairwise.min_annotators asks for 2"):
        made.judged(asked)


def test_labels_of_another_kind_are_counted_and_named(
    control: Plane, people: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    made = Evaluated(control, tmp_path)
    batches = waits(made.sensor()).batches
    people.add("shown", "annotator", "demo")
    compare(people, "shown", 3, batch_id=batches[0])
    everybody(people, batches)
    monkeypatch.setattr(panel_result, "kinds_of", lambda found: ("human",))
    panel = panel_of(made.run, made.sensor().execute(CONTEXT), made.spec.config["scorers"], made.result).body
    assert sorted(one["not_counted"].get("demo", 0) for one in panel["comparisons"]) == [0, 3]
    assert sum("; labels that do not count: demo 3" in one["note"] for one in panel["comparisons"]) == 1


def test_labels_that_were_changed_under_a_frozen_panel_are_refused(control: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    made = Evaluated(control, tmp_path)
    batches = waits(made.sensor()).batches
    everybody(people, batches)
    made.sensor().execute(CONTEXT)
    with sqlite3.connect(people.folder / "annotation.sqlite") as database:
        for (name,) in database.execute("select name from sqlite_master where type = 'trigger' and tbl_name = 'labels'").fetchall():
            database.execute(f"drop trigger {name}")  # the service itself lets nobody change a label
        query = "select label_id, record from labels where batch_id = ? limit 1"
        label_id, record = database.execute(query, (batches[0],)).fetchone()
        changed = {**json.loads(record), "verdict": "tie", "chosen_candidate_id": None, "rejected_candidate_id": None}
        values = (json.dumps(changed), record_digest("label", Label.from_json(changed)), label_id)
        database.execute("update labels set record = ?, digest = ? where label_id = ?", values)
    with pytest.raises(FlowError, match=f"the labels of panel batch {batches[0]} were frozen as sha256:.* changed under it"):
        made.sensor().execute(CONTEXT)


def test_answers_that_are_not_one_for_each_item_are_compared_by_nobody() -> None:
    items = [{"id": name, "prompt_id": name, "group": name, "slices": {}} for name in ("a", "b", "c")]
    side = {"suite": "chat", "model": "m", "generation": "g", "backend": "b"}
    whole = {**side, "deployment": "ours", "roles": ["candidate"], "texts": ["1", "2", "3"]}
    body = {"schema": "align/answers/v1", "suites": {"chat": {"digest": "d", "items": items}}}
    for texts in (["x", "y"], ["x", "y", "z", "w"]):
        answers = {**body, "answers": [whole, {**side, "deployment": "theirs", "roles": ["sft"], "texts": texts}]}
        with pytest.raises(FlowError, match=f"gave {len(texts)} answers of sft on suite chat, which has 3 items"):
            panel.pairings(answers, [("chat", "sft")])
    answers = {**body, "answers": [whole, {**side, "deployment": "theirs", "roles": ["sft"], "texts": ["x", "y", "z"]}]}
    (first,) = panel.pairings(answers, [("chat", "sft")], most=2)
    assert [(item["id"], own, other) for item, own, other in first.texts()] == [("a", "1", "x"), ("b", "2", "y")]


def test_what_people_said_of_other_answers_is_not_this_evaluation_s(control: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    made = Evaluated(control, tmp_path)
    everybody(people, waits(made.sensor()).batches)
    asked = made.sensor().execute(CONTEXT)
    made.result["outputs"]["answers"]["digest"] = digest("test", "other answers of the same deployments")
    with pytest.raises(FlowError, match="this evaluation gave other answers: clear `ask_people`"):
        made.judged(asked)


def test_what_people_like_less_is_rejected(control: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    made = Evaluated(control, tmp_path)
    everybody(people, waits(made.sensor()).batches, prefers="bad")
    with pytest.raises(Rejected, match="people_prefer_it"):
        made.judged(made.sensor().execute(CONTEXT))


def test_a_mere_copy_is_a_tie_that_nobody_is_asked_about_and_no_improvement(control: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    made = Evaluated(control, tmp_path, says="a bad answer")
    trigger = waits(made.sensor())
    assert len(trigger.batches) == 1, "only the base says something else"
    everybody(people, trigger.batches, prefers="bad")
    with pytest.raises(Rejected) as no:
        made.judged(made.sensor().execute(CONTEXT))
    assert no.value.reason.startswith("no improvement: people_prefer_it")


def test_who_labelled_what_the_candidate_learnt_from_gets_no_comparison_of_it(
    control: Plane,
    people: World,  # noqa: F811
    tmp_path: Path,
) -> None:
    from tests.annotation.support import batch

    taught = people.made(batch(3), "training")
    people.work("annotator", "left", taught)
    snapshot = people.snapshot(taught)
    services.catalog().labels.record_snapshot("earlier", taught, snapshot["mark"], snapshot["digest"], "http://x")
    body = {"dataset_id": "tiny-pairs", "content_hash": digest("test", "pairs"), "rows": "pair", "schema_version": "v1"}
    body |= {"filter_policy_version": "f1", "counts": {"train": 3}}
    members = [(label["label_id"], digest("label", label), taught) for label in snapshot["labels"]]
    services.catalog().datasets.register(body, manifest("pairs", "dataset"), "dag:test", [("source:x", "source")], members)
    made = Evaluated(control, tmp_path)
    made.wanted["learnt_from"] = {"preferences of dpo": {"content_hash": digest("test", "pairs")}}
    trigger = waits(made.sensor())
    assert compare(people, "annotator", 100) == 0
    people.add("other", "annotator", "human")
    assert compare(people, "other", 100) == 2 * ITEMS
    assert all("1 more people" in text for text in trigger._look())


def test_a_program_s_labels_do_not_count_as_people_s(control: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    made = Evaluated(control, tmp_path)
    batches = waits(made.sensor()).batches
    assert all(people.next("verifier", name)["task"] is None for name in batches)


def test_what_was_said_under_another_rubric_is_not_what_the_gate_asks_for(
    control: Plane,
    people: World,  # noqa: F811
    tmp_path: Path,
) -> None:
    made = Evaluated(control, tmp_path)
    everybody(people, waits(made.sensor()).batches)
    asked = made.sensor().execute(CONTEXT)
    path = control.configs / "rubrics/worked-answers.yaml"
    path.write_text(path.read_text().replace("Length is no reason.", "Shorter is better."))
    with pytest.raises(Rejected) as no:
        made.judged(asked)
    assert "not evaluated" in no.value.reason


def test_people_s_labels_for_the_gate_are_no_earlier_batch_of_training(control: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    made = Evaluated(control, tmp_path)
    everybody(people, waits(made.sensor()).batches)
    made.sensor().execute(CONTEXT)
    assert services.catalog().labels.newest_of_project(recipe("tiny").data.project) == []


def test_gates_that_ask_people_need_a_panel_and_a_panel_such_gates(plane: Plane) -> None:
    configure(plane, panel=None)
    with pytest.raises(FlowError, match="read human_win_rate .people_prefer_it., and the recipe has no `human_pairwise`"):
        require_gates_fit(recipe("tiny"))
    configure(plane, panel={**PANEL, "human_tasks": 11})
    with pytest.raises(FlowError, match=r"needs 12 items \(min_n\), and human_pairwise.human_tasks gives 11"):
        require_gates_fit(recipe("tiny"))
    plane.change_recipe("quickstart", human_pairwise=PANEL)
    with pytest.raises(FlowError, match="nobody would read what it says"):
        require_gates_fit(recipe("quickstart"))


def test_where_no_gate_asks_people_the_task_does_nothing(plane: Plane) -> None:
    run = plane.run()
    sensor = PanelSensor(task_id="ask_people", run=run, wanted={"models": {"candidate": {}, "sft": {}}}, measured={"key": "none"})
    assert sensor.execute(CONTEXT) == {}
    assert panel_of(run, {}, {}, {}).body == {"rows": [], "comparisons": []}


def test_personal_data_in_answers_is_masked_before_people_compare_them(
    control: Plane, people: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]  # noqa: F811
) -> None:  # fmt: skip
    made = Evaluated(control, tmp_path, "ask ada@analytical.example.org, card 4111 1111 1111 1111, a good answer")
    batches = waits(made.sensor()).batches
    assert waits(made.sensor()).batches == batches, "a retry asks nobody anew"
    assert f"Personal data in answers, not shown: CARD {ITEMS}, EMAIL {ITEMS}" in capsys.readouterr().out
    shown = json.dumps([people.next("annotator", name)["task"] for name in batches])
    assert "ask [EMAIL_1], card [CARD_1], a good answer to " in shown
    assert "ada@" not in shown
    assert "4111 1111" not in shown
    everybody(people, batches)
    assert made.judged(made.sensor().execute(CONTEXT))["passed"]


def test_answers_of_a_refused_kind_are_compared_with_nothing(control: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    path = control.configs / "recipes/tiny.yaml"
    data = yaml.safe_load(path.read_text())["data"]
    control.change_recipe("tiny", data={**data, "pii": {"refuse": ["CARD"]}})
    made = Evaluated(control, tmp_path, "card 4111 1111 1111 1111")
    opened = panel.open_panel(made.run, made.wanted, made.result)
    assert [(one.batch_id, len(one.unseen)) for one in opened] == [(None, ITEMS)] * len(opened)
    assert opened


def refuse_cards(plane: Plane, most: float) -> None:
    data = yaml.safe_load((plane.configs / "recipes/tiny.yaml").read_text())["data"]
    plane.change_recipe("tiny", data={**data, "pii": {"refuse": ["CARD"]}, "max_quarantine_share": most})


def test_answers_of_a_refused_kind_are_named_and_too_many_of_them_hold_the_gate(control: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    """They would leave the share of wins to what the candidate wrote without them."""
    refuse_cards(control, 0.2)
    made = Evaluated(control, tmp_path, cards=3)
    everybody(people, waits(made.sensor()).batches)
    panel = panel_of(made.run, (asked := made.sensor().execute(CONTEXT)), made.spec.config["scorers"], made.result).body
    first = sorted(row["item_id"] for row in _records(made.wanted["suites"]["chat"]))[:3]
    named = dict.fromkeys(first, "answer: CARD")
    assert [one["not_shown"] for one in panel["comparisons"]] == [named] * 2
    assert all("3 not shown (answer: CARD 3)" in one["note"] for one in panel["comparisons"])
    assert made.judged(asked)["passed"]
    refuse_cards(control, 0.1)
    made = Evaluated(control, tmp_path / "again", cards=3)
    asked = made.sensor().execute(CONTEXT)
    with pytest.raises(Rejected, match="3 of 16 pairs of answers beside sft, anchor may not be shown to people.*allows 0.1") as no:
        made.judged(asked)
    assert no.value.reason.startswith("not evaluated: people_prefer_it")


@pytest.mark.timeout(300)
def test_the_tasks_run_by_dag_test_with_a_service_of_their_own_and_two_people_at_work(control: Plane, tmp_path: Path) -> None:
    (folder := tmp_path / "service").mkdir()
    server = Server(folder)
    tokens = {"pipeline": server.add("pipeline", "pipeline"), "ada": server.add("ada", "annotator"), "bo": server.add("bo", "annotator")}
    (secret := tmp_path / "tokens").mkdir(mode=0o700)
    (secret / "pipeline.token").write_text(tokens["pipeline"])
    server.start()
    try:
        made = Evaluated(control, tmp_path)
        state = tmp_path / "state.json"
        state.write_text(json.dumps({"run": made.run, "wanted": made.wanted, "measured": made.result}))
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
            "AIRFLOW_HOME": str(tmp_path / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "PYTHONPATH": f"{ROOT}:{ROOT}/plugins",
            "AIRFLOW__CORE__DAGS_FOLDER": str(Path(__file__).parent),
            "ALIGN_TEST_STATE": str(state),
            "ALIGN_ANNOTATION_URL": server.url,
            "ALIGN_ANNOTATION_TOKENS": str(secret),
        }
        program = [sys.executable, str(Path(__file__).with_name("run_panel.py"))]
        with subprocess.Popen(program, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            two_people(server.url, (tokens["ada"], tokens["bo"]), lambda: running.poll() is not None)
            out, err = running.communicate(timeout=200)
    finally:
        server.kill(signal.SIGTERM)
    assert running.returncode == 0, err[-3000:]
    told = json.loads(out.strip().splitlines()[-1])
    assert {name: told[name] for name in ("ask_people", "ask_judge", "gates")} == dict.fromkeys(
        ("ask_people", "ask_judge", "gates"), "success"
    )
    assert told["verdict"]["passed"]
    assert "labels of 2 people" in told["verdict"]["table"]


def two_people(url: str, tokens: tuple[str, str], over: Callable[[], bool]) -> None:
    """They take turns until all is compared, and wait while there is nothing yet."""
    done = 0
    with AnnotationClient(url, tokens[0]) as one, AnnotationClient(url, tokens[1]) as other:
        while done < 2 * ITEMS and not over():
            client = (one, other)[done % 2]
            if (shown := client.next_task()) is None:
                time.sleep(0.2)
                continue
            client.submit(shown.task_id, Judgement("left" if "good" in shown.left.text else "right"))
            done += 1
