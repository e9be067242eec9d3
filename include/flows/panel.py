"""The panel: whose answers people compare with the candidate's, and the batches of these comparisons, each opened once.

A batch is of one suite and one other deployment. Its purpose is `evaluation`: what is said there trains nothing. Which answer is A is drawn
by the recipe's seed; which of the two is shown on the left the annotation service draws for each person, and records.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from include.domain.canonical import digest
from include.domain.records import Candidate, Prompt, SuiteItem
from include.flows import services
from include.flows.errors import FlowError
from include.flows.measured import answers_of, gate_set
from include.settings.catalogue import recipe, rubric
from include.settings.panel import PanelSettings
from include.settings.recipes import Recipe

if TYPE_CHECKING:
    from include.data.annotation_batches import BatchRequest, Comparison
    from include.data.annotation_client import AnnotationClient
    from include.gates.policy import GateSet

Json = Mapping[str, Any]
ANSWERS, SCHEMA = "answers", "align/answers/v1"
SHOWN = ("none", "masked")
"""What is known of personal data in a prompt that a person may see."""
Shown = tuple[Json, Prompt, str, str]
"""An item, its prompt, the candidate's answer and the other's, as people see them."""


@dataclass(frozen=True)
class Pairing:
    """The candidate's answers beside those of one other deployment, which stands under `roles`. items: {id, prompt_id, group, slices}."""

    suite: str
    suite_digest: str
    roles: tuple[str, ...]
    ours: Json
    theirs: Json
    items: tuple[Json, ...]

    @property
    def opponent(self) -> str:
        return str(self.theirs["deployment"])

    def texts(self) -> Iterator[tuple[Json, str, str]]:
        """(item, the candidate's answer, the other's)."""
        count = len(self.items)
        return zip(self.items, self.ours["texts"][:count], self.theirs["texts"][:count], strict=True)

    def different(self) -> list[tuple[Json, str, str]]:
        """Those that there is something to compare of: two equal answers are a tie that nobody is asked about."""
        return [pair for pair in self.texts() if pair[1] != pair[2]]


@dataclass(frozen=True)
class NotShown:
    """Items that people may not see, each with why: for its prompt, or for what one of its answers holds."""

    prompts: Mapping[str, str] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.prompts) + len(self.answers)

    @property
    def reasons(self) -> dict[str, str]:
        """item → why."""
        return {
            **{item: f"prompt: {why}" for item, why in self.prompts.items()},
            **{i: f"answer: {why}" for i, why in self.answers.items()},
        }

    @property
    def text(self) -> str:
        """How many, and how many of each reason."""
        counts = ", ".join(f"{why} {n}" for why, n in sorted(Counter(self.reasons.values()).items()))
        return f"{len(self)} not shown" + (f" ({counts})" if counts else "")


@dataclass(frozen=True)
class Opened:
    """A pairing whose comparisons are with people. batch_id: None where no two answers differ. kept_out: annotators who get none of it."""

    pairing: Pairing
    sides: Mapping[str, str]
    batch_id: str | None
    kept_out: tuple[str, ...]
    unseen: NotShown


def opponents(gates: "GateSet", models: Sequence[str], metric: str) -> list[tuple[str, str]]:
    """(suite, role) that the set's gates compare the candidate with by a pairwise metric, each once."""
    from include.gates.judge import baselines

    found = [(str(gate.suite), str(role)) for gate in gates.gates if gate.metric == metric for role in baselines(gate, models)]
    return list(dict.fromkeys(found))


def pairings(answers: Json, wanted: Sequence[tuple[str, str]], most: int = 0) -> list[Pairing]:
    """What is compared: roles of one deployment once, at most the first `most` items (0: all).

    Raises:
        FlowError: answers of a role on a suite are not there, or are not one for each item.
    """
    if answers.get("schema") != SCHEMA:
        raise FlowError(f"answers have schema {answers.get('schema')!r}, expected {SCHEMA!r}")
    found: dict[tuple[str, str], Pairing] = {}
    for suite, role in wanted:
        ours, theirs = _answers(answers, suite, "candidate"), _answers(answers, suite, role)
        told, key = answers["suites"][suite], (suite, str(theirs["deployment"]))
        roles = (*(found[key].roles if key in found else ()), role)
        found[key] = Pairing(suite, told["digest"], roles, ours, theirs, tuple(told["items"][: most or None]))
    return list(found.values())


