"""The loop of programs that work unit by unit: what is known is saved after each, and another attempt goes on from there."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from include.runtime.checkpoint import Snapshot
from include.runtime.completion_server import ServerError
from include.runtime.errors import Interrupted
from include.runtime.job import Job

STATE = "findings.json"
U = TypeVar("U", contravariant=True)


class Worker(Protocol[U]):
    """Does one unit; all it knows is in `capture`, and `restore` puts it back."""

    def run(self, unit: U) -> Mapping[str, float]: ...

    def capture(self) -> bytes: ...

    def restore(self, data: bytes) -> None: ...


@contextlib.contextmanager
def stopped_servers(job: Job) -> Iterator[None]:
    """A server that fell to the signal which stops this program is no failure; what was done is saved after each unit."""
    try:
        yield
    except ServerError as error:
        if not job.stop_comes():
            raise
        raise Interrupted(f"asked to stop, and a server ended too ({error}); stopped after step {job.progress.step}") from error


def run_units(job: Job, worker: Worker[U], units: Sequence[U], tokens: Callable[[Mapping[str, float]], int] = lambda figures: 0) -> None:
    """Does what is left of `units`. Stops between them when a signal or a newer attempt asks for it."""
    job.expect(len(units))
    checkpoint = job.resume()
    if checkpoint is not None:
        worker.restore(checkpoint.file(STATE).read_bytes())
        job.restore_random(checkpoint)
    job.check_stop()
    for step in range(checkpoint.step if checkpoint else 0, len(units)):
        figures = worker.run(units[step])
        job.record(step + 1, figures, tokens(figures))
        job.save(step + 1, Snapshot({}, {}, {STATE: worker.capture()}))
        job.check_stop()
