"""Reading measurements: a value that is no number, or anything that stands twice, is refused by its place."""

from typing import Any

import pytest

from include.gates.errors import GateError
from include.gates.expected import expected_from
from include.gates.tables import table_from
from tests.gates.tables import ROLES, good, spec


def broken(change: Any) -> dict[str, Any]:
    data = good(("candidate", "sft"))
    change(data)
    return data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schema="v0"), "schema 'v0'"),
        (lambda d: d["rows"][0].pop("model"), r"rows\[0\]: model is missing"),
        (lambda d: d["rows"][0]["items"][3].update(value=float("nan")), r"rows\[0\].items\[3\].value: nan is not a finite number"),
        (lambda d: d["rows"][0]["items"][3].update(value=None), r"items\[3\]: value is missing"),
        (lambda d: d["rows"][0]["items"][3].update(value="1"), "'1' is not a finite number"),
        (lambda d: d["rows"][0]["items"][3].update(id="word_problems-0"), "item word_problems-0 stands twice"),
        (lambda d: d["rows"].append(d["rows"][0]), "exact_match of candidate on word_problems stands twice"),
        (lambda d: d["latency"][0].pop("samples"), r"latency\[0\]: samples is missing"),
    ],
)
def test_what_is_wrong_is_named(change: Any, message: str) -> None:
    with pytest.raises(GateError, match=message):
        table_from(broken(change))


def test_latency_is_a_metric_of_seconds() -> None:
    row = table_from(good()).find("sft", "latency_s", None)
    assert row is not None
    assert [item.value for item in row.items[:3]] == [1.0, 1.01, 1.02]


def test_what_is_expected_comes_from_the_evaluations_own_specification() -> None:
    found = expected_from(spec())
    assert (set(found.models), set(found.deployments), set(found.suites)) == (set(ROLES), set(ROLES), {"word_problems", "piqa", "bbq"})


def test_a_model_without_deployment_is_refused() -> None:
    with pytest.raises(GateError, match="no deployment for anchor"):
        expected_from(spec(deployments={role: {"digest": "d"} for role in ROLES if role != "anchor"}))
