"""Direct preference optimisation on Megatron-core: ``python -m include.training.dpo_megatron --spec … --placement … --out …``."""

from collections.abc import Sequence

from include.runtime.job import Job
from include.runtime.program import run_program
from include.training.dpo_program import train_dpo
from include.training.megatron.engine import MegatronEngine
from include.training.megatron.place import engines_of


def train(job: Job) -> None:
    with engines_of(job):
        train_dpo(job, MegatronEngine)


def main(argv: Sequence[str] | None = None) -> int:
    return run_program("dpo", train, argv, many_ranks=True)


if __name__ == "__main__":
    raise SystemExit(main())
