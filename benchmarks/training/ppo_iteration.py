"""Seconds of a PPO iteration beside TRL 1.9.2's (1.16 has no PPO): the same four models, prompts, lengths, epochs and threads, taking turns.

    PYTHONPATH=. .local/venv/bin/python -m benchmarks.training.ppo_iteration --rounds 3

An iteration is all of it: answers, scores, values, reference, update of actor and critic; on our side also the answers on the disk
with what they are bound to, and the guards. Policy and reward model are made on the spot; the policy is trained until it ends its
answers, at ragged lengths. One minibatch an epoch. Each side draws its own answers: sides whose answers differ in length by more
than 5 % on the mean did other work and are not compared. `--without-reuse`: ours computes its first passes twice, as TRL does.
See docs/benchmarks.md.
"""

import os
from collections.abc import Sequence

from benchmarks.training.against_trl import parser_of
from benchmarks.training.turns import Measured, alternate, prepared
from benchmarks.training.workload import EQUAL_ANSWERS, WARM_UP, Workload


def check_equal_answers(measured: Measured) -> None:
    """Says how long both sides' answers were; ends the benchmark where they are too far apart, or a side drew none."""
    ours, theirs = (measured.answer_tokens(side) for side in ("ours", "trl"))
    print(f"tokens an answer, mean of all turns: ours {ours:.1f}, TRL {theirs:.1f}")
    if not (ours > 0 and abs(ours - theirs) <= EQUAL_ANSWERS * theirs):
        raise SystemExit(
            f"the sides did not do the same work: answers of {ours:.1f} and {theirs:.1f} tokens are more than {EQUAL_ANSWERS:.0%} apart; "
            "more --steps or --rounds draw more answers"
        )


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, batch=32, steps=15, length=40)
    parser.add_argument("--without-reuse", dest="reuse", action="store_false", help="ours computes its first passes twice, as TRL does")
    given = vars(parser.parse_args(argv))
    rounds = given.pop("rounds")
    load = Workload("ppo", **given)
    with prepared(load) as (folder, measured):
        print(
            f"{measured.parameters} parameters, four models, {load.batch} answers of at most {load.new_tokens} tokens, {load.epochs} epochs"
        )
        print(f"{load.precision}, {load.threads} threads, {rounds} rounds of {load.steps} iterations, the first {WARM_UP} are not measured")
        print(f"first passes of ours: {'learnt from' if load.reuse else 'computed twice'}")
        for side, found in alternate(folder, measured, rounds):
            length = f"{found['answer_tokens']:.1f} tokens an answer"
            print(f"  {side:5} {measured.seconds(side)[-1]:6.3f} s an iteration, value loss {found['loss']:.3f}, {length}", flush=True)
    ours, theirs = (measured.median(side) for side in ("ours", "trl"))
    print(f"median: ours {ours:.3f}, TRL {theirs:.3f} s an iteration")
    print(f"ratio {measured.ratio:.2f} by the clock, {measured.cpu_ratio():.2f} by CPU; load average {os.getloadavg()[0]:.1f}")
    check_equal_answers(measured)


if __name__ == "__main__":
    main()
