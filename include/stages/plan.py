"""From a recipe and the references of what came before to the specification of a run."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from include.domain.closure import code_revision, lock_digest
from include.domain.spec import RunSpec
from include.settings.base import identity_config, placement_config
from include.settings.catalogue import lock_file, project_root
from include.settings.clusters import Cluster
from include.settings.recipes import Recipe
from include.settings.stage import JobSettings, StageSettings

PROGRAMS: Mapping[str, str] = {
    "base_import": "include.training.base_import",
    "sft": "include.training.sft",
    "generate": "include.training.generate",
    "reward_model": "include.training.reward_model",
    "dpo": "include.training.dpo",
    "ppo": "include.training.ppo",
    "evaluate": "include.eval.evaluate",
    "shadow": "include.eval.shadow",
}


@dataclass(frozen=True)
class Plan:
    """A run ready to be placed: what it is (spec), and the wishes about where (settings, job)."""

    spec: RunSpec
    artifacts: Mapping[str, str]
    """input name → artifact digest (what guards the bytes; equals the identity but for datasets)"""
    settings: Mapping[str, Any]
    job: JobSettings

    @property
    def key(self) -> str:
        return self.spec.key


@dataclass(frozen=True)
class Input:
    """One input of a run: its identity, and the artifact digest of its bytes."""

    identity: str
    artifact: str


@dataclass(frozen=True)
class Bench:
    """What planning needs: the recipe, the cluster whose environment the job will meet, and the salt of a deliberate rerun."""

    recipe: Recipe
    cluster: Cluster
    rerun_salt: str = ""
    note: Mapping[str, Any] = field(default_factory=dict)

    def plan(
        self,
        stage: str,
        inputs: Mapping[str, Input],
        settings: StageSettings,
        *,
        extra: Mapping[str, Any] | None = None,
        tokenizer: str | None = None,
        chat_template: str | None = None,
        program: str | None = None,
    ) -> Plan:
        """The plan of `stage`. `extra` are identity settings that follow from earlier stages, not from the recipe.

        program: another than the stage's own, which keeps to the same contract.
        """
        program = program or PROGRAMS[stage]
        spec = RunSpec(
            stage=stage,
            program=program,
            inputs={name: value.identity for name, value in inputs.items()},
            code_revision=revision(program),
            config={**identity_config(settings), **(extra or {})},
            environment=self.cluster.environment(lock_digest(lock_file())).digest,
            seed=self.recipe.seed,
            tokenizer=tokenizer,
            chat_template=chat_template,
            rerun_salt=self.rerun_salt or self.recipe.rerun_salt,
            note={"recipe": self.recipe.reference, "recipe_digest": self.recipe.digest, "git_commit": git_commit(), **self.note},
        )
        chosen = placement_config(settings)
        chosen.pop("job")
        return Plan(spec, {name: value.artifact for name, value in inputs.items()}, chosen, settings.job)


@lru_cache(maxsize=64)
def revision(program: str) -> str:
    """The code revision of `program` as it lies here now; read once a process."""
    return code_revision(project_root(), program, lock_file())


@lru_cache(maxsize=1)
def git_commit() -> str:
    """The commit of the checkout, with ``+changes`` when files differ; ``none`` outside a checkout. Recorded, never part of a key.

    An image holds no checkout: there ALIGN_GIT_COMMIT says it.
    """
    if told := os.environ.get("ALIGN_GIT_COMMIT"):
        return told
    try:
        head = _git("rev-parse", "HEAD").strip()
        return head + ("+changes" if _git("status", "--porcelain", "--untracked-files=no").strip() else "")
    except (OSError, subprocess.SubprocessError):
        return "none"


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(Path(project_root())), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    ).stdout
