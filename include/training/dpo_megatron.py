"""Direct preference optimisation on Megatron-core: ``python -m include.training.dpo_megatron --spec … --placement … --out …``."""

from collections.abc import Sequence

from include.runtime.job import Job
from include.runtime.program import run_program
from include.training.dpo_program import train_dpo
from include.training.engine_megatron import MegatronEngine, engines


def train(job: Job) -> None:
    job.config.text("engine", ("megatron",))
    with engines(job.ranks, job.settings.positive("tensor_parallel", 1)):
        train_dpo(job, MegatronEngine)


def main(argv: Sequence[str] | None = None) -> int:
    return run_program("dpo", train, argv, many_ranks=True)


if __name__ == "__main__":
    raise SystemExit(main())
