"""Tokenizer and chat template by digest: the same in every stage, or the run is refused before its first step."""

import json
from pathlib import Path

from include.domain.canonical import digest, sha256_file
from include.runtime.errors import InputError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")
"""What travels with a model, byte for byte, from base to deployment."""


def has_tokenizer(folder: Path) -> bool:
    return (folder / "tokenizer.json").is_file()


def tokenizer_digest(folder: Path) -> str:
    """The digest of a model folder's tokenizer.json."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"{path} is missing: this folder has no tokenizer")
    return digest("tokenizer", {"tokenizer.json": sha256_file(path)})


def chat_template_of(folder: Path) -> str:
    """The text of the chat template: chat_template.jinja, or the one in tokenizer_config.json."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_bytes().decode("utf-8")
    config = folder / "tokenizer_config.json"
    template = json.loads(config.read_text("utf-8")).get("chat_template") if config.is_file() else None
    if not isinstance(template, str):
        raise InputError(f"{folder} has no chat template (neither chat_template.jinja nor one in tokenizer_config.json)")
    return template


def chat_template_digest(folder: Path) -> str:
    return digest("chat-template", chat_template_of(folder))


def check_tokenizer(name: str, folder: Path, tokenizer: str | None, chat_template: str | None) -> None:
    """Refuses the model `name` whose tokenizer or template differs from what the run names."""
    if (seen := tokenizer_digest(folder)) != tokenizer:
        raise InputError(f"input {name} ({folder}): its tokenizer is {seen}, the run is for {tokenizer}")
    if (seen := chat_template_digest(folder)) != chat_template:
        raise InputError(f"input {name} ({folder}): its chat template is {seen}, the run is for {chat_template}")
