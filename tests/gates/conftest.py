from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from include.gates.policies import policies_from
from include.gates.policy import GateSet

CONFIGS = Path(__file__).parents[2] / "configs" / "gates"


def read(name: str) -> dict[str, Any]:
    data: dict[str, Any] = YAML(typ="safe").load((CONFIGS / f"{name}.yaml").read_text())
    return data


@pytest.fixture
def quickstart() -> GateSet:
    return policies_from(read("quickstart"))
