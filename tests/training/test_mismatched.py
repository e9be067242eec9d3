"""Which answers KTO's reference point is measured on, and what is made of them."""

import pytest

torch = pytest.importorskip("torch")

from include.training.pairs.log_probs import PairSums  # noqa: E402
from include.training.pairs.mismatched import mismatched_side, moved, reference_point, unbalanced, with_mismatched  # noqa: E402
from include.training.pairs.rows import PairsError, TokenPair  # noqa: E402


def _pair(name: str, prompt: int, answer: int, prompt_tokens: int = 3) -> TokenPair:
    start = (prompt,) * prompt_tokens
    return TokenPair(name, "group", len(start), (*start, answer, 1), (*start, answer + 50), 1.0, {}, ())


def _answers(pair: TokenPair) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return pair.chosen[pair.prompt_length :], pair.rejected[pair.prompt_length :]


PAIRS = [_pair(f"p{i}", 10 + i // 3, 20 + i) for i in range(9)]
"""Three prompts with three pairs each."""


def test_each_prompt_gets_both_answers_of_one_pair_with_another_prompt() -> None:
    apart = with_mismatched({"train": PAIRS}, 16)[mismatched_side("train")]
    prompt_of = {_answers(pair): pair.chosen[:3] for pair in PAIRS}
    assert [pair.chosen[:3] for pair in apart] == [pair.chosen[:3] for pair in PAIRS]
    assert all(prompt_of[_answers(pair)] != pair.chosen[:3] for pair in apart)
    assert len({_answers(pair) for pair in apart}) > 3


def test_who_is_paired_with_whom_does_not_hang_on_the_order_of_the_rows() -> None:
    shuffled = [*PAIRS[4:], *PAIRS[:4]]
    found = [{p.pair_id: p for p in with_mismatched({"train": rows}, 16)[mismatched_side("train")]} for rows in (PAIRS, shuffled)]
    assert found[0] == found[1]


def test_a_validation_side_of_one_prompt_takes_answers_of_the_training_side() -> None:
    alone = [_pair("v0", 40, 45), _pair("v1", 40, 46)]
    apart = with_mismatched({"train": PAIRS, "validation": alone}, 16)[mismatched_side("validation")]
    assert {_answers(pair) for pair in apart} <= {_answers(pair) for pair in PAIRS}
    assert with_mismatched({"train": PAIRS, "validation": []}, 16)[mismatched_side("validation")] == []


def test_a_long_prompt_leaves_the_others_answers_what_room_there_is() -> None:
    apart = with_mismatched({"train": [_pair("long", 10, 20, 7), _pair("short", 11, 21, 2)]}, 8)[mismatched_side("train")]
    assert apart[0].chosen == (10,) * 7 + (21,)


def test_pairs_of_a_single_prompt_are_refused() -> None:
    with pytest.raises(PairsError, match="all pairs have the same prompt"):
        with_mismatched({"train": PAIRS[:3]}, 16)


def test_the_reference_point_is_the_mean_over_all_answers_and_never_below_0() -> None:
    policy, frozen = (
        PairSums(torch.tensor(chosen), torch.tensor(rejected))
        for chosen, rejected in (([-1.0, -2.0], [-3.0, -4.0]), ([-2.0, -4.0], [-3.0, -3.0]))
    )
    assert moved(policy, frozen) == (2.0, 4)
    assert reference_point(2.0, 4) == 0.5
    assert reference_point(-2.0, 4) == 0.0
    assert reference_point(0.0, 0) == 0.0


@pytest.mark.parametrize(("weights", "said"), [((1.0, 1.0), False), ((1.3, 1.0), False), ((1.0, 1.2), True), ((2.0, 1.0), True)])
def test_weights_outside_what_the_paper_advises_are_told(weights: tuple[float, float], said: bool) -> None:
    assert (unbalanced(*weights) is not None) == said
