"""Tokenizer and template are known by their bytes."""

import json
from pathlib import Path

import pytest

from include.domain.canonical import digest, sha256_bytes
from include.runtime.errors import InputError
from include.runtime.tokenizer import chat_template_digest, check_tokenizer, tokenizer_digest


def test_digests_are_over_the_tokenizers_bytes_and_the_templates_text(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"a": 1}')
    (tmp_path / "chat_template.jinja").write_bytes("{{ 'ü' }}\r\n".encode())
    assert tokenizer_digest(tmp_path) == digest("tokenizer", {"tokenizer.json": sha256_bytes(b'{"a": 1}')})
    assert chat_template_digest(tmp_path) == digest("chat-template", "{{ 'ü' }}\r\n")


def test_a_template_inside_the_tokenizers_settings_counts_the_same(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ x }}"}))
    assert chat_template_digest(tmp_path) == digest("chat-template", "{{ x }}")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="tokenizer.json is missing"):
        tokenizer_digest(tmp_path)
    with pytest.raises(InputError, match="has no chat template"):
        chat_template_digest(tmp_path)


def test_a_difference_names_the_input_and_both_digests(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("x")
    own, template = tokenizer_digest(tmp_path), chat_template_digest(tmp_path)
    check_tokenizer("base", tmp_path, own, template)
    with pytest.raises(InputError, match=f"input reward_model .*its tokenizer is {own}, the run is for {template}"):
        check_tokenizer("reward_model", tmp_path, template, template)
    with pytest.raises(InputError, match="its chat template is"):
        check_tokenizer("reward_model", tmp_path, own, own)
