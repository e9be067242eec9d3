"""configs/judges/*.yaml: a model that compares answers, by digest or by name and fingerprint, and how a recipe uses it."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from include.domain.canonical import check_digest, digest
from include.settings.base import Settings, identity, placement
from include.settings.stage import StageSettings

_PLACES = ("{question}", "{first}", "{second}")


class JudgeServer(Settings):
    """A server of the OpenAI chat protocol. `url` and key say where, not who."""

    url: str = Field(pattern=r"^https?://\S+$")
    """With the version, as in http://judge.example.org:8000/v1."""
    model: str = Field(min_length=1)
    fingerprint: str | None = None
    """The `system_fingerprint` that its answers must have. Left out: the first one seen is recorded, and holds for the run."""
    api_key_file: str | None = Field(None, pattern=r"^/\S+$")
    """On the cluster, mode 0600."""


class JudgeFile(Settings):
    """One judge: immutable as name@version."""

    name: str
    version: int = Field(ge=1)
    family: str = Field(min_length=1)
    """Whose kin it is, such as qwen2.5: a judge of the policy's own family is flagged."""
    model: str | None = None
    """The digest of a model folder that the store has."""
    server: JudgeServer | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    max_new_tokens: int = Field(16, ge=1)
    template: str
    """With {question}, {first} and {second}, each once. The judge is to answer in one line: Verdict: A, Verdict: B or Verdict: tie."""

    @field_validator("model")
    @classmethod
    def _by_digest(cls, value: str | None) -> str | None:
        return None if value is None else check_digest(value, "model")

    @model_validator(mode="after")
    def _one_judge(self) -> "JudgeFile":
        if (self.model is None) == (self.server is None):
            raise ValueError("name either `model`, by digest, or `server`")
        if wrong := [place for place in _PLACES if self.template.count(place) != 1]:
            raise ValueError(f"template: {wrong[0]} must stand in it once")
        return self

    @property
    def template_digest(self) -> str:
        return digest("judge-template", self.template)


class ModelJudgeSettings(StageSettings):
    """How a recipe uses a judge."""

    judge: str = identity()
    """name@version in configs/judges."""
    items: int = identity(0, ge=0)
    """At most so many items of each suite; 0: all."""
    min_kappa: float = placement(0.4, gt=0, le=1)
    """Agreement with people beyond chance that the lower bound must reach; below it the metric is *not evaluated*."""
    min_calibration: int = placement(50, ge=2)
    """So many pairs at least must people and the judge both have judged."""
    max_no_verdict_share: float = placement(0.1, ge=0, lt=1)
    """Above this share of pairs without a verdict the metric is *not evaluated*: who is not judged is not better."""
    generation_batch: int = placement(8, ge=1)

    @property
    def rules(self) -> dict[str, float]:
        """What the judge must show before a gate hears it. They move no key of its job, and are part of the gates' digest."""
        names = ("min_kappa", "min_calibration", "max_no_verdict_share")
        return {name: getattr(self, name) for name in names}
