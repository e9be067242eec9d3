"""What each step of the chain changed: a model beside the one it was trained from, for the report's notes. No gate reads this."""

from collections.abc import Iterator

from include.gates.decide import difference, paired
from include.gates.policy import GateSet
from include.gates.tables import Measurement, MeasurementTable

_STEPS = (("sft", "base"), ("candidate", "sft"))
_ALPHA = 0.05


def step_notes(gates: GateSet, table: MeasurementTable) -> Iterator[str]:
    """One line for each step and each metric the set reads: the paired difference between its two one-sided 95 % bounds.

    A metric that was not measured of both, on the same items, is left out; whether that matters is the gates' to say.
    """
    wanted = dict.fromkeys((gate.metric, gate.suite) for gate in gates.gates if gate.suite is not None)
    for later, earlier in _STEPS:
        for metric, suite in wanted:
            ours, theirs = table.find(later, metric, suite), table.find(earlier, metric, suite)
            if ours is not None and theirs is not None and _comparable(ours, theirs):
                yield f"{later} beside {earlier}: {metric} on {suite} {_shown(ours, theirs)}"


def _comparable(ours: Measurement, theirs: Measurement) -> bool:
    same = all(getattr(ours, name) == getattr(theirs, name) for name in ("suite_digest", "scorer", "generation"))
    return (
        same and ours.same_backend(theirs) and bool(ours.items) and {item.id for item in ours.items} == {item.id for item in theirs.items}
    )


def _shown(ours: Measurement, theirs: Measurement) -> str:
    found = difference(ours.metric, _ALPHA, paired(ours, theirs))
    return f"{found.estimate:+.3f} [{found.lower:+.3f}, {found.upper:+.3f}], n={found.n}"
