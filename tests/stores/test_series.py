"""Merging the metric series of attempts."""

from __future__ import annotations

from include.domain.spec import Report
from include.stores.series import AttemptLog, merged
from tests.stores.things import some_digest

KEY = some_digest("key")


def attempt(name: str, steps: range, first: int | None, resumed: str | None = None) -> AttemptLog:
    """`first` None: killed, so that there is no report."""
    rows = [{"step": step, "loss": float(step), "by": name} for step in steps]
    if first is None:
        return AttemptLog(name, None, rows)
    told = {"attempt": resumed, "step": first} if resumed else None
    return AttemptLog(name, Report(KEY, name, "complete", "last_step", first, steps[-1], 10, {}, {}, told), rows)


def told(attempts: list[AttemptLog], committed: str) -> list[tuple[int, str]]:
    return [(int(row["step"]), row["by"]) for row in merged(attempts, committed)]


def test_one_attempt_is_its_own_series() -> None:
    assert told([attempt("1-7.0", range(1, 4), 0)], "1-7.0") == [(1, "1-7.0"), (2, "1-7.0"), (3, "1-7.0")]


def test_steps_past_the_one_resumed_from_are_dropped() -> None:
    both = [attempt("1-7.0", range(1, 8), None), attempt("2-9.0", range(5, 9), 4, "1-7.0")]
    assert told(both, "2-9.0") == [(1, "1-7.0"), (2, "1-7.0"), (3, "1-7.0"), (4, "1-7.0"), *((s, "2-9.0") for s in range(5, 9))]


def test_three_attempts_make_one_rising_series() -> None:
    attempts = [
        attempt("1-7.0", range(1, 10), None),
        attempt("1-7.1", range(4, 8), None),
        attempt("2-9.0", range(7, 11), 6, "1-7.1"),
    ]
    assert [step for step, _ in told(attempts, "2-9.0")] == list(range(1, 11))
    assert [by for step, by in told(attempts, "2-9.0") if step in (3, 4, 6, 7)] == ["1-7.0", "1-7.1", "1-7.1", "2-9.0"]


def test_an_attempt_from_which_nothing_was_resumed_is_left_out() -> None:
    attempts = [attempt("1-7.0", range(1, 6), 0), attempt("1-8.0", range(1, 6), 0), attempt("2-9.0", range(4, 6), 3, "1-7.0")]
    assert {by for _, by in told(attempts, "2-9.0")} == {"1-7.0", "2-9.0"}


def test_an_attempt_that_began_anew_stands_alone() -> None:
    assert told([attempt("1-7.0", range(1, 9), None), attempt("2-9.0", range(1, 3), 0)], "2-9.0") == [(1, "2-9.0"), (2, "2-9.0")]


def test_an_unknown_committed_attempt_has_no_series() -> None:
    assert merged([attempt("1-7.0", range(1, 3), 0)], "2-9.0") == []
