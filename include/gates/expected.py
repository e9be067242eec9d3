"""What the measurements must be of: anything stale, or of another checkpoint, suite, scorer or setting, is refused."""

from collections.abc import Mapping
from dataclasses import dataclass

from include.domain.canonical import digest
from include.domain.spec import RunSpec
from include.gates.errors import GateError
from include.gates.metrics import metric_of
from include.gates.pairwise import pairwise_scorer
from include.gates.tables import Measurement


@dataclass(frozen=True)
class Expected:
    """Digests that are right now: of each role's weights, deployment and generation settings, each suite, each scorer."""

    models: Mapping[str, str]
    deployments: Mapping[str, str]
    generation: Mapping[str, str]
    suites: Mapping[str, str]
    scorers: Mapping[str, str]
    other_scorer: str
    """The digest for scorers without one of their own: the run's code revision."""

    def refusal(self, row: Measurement) -> tuple[str, str] | None:
        """Why `row` must not be used, as (cause, message), or None."""
        wanted = (
            ("other_checkpoint", "weights", row.model, self.models.get(row.role)),
            ("other_deployment", "deployment", row.deployment, self.deployments.get(row.role)),
            ("other_suite", f"suite {row.suite}", row.suite_digest, self.suites.get(row.suite)),
            ("other_scorer", f"scorer of {row.metric}", row.scorer, self._scorer(row)),
            ("other_generation", "generation settings", row.generation, self.generation.get(row.role)),
        )
        for cause, what, seen, right in wanted:
            if seen != right:
                return cause, f"{row.metric} of {row.role} was measured with {what} {_short(seen)}, now it is {_short(right)}"
        return None

    def _scorer(self, row: Measurement) -> str:
        own = self.scorers.get(metric_of(row.metric).scorer, self.other_scorer)
        return pairwise_scorer(own, self.deployments.get(row.against, "")) if metric_of(row.metric).pairwise else own


def _short(value: str | None) -> str:
    return value[:19] if value else "not there"


def expected_from(spec: RunSpec) -> Expected:
    """What the evaluation that `spec` asks for must have measured. Build `spec` from what is the case now.

    Raises:
        GateError: `spec` is no evaluation, or names no deployment for a model.
    """
    if spec.stage != "evaluate":
        raise GateError(f"measurements come from an evaluation, this run is of stage {spec.stage}")
    models = _inputs(spec, "model_")
    deployments = spec.config.get("deployments", {})
    if missing := sorted(set(models) - set(deployments)):
        raise GateError(f"the evaluation names no deployment for {missing[0]}")
    asked = spec.config.get("generation", {})
    return Expected(
        models=models,
        deployments={role: deployments[role]["digest"] for role in models},
        generation={role: digest("generation", {**deployments[role].get("generation", {}), **asked}) for role in models},
        suites=_inputs(spec, "suite_"),
        scorers=dict(spec.config.get("scorers", {})),
        other_scorer=spec.code_revision,
    )


def _inputs(spec: RunSpec, prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): value for name, value in spec.inputs.items() if name.startswith(prefix)}
