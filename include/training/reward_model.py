"""Reward model on DeepSpeed: ``python -m include.training.reward_model --spec … --placement … --out …``."""

from collections.abc import Sequence

from include.runtime.job import Job
from include.runtime.program import run_program
from include.training.engines.deepspeed import engine_maker, engines
from include.training.reward.program import train_reward_model


def train(job: Job) -> None:
    job.config.text("engine", ("deepspeed",), "deepspeed")
    with engines(job.ranks):
        train_reward_model(job, engine_maker(job))


def main(argv: Sequence[str] | None = None) -> int:
    return run_program("reward_model", train, argv, many_ranks=True)


if __name__ == "__main__":
    raise SystemExit(main())
