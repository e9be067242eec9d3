"""Answers as annotators may see them: what a policy wrote may repeat personal data, so it is treated as the data's own rows are.

An answer with personal data is masked: another record, with a candidate_id of its own that holds the masked text, bound to the answer
as it was written by `masked_from`. What is compared is what is learnt from: labels name the masked record, so no pair holds a text that
nobody saw. An answer with a kind that the policy refuses, or one that is too long to scan, is compared with nothing.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from include.data.errors import DataError
from include.domain.canonical import digest
from include.domain.records import Candidate, Label, Message, Prompt, candidate_id_of
from include.transforms.pii import Masker, PiiSettings

TOO_LONG = "not scanned"


@dataclass(frozen=True)
class ShownAnswers:
    """answers: in their order, as they are shown. masked: those of them that are another text than was written. left_out: candidate_id → why.

    found: stretches of personal data by kind, in masked answers and in those left out.
    """

    answers: tuple[Candidate, ...]
    masked: tuple[Candidate, ...]
    left_out: Mapping[str, str]
    found: Mapping[str, int]

    @property
    def marks(self) -> dict[str, str]:
        """What makes a batch another one; nothing where every answer is shown as it was written."""
        if not self.masked and not self.left_out:
            return {}
        return {"shown": digest("shown-answers", [[one.candidate_id for one in self.masked], dict(self.left_out)])}

    @property
    def text(self) -> str:
        found = ", ".join(f"{kind} {n}" for kind, n in self.found.items()) or "nothing"
        reasons = ", ".join(f"{why} {n}" for why, n in sorted(Counter(self.left_out.values()).items()))
        return f"Personal data in answers: {found}; {len(self.masked)} are shown masked, {len(self.left_out)} are not shown" + (
            f" ({reasons})" if reasons else ""
        )

    def check(self, limit: float) -> None:
        """Raises DataError where more than this share of the answers may not be shown."""
        whole = len(self.answers) + len(self.left_out)
        if self.left_out and len(self.left_out) > limit * whole:
            raise DataError(
                f"{self.text}. That is a share of {len(self.left_out) / whole:.3f} of {whole} answers, data.max_quarantine_share allows "
                f"{limit:g}: the policy writes what data.pii.refuse keeps out. Look at what it learnt from, or mask these kinds instead"
            )


def as_shown(candidates: Sequence[Candidate], prompts: Mapping[str, Prompt], settings: PiiSettings) -> ShownAnswers:
    """The answers as annotators may see them. One value has one number in all answers to a prompt, and none that a mask of the prompt has."""
    by_prompt: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        by_prompt.setdefault(candidate.prompt_id, []).append(candidate)
    shown: dict[str, Candidate] = {}
    left_out: dict[str, str] = {}
    found: Counter[str] = Counter()
    for prompt_id, answers in by_prompt.items():
        masker = Masker(settings, beside=(*_texts_of(prompts[prompt_id]), *(answer.response_text for answer in answers)))
        for answer in sorted(answers, key=lambda one: one.candidate_id):
            before = Counter(masker.seen)
            seen, why = _one(answer, masker, settings)
            kinds = Counter(masker.seen) - before
            found.update(kinds)
            if refused := sorted(set(kinds) & set(settings.refuse)):
                why = ", ".join(refused)
            if why:
                left_out[answer.candidate_id] = why
            else:
                shown[answer.candidate_id] = seen
    kept = tuple(shown[one.candidate_id] for one in candidates if one.candidate_id in shown)
    masked = tuple(sorted((one for one in kept if one.masked_from is not None), key=lambda one: one.candidate_id))
    return ShownAnswers(kept, masked, dict(sorted(left_out.items())), dict(sorted(found.items())))


def shown_texts(prompt: Prompt, texts: Sequence[str], settings: PiiSettings) -> tuple[tuple[str, ...] | None, Mapping[str, int]]:
    """Answers to one prompt, compared for an evaluation alone, as annotators may see them; and what was found, by kind.

    None: one of them holds a kind that the policy refuses, or is too long to scan, so they are not compared.
    """
    if any(len(text) > settings.max_characters for text in texts):
        return None, {}
    masker = Masker(settings, beside=(*_texts_of(prompt), *texts))
    seen = tuple(masker.text(text) for text in texts)
    return (None if set(masker.seen) & set(settings.refuse) else seen), dict(masker.seen)


def why_not_shown(seen: Collection[str], settings: PiiSettings) -> str:
    """Of answers that `shown_texts` keeps back, with the kinds it has `seen`: the refused ones, or that they were not scanned."""
    return ", ".join(sorted(set(seen) & set(settings.refuse))) or TOO_LONG


def _one(answer: Candidate, masker: Masker, settings: PiiSettings) -> tuple[Candidate, str]:
    """The answer as it is shown, and why it is not."""
    if any(len(text) > settings.max_characters for text in _strings([answer.response_text, list(answer.tool_calls or ())])):
        return answer, TOO_LONG
    before = dict(masker.seen)
    turn = masker.message(Message("assistant", answer.response_text, answer.tool_calls))
    if masker.seen == before:
        return answer, ""
    changed = {"response_text": turn.content, "tool_calls": turn.tool_calls, "token_ids": None, "masked_from": answer.candidate_id}
    unnamed = replace(answer, **changed)  # type: ignore[arg-type]
    return replace(unnamed, candidate_id=candidate_id_of(unnamed.to_json())), ""


def _texts_of(prompt: Prompt) -> Iterable[str]:
    for message in prompt.messages:
        yield from _strings([message.content, list(message.tool_calls or ())])


def _strings(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)


def shown_as_written(labels: Sequence[Label], candidates: Iterable[Candidate], settings: PiiSettings) -> Collection[str]:
    """Ids of compared answers that hold personal data all the same: they were shown before answers were masked, or under another policy."""
    compared = {id_ for label in labels for id_ in (label.candidate_a_id, label.candidate_b_id)}
    unsafe = set()
    for candidate in candidates:
        if candidate.candidate_id in compared:
            seen, why = _one(candidate, Masker(settings), settings)
            if why or seen is not candidate:
                unsafe.add(candidate.candidate_id)
    return unsafe
