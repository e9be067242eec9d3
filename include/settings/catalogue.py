"""Finding the named configurations in configs/."""

import os
import re
from pathlib import Path
from typing import Any

from include.domain.canonical import digest
from include.domain.records import Rubric
from include.settings.clusters import Cluster
from include.settings.errors import SettingsError
from include.settings.gold import GoldSet
from include.settings.judges import JudgeFile
from include.settings.loader import load, parse, read_yaml
from include.settings.recipes import Recipe

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\Z")
_VERSIONED = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]*)@v?(\d+)\Z")


def project_root() -> Path:
    """The folder with configs/ and include/: ALIGN_HOME, or where this package lies."""
    return Path(os.environ.get("ALIGN_HOME") or Path(__file__).resolve().parents[2])


def config_dir() -> Path:
    return Path(os.environ.get("ALIGN_CONFIGS") or project_root() / "configs")


def lock_file() -> Path:
    """The pinned requirements of the cluster's programs."""
    return project_root() / "requirements-cluster.txt"


def _path(kind: str, name: str) -> Path:
    if not _NAME.match(name):
        raise SettingsError(f"{kind} name {name!r}: letters, digits, '-' and '_' only")
    return config_dir() / kind / f"{name}.yaml"


def recipe(name: str) -> Recipe:
    """configs/recipes/<name>.yaml; `name` may carry ``@v<version>``, which must then fit."""
    base, _, version = name.partition("@")
    found = load(Recipe, _path("recipes", base))
    if found.name != base:
        raise SettingsError(f"configs/recipes/{base}.yaml calls itself {found.name!r}")
    if version and version.removeprefix("v") != str(found.version):
        raise SettingsError(f"recipe {name}: configs/recipes/{base}.yaml is version {found.version}")
    _check_dimensions(found)
    return found


def _check_dimensions(found: Recipe) -> None:
    """Refuses a dimension that no label under the recipe's rubrics can have a score for."""
    if not found.reward_model.dimensions:
        return
    known = {name: rubric(name).dimensions for name in found.preferences.rubrics}
    if unknown := set(found.reward_model.dimensions) - {dimension for of_rubric in known.values() for dimension in of_rubric}:
        shown = "; ".join(f"{name} has {', '.join(of_rubric) or 'none'}" for name, of_rubric in known.items())
        raise SettingsError(
            f"recipe {found.name}: reward_model.dimensions names {sorted(unknown)[0]!r}, which no rubric of its preferences has: {shown}"
        )


def recipe_names() -> list[str]:
    return sorted(path.stem for path in (config_dir() / "recipes").glob("*.yaml"))


def cluster(name: str | None = None) -> Cluster:
    """configs/clusters/<name>.yaml; by default the one that ALIGN_CLUSTER names, else `local`."""
    return load(Cluster, _path("clusters", name or os.environ.get("ALIGN_CLUSTER") or "local"))


def store_root(where: Cluster) -> str:
    """The store's absolute path on the cluster."""
    root = where.store_root or os.environ.get("ALIGN_STORE_ROOT", "")
    if not root.startswith("/"):
        raise SettingsError(f"cluster {where.name}: set `store_root`, or ALIGN_STORE_ROOT, to an absolute path (got {root!r})")
    return root.rstrip("/")


def versioned(kind: str, reference: str) -> dict[str, Any]:
    """The file of `reference` (name@version) in configs/<kind>, with the version checked.

    An earlier version that is still named lies beside the present one, as <name>@<version>.yaml.
    """
    match = _VERSIONED.match(reference)
    if not match:
        raise SettingsError(f"{kind} {reference!r}: expected name@version")
    name, version = match.groups()
    data = read_yaml(_path(kind, name))
    if str(data.get("version")) == version:
        return data
    kept = config_dir() / kind / f"{name}@{version}.yaml"
    if not kept.is_file():
        raise SettingsError(
            f"{kind} {reference}: configs/{kind}/{name}.yaml is version {data.get('version')}; an earlier one is kept as {kept.name} beside it"
        )
    earlier = read_yaml(kept)
    if (str(earlier.get("name")), str(earlier.get("version"))) != (name, version):
        raise SettingsError(f"{kept} calls itself {earlier.get('name')}@{earlier.get('version')}")
    return earlier


def gold(reference: str) -> GoldSet:
    """The gold items of configs/gold, as name@version."""
    return parse(GoldSet, versioned("gold", reference), f"configs/gold, {reference}")


def judge(reference: str) -> JudgeFile:
    """The model judge of configs/judges, as name@version."""
    return parse(JudgeFile, versioned("judges", reference), f"configs/judges, {reference}")


def rubric(reference: str) -> Rubric:
    """A rubric; its `version` is name@number#<first 12 digits of its text's digest>, so a changed text can't keep its version."""
    data = versioned("rubrics", reference)
    try:
        name, text = str(data["name"]), str(data["text"])
        dimensions, reasons = ([str(item) for item in data[field]] for field in ("dimensions", "reason_codes"))
    except KeyError as error:
        raise SettingsError(f"rubric {reference}: {error} is missing") from error
    body = {"rubric_id": name, "text": text, "dimensions": dimensions, "reason_codes": reasons}
    mark = digest("rubric", body).removeprefix("sha256:")[:12]
    return Rubric(name, f"{name}@{data['version']}#{mark}", text, tuple(dimensions), tuple(reasons))
