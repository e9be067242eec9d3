"""Rows that say the same thing twice. Which row stays does not depend on the order in which rows came."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from include.domain.canonical import canonical_bytes, digest
from include.domain.records import Message
from include.domain.split import normalise_prompt
from include.transforms.draft import Draft


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


def _body_key(draft: Draft) -> tuple[Hashable, ...]:
    """What the row says, prompt normalised: equal for exact duplicates."""
    sides = tuple(_turn(side) for side in (draft.chosen, draft.rejected) if side)
    reference = draft.reference and canonical_bytes(draft.reference.to_json())
    return (_prompt_key(draft), tuple(_turn(message) for message in draft.response), sides, draft.options, reference)


def _turn(message: Message) -> tuple[Hashable, ...]:
    return (message.role, message.content, message.name, message.tool_calls and canonical_bytes(list(message.tool_calls)))


def _prompt_key(draft: Draft) -> tuple[Hashable, ...]:
    turns = tuple((message.role, normalise_prompt(message.content)) for message in draft.messages)
    return (turns, draft.tools and canonical_bytes(list(draft.tools)))


def _rank(draft: Draft) -> tuple[str, str, str]:
    """The order in which equals are kept: by their own digest first, so that the order of lines or files does not matter."""
    exact = digest("rank", {"messages": [message.to_json() for message in draft.messages], "answers": list(draft.answers)})
    return exact, draft.row_id or "", draft.source


def exact(drafts: Sequence[Draft], dropped: Dropped) -> list[Draft]:
    """One of each set of rows with the same prompt (normalised) and the same answers."""
    return _one_of_each(drafts, _body_key, "exact_duplicate", dropped)


def one_per_prompt(drafts: Sequence[Draft], dropped: Dropped) -> list[Draft]:
    """One row of each exact conversation: what a set of prompts needs."""
    return _one_of_each(drafts, _prompt_key, "prompt_stands_twice", dropped)


def _one_of_each(drafts: Sequence[Draft], key: Callable[[Draft], Hashable], reason: str, dropped: Dropped) -> list[Draft]:
    alike: dict[Hashable, list[Draft]] = defaultdict(list)
    for draft in drafts:
        alike[key(draft)].append(draft)
    gone: set[int] = set()
    for same in alike.values():
        for draft in sorted(same, key=_rank)[1:] if len(same) > 1 else ():
            dropped.add(reason, place(draft))
            gone.add(id(draft))
    return [draft for draft in drafts if id(draft) not in gone]


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
    directions: dict[Hashable, set[tuple[str, ...]]] = defaultdict(set)
    keys = [(_prompt_key(draft), frozenset(draft.answers)) for draft in drafts]
    for draft, key in zip(drafts, keys, strict=True):
        directions[key].add(draft.answers)
    kept = []
    for draft, key in zip(drafts, keys, strict=True):
        if len(directions[key]) > 1:
            dropped.add("contradicted_by_another_row", place(draft))
        else:
            kept.append(draft)
    return kept


def cap_per_prompt(drafts: Sequence[Draft], limit: int, dropped: Dropped) -> list[Draft]:
    """At most `limit` pairs of one prompt, chosen by their digests."""
    of_prompt: dict[Hashable, list[Draft]] = defaultdict(list)
    for draft in drafts:
        of_prompt[_prompt_key(draft)].append(draft)
    gone: set[int] = set()
    for pairs in of_prompt.values():
        for draft in sorted(pairs, key=_rank)[limit:] if len(pairs) > limit else ():
            dropped.add("over_the_cap_of_its_prompt", place(draft))
            gone.add(id(draft))
    return [draft for draft in drafts if id(draft) not in gone]
