"""The version of the gate code: the same measurements give the same figures, or GATE_CODE is another one."""

from include.domain.canonical import digest
from include.gates.judge import GATE_CODE
from include.gates.policy import GateSet
from tests.gates.tables import change, good, judged

FIGURES = {"gates@1": "sha256:374ca6d831fb96520418e6dcc041e3897260daceaecaeead2e201335f1186d56"}
"""GATE_CODE → digest of what it finds in the measurements below. Add a line with a new version, never change one."""


def test_figures_of_this_version_are_those_on_record(quickstart: GateSet) -> None:
    noisy = change(good(), "candidate", "exact_match", lambda i, old: 1.0 - old if i % 29 == 0 else old)
    noisy = change(noisy, "candidate", "length_tokens", lambda i, old: old * (1.0 + (i % 5) / 10))
    found = [
        [r.name, r.against, r.verdict.value, *(f"{v:.6f}" for v in (r.estimate, r.lower, r.upper) if v is not None)]
        for data in (good(), noisy)
        for r in judged(quickstart, data).results
    ]
    assert digest("gate-figures", found) == FIGURES[GATE_CODE]
