"""Training speed of SFT, reward model or DPO beside TRL 1.16: the same model, rows, batch, precision and threads, taking turns; see docs/benchmarks.md.

Every turn is a process of its own: our program in the cluster's environment, TRL's trainer in `.local/venv-peers`. Measured
is the time between the end of the third update and the end of the last but one, with all that happens in between. Both train
all weights with AdamW on the same token ids, one pass; neither recomputes activations; DPO's reference is computed before.
Both take the same rows in the same order; by how much the losses of the whole run differ is printed, and a difference that
is more than rounding ends the benchmark: two sides that do other work are not compared.
"""

import argparse
import os
from collections.abc import Sequence

from benchmarks.training.turns import Measured, alternate, prepared
from benchmarks.training.workload import EQUAL_LOSS, LOGGED, PROGRAMS, WARM_UP, Workload


def told(load: Workload, rounds: int) -> Measured:
    """Compares, and prints each turn as it ends."""
    with prepared(load) as (folder, measured):
        print(
            f"{load.program}: {measured.parameters} parameters, {load.batch} examples and {measured.tokens_per_step:.0f} tokens an update, {load.steps} updates"
        )
        print(f"{load.precision}, {load.threads} threads, {rounds} rounds, turns alternate; tokens/s after {WARM_UP} updates")
        for side, found in alternate(folder, measured, rounds):
            speed = measured.tokens_per_step / measured.seconds(side)[-1]
            print(f"  {side:5} {speed:9.0f} tokens/s   loss of the last updates {found['loss']:.4f}", flush=True)
    ours, theirs = (measured.tokens_per_s(side) for side in ("ours", "trl"))
    print(f"median: ours {ours:.0f}, TRL {theirs:.0f} tokens/s")
    print(f"ratio {measured.ratio:.2f} by the clock, {measured.cpu_ratio():.2f} by CPU; load average {os.getloadavg()[0]:.1f}")
    _check_equal_work(measured)
    return measured


def _check_equal_work(measured: Measured) -> None:
    difference, limit = measured.loss_difference(), EQUAL_LOSS[measured.load.precision]
    print(f"losses of the whole run, means of {LOGGED} updates: the largest difference is {difference:.1e}")
    if not difference <= limit:
        raise SystemExit(f"the sides did not do the same work: their losses differ by {difference:.3g}, rounding explains {limit:g}")


def parser_of(description: str | None, **defaults: int) -> argparse.ArgumentParser:
    """With an option for each size of a workload."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    for field, kind in Workload.numbers():
        parser.add_argument(f"--{field.replace('_', '-')}", type=kind, default=defaults.get(field, getattr(Workload, field)))
    parser.add_argument("--base", default="", help="a folder that base import made, or a GGUF file; without it a model is made on the spot")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--packing", action="store_true", help="SFT: ours packs rows (TRL pads: its packing needs flash attention)")
    given = vars(parser.parse_args(argv))
    rounds = given.pop("rounds")
    told(Workload(**given), rounds)


if __name__ == "__main__":
    main()
