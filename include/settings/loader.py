"""Reading configs/*.yaml: YAML 1.2 rules, no duplicate keys, and errors that name the place and the neighbours."""

import difflib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from include.settings.errors import SettingsError

Model = TypeVar("Model", bound=BaseModel)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in `path`, by YAML 1.2 rules (``2e-5`` is a number, ``no`` is text).

    Raises:
        SettingsError: the file is missing, is not YAML, has a key twice, or is not a mapping.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.version = (1, 2)
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError as error:
        raise SettingsError(f"{path} does not exist; {_siblings(path)}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 (byte {error.start})") from error
    try:
        data = yaml.load(text)
    except YAMLError as error:
        raise SettingsError(f"{path}: {error}") from error
    if not isinstance(data, dict):
        raise SettingsError(f"{path} holds {type(data).__name__}, expected a mapping")
    return data


def _siblings(path: Path) -> str:
    names = sorted(p.stem for p in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
    return f"{path.parent.name} has: {', '.join(names) or 'nothing'}"


def load(model: type[Model], path: Path) -> Model:
    """Reads `path` into `model`; every problem is listed with its field."""
    return parse(model, read_yaml(path), str(path))


def parse(model: type[Model], data: dict[str, Any], where: str) -> Model:
    """Validates `data`; an unknown key is named with the nearest known one."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        lines = [_line(model, item) for item in error.errors(include_url=False)]
        raise SettingsError(f"{where}:\n  " + "\n  ".join(lines)) from error


def _line(model: type[BaseModel], item: Any) -> str:
    place = ".".join(str(part) for part in item["loc"])
    if item["type"] != "extra_forbidden":
        shown = repr(item.get("input"))
        return f"{place}: {item['msg']} (got {shown if len(shown) < 80 else shown[:77] + '...'})"
    known = _fields_at(model, item["loc"][:-1])
    near = difflib.get_close_matches(str(item["loc"][-1]), known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{place}: unknown key; {hint}known here: {', '.join(sorted(known)) or 'none'}"


def _fields_at(model: Any, loc: tuple[Any, ...]) -> list[str]:
    for part in loc:
        if isinstance(part, int):
            continue
        field = getattr(model, "model_fields", {}).get(part)
        if field is not None:
            model = _model_in(field.annotation)
    return list(getattr(model, "model_fields", {}))


def _model_in(annotation: Any) -> Any:
    """The settings class in an annotation such as ``tuple[X, ...]`` or ``X | None``; None where there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in getattr(annotation, "__args__", ()):
        if (found := _model_in(part)) is not None:
            return found
    return None
