"""Rows that say the same thing twice. Which row stays does not depend on the order in which rows came."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from include.domain.canonical import digest
from include.domain.split import normalise_prompt
from include.transforms.draft import Draft
from include.transforms.near import NearIndex


@dataclass(frozen=True)
class Drop:
    """One row that was left out: ``source:line``, why, and what it is like, where it is like another."""

    row: str
    reason: str
    like: str = ""


@dataclass
class Dropped:
    """Every row that was left out."""

    drops: list[Drop] = field(default_factory=list)

    def add(self, reason: str, row: str, like: str = "") -> None:
        self.drops.append(Drop(row, reason, like))

    @property
    def counts(self) -> dict[str, int]:
        return dict(sorted(Counter(drop.reason for drop in self.drops).items()))


def place(draft: Draft) -> str:
    return f"{draft.source}:{draft.line}"


def body_key(draft: Draft) -> str:
    """What the row says, prompt normalised: equal for exact duplicates."""
    return digest(
        "row-body",
        {
            "prompt": _prompt_key(draft),
            "response": [message.to_json() for message in draft.response],
            "sides": [side.content for side in (draft.chosen, draft.rejected) if side],
            "options": list(draft.options or ()),
            "reference": draft.reference and draft.reference.to_json(),
        },
    )


def _prompt_key(draft: Draft) -> str:
    turns = [[message.role, normalise_prompt(message.content)] for message in draft.messages]
    return digest("prompt-key", {"turns": turns, "tools": list(draft.tools or ())})


def _rank(draft: Draft) -> tuple[str, str, str]:
    """The order in which equals are kept: by their own digest first, so that the order of lines or files does not matter."""
    exact = digest("rank", {"messages": [message.to_json() for message in draft.messages], "answers": list(draft.answers)})
    return exact, draft.row_id or "", draft.source


def exact(drafts: Sequence[Draft], dropped: Dropped) -> list[Draft]:
    """One of each set of rows with the same prompt (normalised) and the same answers."""
    return _one_of_each(drafts, body_key, "exact_duplicate", dropped)


def one_per_prompt(drafts: Sequence[Draft], dropped: Dropped) -> list[Draft]:
    """One row of each exact conversation: what a set of prompts needs."""
    return _one_of_each(drafts, _prompt_key, "prompt_stands_twice", dropped)


def _one_of_each(drafts: Sequence[Draft], key: Callable[[Draft], str], reason: str, dropped: Dropped) -> list[Draft]:
    kept: dict[str, Draft] = {}
    for draft in sorted(drafts, key=_rank):
        if kept.setdefault(key(draft), draft) is not draft:
            dropped.add(reason, place(draft))
    chosen = {id(draft) for draft in kept.values()}
    return [draft for draft in drafts if id(draft) in chosen]


def identical_sides(drafts: Iterable[Draft], dropped: Dropped) -> list[Draft]:
    """Pairs without those whose two sides say the same."""
    kept = []
    for draft in drafts:
        same = (
            draft.chosen
            and draft.rejected
            and (draft.chosen.content, draft.chosen.tool_calls)
            == (
                draft.rejected.content,
                draft.rejected.tool_calls,
            )
        )
        if same:
            dropped.add("identical_candidates", place(draft))
        else:
            kept.append(draft)
    return kept


def contradictions(drafts: Sequence[Draft], dropped: Dropped) -> list[Draft]:
    """Pairs without those that another row has the other way round: neither is believed."""
    directions: dict[tuple[str, frozenset[str]], set[tuple[str, ...]]] = defaultdict(set)
    for draft in drafts:
        directions[_prompt_key(draft), frozenset(draft.answers)].add(draft.answers)
    kept = []
    for draft in drafts:
        if len(directions[_prompt_key(draft), frozenset(draft.answers)]) > 1:
            dropped.add("contradicted_by_another_row", place(draft))
        else:
            kept.append(draft)
    return kept


def cap_per_prompt(drafts: Sequence[Draft], limit: int, dropped: Dropped) -> list[Draft]:
    """At most `limit` pairs of one prompt, chosen by their digests."""
    seen: dict[str, int] = defaultdict(int)
    kept: set[int] = set()
    for draft in sorted(drafts, key=_rank):
        key = _prompt_key(draft)
        seen[key] += 1
        if seen[key] <= limit:
            kept.add(id(draft))
        else:
            dropped.add("over_the_cap_of_its_prompt", place(draft))
    return [draft for draft in drafts if id(draft) in kept]


def apart_from(drafts: Iterable[Draft], protected: NearIndex, reason: str, dropped: Dropped) -> list[Draft]:
    """Rows without those whose prompt is a near-duplicate of a protected one."""
    kept = []
    for draft in drafts:
        if match := protected.match(draft.prompt_text):
            dropped.add(reason, place(draft), match)
        else:
            kept.append(draft)
    return kept
