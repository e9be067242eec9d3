"""The version of what decides which rows stay: the code of normalising, cleaning, masking and de-duplication, and its settings."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from include.domain.canonical import digest
from include.domain.closure import import_closure, module_digest

MODULES = (
    "include.transforms.clean",
    "include.transforms.dedupe",
    "include.transforms.near",
    "include.transforms.normalise",
    "include.transforms.pii",
    "include.transforms.split",
)
"""What decides. Everything of ours that these import counts too; readers and importers do not: they only say what a row is."""


@lru_cache(maxsize=4)
def code_of_filters(project: Path) -> str:
    """The digest of the filters' code below `project`, docstrings and comments left out."""
    files: dict[str, Path] = {}
    for module in MODULES:
        files |= import_closure(project, module)
    return digest("filter-code", {name: module_digest(path) for name, path in files.items()})


def filter_policy_version(settings: Mapping[str, Any], project: Path | None = None) -> str:
    """``filters@<12 digits>``: moves with the code and with the settings, not with a comment.

    Args:
        settings: all that the filters were told, as plain JSON.
        project: the folder that holds `include`; by default the one this module lies in.
    """
    code = code_of_filters(project or Path(__file__).resolve().parents[2])
    return f"filters@{digest('filter-policy', {'code': code, 'settings': dict(settings)}).removeprefix('sha256:')[:12]}"
