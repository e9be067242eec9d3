"""Seconds of a PPO iteration beside TRL 1.9.2's (1.16 has no PPO): the same four models, prompts, lengths, epochs and threads, taking turns.

    PYTHONPATH=. .local/venv/bin/python -m benchmarks.training.ppo_iteration --rounds 3

An iteration is all of it: answers, scores, values, reference, update of actor and critic; on our side also the answers on the disk
with what they are bound to, and the guards. Policy and reward model are made on the spot; the policy is trained until it ends its
answers, at ragged lengths. One minibatch an epoch. See docs/benchmarks.md.
"""

import os
from collections.abc import Sequence

from benchmarks.training.against_trl import parser_of
from benchmarks.training.turns import alternate, prepared
from benchmarks.training.workload import WARM_UP, Workload


def main(argv: Sequence[str] | None = None) -> None:
    given = vars(parser_of(__doc__, batch=32, steps=15, length=40).parse_args(argv))
    rounds = given.pop("rounds")
    load = Workload("ppo", **given)
    with prepared(load) as (folder, measured):
        print(
            f"{measured.parameters} parameters, four models, {load.batch} answers of at most {load.new_tokens} tokens, {load.epochs} epochs"
        )
        print(f"{load.precision}, {load.threads} threads, {rounds} rounds of {load.steps} iterations, the first {WARM_UP} are not measured")
        for side, found in alternate(folder, measured, rounds):
            length = f", {found['answer_tokens']:.1f} tokens an answer" if side == "ours" else ""
            print(f"  {side:5} {measured.seconds(side)[-1]:6.3f} s an iteration, value loss {found['loss']:.3f}{length}", flush=True)
    ours, theirs = (measured.median(side) for side in ("ours", "trl"))
    print(f"median: ours {ours:.3f}, TRL {theirs:.3f} s an iteration")
    print(f"ratio {measured.ratio:.2f} by the clock, {measured.cpu_ratio():.2f} by CPU; load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
