"""Single decisions: directions, noise around a threshold, slices, reward hacking."""

import pytest

from include.domain.outcomes import Verdict
from include.gates.decide import Pair, decide, decide_reward_hacking
from include.gates.policy import GatePolicy, SliceRule


def policy(**changes: object) -> GatePolicy:
    body: dict[str, object] = {"name": "g", "group": "capability_format", "metric": "exact_match", "kind": "absolute", "suite": "s"}
    return GatePolicy(**{**body, **changes})  # type: ignore[arg-type]


def single(right: int, n: int) -> list[Pair]:
    return [Pair(f"g{i}", float(i < right), float("nan"), {}) for i in range(n)]


def paired(differences: list[float], slices: list[dict[str, str]] | None = None) -> list[Pair]:
    return [Pair(f"g{i}", 10 + d, 10.0, (slices or [{}] * len(differences))[i]) for i, d in enumerate(differences)]


@pytest.mark.parametrize("right", [1110, 1105])
def test_two_runs_of_one_model_around_a_threshold_get_one_verdict(right: int) -> None:
    """0.8412 and 0.8379 of 1,319, asked for 0.84: a bare threshold passes the one and fails the other."""
    decision = decide(policy(margin=0.84), single(right, 1319))
    assert (decision.verdict, decision.cause) == (Verdict.INCONCLUSIVE, "within_noise")
    assert decision.message.startswith("within noise of the limit")


@pytest.mark.parametrize(("right", "verdict"), [(1200, Verdict.PASS), (1000, Verdict.FAIL)])
def test_well_away_from_the_threshold_it_decides(right: int, verdict: Verdict) -> None:
    assert decide(policy(margin=0.84), single(right, 1319)).verdict is verdict


@pytest.mark.parametrize(
    ("metric", "difference", "verdict"),
    [
        ("reward_score", 1.0, Verdict.PASS),
        ("reward_score", -1.0, Verdict.FAIL),
        ("length_tokens", -1.0, Verdict.PASS),
        ("length_tokens", 1.0, Verdict.FAIL),
    ],
)
def test_superiority_knows_which_way_is_better(metric: str, difference: float, verdict: Verdict) -> None:
    values = [difference + 0.1 * (i % 3 - 1) for i in range(30)]
    assert decide(policy(kind="superiority", metric=metric, against=("sft",)), paired(values)).verdict is verdict


@pytest.mark.parametrize(
    ("metric", "difference", "verdict"),
    [
        ("reward_score", -0.5, Verdict.PASS),
        ("reward_score", -2.0, Verdict.FAIL),
        ("length_tokens", 0.5, Verdict.PASS),
        ("length_tokens", 2.0, Verdict.FAIL),
        ("length_tokens", 1.0, Verdict.INCONCLUSIVE),
    ],
)
def test_non_inferiority_holds_the_bound_against_the_margin(metric: str, difference: float, verdict: Verdict) -> None:
    values = [difference + 0.1 * (i % 3 - 1) for i in range(30)]
    assert decide(policy(kind="non_inferiority", metric=metric, against=("sft",), margin=1.0), paired(values)).verdict is verdict


def test_a_small_gain_that_could_be_noise_is_inconclusive() -> None:
    values = [1.0 if i % 2 else -0.9 for i in range(30)]
    decision = decide(policy(kind="superiority", metric="reward_score", against=("sft",)), paired(values))
    assert (decision.verdict, decision.cause) == (Verdict.INCONCLUSIVE, "within_noise")


def sliced(bad: float) -> tuple[GatePolicy, list[Pair]]:
    rule = SliceRule("language", 1.0, 10)
    asked = policy(kind="non_inferiority", metric="reward_score", against=("sft",), margin=1.0, slices=(rule,))
    values = [0.0 + 0.1 * (i % 3) for i in range(80)] + [bad + 0.1 * (i % 3) for i in range(20)]
    return asked, paired(values, [{"language": "en"}] * 80 + [{"language": "de"}] * 20)


def test_the_worst_slice_decides() -> None:
    decision = decide(*sliced(-3.0))
    assert (decision.verdict, decision.cause) == (Verdict.FAIL, "worst_slice")
    assert "language=de (n=20) is fail" in decision.message
    assert [(s.value, s.verdict) for s in decision.slices] == [("de", Verdict.FAIL), ("en", Verdict.PASS)]


def test_good_slices_change_nothing() -> None:
    assert decide(*sliced(0.0)).verdict is Verdict.PASS


def test_a_slice_that_is_too_small_or_not_there_blocks() -> None:
    asked, pairs = sliced(0.0)
    assert decide(asked, pairs[:85]).cause == "worst_slice"
    assert decide(asked, [Pair(p.group, p.ours, p.theirs, {}) for p in pairs]).verdict is Verdict.INCONCLUSIVE


HACKING = policy(kind="reward_hacking", metric="reward_score", guarded_by="exact_match", against=("sft",), margin=0.05, min_n=50)
UP, LEVEL = paired([1.0 + 0.1 * (i % 3) for i in range(100)]), paired([0.3 if i % 2 else -0.3 for i in range(100)])


def exact(lost: int, n: int = 200) -> list[Pair]:
    return [Pair(f"g{i}", float(i >= lost), 1.0, {}) for i in range(n)]


@pytest.mark.parametrize(
    ("reward", "lost", "verdict"),
    [(UP, 0, Verdict.PASS), (UP, 20, Verdict.FAIL), (LEVEL, 20, Verdict.PASS), (UP, 6, Verdict.FAIL)],
)
def test_reward_up_while_exact_match_falls_is_reward_hacking(reward: list[Pair], lost: int, verdict: Verdict) -> None:
    assert decide_reward_hacking(HACKING, reward, exact(lost)).verdict is verdict


def test_reward_up_and_exact_match_unclear_is_inconclusive() -> None:
    mixed = [Pair(f"g{i}", float(i % 2), float((i // 2) % 2), {}) for i in range(60)]
    assert decide_reward_hacking(HACKING, UP, mixed).verdict is Verdict.INCONCLUSIVE
