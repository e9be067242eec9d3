"""Measurement tables for tests: one that every quickstart gate passes, and ways to spoil it."""

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

from include.domain.canonical import digest
from include.domain.spec import RunSpec
from include.gates.expected import Expected, expected_from
from include.gates.judge import judge
from include.gates.policy import GateSet
from include.gates.results import GateReport
from include.gates.tables import table_from

SUITES = ("word_problems", "piqa", "bbq")
SCORERS = ("exact_match", "asked_form", "length_tokens", "likelihood_choice", "bbq_accuracy", "reward_score")
GENERATION = {"temperature": 0.0, "max_new_tokens": 40}
ROLES = ("candidate", "base", "sft", "champion", "anchor")
N = 300


def some(name: str) -> str:
    return digest("test", name)


def spec(roles: tuple[str, ...] = ROLES, **changes: Any) -> RunSpec:
    """The evaluation that is asked for now."""
    config = {
        "deployments": {role: {"digest": some(f"deployment {role}"), "generation": GENERATION} for role in roles},
        "generation": GENERATION,
        "scorers": {name: some(f"scorer {name}") for name in SCORERS},
    }
    inputs = {f"model_{role}": some(f"model {role}") for role in roles} | {f"suite_{name}": some(f"suite {name}") for name in SUITES}
    return RunSpec("evaluate", "include.eval.evaluate", inputs, some("code"), config | changes, some("env"), 1, some("tok"), some("tpl"))


def expected(roles: tuple[str, ...] = ROLES) -> Expected:
    return expected_from(spec(roles))


def _row(role: str, suite: str, scorer: str, values: Callable[[int], float], n: int, field: str = "value") -> dict[str, Any]:
    scored = some(f"scorer {scorer}") if scorer in SCORERS else some("code")
    return {
        "role": role,
        "model": some(f"model {role}"),
        "deployment": some(f"deployment {role}"),
        "suite": suite,
        "suite_digest": some(f"suite {suite}"),
        "scorer": scored,
        "generation": digest("generation", GENERATION),
        "backend": some("backend"),
        ("samples" if field == "seconds" else "items"): [{"id": f"{suite}-{i}", "group": f"g{i}", field: values(i)} for i in range(n)],
    }


def good(roles: tuple[str, ...] = ROLES) -> dict[str, Any]:
    """measurements.json of a candidate that keeps what the others can, answers in form, and is as long and as fast."""
    rows, latency = [], []
    for role in roles:
        better = role == "candidate"
        columns: Mapping[tuple[str, str], Callable[[int], float]] = {
            ("word_problems", "exact_match"): lambda i: float(i % 5 == 0),
            ("word_problems", "asked_form"): lambda i, better=better: float(better or i % 2 == 0),
            ("word_problems", "length_tokens"): lambda i: 20.0 + i % 7,
            ("word_problems", "reward_score"): lambda i, better=better: 0.1 * (i % 9) + (0.5 if better else 0.0),
            ("piqa", "likelihood_choice"): lambda i: float(i % 3 != 0),
            ("bbq", "bbq_accuracy"): lambda i: float(i % 2 == 0),
        }
        rows += [{**_row(role, suite, metric, values, N), "metric": metric} for (suite, metric), values in columns.items()]
        latency.append(_row(role, "word_problems", "latency_s", lambda i: 1.0 + 0.01 * (i % 3), 16, "seconds"))
    return {"schema": "align/measurements/v1", "rows": rows, "latency": latency}


def change(data: dict[str, Any], role: str, metric: str, value: Callable[[int, float], float]) -> dict[str, Any]:
    """A copy in which `value(i, old)` stands for every item of one metric of one role."""
    out = copy.deepcopy(data)
    for row in out["latency"] if metric == "latency_s" else out["rows"]:
        if row["role"] == role and row.get("metric", "latency_s") == metric:
            items, name = (row["samples"], "seconds") if metric == "latency_s" else (row["items"], "value")
            for i, item in enumerate(items):
                item[name] = value(i, item[name])
    return out


def judged(gates: GateSet, data: dict[str, Any], roles: tuple[str, ...] = ROLES) -> GateReport:
    """The report, with the measurements taken through their file form."""
    return judge(gates, table_from(json.loads(json.dumps(data))), expected(roles))
