"""Instructions that can be checked, in the columns of IFEval (key, prompt, instruction_id_list, kwargs), for the verifier `instructions`."""

from collections.abc import Mapping
from typing import Any

from include.domain.records import Message, Reference
from include.transforms.draft import Draft
from include.transforms.messages import RowError
from include.transforms.rows import Quarantined, RawRow
from include.transforms.source import Source

VERIFIER = "instructions"
VERSION = "1"
UNCHECKED = "language:"
"""Instructions that begin so have no check here: their rows are left out, which is no defect of the file."""


def item_of(row: RawRow, source: Source) -> Draft | Quarantined:
    """The row as a suite item whose reference is its instructions. `topic`: the family of the first one; slice `instructions`: how many."""
    try:
        prompt, asked = row.value.get("prompt"), _instructions(row.value)
        if not isinstance(prompt, str) or not prompt.strip():
            raise RowError("prompt: expected a text")
    except RowError as error:
        return Quarantined(source.name, row.line, str(error), row.raw)
    if unchecked := [item["id"] for item in asked if item["id"].startswith(UNCHECKED)]:
        return Quarantined(source.name, row.line, f"{unchecked[0]}: there is no check for it", row.raw, deliberate=True)
    return Draft(
        source=source.name,
        line=row.line,
        messages=(Message("user", prompt),),
        licence=source.licence,
        usage_basis=source.usage_basis,
        topic=asked[0]["id"].partition(":")[0],
        slices={"instructions": str(len(asked))},
        reference=Reference(VERIFIER, VERSION, asked),
    )


def _instructions(value: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each instruction with its arguments; those that are null belong to others."""
    names, arguments = value.get("instruction_id_list"), value.get("kwargs")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise RowError("instruction_id_list: expected a list of names")
    if not isinstance(arguments, list) or len(arguments) != len(names) or not all(isinstance(item, Mapping) for item in arguments):
        raise RowError(f"kwargs: expected {len(names)} objects, one an instruction")
    return [{"id": name, **{k: _whole(v) for k, v in of.items() if v is not None}} for name, of in zip(names, arguments, strict=True)]


def _whole(value: Any) -> Any:
    """Parquet gives counts beside nulls as floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
