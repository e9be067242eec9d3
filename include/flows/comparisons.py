"""Which answers are compared with which, and how many of the comparisons go to people."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from include.domain.canonical import digest
from include.domain.records import Candidate, Prompt
from include.flows.errors import FlowError
from include.settings.annotation import AnnotationSettings

if TYPE_CHECKING:
    from include.data.annotation_batches import Comparison

Json = Mapping[str, Any]


def compared(candidates: Sequence[Candidate], prompts: Mapping[str, Prompt], per_prompt: int = 1) -> "list[Comparison]":
    """At most `per_prompt` comparisons of each prompt's different answers, by prompt; a prompt whose answers are all equal has none."""
    from include.data.annotation_batches import Comparison

    by_prompt: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        by_prompt.setdefault(candidate.prompt_id, []).append(candidate)
    return [
        Comparison(prompt=prompts[prompt_id], candidate_a=a, candidate_b=b)
        for prompt_id, answers in sorted(by_prompt.items())
        for a, b in pairs_of(_different(answers), per_prompt)
    ]


def _different(answers: Sequence[Candidate]) -> list[Candidate]:
    first: dict[Any, Candidate] = {}
    for answer in answers:
        first.setdefault(digest("answer", [answer.response_text, list(answer.tool_calls or ())]), answer)
    return list(first.values())


def pairs_of(answers: Sequence[Candidate], most: int) -> list[tuple[Candidate, Candidate]]:
    """At most `most` pairs of `answers`, so that none is in many while another is in few; the first is of the first two."""
    left = list(combinations(range(len(answers)), 2))
    used: Counter[int] = Counter()
    chosen: list[tuple[Candidate, Candidate]] = []
    while left and len(chosen) < most:
        pair = min(left, key=lambda p: (max(used[p[0]], used[p[1]]), used[p[0]] + used[p[1]], p))
        left.remove(pair)
        used.update(pair)
        chosen.append((answers[pair[0]], answers[pair[1]]))
    return chosen


def _has_a_short_side(task: "Comparison") -> bool:
    from include.data.short_wins import short_beside

    return short_beside(task.candidate_a.response_text, task.candidate_b.response_text)


def shared_out(tasks: "Sequence[Comparison]", wanted: AnnotationSettings, unattended: bool) -> "tuple[list[Comparison], int]":
    """The comparisons that are labelled, and how many of them by people. Without a verifier there are no others.

    Raises:
        FlowError: fewer labels can come than `annotation.min_labels` asks for.
    """
    chosen, people = list(tasks), min(wanted.human_tasks, len(tasks))
    if not wanted.verifier:
        if wanted.human_tasks:
            # By hash, so that what is left out is nobody's choice, and each side of the split keeps its share.
            drawn = sorted(tasks, key=lambda t: digest("comparison-order", [t.candidate_a.candidate_id, t.candidate_b.candidate_id]))
            short = [task for task in drawn if _has_a_short_side(task)][: math.ceil(wanted.short_answer_share * wanted.human_tasks)]
            first = {id(task) for task in short}
            taken = {id(task) for task in [*short, *(t for t in drawn if id(t) not in first)][: wanted.human_tasks]}
            chosen = [task for task in tasks if id(task) in taken]
        people = len(chosen)
    elif unattended:
        people = 0
    labels = len(chosen) - people + labels_wanted(people, wanted)
    if labels < wanted.min_labels:
        raise FlowError(
            f"{labels} labels can come of {len(chosen)} comparisons, annotation.min_labels asks for {wanted.min_labels}: raise "
            "generate.prompt_limit or annotation.human_tasks, or lower it"
        )
    return chosen, people


def added(wanted: AnnotationSettings) -> dict[str, Any]:
    """What else makes a batch another one, left out at its default, so that a batch of an earlier release is found again."""
    values = {
        "comparisons": (wanted.comparisons_per_prompt, 1),
        "short": (wanted.short_answer_share, 0.0),
        "overlap_annotators": (wanted.overlap_annotators, 2),
        "annotator_share": (wanted.max_annotator_share, None),
        "gold": ([wanted.gold, wanted.gold_share] if wanted.gold else None, None),
        "review": ([wanted.min_gold_accuracy, wanted.min_gold_labels] if wanted.min_gold_accuracy is not None else None, None),
    }
    return {name: value for name, (value, usual) in values.items() if value != usual}


def labels_wanted(people: int, wanted: AnnotationSettings) -> int:
    """Labels that people are asked for, those of comparisons that several get included."""
    return people + math.ceil(people * wanted.overlap_share - 1e-9) * (wanted.overlap_annotators - 1)


def per_annotator(people: int, wanted: AnnotationSettings) -> int | None:
    """So many comparisons one of them gets at most; None where the recipe sets no share."""
    return None if wanted.max_annotator_share is None else max(1, math.ceil(wanted.max_annotator_share * labels_wanted(people, wanted)))