def _answers(answers: Json, suite: str, role: str) -> Json:
    one = next((one for one in answers["answers"] if one["suite"] == suite and role in one["roles"]), None)
    if one is None:
        raise FlowError(f"the evaluation gave no answers of {role} on suite {suite}: does configs/suites name its scorer there?")
    if (there := len(one["texts"])) != (items := len(answers["suites"][suite]["items"])):
        raise FlowError(f"the evaluation gave {there} answers of {role} on suite {suite}, which has {items} items: measure it again")
    return dict(one)


def settings_of(found: Recipe) -> PanelSettings:
    """The recipe's panel; raises FlowError where gates ask people and the recipe does not say how."""
    if found.human_pairwise is None:
        raise FlowError(f"recipe {found.reference}: gates {found.gates} read human_win_rate, and the recipe has no `human_pairwise`")
    return found.human_pairwise


def open_panel(run: Json, wanted: Json, measured: Json) -> list[Opened]:
    """Every batch that the gates need, made or found; none where no gate reads human_win_rate."""
    from include.gates.metrics import HUMAN_WIN_RATE

    beside = opponents(gate_set(run), sorted(wanted["models"]), HUMAN_WIN_RATE)
    if not beside:
        return []
    found = recipe(run["recipe"])
    panel = settings_of(found)
    with services.annotation("pipeline") as client:
        kept_out = trainers(client, wanted.get("learnt_from", {})) if panel.not_trainers else ()
        return [_opened(client, found, one, wanted, kept_out) for one in pairings(answers_of(measured), beside, panel.human_tasks)]


def _opened(client: "AnnotationClient", found: Recipe, pairing: Pairing, wanted: Json, kept_out: tuple[str, ...]) -> Opened:
    from include.gates.pairwise import sides

    shown, unseen, found_in = _shown_texts(pairing, prompts_of_suite(wanted["suites"][pairing.suite]), found)
    ours = sides(found.seed, str(pairing.ours["deployment"]), pairing.opponent, [item["id"] for item in pairing.items])
    tasks = _comparisons(pairing, shown, ours)
    if not tasks:
        return Opened(pairing, ours, None, kept_out, unseen)
    key, request = _request(found, pairing, tasks, kept_out)
    if found_in:
        print("Personal data in answers, not shown: " + ", ".join(f"{kind} {n}" for kind, n in sorted(found_in.items())))
    receipt = client.create_batch(key, request)
    print(
        f"Batch {receipt.batch_id}: {len(tasks)} comparisons of the candidate with {', '.join(pairing.roles)} on {pairing.suite}; "
        f"{len(pairing.items) - len(pairing.different())} with equal answers are ties, {unseen.text}, "
        f"{len(kept_out)} annotators labelled what it learnt from and get none of them"
    )
    return Opened(pairing, ours, receipt.batch_id, kept_out, unseen)


def prompts_of_suite(ref: Json) -> dict[str, Prompt]:
    """Every prompt of a suite, by its id."""
    from include.flows.preference_tasks import local_dataset
    from include.transforms.datasets_io import read_suite

    items = (SuiteItem.from_json(row.record) for row in read_suite(local_dataset(ref)))
    return {item.prompt.prompt_id: item.prompt for item in items}


def _shown_texts(pairing: Pairing, prompts: Mapping[str, Prompt], found: Recipe) -> "tuple[list[Shown], NotShown, Counter[str]]":
    """What people may see of the pairing, personal data in answers masked by `data.pii`; what they may not; and how much of it there was, by
    kind."""
    from include.data.plan import pii_of
    from include.data.shown_answers import shown_texts, why_not_shown

    shown: list[Shown] = []
    of_prompts: dict[str, str] = {}
    of_answers: dict[str, str] = {}
    counts, settings = Counter[str](), pii_of(found.data)
    for item, own, other in pairing.different():
        prompt = prompts[item["prompt_id"]]
        texts, seen = shown_texts(prompt, (own, other), settings)
        counts.update(seen)
        if prompt.pii not in SHOWN:
            of_prompts[item["id"]] = prompt.pii
        elif texts is None:
            of_answers[item["id"]] = why_not_shown(seen, settings)
        else:
            shown.append((item, prompt, texts[0], texts[1]))
    return shown, NotShown(of_prompts, of_answers), counts


