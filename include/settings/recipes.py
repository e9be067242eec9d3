"""configs/recipes/*.yaml: what to train. A recipe is immutable as name@version; its digest stands in every run."""

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from include.domain.canonical import check_digest, digest
from include.domain.split import DEFAULT_SHARES
from include.settings.annotation import AnnotationSettings, PreferenceSettings
from include.settings.base import Settings, added_identity, stable_form
from include.settings.evaluation import EvaluationSettings, ShadowSettings
from include.settings.expectations import Expectation
from include.settings.judges import ModelJudgeSettings
from include.settings.panel import PanelSettings
from include.settings.ppo import PpoSettings
from include.settings.training import (
    BaseImportSettings,
    DpoSettings,
    GenerateSettings,
    RewardModelSettings,
    SftSettings,
)

Method = Literal["dpo", "ppo"]
_MODEL_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\.(safetensors|json|jinja|model)\Z")


class ModelShape(Settings):
    """The size of a base, for estimates alone. kv_width: heads of keys × width of a head; left out: hidden_size."""

    parameters: float = Field(gt=0)
    layers: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    kv_width: int | None = Field(None, ge=1)


class BaseSource(Settings):
    """What a base is imported from, pinned by sha256. Left unpinned for generated sources, whose bytes follow from a seed.

    kind ``safetensors``: the folder of a Hugging Face model, each of whose files is pinned; nothing else in it is read. A recipe
    whose `files` are left out is planned and estimated, and refused when it runs: `align pin FOLDER` prints them.
    """

    kind: Literal["file", "generated", "safetensors"]
    path: str | None = None
    """Relative to ALIGN_SOURCES, or absolute."""
    sha256: str | None = None
    seed: int = 0
    rows: int = 0
    licence: str | None = added_identity(None)
    """Of the base itself; must be on `data.licences`. Left out, the release's papers say that it is not stated."""
    repository: str | None = added_identity(None)
    """The hub id and the commit that `files` are of; nothing is fetched by it."""
    revision: str | None = added_identity(None, pattern=r"^[0-9a-f]{40}$")
    files: dict[str, str] = added_identity({})
    """File name → sha256:…"""
    shape: ModelShape | None = added_identity(None)

    @model_validator(mode="after")
    def _pinned(self) -> "BaseSource":
        if self.kind == "file" and not (self.path and self.sha256):
            raise ValueError("a file must be named with `path` and pinned with `sha256`")
        if self.kind == "safetensors":
            if not self.path or self.sha256:
                raise ValueError("a folder of safetensors is named with `path` and pinned with `files`, not with `sha256`")
            _check_files(self.files)
        elif self.files or self.repository or self.revision:
            raise ValueError("`files`, `repository` and `revision` belong to kind: safetensors")
        return self


def is_model_file(name: str) -> bool:
    """Whether a file of a model's folder is data that is read: safetensors, JSON, a template, a tokenizer's model."""
    return _MODEL_FILE.match(name) is not None


def _check_files(files: dict[str, str]) -> None:
    """Plain names of data files, each with a digest."""
    for name, sha256 in files.items():
        if not is_model_file(name):
            raise ValueError(
                f"files: {name!r} is neither .safetensors nor .json, .jinja or .model: nothing else is read, pickles least of all"
            )
        check_digest(sha256, f"files.{name}")
    if files and not {"config.json", "tokenizer.json"} <= set(files):
        raise ValueError("files: config.json and tokenizer.json are needed beside the weights")


class DataSource(Settings):
    """One source of rows. `mapping` names the transform that turns its rows into records."""

    name: str
    kind: Literal["jsonl", "json", "csv", "parquet", "hub", "s3", "generated"]
    mapping: str
    path: str | None = None
    split: str | None = None
    licence: str
    usage_basis: str = "licence"
    sha256: str | None = None
    s3_conn_id: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)


class PiiPolicy(Settings):
    """How personal data in rows is treated before anybody sees them; see `transforms.pii`."""

    regions: tuple[Annotated[str, Field(pattern=r"^[A-Z]{2}$")], ...] = ("US",)
    """Countries (ISO 3166, two letters) whose national telephone forms are known."""
    refuse: tuple[Literal["EMAIL", "IBAN", "CARD", "IP", "PHONE"], ...] = ()
    """Kinds whose rows are left out instead of masked."""
    max_characters: int = Field(1_000_000, ge=1)
    """A longer text is not scanned, and its row not used."""


