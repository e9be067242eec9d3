"""Direct preference optimisation on DeepSpeed: ``python -m include.training.dpo --spec … --placement … --out …``."""

from collections.abc import Sequence

from include.runtime.job import Job
from include.runtime.program import run_program
from include.training.dpo_program import train_dpo
from include.training.engines.deepspeed import engine_maker, engines


def train(job: Job) -> None:
    job.config.text("engine", ("deepspeed",), "deepspeed")
    with engines(job.ranks):
        train_dpo(job, engine_maker(job))


def main(argv: Sequence[str] | None = None) -> int:
    return run_program("dpo", train, argv, many_ranks=True)


if __name__ == "__main__":
    raise SystemExit(main())
