"""What trainer and generator hand each other, as files in the attempt's folder: numbered weights one way, answers the other.

    exchange/plan.json                          what to draw, written once
    exchange/weights/v00003/                    actor.safetensors, version.json: the actor after 3 iterations; of one with adapters, these alone
    exchange/answers/00004-0002.json            portion 2 of iteration 4, with the version that wrote it
    exchange/ready-0                            generator 0 has loaded its model; holds its process id
    exchange/closed/00004                       the trainer has what it needs of iteration 4; more is not wanted
    exchange/stop                               the trainer is done

Everything is written aside and renamed, so a reader sees it whole or not at all. The folder belongs to one attempt: what a
dead attempt left is looked at by nobody, and so it is void.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from include.domain.canonical import sha256_file
from include.domain.errors import IntegrityError
from include.training.lora import LoraSettings, learnt_weights
from include.training.rl.batch import Sampled
from include.training.rl.draw import DrawSettings

FOLDER = "exchange"
WEIGHTS = "actor.safetensors"


@dataclass(frozen=True)
class GeneratorPlan:
    """All that a generator knows of the run. `ahead`: iterations it may be ahead of the newest weights; `steady`: so many it is, and
    each iteration is drawn by that one version."""

    policy: str
    attention: str
    threads: int
    deterministic: bool
    first: int
    iterations: int
    ahead: int
    encoded: tuple[tuple[int, ...], ...]
    draw: DrawSettings
    lora: LoraSettings | None = None
    steady: bool = False


@dataclass(frozen=True)
class Portion:
    """Some answers of one iteration, all by one version of the actor. digest: of the published weights that drew them."""

    version: int
    updates: int
    answers: tuple[Sampled, ...]
    digest: str | None = None

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "Portion":
        """Of what `asdict` gave."""
        made = tuple(Sampled(tuple(a["prompt"]), tuple(a["tokens"]), tuple(a["log_probs"]), a["finish_reason"]) for a in body["answers"])
        return cls(int(body["version"]), int(body["updates"]), made, body["digest"])


class Exchange:
    """One attempt's exchange folder, from either end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def fresh(cls, attempt: Path) -> "Exchange":
        """An empty one below the attempt's folder."""
        folder = attempt / FOLDER
        shutil.rmtree(folder, ignore_errors=True)
        for name in ("weights", "answers", "closed"):
            (folder / name).mkdir(parents=True)
        return cls(folder)

    def put_plan(self, plan: GeneratorPlan) -> None:
        self._put(self.folder / "plan.json", asdict(plan))

    def plan(self) -> GeneratorPlan:
        body = json.loads((self.folder / "plan.json").read_text("utf-8"))
        drawn = DrawSettings(**{**body["draw"], "stop_ids": tuple(body["draw"]["stop_ids"])})
        lora = body["lora"] and LoraSettings(**{**body["lora"], "targets": tuple(body["lora"]["targets"])})
        return GeneratorPlan(**{**body, "draw": drawn, "lora": lora, "encoded": tuple(tuple(ids) for ids in body["encoded"])})

    def publish(self, version: int, updates: int, weights: Mapping[str, torch.Tensor], keep: int) -> None:
        """The actor as version `version`; of the older ones the newest `keep` stay."""
        final = self.folder / "weights" / f"v{version:05d}"
        aside = final.with_name(final.name + ".tmp")
        aside.mkdir()
        save_file({name: value.detach().cpu().contiguous() for name, value in weights.items()}, aside / WEIGHTS)
        body = {"version": version, "updates": updates, "sha256": sha256_file(aside / WEIGHTS)}
        (aside / "version.json").write_text(json.dumps(body), "utf-8")
        os.rename(aside, final)
        for old in self.versions()[: -keep - 1]:
            shutil.rmtree(self.folder / "weights" / f"v{old:05d}", ignore_errors=True)

    def versions(self) -> list[int]:
        return sorted(int(path.name[1:]) for path in (self.folder / "weights").iterdir() if path.name[1:].isdecimal())

    def weights_file(self, version: int) -> Path:
        return self.folder / "weights" / f"v{version:05d}" / WEIGHTS

    def updates(self, version: int) -> int:
        """Optimiser steps behind a published version."""
        return int(self._version(version)["updates"])

    def digest(self, version: int) -> str:
        """sha256 of a published version's weights, as they were written."""
        return str(self._version(version)["sha256"])

    def _version(self, version: int) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / "weights" / f"v{version:05d}" / "version.json").read_text("utf-8"))
        except OSError as error:
            raise IntegrityError(f"version {version} of the actor is not in {self.folder / 'weights'}: {error}") from error
        return found

    def load(self, version: int, model: Any) -> tuple[int, str]:
        """Puts the weights of `version` into `model`; gives the optimiser steps behind them, and their sha256.

        Raises:
            IntegrityError: they are not there (any more), are of other bytes, or of another model.
        """
        folder = self.folder / "weights" / f"v{version:05d}"
        body = self._version(version)
        try:
            if (seen := sha256_file(folder / WEIGHTS)) != body["sha256"]:
                raise IntegrityError(f"{folder / WEIGHTS} is corrupt: its bytes give {seen}, published was {body['sha256']}")
            weights = load_file(folder / WEIGHTS)
        except OSError as error:
            raise IntegrityError(f"version {version} of the actor is not in {folder.parent}: {error}") from error
        own = learnt_weights(model)
        if set(own) != set(weights):
            raise IntegrityError(f"{folder} holds other weights than this model has: {sorted(set(own) ^ set(weights))[:3]}")
        with torch.no_grad():
            for name, value in weights.items():
                own[name].copy_(value)
        return int(body["updates"]), seen

    def put_answers(self, iteration: int, number: int, portion: Portion) -> None:
        self._put(self._answers(iteration, number), asdict(portion))

    def answers(self, iteration: int, number: int) -> Portion | None:
        """A portion, or None while it is not there."""
        try:
            return Portion.from_json(json.loads(self._answers(iteration, number).read_text("utf-8")))
        except FileNotFoundError:
            return None

    def has_answers(self, iteration: int, number: int) -> bool:
        return self._answers(iteration, number).exists()

    def check(self, portion: Portion, prompts: Sequence[Sequence[int]], step: int) -> None:
        """A portion is the answers to its very prompts, each token with its log-probability, by a version there has been, in its very bytes.

        Raises:
            IntegrityError: it is not.
        """
        if [answer.prompt for answer in portion.answers] != [tuple(ids) for ids in prompts] or not 0 <= portion.version <= step:
            raise IntegrityError(f"iteration {step + 1}: the generator gave answers to other prompts, or of version {portion.version}")
        if any(len(a.tokens) != len(a.log_probs) or not a.tokens for a in portion.answers):
            raise IntegrityError(f"iteration {step + 1}: the generator gave tokens without their log-probabilities")
        if portion.version in self.versions() and portion.digest != (own := self.digest(portion.version)):
            raise IntegrityError(
                f"iteration {step + 1}: the generator drew with weights {portion.digest} as version {portion.version}, published was {own}"
            )

    def take_away(self, used: Sequence[tuple[int, int]], before: int) -> int:
        """Removes the portions of iterations below `before`; gives the answers among them that are not in `used`: they came too late."""
        late = 0
        for path in sorted((self.folder / "answers").glob("*.json")):
            iteration, number = (int(part) for part in path.stem.split("-"))
            if iteration < before:
                if (iteration, number) not in used and (portion := self.answers(iteration, number)) is not None:
                    late += len(portion.answers)
                path.unlink()
        return late

    def close(self, iteration: int) -> None:
        (self.folder / "closed" / f"{iteration:05d}").touch()

    def closed(self, iteration: int) -> bool:
        return (self.folder / "closed" / f"{iteration:05d}").exists()

    def ready(self, number: int) -> None:
        """Said by a generator once it can draw."""
        aside = self.folder / f"ready-{number}.tmp"
        aside.write_text(str(os.getpid()), "utf-8")
        os.replace(aside, self.folder / f"ready-{number}")

    def is_ready(self, number: int = 0) -> bool:
        return (self.folder / f"ready-{number}").exists()

    def not_ready(self, number: int) -> None:
        """Said before a generator is started (again)."""
        (self.folder / f"ready-{number}").unlink(missing_ok=True)

    def stop(self) -> None:
        (self.folder / "stop").touch()

    @property
    def stopped(self) -> bool:
        return (self.folder / "stop").exists() or not self.folder.exists()

    def _answers(self, iteration: int, number: int) -> Path:
        return self.folder / "answers" / f"{iteration:05d}-{number:04d}.json"

    def _put(self, path: Path, body: Mapping[str, Any]) -> None:
        aside = path.with_name(path.name + ".tmp")
        aside.write_text(json.dumps(body), "utf-8")
        os.replace(aside, path)
