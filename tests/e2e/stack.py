"""A local stack for tests: its own folder, its own copy of the configurations, and workers that can be killed at a line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import yaml

from include.settings.loader import load
from include.settings.recipes import Recipe
from include.stores.catalog import Catalog
from local.layout import Layout
from local.stack import Stack

ROOT = Path(__file__).resolve().parents[2]
HOOKS = Path(__file__).with_name("hooks")

ARITHMETIC = {"name": "arithmetic", "kind": "generated", "mapping": "arithmetic", "licence": "Apache-2.0"}
MIXED = [{"dataset": "own", "weight": 2}, {"dataset": "tiny-demonstrations@1", "weight": 1}]
TWO_RANKS = {"tasks": 2, "cpus": 1}
#: Recipes beside `tiny`: what differs is said here. Where no other is given, data and registered name are the same.
VARIANTS: dict[str, dict[str, Any]] = {
    "tiny-long": {"sft": {"steps": 400, "save_every_steps": 20}},
    "tiny-second": {"dpo": {"steps": 18}},
    # Other numbers, mixed with the demonstrations of `tiny`; SFT on two ranks; three reward models; a generator beside PPO.
    "tiny-ensemble": {
        "data": {"sources": [{**ARITHMETIC, "options": {"seed": 8, "rows": 2400}}]},
        "sft": {"job": TWO_RANKS, "zero_stage": 2, "packing": True, "mixture": {"parts": MIXED}},
        "reward_model": {"seeds": [42, 43, 44]},
        "ppo": {"reward": {"combine": "minimum"}, "generation": "own_process"},
        "release": {"registered_name": "demo-ensemble"},
    },
    "tiny-lora": {
        "sft": {"lora": {"rank": 16}},
        "dpo": {"learning_rate": 5e-4, "lora": {"rank": 16}},
        "release": {"registered_name": "demo-lora"},
    },
    "tiny-megatron": {
        "sft": {"engine": "megatron", "tensor_parallel": 2, "job": TWO_RANKS},
        "dpo": {"engine": "megatron", "tensor_parallel": 2, "job": TWO_RANKS},
        "release": {"registered_name": "demo-megatron"},
    },
    "tiny-third": {"dpo": {"steps": 16}},
    "tiny-endless": {"dpo": {"steps": 4000, "save_every_steps": 20}},
}


class TestStack(Stack):
    """The stack of `make demo`, but for what is said here; `changes` are further settings of its processes."""

    __test__ = False

    def __init__(self, home: Path) -> None:
        super().__init__(Layout(ROOT, home))
        self.configs, self.kills = home / "configs", home / "kills"
        self.changes: dict[str, str] = {}

    def prepare(self) -> None:
        """Configurations are copied, so that nothing moves while tests run and tests may add recipes."""
        self.kills.mkdir(exist_ok=True, parents=True)
        if self.configs.exists():
            return
        shutil.copytree(ROOT / "configs", self.configs)
        tiny = yaml.safe_load((self.configs / "recipes/tiny.yaml").read_text())
        for name, changed in VARIANTS.items():
            body = tiny | {"name": name} | {stage: tiny[stage] | settings for stage, settings in changed.items()}
            (self.configs / f"recipes/{name}.yaml").write_text(yaml.safe_dump(body))
        cluster = self.configs / "clusters/local.yaml"
        cluster.write_text(yaml.safe_dump(yaml.safe_load(cluster.read_text()) | {"orphan_age_s": 5}))

    def environment(self) -> dict[str, str]:
        own = super().environment()
        return {
            **own,
            "PYTHONPATH": f"{HOOKS}:{own['PYTHONPATH']}",
            "ALIGN_CONFIGS": str(self.configs),
            "ALIGN_TEST_KILLS": str(self.kills),
            "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "2",
            "AIRFLOW__CORE__PARALLELISM": "8",
            # On a machine that does much else meanwhile, a file that was not read in time is not looked at again for ten minutes.
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "180",
            "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "240",
            # For the same reason: a task whose API server answered late five times fails before it began.
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "30",
            **self.changes,
        }

    def recipe(self, name: str) -> Recipe:
        return load(Recipe, self.configs / f"recipes/{name}.yaml")

    def catalog(self) -> Catalog:
        return Catalog.open(self.environment()["ALIGN_CATALOG_URL"])
