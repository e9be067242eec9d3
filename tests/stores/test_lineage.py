"""What did it come from, and what came from it: on a chain from labels to a released deployment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from include.domain.canonical import digest
from include.stores.catalog import Catalog
from include.stores.catalog.measurements import Measurement
from include.stores.catalog.render import render_impact, render_node
from include.stores.errors import NotFound
from tests.stores.things import commit, deploy, dossier, info, manifest, release, some_digest, spec

RUBRIC = "rubric:short-and-right@1"


def label(number: int, batch: str) -> dict[str, Any]:
    return {"label_id": f"l{number}", "batch_id": batch, "rubric_version": "short-and-right@1", "annotator_kind": "human", "verdict": "A"}


@dataclass
class Chain:
    demonstrations: str
    candidates: str
    sft: str
    pairs: str
    other_pairs: str
    reward: str
    policy: str
    deployment: str
    measurement: str


@pytest.fixture
def chain(catalog: Catalog) -> Chain:
    """base → SFT → candidates → labels of two batches → two preference sets → reward model and policy → champion."""
    demonstrations = catalog.datasets.register(
        info("demonstrations", "demos", licences={"mit": 3, "cc": 1}, origins={"external:hub@1": 1, "synthetic:a@b": 2, "ours": 1}),
        manifest("demos", "dataset"), "dag:refresh/r1/build/1", [("source:raw.jsonl", "source")],
    ).content_hash  # fmt: skip
    base = commit(catalog, spec("base_import", inputs={"source": some_digest("gguf")}), {"base": manifest("base", "base")})
    inputs = {"base": base.outputs["base"].digest, "demonstrations": demonstrations}
    sft = commit(catalog, spec("sft", inputs=inputs), {"policy": manifest("sft")}).outputs["policy"].digest
    generate = spec("generate", inputs={"policy": sft, "prompts": some_digest("prompts")})
    candidates = commit(catalog, generate, {"candidates": manifest("c", "candidate_set")}).outputs["candidates"].digest
    labels = [label(1, "b1"), label(2, "b1"), label(3, "b2")]
    catalog.labels.collected(labels)
    made = {}
    for name, held in {"preferences": labels[:2], "other": labels[2:]}.items():
        members = [(item["label_id"], digest("label", item), item["batch_id"]) for item in held]
        origin = [(candidates, "candidates"), (RUBRIC, "rubric")]
        made[name] = catalog.datasets.register(
            info(name, name), manifest(name, "dataset"), "dag:refresh/r1/pairs/1", origin, members
        ).content_hash  # fmt: skip
    reward_spec = spec("reward_model", inputs={"base": sft, "preferences": made["other"]})
    reward = commit(catalog, reward_spec, {"reward_model": manifest("rm", "reward_model")}).outputs["reward_model"].digest
    dpo = spec("dpo", inputs={"policy": sft, "reference": sft, "preferences": made["preferences"]})
    policy = commit(catalog, dpo, {"policy": manifest("dpo")}).outputs["policy"].digest
    deployment = deploy(catalog, "helper", policy)
    measurement = catalog.measurements.record(
        Measurement(
            deployment=deployment, suite_digest=some_digest("suite"), metric="exact_match", scorer="s", generation="g", backend="b",
            run_key=some_digest("run"), attempt="1-7.0", items_uri="u", items_digest=some_digest("items"), n=200,
        )
    )  # fmt: skip
    release(catalog, deployment)
    return Chain(demonstrations, candidates, sft, made["preferences"], made["other"], reward, policy, deployment, measurement)


def test_from_the_champion_back_to_data_code_configuration_and_rubric(catalog: Catalog, chain: Chain) -> None:
    tree = catalog.lineage.trace("champion:helper")
    assert tree.ref == chain.deployment
    ((role, policy),) = tree.made[0].inputs
    assert (role, policy.ref) == ("weights", chain.policy)
    made = policy.made[0]
    asked = spec("dpo", inputs={"policy": chain.sft, "reference": chain.sft, "preferences": chain.pairs})
    assert (made.stage, made.key, made.committed) == ("dpo", asked.key, True)
    assert made.pins["code_revision"] == asked.code_revision
    assert made.config == {"learning_rate": 2e-5, "steps": 10}
    assert made.config_digest == digest("config", dict(asked.config))
    assert made.note == {"git_commit": "abc123"}
    refs = {node.ref for node in tree.walk()}
    expected = {chain.demonstrations, chain.candidates, chain.pairs, chain.sft, RUBRIC, "source:raw.jsonl", some_digest("gguf")}
    assert expected <= refs
    assert not {chain.other_pairs, chain.reward} & refs


def test_a_thing_met_twice_is_told_once(catalog: Catalog, chain: Chain) -> None:
    tree = catalog.lineage.trace(chain.policy)
    shown = dict(tree.made[0].inputs)
    assert [shown[role].repeated for role in ("policy", "preferences", "reference")] == [False, False, True]
    assert len([node for node in tree.walk() if node.ref == chain.sft]) == 1


def test_a_dataset_says_its_shares_licences_labels_and_rubrics(catalog: Catalog, chain: Chain) -> None:
    demonstrations = catalog.lineage.trace(chain.demonstrations)
    assert demonstrations.names == ("demonstrations@1",)
    assert (demonstrations.facts["imported_share"], demonstrations.facts["synthetic_share"]) == (0.25, 0.5)
    assert demonstrations.facts["licences"] == {"mit": 3, "cc": 1}
    pairs = catalog.lineage.trace("dataset:preferences@1")
    assert (pairs.facts["labels"], pairs.facts["rubrics"], pairs.facts["annotators"]) == (2, {"short-and-right@1": 2}, {"human": 2})


def test_the_text_names_the_whole_way(catalog: Catalog, chain: Chain) -> None:
    text = render_node(catalog.lineage.trace("champion:helper"))
    for expected in ("helper", "dpo, committed", "preferences@1", "demonstrations@1", "imported share 25.0%", "synthetic share 50.0%",
                     "short-and-right@1", spec().code_revision, "git_commit=abc123", "source:raw.jsonl".removeprefix("source:")):  # fmt: skip
        assert expected in text, expected


def test_a_deployment_says_who_approved_and_released_it_and_how_it_was_judged(catalog: Catalog, chain: Chain) -> None:
    judged = {"verdict": "pass", "gate_code": "gates@1", "policies_digest": some_digest("policies")}
    catalog.measurements.record_gate_report(some_digest("report"), chain.deployment, {}, **judged)
    facts = catalog.lineage.trace("champion:helper").facts
    assert facts["gate_reports"] == {some_digest("report"): "pass (release, gates@1)"}
    assert [text.split(" at ")[0] for text in facts["ledger"].values()] == ["approved by anna", "released by release task"]


def test_an_approval_by_a_demonstration_account_is_marked_as_such(catalog: Catalog) -> None:
    deployment = deploy(catalog, "demo-helper", some_digest("weights"))
    made = dossier(catalog, deployment, "demo-helper", demonstration=True)
    catalog.releases.ask(made.digest, "run", "demo-owner")
    catalog.releases.approve(made.digest, "demo-approver", "auto", account="demonstration")
    assert "approved by demo-approver (demonstration account)" in render_node(catalog.lineage.trace(f"deployment:{deployment}"))


def test_the_json_form_holds_the_tree(catalog: Catalog, chain: Chain) -> None:
    value = catalog.lineage.trace(chain.policy).to_json()
    assert value["kind"] == "model"
    assert {item["role"] for item in value["made"][0]["inputs"]} == {"policy", "reference", "preferences"}


def test_the_impact_of_a_label_is_exactly_what_came_from_it(catalog: Catalog, chain: Chain) -> None:
    found = catalog.lineage.impact("label:l1")
    assert found.datasets == ("preferences@1",)
    assert found.artifacts == ((chain.policy, "model"),)
    assert found.deployments == ((chain.deployment, "helper"),)
    assert [stage for _, stage, _ in found.runs] == ["dpo"]
    assert found.measurements == (chain.measurement,)
    assert found.champions == ("helper",)
    assert found.other == ()
    assert len(found.dossiers) == 1
    assert [catalog.ledger.entries()[seq - 1].kind for seq in found.ledger_rows] == ["approved", "released"]


def test_another_label_has_another_impact(catalog: Catalog, chain: Chain) -> None:
    found = catalog.lineage.impact("label:l3")
    assert (found.datasets, found.artifacts, found.deployments) == (("other@1",), ((chain.reward, "reward_model"),), ())


def test_a_batch_has_the_impact_of_its_labels(catalog: Catalog, chain: Chain) -> None:
    found = catalog.lineage.impact("batch:b1")
    assert found.labels == ("l1", "l2")
    assert found.datasets == ("preferences@1",)


def test_a_rubric_has_the_impact_of_the_labels_made_under_it(catalog: Catalog, chain: Chain) -> None:
    found = catalog.lineage.impact("rubric:short-and-right@1")
    assert found.labels == ("l1", "l2", "l3")
    assert found.datasets == ("other@1", "preferences@1")
    catalog.releases.taint("rubric:short-and-right@1", "it rewards length", "olga")
    assert catalog.releases.tainted(chain.reward) == "rubric:short-and-right@1: it rewards length"
    assert catalog.releases.tainted(chain.sft) is None


def test_a_label_that_is_in_no_dataset_has_no_impact(catalog: Catalog, chain: Chain) -> None:
    catalog.labels.collected([label(9, "b9")])
    found = catalog.lineage.impact("label:l9")
    assert found.empty
    assert "nothing in the catalog came from it" in render_impact(found)


@pytest.mark.parametrize("ref", ["label:unknown", "batch:unknown", "rubric:unknown", "deployment:unknown"])
def test_what_the_catalog_has_never_heard_of_is_not_found(catalog: Catalog, chain: Chain, ref: str) -> None:
    with pytest.raises(NotFound, match="unknown is not in the catalog"):
        catalog.lineage.impact(ref)


def test_the_impact_of_a_dataset_holds_everything_after_it_and_not_itself(catalog: Catalog, chain: Chain) -> None:
    found = catalog.lineage.impact("dataset:demonstrations@1")
    assert found.datasets == ("other@1", "preferences@1")
    assert {ref for ref, _ in found.artifacts} == {chain.sft, chain.candidates, chain.reward, chain.policy}
    assert sorted(stage for _, stage, _ in found.runs) == ["dpo", "generate", "reward_model", "sft"]


def test_a_run_that_reads_it_is_named_before_it_is_committed(catalog: Catalog, chain: Chain) -> None:
    running = spec("ppo", inputs={"policy": chain.sft, "prompts": some_digest("prompts"), "extra": chain.pairs})
    catalog.runs.plan(running)
    assert (running.key, "ppo", "not committed") in catalog.lineage.impact("label:l2").runs


def test_a_tainted_label_taints_the_deployment(catalog: Catalog, chain: Chain) -> None:
    catalog.releases.taint("label:l1", "wrong", "olga")
    assert catalog.releases.tainted(chain.deployment) == "label:l1: wrong"
    assert catalog.releases.tainted(chain.reward) is None


def test_a_tainted_batch_reaches_what_its_labels_reach(catalog: Catalog, chain: Chain) -> None:
    catalog.releases.taint("batch:b1", "wrong rubric", "olga")
    assert catalog.releases.tainted(chain.deployment) == "batch:b1: wrong rubric"
    assert catalog.releases.tainted(chain.reward) is None


def test_the_tree_says_what_is_tainted(catalog: Catalog, chain: Chain) -> None:
    catalog.releases.taint(chain.pairs, "labelled by a script", "olga")
    tree = catalog.lineage.trace("champion:helper")
    assert tree.facts["tainted"] == f"{chain.pairs}: labelled by a script"
    (pairs,) = [node for node in tree.walk() if node.ref == chain.pairs]
    assert pairs.facts["tainted"].startswith("labelled by a script (by olga at ")
    assert not [node for node in tree.walk() if "tainted" in node.facts and node.ref not in (tree.ref, chain.pairs)]


def test_the_impact_says_where_to_roll_back_to(catalog: Catalog, chain: Chain) -> None:
    """Back to the newest champion that neither came from it nor is tainted."""
    assert catalog.lineage.impact("label:l1").rollbacks == (("helper", None),)
    whole, bad = (deploy(catalog, "helper", some_digest(f"weights {i}")) for i in range(2))
    for run, deployment in enumerate((whole, bad, deploy(catalog, "helper", chain.policy))):
        release(catalog, deployment, run_id=f"later-{run}")
    catalog.releases.taint(bad, "rude", "olga")
    found = catalog.lineage.impact("label:l1")
    assert found.rollbacks == (("helper", whole),)
    assert f"helper: roll back to {whole} (DAG rollback_release)" in render_impact(found)


def test_a_champion_that_is_bad_itself_has_a_plan_too(catalog: Catalog, chain: Chain) -> None:
    text = render_impact(catalog.lineage.impact("champion:helper"))
    assert "helper: no earlier champion is free of it" in text


def test_an_edge_binds_to_the_attempt_that_wrote_and_not_to_a_later_try(catalog: Catalog) -> None:
    """collect is cleared and writes other content after train-1 read the first: train-1 stays with what it read."""
    first, second = (info("pref", name) for name in ("sha1", "sha2"))
    catalog.datasets.register(first, manifest("sha1", "dataset"), "dag:refresh/r1/collect/1", [("snapshot:1", "snapshot")])
    train = spec("dpo", inputs={"policy": some_digest("sft"), "preferences": first["content_hash"]})
    catalog.runs.plan(train)
    catalog.datasets.register(second, manifest("sha2", "dataset"), "dag:refresh/r1/collect/2", [("snapshot:2", "snapshot")])
    started = [key for key, _, _ in catalog.lineage.impact(first["content_hash"]).runs]
    policy = commit(catalog, train, {"policy": manifest("train-1")}).outputs["policy"].digest
    inputs = dict(catalog.lineage.trace(policy).made[0].inputs)
    assert started == [train.key]
    assert inputs["preferences"].ref == first["content_hash"]
    assert [made.writer for made in inputs["preferences"].made] == ["dag:refresh/r1/collect/1"]
    assert catalog.lineage.impact(second["content_hash"]).empty


def test_the_same_content_written_twice_keeps_both_writers(catalog: Catalog) -> None:
    for attempt in (1, 2):
        catalog.datasets.register(
            info("pref", "same"), manifest("same", "dataset"), f"dag:r/r1/collect/{attempt}", [("snapshot:1", "snapshot")]
        )
    made = catalog.lineage.trace(some_digest("same")).made
    assert [production.writer for production in made] == ["dag:r/r1/collect/1", "dag:r/r1/collect/2"]


def test_named_things_of_any_kind_are_reached_through_edges(catalog: Catalog) -> None:
    """Raw files, caches, annotation tasks and backups: whatever an edge names is part of the answer."""
    edges = [
        ("val/ok-1", "raw/chat-1"), ("sft-data/3", "val/ok-1"), ("cache/3-abc", "sft-data/3"), ("model/sft:4", "cache/3-abc"),
        ("tasks/w5", "model/sft:4"), ("tasks/w5", "raw/chat-1"), ("model/rm:2", "tasks/w5"), ("model/policy:7", "model/rm:2"),
        ("eval/policy:7", "model/policy:7"), ("backup/chat-1", "raw/chat-1"), ("model/sft:5", "raw/chat-2"),
    ]  # fmt: skip
    for child, parent in edges:
        catalog.lineage.edge(child, parent, "from", "test")
    found = set(catalog.lineage.impact("raw/chat-1").other)
    assert found == {child for child, _ in edges} - {"model/sft:5"}


def test_a_ring_of_edges_ends(catalog: Catalog) -> None:
    catalog.lineage.edge("a", "b", "from", "test")
    catalog.lineage.edge("b", "a", "from", "test")
    assert catalog.lineage.impact("a").other == ("b",)
    assert len(catalog.lineage.trace("a").walk()) == 2


@pytest.mark.parametrize("ref", ["nothing", "dataset:none@1", "champion:nobody", some_digest("unknown")])
def test_what_is_not_there_is_said_so(catalog: Catalog, ref: str) -> None:
    with pytest.raises(NotFound):
        catalog.lineage.trace(ref)


def test_rebuilds_of_the_same_content_are_one_line_with_their_count(catalog: Catalog) -> None:
    for run in ("r1", "r2", "r3"):
        writer = f"dag:refresh/{run}/build/1"
        made = catalog.datasets.register(info("demos", "demos"), manifest("demos", "dataset"), writer, [("raw/chat-1", "source")])
    tree = catalog.lineage.trace(made.content_hash)
    assert len(tree.made) == 3
    told = [line.strip() for line in render_node(tree).splitlines() if "made by" in line]
    assert told == ["made by dag:refresh/r1/build/1, written 3 times from the same"]
    every = [line for line in render_node(tree, every_writing=True).splitlines() if "made by" in line]
    assert len(every) == 3


def test_a_writing_from_something_else_keeps_its_line(catalog: Catalog) -> None:
    for run, source in (("r1", "raw/chat-1"), ("r2", "raw/chat-2"), ("r3", "raw/chat-1")):
        writer = f"dag:refresh/{run}/build/1"
        made = catalog.datasets.register(info("demos", "demos"), manifest("demos", "dataset"), writer, [(source, "source")])
    told = render_node(catalog.lineage.trace(made.content_hash))
    assert told.count("made by") == 2
    assert "raw/chat-1" in told
    assert "raw/chat-2" in told
    assert "made by dag:refresh/r1/build/1, written 2 times from the same" in told


def test_the_command_shows_each_writing_when_asked(
    sqlite_catalog: Catalog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from include.cli import main

    monkeypatch.setenv("ALIGN_CATALOG_URL", str(sqlite_catalog.database.url))
    for run in ("r1", "r2"):
        writer = f"dag:refresh/{run}/build/1"
        sqlite_catalog.datasets.register(info("demos", "demos"), manifest("demos", "dataset"), writer, [("raw/chat-1", "source")])
    counts = []
    for arguments in (["lineage", "dataset:demos@1"], ["lineage", "--all", "dataset:demos@1"]):
        assert main(arguments) == 0
        counts.append(capsys.readouterr().out.count("made by"))
    assert counts == [1, 2]


def test_a_policy_with_merged_adapters_leads_to_its_adapter_and_that_to_its_base(sqlite_catalog: Catalog) -> None:
    base, data = some_digest("base"), some_digest("demonstrations")
    outputs = {"policy": manifest("merged"), "adapter": manifest("low-rank", "adapter"), "measurements": manifest("m", "report")}
    made = commit(sqlite_catalog, spec("sft"), outputs).outputs
    policy = sqlite_catalog.lineage.trace(made["policy"].digest)
    found = dict(policy.made[0].inputs)
    assert {role: node.ref for role, node in found.items()} == {"adapter": made["adapter"].digest, "base": base, "demonstrations": data}
    assert {role: node.ref for role, node in found["adapter"].made[0].inputs} == {"base": base, "demonstrations": data}
    assert {made["adapter"].digest, made["policy"].digest} <= {d for d, _ in sqlite_catalog.lineage.impact(base).artifacts}
    assert "adapter" not in {role for role, _ in sqlite_catalog.lineage.trace(made["measurements"].digest).made[0].inputs}