class LongTail(Settings):
    """How rare a suite's item must be, among the prompts that are trained on, to count as the long tail."""

    by: Literal["words", "topic"] = "words"
    """words: by how many training prompts hold its words. topic: by how many have its topic."""
    share: float = Field(0.1, gt=0, lt=1)
    """Of the training prompts themselves, the rarest so many; what is rarer than the others is tail."""


class DataSettings(Settings):
    """How sources become dataset versions."""

    project: str = "default"
    split_salt: str
    """One salt a project: a group is on the same side in all of its datasets."""
    sources: tuple[DataSource, ...]
    licences: tuple[str, ...]
    """Allow-list; a row of another licence blocks."""
    max_quarantine_share: float = Field(0.02, ge=0, le=1)
    min_rows: dict[str, int] = Field(default_factory=dict)
    use_shares: dict[str, float]
    shares: dict[str, float] = added_identity(dict(DEFAULT_SHARES))
    """Sides of every data set of the project: train, validation, holdout. A change moves groups from side to side: give a new `split_salt` too."""
    near_duplicate_threshold: float = Field(0.8, gt=0, le=1)
    pii: PiiPolicy = added_identity(PiiPolicy())
    long_tail: LongTail | None = added_identity(None)
    """Gives the items of every suite a slice `rarity`: `tail` or `common`."""
    expectations: tuple[Expectation, ...] = added_identity(())
    """Of the stored data sets, beside the built-in ones."""
    synthetic_pairs: int = Field(0, ge=0)
    synthetic_perturbations: tuple[Literal["operand", "operation", "result"], ...] = ("operand", "operation", "result")
    """What the wrong side of a synthetic pair gets wrong; see `transforms.synthetic`."""
    seed: int = 0

    @field_validator("shares")
    @classmethod
    def _whole(cls, value: dict[str, float]) -> dict[str, float]:
        if set(value) != set(DEFAULT_SHARES) or abs(sum(value.values()) - 1.0) > 1e-9:
            raise ValueError(f"name {', '.join(DEFAULT_SHARES)}, together 1")
        if min(value.values()) < 0 or not (value["train"] and value["holdout"]):
            raise ValueError("no share may be below 0, and neither train nor holdout may be 0")
        return {name: value[name] for name in DEFAULT_SHARES}


class RewardGate(Settings):
    min_pairs: int = Field(100, ge=1)
    alpha: float = Field(0.05, gt=0, lt=0.5)
    required: bool = True


class ApprovalSettings(Settings):
    """Who may let a release through."""

    approvers: tuple[str, ...] = Field(min_length=1)
    demonstration_accounts: tuple[str, ...] = ()
    count: int = Field(1, ge=1)
    timeout_hours: float = Field(72.0, gt=0)

    @model_validator(mode="after")
    def _enough(self) -> "ApprovalSettings":
        if self.count > len(set(self.approvers)):
            raise ValueError(f"{self.count} approvals are asked for, {len(set(self.approvers))} people are named")
        return self


class OwnFallback(Settings):
    """A fallback that is none of the deployments known here, in words, and who answers for it."""

    policy: str = Field(min_length=3)
    owner: str = Field(min_length=1)


class ReleaseSettings(Settings):
    registered_name: str
    canary: Literal["shadow"] = "shadow"
    system_prompt: str | None = None
    fallback: Literal["sft", "champion", "anchor"] | OwnFallback | None = None
    """Policy for uncertain long-tail inputs, recorded on the release: the deployment that answers them, or words with an owner."""
    rollback_by: tuple[str, ...] = added_identity(())
    """Who may roll a release back; left out: the approvers."""


