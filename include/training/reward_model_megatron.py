"""A reward model, or an ensemble, on Megatron-core: ``python -m include.training.reward_model_megatron --spec … --placement … --out …``."""

from collections.abc import Sequence

from include.runtime.job import Job
from include.runtime.program import run_program
from include.training.megatron.engine import MegatronEngine
from include.training.megatron.place import engines_of
from include.training.reward.program import train_reward_model


def train(job: Job) -> None:
    with engines_of(job):
        train_reward_model(job, MegatronEngine)


def main(argv: Sequence[str] | None = None) -> int:
    return run_program("reward_model", train, argv, many_ranks=True)


if __name__ == "__main__":
    raise SystemExit(main())
