"""Where PPO's answers come from: drawn by the trainer itself (lag 0), or by a generator that runs beside it.

Lag = versions published between the one that wrote an answer and the trainer's at the moment of use. The generator is
paced, so that answers are rarely too old; what is too old all the same, or comes later than the trainer waits, is not
used and is drawn again by the trainer, so every iteration has its expected count.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from include.domain.errors import IntegrityError
from include.runtime.job import Job
from include.runtime.ranks import Ranks
from include.runtime.signals import STOP_SIGNALS, kept_from_children
from include.training.rl import generator as ppo_generator
from include.training.rl.actor import Drawing
from include.training.rl.batch import Sampled
from include.training.rl.draw import Drawn, DrawSettings, draw_together
from include.training.rl.exchange import FOLDER, Exchange, GeneratorPlan, Portion
from include.training.rl.settings import LagSettings, PpoSettings

GENERATOR = ppo_generator.__name__
POLL_S = 0.02
START_S = 300.0
"""So long a generator may take to load its model."""
END_S = 10.0


class AnswerSource(Protocol):
    """Gives an iteration's answers; is told when the actor has changed."""

    def draw(self, step: int, actor: Drawing, updates: int) -> Drawn:
        """All answers of iteration `step`, the same on every rank; every rank calls it."""
        ...

    def published(self, version: int, actor: Drawing, updates: int) -> None:
        """Every rank calls it."""
        ...

    def load(self, version: int, model: Any) -> None:
        """Puts an earlier version of the actor into `model`."""
        ...


class OwnSource:
    """The trainer draws with the very weights it trains: lag 0. Each rank draws its part."""

    def __init__(self, encoded: Sequence[Sequence[int]], settings: DrawSettings, ranks: Ranks | None = None) -> None:
        self.encoded = encoded
        self.settings = settings
        self.ranks = ranks or Ranks()

    def draw(self, step: int, actor: Drawing, updates: int) -> Drawn:
        wanted = [item for portion in self.settings.portions(step, len(self.encoded)) for item in portion]
        digests = {step: actor.digest(self.ranks)} if updates else {}
        rows, answers = [row for row, _ in wanted], self.again(actor, wanted)
        return Drawn(rows, answers, [step] * len(wanted), [updates] * len(wanted), digests=digests)

    def again(self, actor: Drawing, wanted: Sequence[tuple[int, int]]) -> list[Sampled]:
        """The present actor's answers to `wanted` (row, seed); every rank calls it."""
        return draw_together(self.ranks, actor.model(), self.encoded, wanted, self.settings)

    def published(self, version: int, actor: Drawing, updates: int) -> None:
        """Nobody else reads it."""

    def load(self, version: int, model: Any) -> None:
        raise IntegrityError(f"version {version} was never published: the trainer draws its own answers")


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


