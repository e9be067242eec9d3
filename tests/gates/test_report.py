"""The report: the same measurements give the same digest, any change gives another, and people can read it."""

import json

from include.gates.judge import GATE_CODE
from include.gates.policies import policies_from
from include.gates.policy import GateSet
from include.gates.render import markdown, table
from tests.gates.conftest import read
from tests.gates.tables import change, good, judged


def test_judging_twice_gives_one_digest(quickstart: GateSet) -> None:
    assert judged(quickstart, good()).digest == judged(policies_from(read("quickstart")), good()).digest


def test_the_order_of_rows_and_items_does_not_matter(quickstart: GateSet) -> None:
    data = good()
    shuffled = {**data, "rows": [{**row, "items": row["items"][::-1]} for row in data["rows"][::-1]]}
    before, after = judged(quickstart, data), judged(quickstart, shuffled)
    assert [(r.name, r.against, r.verdict) for r in before.results] == [(r.name, r.against, r.verdict) for r in after.results]


def test_one_changed_item_changes_the_digest(quickstart: GateSet) -> None:
    changed = change(good(), "candidate", "exact_match", lambda i, old: 1.0 if i == 1 else old)
    assert judged(quickstart, changed).digest != judged(quickstart, good()).digest


def test_a_changed_margin_changes_policy_set_and_report(quickstart: GateSet) -> None:
    data = read("quickstart")
    data["gates"][1]["margin"] = 0.06
    looser = policies_from(data)
    assert looser.gates[1].digest != quickstart.gates[1].digest
    assert looser.digest != quickstart.digest
    assert judged(looser, good()).digest != judged(quickstart, good()).digest


def test_the_report_carries_the_version_of_gate_code_and_is_plain_json(quickstart: GateSet) -> None:
    body = json.loads(json.dumps(judged(quickstart, good()).to_json(), allow_nan=False))
    assert (body["gate_code"], body["gates"], body["passed"]) == (GATE_CODE, "quickstart@1", True)


def test_the_table_has_a_line_for_each_result_and_says_what_blocks(quickstart: GateSet) -> None:
    report = judged(quickstart, change(good(), "candidate", "length_tokens", lambda i, old: old * 1.5))
    text = table(report)
    assert all(any(line.startswith(r.group) and r.name in line for line in text.splitlines()) for r in report.results)
    assert "blocks: length_ratio against champion: ratio of means 1.5" in text
    assert text.startswith("Gates quickstart@1 (gates@1): blocked")


def test_markdown_is_a_table_of_as_many_columns_everywhere(quickstart: GateSet) -> None:
    lines = [line for line in markdown(judged(quickstart, good())).splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {8}
    assert len(lines) == 2 + len(judged(quickstart, good()).results)


def test_the_notes_say_what_each_step_changed(quickstart: GateSet) -> None:
    measured = change(good(), "sft", "exact_match", lambda i, old: 1.0 if i % 5 == 1 else old)
    notes = judged(quickstart, measured).notes
    assert "sft beside base: exact_match on word_problems +0.200 [+0.160, +0.237], n=300" in notes
    assert any(note.startswith("candidate beside sft: asked_form on word_problems +0.5") for note in notes)
    assert len(notes) == len(set(notes))


def test_what_was_measured_on_other_items_is_no_step(quickstart: GateSet) -> None:
    measured = good()
    row = next(row for row in measured["rows"] if (row["role"], row["metric"]) == ("base", "likelihood_choice"))
    row["items"].pop()
    notes = judged(quickstart, measured).notes
    assert not any("sft beside base: likelihood_choice" in note for note in notes)
    assert any("candidate beside sft: likelihood_choice" in note for note in notes)
