"""Reading gate files: what is wrong is named, with what would have been right."""

import copy
from typing import Any

import pytest

from include.gates.errors import GateError
from include.gates.policies import policies_from
from tests.gates.conftest import CONFIGS, read


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.yaml")))
def test_every_shipped_set_reads_and_names_itself(name: str) -> None:
    assert policies_from(read(name)).name == name


def spoilt(path: list[Any], value: Any) -> dict[str, Any]:
    data = copy.deepcopy(read("quickstart"))
    place = data
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["gate"], 1, "'gate' is not known; it may have .*gates"),
        (["version"], None, "version is missing; it has .*name"),
        (["version"], "1", "version: '1' is not int"),
        (["demonstration"], "yes", "demonstration: 'yes' is not bool"),
        (["gates"], [], "expected a list of at least one gate"),
        (["gates", 1, "marginn"], 0.1, r"gates\[1\]: 'marginn' is not known; it may have .*margin"),
        (["gates", 1, "margin"], "0.05", r"gates\[1\] \(exact_match_no_worse\).margin: '0.05' is not int or float"),
        (["gates", 1, "margin"], 0.0, "without a margin nothing can be shown"),
        (["gates", 1, "margin"], -0.1, "margin: -0.1 is below 0"),
        (["gates", 1, "metric"], "exactness", "metric: 'exactness' is none of asked_form.*exact_match"),
        (["gates", 1, "group"], "capability", "group: 'capability' is none of capability_format"),
        (["gates", 1, "kind"], "better", "kind: 'better' is none of absolute"),
        (["gates", 1, "against"], ["champion", "latest"], "against: 'latest' is none of anchor, base, champion, sft"),
        (["gates", 1, "against"], [], "name at least one baseline"),
        (["gates", 1, "suite"], None, "suite is missing"),
        (["gates", 1, "name"], "asked_form_better", "two gates are called 'asked_form_better'"),
        (["gates", 1, "alpha"], 0.5, "alpha: 0.5 is not between"),
        (["gates", 1, "min_n"], 0, "min_n: 0 is not at least 1"),
        (["gates", 1, "on_missing"], "pass", "on_missing: 'pass' is none of block"),
        (["gates", 1, "scale"], "percent", "scale: 'percent' is none of difference, ratio"),
        (["gates", 0, "scale"], "ratio", "a ratio is for non_inferiority gates"),
        (["gates", 1, "statistic"], "median", "a median is for ratios"),
        (["gates", 1, "guarded_by"], "asked_form", "belongs to reward_hacking gates"),
        (["gates", 1, "slices"], [{"by": "topic", "margin": 0.1}], r"slices\[0\]: min_n is missing"),
        (["gates", 0], None, "no gate of kind superiority.*a mere copy passes"),
        (["not_built", "human_pairwise"], " ", "human_pairwise: a waiver needs a reason"),
        (["not_built", "humans"], "none here", "not_built: 'humans' is none of"),
        (["not_built", "cost_latency"], "later", "gates of this group are there"),
        (["demonstration"], False, "human_pairwise is waived, which only a set marked `demonstration: true` may do"),
    ],
)
def test_what_is_wrong_is_named(path: list[Any], value: Any, message: str) -> None:
    with pytest.raises(GateError, match=message):
        policies_from(spoilt(path, value))


def test_a_set_that_compares_nothing_with_the_anchor_is_refused() -> None:
    data = copy.deepcopy(read("quickstart"))
    for gate in data["gates"]:
        gate["against"] = [
            role for role in ([gate["against"]] if isinstance(gate["against"], str) else gate["against"]) if role != "anchor"
        ]
    with pytest.raises(GateError, match="no gate against the anchor"):
        policies_from(data)


def test_a_group_without_gate_and_waiver_is_not_refused_but_blocks() -> None:
    from tests.gates.tables import good, judged

    report = judged(policies_from(spoilt(["not_built", "human_pairwise"], None)), good())
    assert report.passed is False
    assert [(r.name, r.cause) for r in report.results if not r.lets_through] == [("human_pairwise", "not_built")]


def test_a_gate_can_name_what_the_reward_model_says_of_a_dimension() -> None:
    from tests.gates.tables import change, good, judged

    named = spoilt(["gates", 1, "metric"], "dimension_score.clarity")
    data = good()
    data["rows"] += [{**row, "metric": "dimension_score.clarity"} for row in data["rows"] if row["metric"] == "reward_score"]
    verdicts = []
    for measured in (data, change(data, "candidate", "dimension_score.clarity", lambda _, old: old - 1.0)):
        results = judged(policies_from(named), measured).results
        verdicts.append({r.verdict.value for r in results if r.metric == "dimension_score.clarity"})
    assert verdicts == [{"pass"}, {"fail"}]


def test_a_dimension_without_a_name_is_no_metric() -> None:
    with pytest.raises(GateError, match="'dimension_score.' is none of .*dimension_score.<dimension>"):
        policies_from(spoilt(["gates", 1, "metric"], "dimension_score."))
