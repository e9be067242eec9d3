"""Answers for those who compare them: what every deployment wrote to each item of the suites that ask for it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from include.eval.findings import Findings
from include.eval.plan import Evaluation
from include.eval.suites import Suite

ANSWERS_FILE = "answers.json"
SCHEMA = "align/answers/v1"


def write_answers(folder: Path, evaluation: Evaluation, findings: Findings) -> None:
    """``{schema, suites: {name: {digest, items: [{id, prompt_id, group, slices}]}}, answers: [{suite, deployment, model, roles, generation,
    backend, texts, finish_reasons}]}``, a text for each item in the items' order."""
    suites = {name: suite for name, suite in sorted(evaluation.suites.items()) if suite.compared}
    body = {
        "schema": SCHEMA,
        "suites": {name: _items(suite) for name, suite in suites.items()},
        "answers": [written for suite in suites.values() for written in _written(evaluation, findings, suite)],
    }
    (folder / ANSWERS_FILE).write_text(json.dumps(body, sort_keys=True, allow_nan=False) + "\n", "utf-8")


def _items(suite: Suite) -> dict[str, Any]:
    items = [{"id": e.id, "prompt_id": e.item.prompt.prompt_id, "group": e.group, "slices": suite.slices_of(e)} for e in suite.entries]
    return {"digest": suite.digest, "items": items}


def _written(evaluation: Evaluation, findings: Findings, suite: Suite) -> Iterator[dict[str, Any]]:
    for role in evaluation.distinct:
        deployment = evaluation.deployments[role]
        answers = findings.answers[deployment.digest][suite.name]
        yield {
            "suite": suite.name,
            "deployment": deployment.digest,
            "model": deployment.weights,
            "roles": [other for other in evaluation.measured if evaluation.deployments[other].digest == deployment.digest],
            "generation": evaluation.generation_digest(deployment),
            "backend": evaluation.backend_digest(deployment),
            "texts": [answer.text for answer in answers],
            "finish_reasons": [answer.finish_reason for answer in answers],
        }
