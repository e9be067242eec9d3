"""Requests that sound alike, in the columns of XSTest (prompt, label, type): *safe* ones to be answered, *unsafe* ones to be declined.

Unsafe requests get a safety class, so that those held out lie on the safety hold-out; safe ones have none.
"""

from include.domain.records import Message
from include.transforms.draft import Draft
from include.transforms.messages import RowError
from include.transforms.rows import Quarantined, RawRow
from include.transforms.source import Source

LABELS = {"safe": "none", "unsafe": "unsafe"}
"""label → safety class."""
_CONTRAST = "contrast_"


def item_of(row: RawRow, source: Source) -> Draft | Quarantined:
    """The row as a suite item without options."""
    try:
        prompt, label, kind = (row.value.get(name) for name in ("prompt", "label", "type"))
        if not isinstance(prompt, str) or not prompt.strip():
            raise RowError("prompt: expected a text")
        if label not in LABELS:
            raise RowError(f"label: {label!r} is none of {', '.join(LABELS)}")
        if kind is not None and not isinstance(kind, str):
            raise RowError(f"type: expected text, got {type(kind).__name__}")
    except RowError as error:
        return Quarantined(source.name, row.line, str(error), row.raw)
    return Draft(
        source=source.name,
        line=row.line,
        messages=(Message("user", prompt.strip()),),
        licence=source.licence,
        usage_basis=source.usage_basis,
        topic=(kind or "other").removeprefix(_CONTRAST),
        safety_class=LABELS[label],
        slices={"request": str(label)},
    )
