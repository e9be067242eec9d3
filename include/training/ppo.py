"""PPO on DeepSpeed: ``python -m include.training.ppo --spec … --placement … --out …``."""

from collections.abc import Sequence

from include.runtime.job import Job
from include.runtime.program import run_program
from include.training.engines.deepspeed import engine_maker, engines
from include.training.rl.program import train_ppo


def train(job: Job) -> None:
    job.config.text("engine", ("deepspeed",), "deepspeed")
    with engines(job.ranks):
        train_ppo(job, engine_maker(job))


def main(argv: Sequence[str] | None = None) -> int:
    return run_program("ppo", train, argv, many_ranks=True)


if __name__ == "__main__":
    raise SystemExit(main())
