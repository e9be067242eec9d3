"""What one stage hands to the next: names, digests and nothing else. JSON all the way, so it fits in an XCom."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, Self

from include.domain.canonical import check_digest
from include.domain.members import members_among
from include.stages.errors import StageError


class _Ref:
    def to_json(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        try:
            return cls(**value)
        except TypeError as error:
            raise StageError(f"not a {cls.__name__}: {error}") from error


@dataclass(frozen=True)
class ModelRef(_Ref):
    """A model artifact with the tokenizer and chat template it belongs to (digests). `kind`: base, model, reward_model."""

    kind: str
    digest: str
    tokenizer: str
    chat_template: str

    def __post_init__(self) -> None:
        for name in ("digest", "tokenizer", "chat_template"):
            check_digest(getattr(self, name), f"{self.kind}.{name}")


class _Version(Protocol):
    """A data set version as the catalog gives it."""

    @property
    def dataset_id(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def content_hash(self) -> str: ...
    @property
    def artifact(self) -> str: ...
    @property
    def info(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class DatasetRef(_Ref):
    """A dataset version: `content_hash` is its identity, `artifact` guards the transport of its bytes."""

    dataset_id: str
    version: int
    content_hash: str
    artifact: str
    counts: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, found: _Version, *, counted: bool = False) -> Self:
        """The reference of a version of the catalog; `counted`: with its rows by split, which planning looks at."""
        counts = dict(found.info.get("counts", {})) if counted else {}
        return cls(found.dataset_id, found.version, found.content_hash, found.artifact, counts)

    def __str__(self) -> str:
        return f"{self.dataset_id}@v{self.version}"


@dataclass(frozen=True)
class FileRef(_Ref):
    """A raw file in the store, by the sha256 of its bytes."""

    sha256: str
    file: str


@dataclass(frozen=True)
class ArtifactRef(_Ref):
    """Any other output: candidates, measurements, rollouts, observations."""

    kind: str
    digest: str
    key: str
    name: str


@dataclass(frozen=True)
class StageResult(_Ref):
    """How a stage ended: its key, the attempt that was committed, whether it was reused, what it gave."""

    stage: str
    key: str
    attempt: str
    reused: bool
    outputs: Mapping[str, Mapping[str, Any]]
    """name → {kind, digest}"""
    metrics: Mapping[str, float]
    summary: Mapping[str, Any]
    tokenizer: str | None = None
    chat_template: str | None = None

    def model(self, name: str) -> ModelRef:
        """The model `name` among the outputs; raises StageError when there is none."""
        out = self._output(name)
        return ModelRef(out["kind"], out["digest"], str(self.tokenizer), str(self.chat_template))

    def further(self, name: str) -> tuple[ModelRef, ...]:
        """The other members of an ensemble whose first is `name`: name_2, name_3, … in this order; none, mostly."""
        return tuple(self.model(member) for member in members_among(self.outputs, name) if member != name)

    def artifact(self, name: str) -> ArtifactRef:
        out = self._output(name)
        return ArtifactRef(out["kind"], out["digest"], self.key, name)

    def _output(self, name: str) -> Mapping[str, Any]:
        if name not in self.outputs:
            raise StageError(f"{self.stage} gave {', '.join(self.outputs) or 'nothing'}, not {name!r}")
        return self.outputs[name]
