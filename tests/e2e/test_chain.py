"""The whole chain by DPO on a real stack: an approved champion, its evidence, and nothing done twice."""

from __future__ import annotations

import pytest

from local.services import mlflow
from tests.e2e.conftest import follow_unattended
from tests.e2e.runs import PATIENCE
from tests.e2e.stack import ROOT
from tests.e2e.world import NAME, Chain, World

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900 * PATIENCE)]

STAGES = {
    "base.import_base": "base_import",
    "sft.train": "sft",
    "candidates.generate": "generate",
    "reward_model.train": "reward_model",
    "policy.optimise": "dpo",
    "evaluation.measure": "evaluate",
    "release.shadow_run": "shadow",
}


def test_the_run_ends_with_a_release(world: World, chain: Chain) -> None:
    assert chain.run.xcom("outcome") == f"released: {NAME} version 1"
    assert {task for task, state in chain.run.states().items() if state != "success"} == {"data.wait_for_exports"}


def test_each_stage_was_one_job_and_one_attempt(world: World, chain: Chain) -> None:
    for task, stage in STAGES.items():
        result = chain.run.xcom(task)
        assert (result["stage"], result["reused"]) == (stage, False)
        assert [(job.name[-2:], job.state) for job in world.jobs(result["key"])] == [("-1", "COMPLETED")]
        assert [row.name for row in world.catalog.runs.attempts(result["key"])] == [result["attempt"]]


def test_no_other_dag_was_started(world: World, chain: Chain) -> None:
    known = world.runs.known_dags()
    assert known == {path.stem for path in (ROOT / "dags").glob("*.py")}
    assert {dag: len(world.runs.of(dag)) for dag in known - {chain.run.dag_id}} == dict.fromkeys(known - {chain.run.dag_id}, 0)


def test_the_ledger_holds_and_its_champion_is_mlflows(world: World, chain: Chain) -> None:
    kinds = [entry.kind for entry in world.catalog.ledger.history(NAME)]
    assert kinds[:6] == ["candidate", "approved", "canary_started", "canary_passed", "released", "anchor_set"]
    assert world.catalog.ledger.verify() >= 6
    assert world.catalog.ledger.champion(NAME) == chain.deployment
    assert world.aliases() == {"candidate": chain.deployment, "canary": None, "champion": chain.deployment}


def test_the_approval_is_a_demonstration_accounts_and_not_the_requesters(world: World, chain: Chain) -> None:
    approved = world.ledger("approved")[0]
    assert (approved.payload["person"], approved.payload["account"]) == ("demo-approver", "demonstration")
    assert chain.state["run"]["requested_by"] == "requester"
    assert world.ledger("released")[0].payload["demonstration"] is True


def test_the_gates_of_the_run_are_shown_as_a_table(world: World, chain: Chain) -> None:
    shown = world.align("gates", chain.run.run_id)
    assert shown.returncode == 0, shown.stderr
    for words in (
        "asked_form_better",
        "exact_match_no_worse",
        "names_no_worse",
        "latency_ratio",
        "human_pairwise",
        "pass",
        "not evaluated (waived)",
        "known risk",
    ):
        assert words in shown.stdout
    assert chain.run.xcom("evaluation.gates")["table"].splitlines()[0] in shown.stdout


def _assert_whole_lineage(world: World, chain: Chain) -> None:
    shown = world.align("lineage", "champion")
    assert shown.returncode == 0, shown.stderr
    text = shown.stdout
    policy, sft = chain.state["policy"], chain.state["sft"]
    for result in (policy, sft):
        spec = world.catalog.runs.get(result["key"])
        assert spec is not None
        assert spec.spec.code_revision in text
        assert f"attempts/{result['attempt']}" in text
    assert f"{chain.state['pairs']['preferences']['dataset_id']}" in text
    assert chain.state["datasets"]["demonstrations"]["content_hash"][:19] in text
    assert chain.state["base"]["outputs"]["base"]["digest"][:19] in text
    for words in ("code revision", "configuration", "worked-answers@1", "share", "seed 42"):
        assert words in text, f"{words!r} is not in\n{text}"


def test_lineage_leads_from_the_alias_to_code_configuration_data_and_rubric(world: World, chain: Chain) -> None:
    _assert_whole_lineage(world, chain)


def test_lineage_answers_with_mlflow_stopped(world: World, chain: Chain) -> None:
    world.stack.daemons.stop("mlflow")
    try:
        assert not mlflow(world.stack.layout, world.stack.ports()).ready()
        _assert_whole_lineage(world, chain)
    finally:
        world.stack.up()
    assert mlflow(world.stack.layout, world.stack.ports()).ready()


def came_from(world: World, datasets: set[str]) -> tuple[set[str], set[str]]:
    """Keys of the runs that read one of the datasets, or what came from it, and their outputs: found by following every run's inputs."""
    reached, keys = set(datasets), set[str]()
    while new := [run for run in world.catalog.runs.newest(limit=1000) if run.key not in keys and reached & set(run.spec.inputs.values())]:
        keys |= {run.key for run in new}
        for run in new:
            done = world.catalog.runs.committed(run.key)
            reached |= {out.digest for out in done.outputs.values()} if done else set()
    return keys, reached - datasets


def test_impact_of_a_label_is_exactly_what_came_from_it(world: World, chain: Chain) -> None:
    pairs = chain.state["pairs"]
    members = {name: {m.label_id for m in world.catalog.datasets.members(ref["content_hash"])} for name, ref in pairs.items()}
    label = min(members["preferences"] & members["reward_pairs"])
    found = world.catalog.lineage.impact(f"label:{label}")
    versions = {f"{ref['dataset_id']}@{ref['version']}" for ref in pairs.values()}
    assert set(found.datasets) == versions
    keys, outputs = came_from(world, {ref["content_hash"] for ref in pairs.values()})
    assert keys >= {chain.run.xcom(t)["key"] for t in ("reward_model.train", "policy.optimise", "evaluation.measure", "release.shadow_run")}
    assert {key for key, _, _ in found.runs} == keys
    assert {digest for digest, _ in found.artifacts} == outputs
    assert chain.deployment in [deployment for deployment, _ in found.deployments]
    assert found.champions == (NAME,)
    assert chain.state["sft"]["key"] not in keys
    shown = world.align("impact", f"label:{label}")
    assert shown.returncode == 0, shown.stderr
    assert all(version in shown.stdout for version in versions)
    assert chain.state["sft"]["outputs"]["policy"]["digest"][:19] not in shown.stdout


def test_again_every_stage_is_reused_and_nobody_is_asked(world: World, chain: Chain) -> None:
    before, aliases = world.jobs(), world.aliases()
    rows = world.catalog.ledger.head()
    again = world.runs.start("alignment_refresh", "again", {"recipe": "tiny", "auto": True})
    follow_unattended(world, again)
    assert again.xcom("outcome") == "already released"
    ran = [task for task in STAGES if again.states()[task] == "success"]
    assert ran == ["base.import_base", "sft.train", "candidates.generate", "reward_model.train", "policy.optimise"]
    assert [again.xcom(task)["reused"] for task in ran] == [True] * 5
    assert [again.xcom(task)["key"] for task in ran] == [chain.run.xcom(task)["key"] for task in ran]
    assert world.jobs() == before
    assert again.questions() == []
    assert world.catalog.ledger.head() == rows
    assert world.aliases() == aliases