class GeneratorSource:
    """A generator process beside the trainer, which fills in for it where it is late, too old, or dead.

    On several ranks the first one has the generator and tells the others what came; what is missing they draw together.
    """

    def __init__(self, job: Job, settings: PpoSettings, lag: LagSettings, own: OwnSource) -> None:
        self.job = job
        self.settings = settings
        self.lag = lag
        self.own = own
        self.exchange: Exchange | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._used: list[tuple[int, int]] = []
        self._said = False
        self._beside = job.ranks.gather(socket.gethostname()).count(socket.gethostname())
        """Ranks on this machine, each with a GPU where there are GPUs."""

    def draw(self, step: int, actor: Drawing, updates: int) -> Drawn:
        wanted = self.own.settings.portions(step, len(self.own.encoded))
        weights = actor.weights() if self.exchange is None else {}  # every rank takes part, the first one publishes
        mine = self._take(step, weights, updates, wanted) if self.job.ranks.main else None
        taken = Taken.from_json(self.job.ranks.gather(mine and mine.to_json())[0])
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
        exchange = self.exchange or self._start(step, weights, updates)
        came = self._wait(exchange, step, wanted)
        exchange.close(step)
        late = exchange.take_away(self._used, step)
        old = [number for number, portion in came.items() if self._too_old(step, portion, exchange)]
        self._used += [(step, number) for number in came]  # the old ones are counted here, not once more as late
        portions = {number: portion for number, portion in came.items() if number not in old}
        kept_old = sum(len(wanted[n]) for n, portion in portions.items() if step - portion.version > self.lag.limit)
        return Taken(portions, sum(len(wanted[number]) for number in old) + late, kept_old)

    def _wait(self, exchange: Exchange, step: int, wanted: Sequence[Sequence[Any]]) -> dict[int, Portion]:
        """The portions of iteration `step` that come in time; the wait begins anew with each, and not before the generator is ready."""
        came: dict[int, Portion] = {}
        ready = exchange.is_ready
        until = time.monotonic() + (self.lag.wait_s if ready else max(START_S, self.lag.wait_s))
        while len(came) < len(wanted) and time.monotonic() < until:
            for number in [n for n in range(len(wanted)) if n not in came]:
                portion = exchange.answers(step, number)
                if portion is not None:
                    self._check(exchange, portion, wanted[number], step)
                    came[number] = portion
                    until = time.monotonic() + self.lag.wait_s
            if not ready and exchange.is_ready:
                ready, until = True, time.monotonic() + self.lag.wait_s
            if self._ended():
                break
            time.sleep(POLL_S)
        return came

    def _check(self, exchange: Exchange, portion: Portion, wanted: Sequence[tuple[int, int]], step: int) -> None:
        """A portion is the answers to its very prompts, each token with its log-probability, by a version there has been, in its very bytes."""
        prompts = [tuple(self.own.encoded[row]) for row, _ in wanted]
        if [answer.prompt for answer in portion.answers] != prompts or not 0 <= portion.version <= step:
            raise IntegrityError(f"iteration {step + 1}: the generator gave answers to other prompts, or of version {portion.version}")
        if any(len(a.tokens) != len(a.log_probs) or not a.tokens for a in portion.answers):
            raise IntegrityError(f"iteration {step + 1}: the generator gave tokens without their log-probabilities")
        if portion.version in exchange.versions() and portion.digest != (own := exchange.digest(portion.version)):
            raise IntegrityError(
                f"iteration {step + 1}: the generator drew with weights {portion.digest} as version {portion.version}, published was {own}"
            )

    def _too_old(self, step: int, portion: Portion, exchange: Exchange) -> bool:
        """Past the limit, or by a version that is gone, so that nobody can say with which probabilities it was drawn."""
        if portion.version not in exchange.versions():
            return True
        return self.lag.too_old == "drop" and step - portion.version > self.lag.limit

    def _ended(self) -> bool:
        """Whether the generator is gone although its work is not done; said once."""
        if self._process is None or self._process.poll() is None:
            return False
        if self._process.returncode and not self._said:
            self._said = True
            self.job.warn(
                f"the generator ended with code {self._process.returncode} (see generator.log); the trainer draws all answers itself"
            )
        return True

    def published(self, version: int, actor: Drawing, updates: int) -> None:
        if self.exchange is None or version >= self.settings.iterations:
            return
        weights = actor.weights()
        if self.job.ranks.main:
            self.exchange.publish(version, updates, weights, self.lag.ahead + 1)

    def load(self, version: int, model: Any) -> None:
        if self.exchange is None:
            raise IntegrityError(f"version {version} of the actor has not been published")
        self.exchange.load(version, model)

    def _start(self, step: int, weights: Mapping[str, torch.Tensor], updates: int) -> Exchange:
        self.exchange = exchange = Exchange.fresh(self.job.out)
        exchange.publish(step, updates, weights, self.lag.ahead + 1)
        exchange.put_plan(
            GeneratorPlan(
                policy=str(self.job.input("policy")),
                attention=self.settings.attention,
                threads=torch.get_num_threads(),
                deterministic=torch.are_deterministic_algorithms_enabled(),
                first=step,
                iterations=self.settings.iterations,
                ahead=self.lag.ahead,
                encoded=tuple(tuple(ids) for ids in self.own.encoded),
                draw=self.own.settings,
                lora=self.settings.lora,
            )
        )
        with (self.job.out / "generator.log").open("ab") as log, kept_from_children(*STOP_SIGNALS):
            self._process = subprocess.Popen(
                [sys.executable, "-m", GENERATOR, str(exchange.folder)], stdout=log, stderr=log, env=self._environment()
            )
        return exchange

    def _environment(self) -> dict[str, str]:
        """This program's modules and, where there are GPUs, one for the generator: the last, if no rank has it, else the first rank's own."""
        given = {**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
        count = torch.cuda.device_count()
        if not count:
            return given
        visible = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(str(i) for i in range(count))).split(",")
        at = count - 1
        if count <= self._beside:
            at = int(os.environ.get("LOCAL_RANK", "0")) % count
            self.job.warn(
                f"the generator shares a GPU with the first rank: {self._beside} ranks use all {count} of this machine. "
                "Ask for one GPU more than tasks on a node, or set generation: in_process"
            )
        return {**given, "CUDA_VISIBLE_DEVICES": visible[at]}

    def end(self) -> int:
        """Ends the generator; gives the answers that nobody used."""
        if self.exchange is None or self._process is None:
            return 0
        self.exchange.stop()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        late = self.exchange.take_away(self._used, self.settings.iterations + 1)
        shutil.rmtree(self.exchange.folder, ignore_errors=True)
        return late


@contextmanager
def answer_source(job: Job, settings: PpoSettings, encoded: Sequence[Sequence[int]], draws: DrawSettings) -> Iterator[AnswerSource]:
    """The source the recipe names; a generator is ended on leaving, whatever happened."""
    own = OwnSource(encoded, draws, job.ranks)
    if settings.lag is None:
        yield own
        return
    source = GeneratorSource(job, settings, settings.lag, own)
    try:
        yield source
    finally:
        source.end()
