"""What a run is: the specification a stage program reads, and the key that names its result.

The key says what a result *is*; placement says where it was made, and never moves a key.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from include.domain.canonical import MAX_INTEGER, check_digest, digest
from include.domain.errors import SpecError

STAGES = (
    "base_import",
    "sft",
    "generate",
    "reward_model",
    "dpo",
    "ppo",
    "evaluate",
    "shadow",
)


@dataclass(frozen=True)
class RunSpec:
    """Identity of a run: spec.json. Written once; holds no path, time, host or attempt.

    inputs: name → digest of each input (a dataset's content hash, a base's or checkpoint's artifact digest).
    code_revision: hash of the program's static import closure and its environment's lock file.
    config: the settings marked identity.
    tokenizer, chat_template: digests, or None before there is one (base_import makes them).
    environment: the environment's digest.
    """

    stage: str
    program: str
    inputs: Mapping[str, str]
    code_revision: str
    config: Mapping[str, Any]
    environment: str
    seed: int
    tokenizer: str | None = None
    chat_template: str | None = None
    rerun_salt: str = ""
    note: Mapping[str, Any] = field(default_factory=dict)
    """Recorded beside, outside the key: git commit, dataset@version names, recipe name and digest."""

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            raise SpecError(f"stage {self.stage!r} is none of {', '.join(STAGES)}")
        if not self.inputs:
            raise SpecError(f"{self.stage}: a run without an input is refused")
        for name, value in self.inputs.items():
            check_digest(value, f"{self.stage}.inputs.{name}")
        check_digest(self.code_revision, f"{self.stage}.code_revision")
        check_digest(self.environment, f"{self.stage}.environment")
        if self.stage != "base_import":
            check_digest(self.tokenizer, f"{self.stage}.tokenizer")
            check_digest(self.chat_template, f"{self.stage}.chat_template")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed <= MAX_INTEGER:
            raise SpecError(f"{self.stage}.seed: {self.seed!r} is not an integer from 0 to 2^53 - 1")
        if not self.config:
            raise SpecError(f"{self.stage}: a run without a configuration is refused")

    @property
    def identity(self) -> dict[str, Any]:
        """The mapping whose digest is the key."""
        return {
            "stage": self.stage,
            "inputs": dict(self.inputs),
            "code_revision": self.code_revision,
            "config": dict(self.config),
            "tokenizer": self.tokenizer,
            "chat_template": self.chat_template,
            "environment": self.environment,
            "seed": self.seed,
            "rerun_salt": self.rerun_salt,
        }

    @property
    def key(self) -> str:
        return digest("stage-key", self.identity)

    def to_json(self) -> dict[str, Any]:
        return {"schema": "align/spec/v1", "key": self.key, "program": self.program, **self.identity, "note": dict(self.note)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "RunSpec":
        """Reads spec.json and refuses one whose key does not fit what it says."""
        data = {k: v for k, v in value.items() if k not in ("schema", "key")}
        if value.get("schema") != "align/spec/v1":
            raise SpecError(f"spec.json has schema {value.get('schema')!r}, expected 'align/spec/v1'")
        try:
            spec = cls(**data)
        except TypeError as error:
            raise SpecError(f"spec.json: {error}") from error
        if spec.key != value.get("key"):
            raise SpecError(f"spec.json says key {value.get('key')}, its own content gives {spec.key}")
        return spec


@dataclass(frozen=True)
class InputPlace:
    """Where an input lies for this attempt: absolute path of its folder, its identity and its artifact digest."""

    path: str
    digest: str
    artifact: str

    def to_json(self) -> dict[str, str]:
        return {"path": self.path, "digest": self.digest, "artifact": self.artifact}


@dataclass(frozen=True)
class Placement:
    """Where and how one attempt runs: placement.json. May change between attempts of one key.

    settings: save_every_steps, log_every_steps, micro_batch, threads, keep_checkpoints …
    resources: what was asked of Slurm, and the cluster's name.
    """

    key: str
    n: int
    run_dir: str
    inputs: Mapping[str, InputPlace]
    settings: Mapping[str, Any]
    resources: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": "align/placement/v1",
            "key": self.key,
            "n": self.n,
            "run_dir": self.run_dir,
            "inputs": {name: place.to_json() for name, place in self.inputs.items()},
            "settings": dict(self.settings),
            "resources": dict(self.resources),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Placement":
        if value.get("schema") != "align/placement/v1":
            raise SpecError(f"placement.json has schema {value.get('schema')!r}, expected 'align/placement/v1'")
        try:
            inputs = {name: InputPlace(**place) for name, place in value["inputs"].items()}
            return cls(value["key"], value["n"], value["run_dir"], inputs, value["settings"], value["resources"])
        except (KeyError, TypeError) as error:
            raise SpecError(f"placement.json: {error!r}") from error


@dataclass(frozen=True)
class Report:
    """report.json, written last of all by the program.

    metrics: flat name → number; `summary` holds anything else that the next one should read.
    outputs: artifact name → digest, as in output/manifest.json (empty unless complete).
    """

    key: str
    attempt: str
    outcome: str
    stop_reason: str
    first_step: int
    last_step: int
    asked_steps: int
    metrics: Mapping[str, float]
    outputs: Mapping[str, str]
    resumed_from: Mapping[str, Any] | None = None
    message: str = ""
    seconds: float = 0.0
    summary: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"schema": "align/report/v1", **{k: _plain(getattr(self, k)) for k in self.__dataclass_fields__}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Report":
        if value.get("schema") != "align/report/v1":
            raise SpecError(f"report.json has schema {value.get('schema')!r}, expected 'align/report/v1'")
        try:
            return cls(**{k: v for k, v in value.items() if k != "schema"})
        except TypeError as error:
            raise SpecError(f"report.json: {error}") from error


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value
