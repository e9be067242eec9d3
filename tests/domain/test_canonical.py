"""Canonical form and digests. The golden vectors are final: a change here moves every key of every store."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.domain.canonical import canonical_bytes, check_digest, digest, digest_rows, from_hex, hex_of, sha256_bytes
from include.domain.errors import RecordError

GOLDEN = [
    ("thing", {"b": 1, "a": [True, None, "é"]}, '{"a":[true,null,"é"],"b":1}'),
    ("thing", {"x": 2e-5, "y": 7.0, "z": 1e21}, '{"x":0.00002,"y":7,"z":1e+21}'),
    ("prompt", {"messages": [{"role": "user", "content": "1 + 1?\n"}]}, '{"messages":[{"content":"1 + 1?\\n","role":"user"}]}'),
]


@pytest.mark.parametrize(("kind", "value", "text"), GOLDEN)
def test_golden_vectors(kind: str, value: object, text: str) -> None:
    """A digest is sha256 over the kind's line and the RFC 8785 bytes, nothing else."""
    assert canonical_bytes(value) == text.encode()
    assert digest(kind, value) == "sha256:" + hashlib.sha256(f"align/{kind}/v1\n".encode() + text.encode()).hexdigest()


def test_pinned_digests() -> None:
    """Three literal digests, so that a change of library or prefix cannot pass."""
    assert digest("thing", {}) == "sha256:" + hashlib.sha256(b"align/thing/v1\n{}").hexdigest()
    assert digest("x", {"a": 1}) == "sha256:5ca913ec5a3ddc9f525b5f4aa1ff8b5d53f5dda95c50658279e268e204388efe"
    assert sha256_bytes(b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_seven_and_seven_point_zero_are_one_value() -> None:
    assert digest("thing", {"lr": 7}) == digest("thing", {"lr": 7.0})


def test_null_and_absent_differ() -> None:
    assert digest("thing", {"a": None}) != digest("thing", {})


def test_keys_are_normalised_and_texts_are_not() -> None:
    """A key in NFD is the same key; a text in NFD is another text."""
    composed, decomposed = "\u00e9", "e\u0301"
    assert digest("thing", {composed: 1}) == digest("thing", {decomposed: 1})
    assert digest("thing", {"k": composed}) != digest("thing", {"k": decomposed})


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"e\u0301": 1, "\u00e9": 2}, "NFC"),
        ({"a": {"b": [1, float("nan")]}}, "$.a.b[1]"),
        ({"a": float("inf")}, "$.a"),
        ({"a": 2**53}, "$.a"),
        ({"a": "\ud800"}, "surrogate"),
        ({1: "a"}, "not a string"),
        ({"a": {1, 2}}, "set"),
    ],
)
def test_what_has_no_canonical_form_is_refused_by_place(value: object, place: str) -> None:
    with pytest.raises(RecordError) as caught:
        canonical_bytes(value)
    assert place in str(caught.value)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="ascii"), max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_canonical_bytes_do_not_depend_on_key_order(value: object) -> None:
    def turned(item: object) -> object:
        if isinstance(item, dict):
            return {key: turned(item[key]) for key in reversed(list(item))}
        return [turned(x) for x in item] if isinstance(item, list) else item

    assert canonical_bytes(value) == canonical_bytes(turned(value))


@given(st.lists(json_values, max_size=5))
def test_rows_can_be_digested_without_holding_them(rows: list[object]) -> None:
    hasher = hashlib.sha256(b"align/dataset/v1\n")
    for row in rows:
        hasher.update(canonical_bytes(row) + b"\n")
    assert digest_rows("dataset", iter(rows)) == "sha256:" + hasher.hexdigest()


def test_hex_and_back() -> None:
    value = digest("thing", 1)
    assert from_hex(hex_of(value)) == value
    assert ":" not in hex_of(value)


@pytest.mark.parametrize("wrong", ["", "sha256:", "sha256:" + "A" * 64, "md5:" + "0" * 32, None, "sha256:" + "0" * 64 + "\n"])
def test_what_is_no_digest_is_refused(wrong: object) -> None:
    with pytest.raises(RecordError):
        check_digest(wrong)


@pytest.mark.parametrize("kind", ["", "Thing", "a b", "a/b", "1a"])
def test_a_kind_is_lower_case_letters_digits_and_dashes(kind: str) -> None:
    with pytest.raises(RecordError):
        digest(kind, {})
