"""What a thing has cost: every attempt of all that it came from, and nothing else."""

from __future__ import annotations

import pytest

from airflow_slurm import receipts as provider
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.view import Incarnation, JobView
from include.domain.spec import RunSpec
from include.stores.catalog import Catalog
from include.stores.catalog.cost import render_cost
from include.stores.catalog.measurements import Measurement
from include.stores.catalog.receipts import CatalogReceipts
from include.stores.errors import NotFound
from tests.stores.things import commit, deploy, info, manifest, some_digest, spec


class Jobs:
    """Jobs on eight GPUs that Slurm saw run."""

    def __init__(self, catalog: Catalog, url: str) -> None:
        self.catalog, self.store, self.number = catalog, CatalogReceipts(url, gpus=8), 100

    def ran(self, asked: RunSpec, *seconds: float) -> str:
        """A submission for each of `seconds`; the last one is committed. Its attempt."""
        self.catalog.runs.plan(asked)
        attempt = ""
        for n, elapsed in enumerate(seconds, 1):
            self.number += 1
            job = str(self.number)
            last = n == len(seconds)
            state = "COMPLETED" if last else "PREEMPTED"
            run = Incarnation(0, state, 1000.0, 1000.0 + elapsed, elapsed)
            view = JobView(job, "c1", Phase.SUCCEEDED if last else Phase.LOST, state, incarnations=(run,))
            self.store.claim(asked.key, {"dag_id": "d", "run_id": "r", "task_id": asked.stage, "map_index": -1})
            self.store.close(asked.key, n, provider.JobEnd("succeeded" if last else "interrupted", view=view))
            attempt = f"{n}-{job}.0"
        return attempt


@pytest.fixture
def deployment(catalog: Catalog, catalog_url: str) -> str:
    """SFT, candidates, 250 labels, a policy that was preempted once, and its measurement."""
    jobs = Jobs(catalog, catalog_url)
    sft = spec("sft")
    policy = commit(catalog, sft, {"policy": manifest("sft")}, jobs.ran(sft, 3600.0)).outputs["policy"].digest
    generate = spec("generate", inputs={"policy": policy, "prompts": some_digest("prompts")})
    made = commit(catalog, generate, {"candidates": manifest("c", "candidate_set")}, jobs.ran(generate, 900.0), tokens=4e6)
    candidates = made.outputs["candidates"].digest
    members = [(f"l{n}", some_digest(n), "b1") for n in range(250)]
    pairs = catalog.datasets.register(info("pairs", "p"), manifest("p", "dataset"), "w", [(candidates, "candidates")], members).content_hash
    dpo = spec("dpo", inputs={"policy": policy, "preferences": pairs})
    aligned = commit(catalog, dpo, {"policy": manifest("dpo")}, jobs.ran(dpo, 600.0, 1200.0)).outputs["policy"].digest
    other = spec("reward_model", inputs={"base": policy, "preferences": pairs})
    commit(catalog, other, {"reward_model": manifest("rm", "reward_model")}, jobs.ran(other, 7200.0))
    found = deploy(catalog, "helper", aligned)
    measure = spec("evaluate", inputs={"candidate": aligned})
    attempt = jobs.ran(measure, 300.0)
    commit(catalog, measure, {"measurements": manifest("m", "report")}, attempt)
    catalog.measurements.record(
        Measurement(
            deployment=found, suite_digest=some_digest("suite"), metric="exact_match", scorer="s", generation="g", backend="b",
            run_key=measure.key, attempt=attempt, items_uri="u", items_digest=some_digest("items"), n=200,
        )
    )  # fmt: skip
    return found


def test_every_attempt_of_what_it_came_from_counts_once(catalog: Catalog, deployment: str) -> None:
    found = catalog.costs.of(f"deployment:{deployment}")
    assert [(run.stage, run.attempts, run.gpu_seconds, run.earlier_gpu_seconds) for run in found.runs] == [
        ("sft", 1, 8 * 3600.0, 0.0),
        ("generate", 1, 8 * 900.0, 0.0),
        ("dpo", 2, 8 * 1800.0, 8 * 600.0),
        ("evaluate", 1, 8 * 300.0, 0.0),
    ]
    assert (found.total("job_seconds"), found.total("earlier_job_seconds"), found.labels) == (6600.0, 600.0, 250)
    assert found.to_json()["total"]["gpu_seconds"] == 8 * 6600.0


def test_the_text_says_what_a_thousand_preferences_and_a_million_tokens_took(catalog: Catalog, deployment: str) -> None:
    text = render_cost(catalog.costs.of(f"deployment:{deployment}"))
    assert "250 preferences: 8 GPU hours of generation for a thousand" in text
    assert "candidates: 0.5 GPU hours for a million tokens" in text
    assert "reward_model" not in text


def test_of_an_artifact_too_and_what_came_before_the_committed_attempt_is_apart(catalog: Catalog, catalog_url: str) -> None:
    lost = spec("sft", inputs={"base": some_digest("base"), "demonstrations": some_digest("d")})
    jobs = Jobs(catalog, catalog_url)
    commit(catalog, lost, {"policy": manifest("late")}, attempt=jobs.ran(lost, 30.0, 40.0))
    (run,) = catalog.costs.of(manifest("late").digest).runs
    assert (run.committed, run.job_seconds, run.earlier_job_seconds) == (True, 70.0, 30.0)


def test_what_is_not_there_is_said_so(catalog: Catalog) -> None:
    with pytest.raises(NotFound):
        catalog.costs.of("champion:nobody")
