"""Evaluation: several deployments, by role, measured side by side on the hold-out, every item's value kept.

    python -m include.eval.evaluate --spec RUN/spec.json --placement ATTEMPT/placement.json --out ATTEMPT

Inputs: model_<role> (candidate, base, sft, champion, anchor), suite_<name>, and reward_model where rewards are wanted.
Output: `measurements` (measurements.json), which gates are judged on, and `answers` (answers.json) of suites whose answers are compared
side by side afterwards. The hold-out is read once, here; deployments that are the same one under two roles are measured once.

Each deployment answers with its own tokenizer and chat template: champion and anchor may come from another base than the candidate.
Values are compared item by item; lengths and rewards are counted in the run's tokens, which are the candidate's and the reward model's.

Models may be measured each in a run of its own, a part, which gives its `findings` too. The whole's job takes them and measures
what is left: latency, for which all models run side by side.
"""

import contextlib
import json
from collections.abc import Sequence

from include.eval.bench import Bench
from include.eval.compared import write_answers
from include.eval.deployment import own_tokens
from include.eval.findings import write_part
from include.eval.loop import run_units, stopped_servers
from include.eval.measurements import means, measurements
from include.eval.plan import Evaluation
from include.runtime.job import Job
from include.runtime.parts import taken
from include.runtime.program import run_program


def evaluate(job: Job) -> None:
    evaluation = Evaluation.of(job)
    bench = Bench(job, evaluation)
    for suite in evaluation.suites.values():
        if "reward_score" in suite.scorers and evaluation.rewarded_items == 0:
            job.warn(f"suite {suite.name}: reward_score is not measured, there is no reward model or no item to reward")
    bench.take(parts := taken(job))
    with stopped_servers(job), contextlib.closing(bench):
        run_units(job, bench, evaluation.units(), lambda figures: int(figures.get("tokens", 0)))
    bench.check()
    body = measurements(evaluation, bench.findings)
    with job.output("measurements", "report") as folder:
        (folder / "measurements.json").write_text(json.dumps(body, sort_keys=True, allow_nan=False) + "\n", "utf-8")
    found = bench.findings
    if not evaluation.part and any(suite.compared for suite in evaluation.suites.values()):
        with job.output("answers", "candidate_set") as folder:
            write_answers(folder, evaluation, found)
    if evaluation.part:
        with job.output("findings", "report") as folder:
            write_part(folder, found, {one.digest: evaluation.backend_digest(one) for one in evaluation.deployments.values()})
    figures = {**means(body), "generation_seconds": found.generation_seconds, "generated_tokens": float(found.generated_tokens)}
    summary = {"deployments": {role: one.digest for role, one in evaluation.deployments.items()}}
    job.complete(figures, summary={**summary, "parts": list(parts)} if parts else summary)


def main(argv: Sequence[str] | None = None) -> int:
    return run_program("evaluate", evaluate, argv, others=own_tokens)


if __name__ == "__main__":
    raise SystemExit(main())
