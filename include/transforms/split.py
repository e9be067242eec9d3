"""Which side a row is on, and the proof that nothing is on two."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from include.domain.canonical import digest
from include.domain.split import DEFAULT_SHARES, NORMALISER_VERSION, normalise_prompt, side_of, use_of
from include.transforms.draft import Draft
from include.transforms.errors import TransformError

EVALUATION = "evaluation"
"""The use of every hold-out row."""


@dataclass(frozen=True)
class SplitSettings:
    """One salt and one set of shares a project: a group is on the same side in all of its datasets.

    uses: how the training groups are shared among demonstration, preference and rl; empty: any use.
    """

    salt: str
    shares: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_SHARES))
    uses: Mapping[str, float] = field(default_factory=dict)


def group_of(draft: Draft) -> str:
    """The conversation root: a document or conversation the row names, else the hash of the normalised first turn of the user's.

    For a prompt of one turn this is the hash of the normalised prompt.
    """
    if draft.group is not None:
        return digest("split-group", {"source": draft.source, "group": draft.group})
    first = next((message.content for message in draft.messages if message.role == "user"), draft.messages[0].content)
    return digest("split-group", {"normaliser": NORMALISER_VERSION, "text": normalise_prompt(first)})


def side_of_draft(draft: Draft, settings: SplitSettings, group: str | None = None) -> str:
    """The side of the draft's group (`group`, where it is known already)."""
    return side_of(settings.salt, group or group_of(draft), draft.safety_class, settings.shares)


def use_of_group(group: str, settings: SplitSettings) -> str | None:
    """What a training group is used for; None where the project does not share groups out."""
    return use_of(settings.salt, group, settings.uses) if settings.uses else None


def check_overlap(rows: Iterable[tuple[str, str]]) -> int:
    """Number of distinct normalised prompts, after checking that each is on one side only.

    Args:
        rows: (side, prompt text); the two hold-outs count as one side.

    Raises:
        TransformError: a normalised prompt is on two sides.
    """
    seen: dict[str, str] = {}
    for side, text in rows:
        plain, key = side.removeprefix("safety_"), normalise_prompt(text)
        if seen.setdefault(key, plain) != plain:
            raise TransformError(f"the prompt {key[:80]!r} is on two sides, {seen[key]} and {plain}: overlap must be 0")
    return len(seen)
