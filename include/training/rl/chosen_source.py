"""The source of answers that a recipe names."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from include.runtime.job import Job
from include.training.rl.apart import ApartSource
from include.training.rl.draw import DrawSettings
from include.training.rl.free_running import GeneratorSource
from include.training.rl.settings import PpoSettings
from include.training.rl.sources import AnswerSource, OwnSource


@contextmanager
def answer_source(job: Job, settings: PpoSettings, encoded: Sequence[Sequence[int]], draws: DrawSettings) -> Iterator[AnswerSource]:
    """Generators are ended on leaving, whatever happened."""
    own, lag = OwnSource(encoded, draws, job.ranks), settings.lag
    if lag is None:
        yield own
        return
    source = ApartSource(job, settings, lag, own) if lag.steady else GeneratorSource(job, settings, lag, own)
    try:
        yield source
    finally:
        source.end()
