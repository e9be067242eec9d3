"""Answers after prompts they were not given to: what KTO's reference point is measured on.

z = max(0, mean of log π/ref over mismatched answers) estimates KL(policy ‖ reference) without drawing anything
(Ethayarajh et al. 2024, section 4.1). The paper shifts answers within each batch, which would need the reference's model at
every step. Here each pair's prompt gets the two answers of one fixed other pair, so that the reference's log-probabilities
are computed once and kept like those of the pairs themselves; the mean is over the whole batch, whatever ranks and
micro-batches it is cut into.
"""

from collections.abc import Mapping, Sequence

from include.domain.canonical import digest
from include.training.pairs.log_probs import PairSums
from include.training.pairs.rows import PairsError, TokenPair

BALANCE = (1.0, 4 / 3)
"""Wanted range of (desirable weight × their number) / (undesirable weight × their number). Source: the same paper, eq. 8."""


def mismatched_side(side: str) -> str:
    """The name under which a side's mismatched answers are kept."""
    return f"{side}_mismatched"


def with_mismatched(pairs: Mapping[str, Sequence[TokenPair]], max_length: int) -> dict[str, Sequence[TokenPair]]:
    """`pairs` by side, and beside each side its mismatched ones in the same order, cut to `max_length` tokens.

    A validation side of a single prompt takes answers of the training side.

    Raises:
        PairsError: all training pairs have one prompt.
    """
    found = dict(pairs)
    for side, own in pairs.items():
        others = own if len({_prompt(pair) for pair in own}) > 1 else [*own, *pairs["train"]]
        found[mismatched_side(side)] = [
            _after(pair, other).cut(max_length) for pair, other in zip(own, _partners(own, others), strict=True)
        ]
    return found


def _partners(own: Sequence[TokenPair], others: Sequence[TokenPair]) -> list[TokenPair]:
    """For each pair the next one of another prompt, in an order by hash: the same whatever else is set."""
    ring = sorted(others, key=lambda pair: digest("mismatched-order", pair.pair_id))
    places = {pair.pair_id: at for at, pair in enumerate(ring)}
    found = []
    for pair in own:
        at = places[pair.pair_id]
        following = (ring[(at + step) % len(ring)] for step in range(1, len(ring)))
        other = next((candidate for candidate in following if _prompt(candidate) != _prompt(pair)), None)
        if other is None:
            raise PairsError("loss kto: all pairs have the same prompt; its reference point needs answers to other prompts")
        found.append(other)
    return found


def _prompt(pair: TokenPair) -> tuple[int, ...]:
    return pair.chosen[: pair.prompt_length]


def _after(pair: TokenPair, other: TokenPair) -> TokenPair:
    """The answers of `other` after the prompt of `pair`."""
    chosen, rejected = (_prompt(pair) + side[other.prompt_length :] for side in (other.chosen, other.rejected))
    return TokenPair(pair.pair_id, pair.group, pair.prompt_length, chosen, rejected, pair.weight, {}, ())


def moved(policy: PairSums, reference: PairSums) -> tuple[float, int]:
    """(sum of log π/ref over both answers of these pairs, number of answers): nats."""
    parts = ((getattr(policy, name) - getattr(reference, name)).double().sum() for name in ("chosen", "rejected"))
    return float(sum(parts)), 2 * len(policy.chosen)


def reference_point(total: float, count: float) -> float:
    """KTO's z of so many answers, nats; never below 0, where an estimate of a divergence has nothing to say."""
    return max(0.0, total / count) if count else 0.0


def unbalanced(desirable: float, undesirable: float) -> str | None:
    """What to say where the weights (of pairs: as many desirable as undesirable answers) are outside `BALANCE`."""
    ratio = desirable / undesirable
    if BALANCE[0] <= ratio <= BALANCE[1]:
        return None
    return (
        f"kto: desirable_weight / undesirable_weight is {ratio:.3g}. Pairs hold as many desirable as undesirable answers; "
        f"the paper advises {BALANCE[0]:g} to {BALANCE[1]:.2f}"
    )
