"""A generator beside the trainer that always takes the newest weights (`generation: own_process`).

Lag = versions published between the one that wrote an answer and the trainer's at the moment of use. The generator is
paced, so that answers are rarely too old; what is too old all the same, or comes later than the trainer waits, is not
used and is drawn again by the trainer, so every iteration has its expected count. Which version writes an answer depends on timing.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from include.runtime.job import Job
from include.runtime.ranks import first_did
from include.training.rl.actor import Drawing
from include.training.rl.batch import Sampled
from include.training.rl.beside import BesideTrainer
from include.training.rl.draw import Drawn
from include.training.rl.exchange import FOLDER, Exchange, Portion
from include.training.rl.generators import POLL_S, START_S
from include.training.rl.settings import LagSettings, PpoSettings
from include.training.rl.sources import OwnSource

HUNG = 3
"""So many iterations in a row a generator that lives may give nothing, not even late."""


@dataclass(frozen=True)
class Taken:
    """What the first rank takes of the generator for one iteration: portions by number, the answers that were there and are not
    used, and those past the limit that are kept."""

    portions: Mapping[int, Portion]
    dropped: int
    kept_old: int

    def to_json(self) -> dict[str, Any]:
        portions = {str(number): asdict(portion) for number, portion in self.portions.items()}
        return {"portions": portions, "dropped": self.dropped, "kept_old": self.kept_old}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "Taken":
        portions = {int(number): Portion.from_json(portion) for number, portion in body["portions"].items()}
        return cls(portions, int(body["dropped"]), int(body["kept_old"]))


class GeneratorSource(BesideTrainer):
    """A generator process beside the trainer, which fills in for it where it is late, too old, or dead.

    What is missing the ranks draw together.
    """

    def __init__(self, job: Job, settings: PpoSettings, lag: LagSettings, own: OwnSource) -> None:
        super().__init__(job, settings, lag, own, keep=lag.ahead + 1, count=1)
        self._used: list[tuple[int, int]] = []
        self._said = False
        self._in_vain = 0

    def draw(self, step: int, actor: Drawing, updates: int) -> Drawn:
        wanted = self.own.settings.portions(step, len(self.own.encoded))
        weights = actor.weights() if self.exchange is None else {}  # every rank takes part, the first one publishes
        mine = first_did(self.job.ranks, lambda: [self._take(step, weights, updates, wanted).to_json()])
        taken = Taken.from_json(mine[0])
        self.exchange = self.exchange or Exchange(self.job.out / FOLDER)
        missing = [item for number, part in enumerate(wanted) if number not in taken.portions for item in part]
        again = iter(self.own.again(actor, missing) if missing else ())
        answers: list[Sampled] = []
        versions: list[int] = []
        steps: list[int] = []
        for number, part in enumerate(wanted):
            portion = taken.portions.get(number) or Portion(step, updates, tuple(next(again) for _ in part))
            answers += portion.answers
            versions += [portion.version] * len(part)
            steps += [portion.updates] * len(part)
        rows = [row for part in wanted for row, _ in part]
        digests = {version: self.exchange.digest(version) for version in set(versions)} if self.job.ranks.main else {}
        return Drawn(rows, answers, versions, steps, taken.dropped, len(missing), taken.kept_old, digests)

    def _take(self, step: int, weights: Mapping[str, torch.Tensor], updates: int, wanted: Sequence[Sequence[tuple[int, int]]]) -> Taken:
        """What came in time and is not too old."""
        exchange = self.exchange or self.open(step, weights, updates, {})[0]
        came = self._wait(exchange, step, wanted)
        exchange.close(step)
        late = exchange.take_away(self._used, step)
        self._alive(bool(came) or late > 0)
        old = [number for number, portion in came.items() if self._too_old(step, portion, exchange)]
        self._used += [(step, number) for number in came]  # the old ones are counted here, not once more as late
        portions = {number: portion for number, portion in came.items() if number not in old}
        kept_old = sum(len(wanted[n]) for n, portion in portions.items() if step - portion.version > self.lag.limit)
        return Taken(portions, sum(len(wanted[number]) for number in old) + late, kept_old)

    def _wait(self, exchange: Exchange, step: int, wanted: Sequence[Sequence[Any]]) -> dict[int, Portion]:
        """The portions of iteration `step` that come in time; the wait begins anew with each, and not before the generator is ready."""
        came: dict[int, Portion] = {}
        ready, last = exchange.is_ready(), False
        until = time.monotonic() + (self.lag.wait_s if ready else max(START_S, self.lag.wait_s))
        while len(came) < len(wanted) and time.monotonic() < until:
            for number in [n for n in range(len(wanted)) if n not in came]:
                portion = exchange.answers(step, number)
                if portion is not None:
                    self.check(exchange, portion, wanted[number], step)
                    came[number] = portion
                    until = time.monotonic() + self.lag.wait_s
            if not ready and exchange.is_ready():
                ready, until = True, time.monotonic() + self.lag.wait_s
            if last:
                break
            last = self._ended()  # what it wrote before its end is read once more
            if not last:
                time.sleep(POLL_S)
        return came

    def _alive(self, gave: bool) -> None:
        """Ends a generator that lives and gives nothing: each iteration would wait for it to the end."""
        self._in_vain = 0 if gave else self._in_vain + 1
        if gave or self._generators is None or self._generators.ended():
            return
        words = f"the generator gave nothing for {self.lag.wait_s:g} s (see generator.log)"
        if self._in_vain < HUNG:
            self.job.warn(f"{words}; the trainer draws this iteration itself")
            return
        self.job.warn(f"{words}, {HUNG} iterations in a row: it is ended")
        self._generators.kill(0)
        self._said = True

    def _too_old(self, step: int, portion: Portion, exchange: Exchange) -> bool:
        """Past the limit, or by a version that is gone, so that nobody can say with which probabilities it was drawn."""
        if portion.version not in exchange.versions():
            return True
        return self.lag.too_old == "drop" and step - portion.version > self.lag.limit

    def _ended(self) -> bool:
        """Whether the generator is gone although its work is not done; said once."""
        codes = self._generators.ended() if self._generators is not None else {}
        if any(codes.values()) and not self._said:
            self._said = True
            self.job.warn(f"the generator ended with code {codes[0]} (see generator.log); the trainer draws all answers itself")
        return bool(codes)
