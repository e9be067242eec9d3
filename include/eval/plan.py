"""What an evaluation has to do: its settings, checked against each other, and the units of work in their order."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from include.domain.canonical import digest
from include.domain.parts import PART
from include.eval.deployment import Deployment
from include.eval.errors import EvaluationError
from include.eval.models import device_name
from include.eval.suites import Suite, portions, read
from include.runtime.job import Job

CONFIG_KEYS = (
    "suites",
    "measure",
    "latency",
    "deployments",
    "generation",
    "scorers",
    "reward_hacking",
    "max_new_tokens",
    "dtype",
    "backend",
    "quantisation",
    "engine_version",
    "engine_options",
    "latency_requests",
    "reward_hacking_items",
    PART,
)
PORTION = 64
"""Items a unit of work. Fixed, not a placement: the units must be the same ones when another attempt goes on."""


@dataclass(frozen=True)
class Unit:
    """One piece of work, after which what is known is saved. kind: answers, choices, rewards or latency."""

    kind: str
    deployment: str
    suite: str
    start: int
    end: int


@dataclass(frozen=True)
class Evaluation:
    """All that is asked for. `deployments` and `folders` are by role; equal digests are measured once."""

    deployments: Mapping[str, Deployment]
    suites: Mapping[str, Suite]
    generation: Mapping[str, Any]
    scorers: Mapping[str, str]
    other_scorer: str
    environment: str
    measured: tuple[str, ...]
    timed: tuple[str, ...]
    requests: int
    rewarded_items: int
    combine: str = "mean"
    """How a reward ensemble's members become one score."""
    part: bool = False
    """What is found is for another run, the whole."""
    tokenizer: str | None = None
    """Digest of the run's tokenizer, in whose tokens lengths and rewards are counted."""

    @classmethod
    def of(cls, job: Job) -> "Evaluation":
        """Reads and checks the specification, and the suites (the hold-out, this once)."""
        job.config.only(*CONFIG_KEYS)
        deployments = _deployments(job)
        given = job.config.section("suites")
        suites = {
            name: read(name, job.input(f"suite_{name}"), job.input_digest(f"suite_{name}"), given.section(name).values)
            for name in given.values
        }
        measured, timed = job.config.texts("measure"), job.config.texts("latency", [])
        if strange := sorted({*measured, *timed} - set(deployments)) or not measured or not suites:
            raise EvaluationError(
                f"config.measure {measured} and config.latency {timed} must name roles of {', '.join(sorted(deployments))} ({strange})"
            )
        rewarded = job.config.section("reward_hacking", {}).integer("limit", 0) if "reward_model" in job.inputs else 0
        return cls(
            deployments=deployments,
            suites=suites,
            generation=dict(job.config.section("generation").values),
            scorers=dict(job.config.section("scorers").values),
            other_scorer=job.spec.code_revision,
            environment=job.spec.environment,
            measured=tuple(sorted(measured)),
            timed=tuple(sorted(timed)),
            requests=job.config.integer("latency_requests", 0),
            rewarded_items=rewarded,
            combine=job.config.section("reward_hacking", {}).text("combine", ("mean", "minimum"), "mean"),
            part=job.config.flag(PART, False),
            tokenizer=job.spec.tokenizer,
        )

    @property
    def distinct(self) -> list[str]:
        """A role for each distinct deployment that is measured, in the order of roles."""
        first: dict[str, str] = {}
        for role in self.measured:
            first.setdefault(self.deployments[role].digest, role)
        return list(first.values())

    @property
    def answered(self) -> Suite | None:
        """The suite for latency and reward: the first, by name, that is answered in words, one that is rewarded before any other."""
        generated = [suite for _, suite in sorted(self.suites.items()) if suite.generated]
        return next((suite for suite in generated if "reward_score" in suite.scorers), generated[0] if generated else None)

    def units(self) -> list[Unit]:
        """In this order: each deployment's answers and choices, then rewards, then latency."""
        return [*self._measuring(), *self._rewarding(), *self._timing()]

    def _measuring(self) -> Iterator[Unit]:
        for role in self.distinct:
            for name, suite in sorted(self.suites.items()):
                for kind in [k for k, wanted in (("answers", suite.generated), ("choices", suite.chosen)) if wanted]:
                    for start, end in portions(suite.entries, PORTION):
                        yield Unit(kind, self.deployments[role].digest, name, start, end)

    def _rewarding(self) -> Iterator[Unit]:
        suite = self.answered
        if suite is not None and self.rewarded_items > 0 and "reward_score" in suite.scorers:
            for role in self.distinct:
                for start, end in portions(suite.entries[: self.rewarded_items], PORTION):
                    yield Unit("rewards", self.deployments[role].digest, suite.name, start, end)

    def _timing(self) -> Iterator[Unit]:
        if self.answered is not None and self.timed and self.requests > 0:
            yield Unit("latency", "", self.answered.name, 0, min(self.requests, len(self.answered.entries)))

    def generation_digest(self, deployment: Deployment) -> str:
        return digest("generation", deployment.generation_settings(self.generation))

    def backend_digest(self, deployment: Deployment) -> str:
        """What computed the numbers: two measurements are compared only where this is equal."""
        body = {"dtype": deployment.dtype, "environment": self.environment, "device": device_name()}
        if deployment.served:
            own = {name: getattr(deployment, name) for name in ("engine", "engine_version", "quantisation")}
            return digest("backend", {**body, **own, "options": list(deployment.engine_options)})
        return digest("backend", {**body, "engine": "transformers", "attention": "sdpa"})

    @property
    def bench(self) -> str | None:
        """What all deployments of this run share, by digest, where one of them has an engine of its own: there the engine is what is compared,
        and two backends are one bench. None where all run in this program, and equal backends are asked for."""
        if not any(one.served for one in self.deployments.values()):
            return None
        return digest("bench", {"environment": self.environment, "device": device_name()})


def _deployments(job: Job) -> dict[str, Deployment]:
    """Every model's deployment, which must be of that model's weights. Its tokenizer and template were held against its folder before."""
    given = job.config.section("deployments").values
    roles = {name.removeprefix("model_") for name in job.inputs if name.startswith("model_")}
    if set(given) != roles:
        raise EvaluationError(f"config.deployments are of {', '.join(sorted(given))}, the models of {', '.join(sorted(roles))}")
    found = {}
    for role, value in sorted(given.items()):
        where = f"config.deployments.{role}"
        one = Deployment.read(value, where)
        if one.weights != (weights := job.input_digest(f"model_{role}")):
            raise EvaluationError(f"{where}.weights is {one.weights}, this run has {weights}")
        found[role] = one
    return found