class Recipe(Settings):
    """The whole chain of one alignment run."""

    name: str
    version: int = Field(ge=1)
    description: str
    owner: str
    """Who asked, on scheduled runs."""
    demonstration: bool = False
    seed: int = Field(ge=0)
    method: Method = "dpo"
    rerun_salt: str = ""
    base_source: BaseSource
    base: BaseImportSettings
    data: DataSettings
    sft: SftSettings
    generate: GenerateSettings
    annotation: AnnotationSettings
    preferences: PreferenceSettings
    reward_model: RewardModelSettings
    reward_gate: RewardGate = RewardGate()
    dpo: DpoSettings
    ppo: PpoSettings
    evaluation: EvaluationSettings
    human_pairwise: PanelSettings | None = added_identity(None)
    """The panel of people who compare answers blindly; needed where a gate reads human_win_rate, refused where none does."""
    model_judge: ModelJudgeSettings | None = added_identity(None)
    """A model that compares the same answers, held against what people say; needed where a gate reads judge_win_rate, and only there."""
    gates: str
    """name@version in configs/gates."""
    approval: ApprovalSettings
    release: ReleaseSettings
    shadow: ShadowSettings = ShadowSettings()

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if not value.replace("-", "").replace("_", "").isalnum() or not value.isascii():
            raise ValueError("letters, digits, '-' and '_' only")
        return value

    @model_validator(mode="after")
    def _demonstration_only(self) -> "Recipe":
        if not self.demonstration:
            if self.approval.demonstration_accounts:
                raise ValueError("approval.demonstration_accounts is for recipes marked `demonstration: true` only")
            if self.annotation.agreement_not_applicable_passes:
                raise ValueError("annotation.agreement_not_applicable_passes is for recipes marked `demonstration: true` only")
            if self.human_pairwise is not None and self.human_pairwise.agreement_not_applicable_passes:
                raise ValueError("human_pairwise.agreement_not_applicable_passes is for recipes marked `demonstration: true` only")
        elif not self.release.registered_name.startswith("demo-"):
            raise ValueError("release.registered_name of a demonstration recipe must begin with 'demo-'")
        return self

    @model_validator(mode="after")
    def _source_fits(self) -> "Recipe":
        if (self.base_source.kind == "safetensors") != (self.base.kind == "safetensors"):
            raise ValueError(f"base_source.kind {self.base_source.kind} does not give what base.kind {self.base.kind} reads")
        return self

    @model_validator(mode="after")
    def _one_deployment(self) -> "Recipe":
        if self.shadow.dtype != self.evaluation.dtype:
            raise ValueError(
                f"shadow.dtype {self.shadow.dtype}, evaluation.dtype {self.evaluation.dtype}: the shadow run serves what is measured and released"
            )
        return self

    @model_validator(mode="after")
    def _base_is_allowed(self) -> "Recipe":
        licence = self.base_source.licence
        if licence is not None and licence not in self.data.licences:
            raise ValueError(f"base_source.licence {licence!r} is not on data.licences ({', '.join(self.data.licences)})")
        return self

    @model_validator(mode="after")
    def _what_is_waited_for_is_enough(self) -> "Recipe":
        """A batch that may be given up is closed, so what it then has must be enough for what comes after."""
        if self.annotation.settle_hours is None:
            return self
        decided, prompts = self.annotation.surely_decided(self.generate.prompts), self.generate.prompts
        imported = min(self.preferences.max_imported_share, self.preferences.reward_max_imported_share)
        sides = [("preferences.min_train_pairs", self.preferences.min_train_pairs, 1 - imported, self.generate.prompt_limit)]
        if self.reward_gate.required and not self.data.synthetic_pairs and (held := self.generate.sides.get("holdout")):
            sides.append(("reward_gate.min_pairs", self.reward_gate.min_pairs, 1, held))
        for name, least, own, of_side in sides:
            if (there := decided * of_side / prompts) < least * own:
                raise ValueError(
                    f"annotation.settle_hours gives a batch up at min_decided {self.annotation.min_decided}, which is {decided} comparisons at "
                    f"least: {of_side} of {prompts} prompts count for {name} ({least}), so about {there:.0f} do; raise the one, or lower the other"
                )
        return self

    @property
    def reference(self) -> str:
        return f"{self.name}@v{self.version}"

    @property
    def digest(self) -> str:
        return digest("recipe", stable_form(self))