def _comparisons(pairing: Pairing, shown: "Sequence[Shown]", ours: Mapping[str, str]) -> "list[Comparison]":
    from include.data.annotation_batches import Comparison

    tasks = []
    for item, prompt, own, other in shown:
        pair = (answer(pairing.ours, item, own), answer(pairing.theirs, item, other))
        a, b = pair if ours[item["id"]] == "A" else pair[::-1]
        tasks.append(Comparison(prompt, a, b))
    return tasks


def answer(side: Json, item: Json, text: str) -> Candidate:
    """An answer as a candidate: its id says of which deployment and item it is, and stays on the server."""
    name = answer_id(side, item)
    return Candidate(name, item["prompt_id"], str(side["model"]), "", "", None, None, text, "eos", "none")


def answer_id(side: Json, item: Json) -> str:
    return digest("panel-answer", [side["deployment"], item["id"]])


def _request(found: Recipe, pairing: Pairing, tasks: "Sequence[Comparison]", kept_out: tuple[str, ...]) -> "tuple[str, BatchRequest]":
    """The batch and its key: made of the very texts, the rubric, and who compares."""
    from include.data.annotation_batches import BatchRequest
    from include.flows.comparisons import added, per_annotator
    from include.flows.gold_items import gold_for

    wanted = settings_of(found)
    shown = rubric(wanted.rubric)
    body = {"candidate": pairing.ours["deployment"], "against": pairing.opponent, "suite": pairing.suite_digest, "rubric": shown.version}
    body |= {"texts": [[item["id"], own, other] for item, own, other in pairing.different()], "seed": found.seed, "not_by": list(kept_out)}
    body |= {"overlap": wanted.overlap_share, "items": len(pairing.items), **added(wanted), **_marks(pairing, tasks)}
    key = digest("panel-batch", body)
    request = BatchRequest(
        purpose="evaluation",
        rubric=shown,
        tasks=tasks,
        human=len(tasks),
        overlap_share=wanted.overlap_share,
        overlap_annotators=wanted.overlap_annotators,
        gold_items=gold_for(wanted, len(tasks), key),
        per_annotator=per_annotator(len(tasks), wanted),
        review=None if wanted.min_gold_accuracy is None else (wanted.min_gold_accuracy, wanted.min_gold_labels),
        not_by=kept_out,
    )
    return key, request


def _marks(pairing: Pairing, tasks: "Sequence[Comparison]") -> dict[str, str]:
    """What masking makes another batch; nothing where all is shown as it was written, as it was before answers were masked."""
    written = {text for _, *both in pairing.texts() for text in both}
    texts = [[task.candidate_a.response_text, task.candidate_b.response_text] for task in tasks]
    as_written = len(texts) == len(pairing.different()) and all(text in written for both in texts for text in both)
    return {} if as_written else {"shown": digest("panel-shown", texts)}


def trainers(client: "AnnotationClient", learnt_from: Json) -> tuple[str, ...]:
    """Pseudonyms of those whose labels are in a dataset the candidate learnt from, as the runs froze them: the same on every try."""
    catalog, wanted = services.catalog(), dict[str, set[str]]()
    for ref in learnt_from.values():
        for member in catalog.datasets.members(ref["content_hash"]):
            if member.batch_id is not None:
                wanted.setdefault(member.batch_id, set()).add(member.label_id)
    found: set[str] = set()
    for batch_id, left in sorted(wanted.items()):
        for mark in sorted({int(kept.high_water_mark) for kept in catalog.labels.snapshots_named(batch_id)}):
            labels = [label for label in client.snapshot(batch_id, mark).labels if label.label_id in left]
            found |= {label.annotator_id for label in labels if label.annotator_kind in ("human", "demo")}
            left -= {label.label_id for label in labels}
            if not left:
                break
    return tuple(sorted(found))
