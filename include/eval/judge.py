"""A model as judge: each pair of answers in both orders, every reply held against a grammar.

    python -m include.eval.judge --spec RUN/spec.json --placement ATTEMPT/placement.json --out ATTEMPT

Inputs: answers (of an evaluation), suite_<name> for the prompts, and `judge`, a model folder, unless a server judges. Output: `judgements`
(judgements.json): of each pair both verdicts and what they come to, and how often the first answer won whatever it was.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from include.domain.canonical import digest
from include.domain.records import Prompt, SuiteItem
from include.domain.spec import RunSpec
from include.eval.compared import ANSWERS_FILE
from include.eval.compared import SCHEMA as ANSWERS_SCHEMA
from include.eval.errors import EvaluationError
from include.eval.judge_models import JudgeModel, LocalJudge, ServerJudge, key_of
from include.eval.judging import OURS, THEIRS, TIE, both_orders, check_template, question_text, shown, verdict_of
from include.eval.loop import run_units
from include.eval.suites import portions
from include.runtime.job import Job
from include.runtime.program import run_program
from include.transforms.datasets_io import read_suite

SCHEMA = "align/judgements/v1"
CONFIG_KEYS = ("judge", "items", "who", "template", "max_new_tokens", "dtype", "pairs")
PORTION = 8
"""Pairs a unit of work: fixed, as the units of another attempt must be the same."""
_VALUES = {OURS: 1.0, TIE: 0.5, THEIRS: 0.0}


@dataclass(frozen=True)
class Pair:
    """One item's two answers, of the candidate and of the deployment `against`."""

    suite: str
    against: str
    item: Mapping[str, Any]
    prompt: Prompt
    ours: str
    theirs: str


class Bench:
    """Asks the judge, portion by portion; `verdicts`: of each pair so far, with the candidate's answer first, and second."""

    def __init__(self, job: Job, judge: JudgeModel, pairs: Sequence[Pair]) -> None:
        self.job, self.judge, self.pairs = job, judge, pairs
        self.template = job.config.text("template")
        check_template(self.template)
        self.verdicts: list[tuple[str | None, str | None]] = []

    def run(self, unit: tuple[int, int]) -> dict[str, float]:
        pairs = self.pairs[unit[0] : unit[1]]
        texts = [self._text(pair, first) for pair in pairs for first in (True, False)]
        found = [verdict_of(reply) for reply in self.judge.replies(texts)]
        self.verdicts += list(zip(found[0::2], found[1::2], strict=True))
        return {"pairs": float(len(pairs)), "no_verdict": float(found.count(None))}

    def _text(self, pair: Pair, ours_first: bool) -> str:
        first, second = (pair.ours, pair.theirs) if ours_first else (pair.theirs, pair.ours)
        texts = {"question": question_text(pair.prompt.messages), "first": first, "second": second}
        return shown(self.template, texts, self.job.seed, self.judge.special)

    def capture(self) -> bytes:
        return json.dumps({"verdicts": self.verdicts, "seen": dict(self.judge.seen)}).encode()

    def restore(self, data: bytes) -> None:
        body = json.loads(data)
        self.judge.go_on(body["seen"])
        self.verdicts = [(one, other) for one, other in body["verdicts"]]


def pairs_of(job: Job) -> list[Pair]:
    """Every pair that is asked about: two equal answers are none, as nobody has to judge them."""
    answers = json.loads((job.input("answers") / ANSWERS_FILE).read_bytes())
    if answers.get("schema") != ANSWERS_SCHEMA:
        raise EvaluationError(f"input answers has schema {answers.get('schema')!r}, expected {ANSWERS_SCHEMA!r}")
    written = {(one["suite"], one["deployment"]): _one_each(answers, one) for one in answers["answers"]}
    most, found = job.config.integer("items", 0) or None, []
    for asked in job.config.values["pairs"]:
        suite = asked["suite"]
        prompts = _prompts(job, suite)
        ours, theirs = written[suite, asked["candidate"]], written[suite, asked["against"]]
        items = answers["suites"][suite]["items"]
        found += [
            Pair(suite, asked["against"], item, prompts[item["prompt_id"]], own, other)
            for item, own, other in list(zip(items, ours, theirs, strict=True))[:most]
            if own != other and item["id"] not in asked.get("kept_back", ())
        ]
    return found


def _one_each(answers: Mapping[str, Any], of: Mapping[str, Any]) -> list[str]:
    """A deployment's answers on a suite.

    Raises:
        EvaluationError: they are not one for each item, so nobody knows which belongs to which.
    """
    texts: list[str] = of["texts"]
    items = len(answers["suites"][of["suite"]]["items"])
    if len(texts) != items:
        raise EvaluationError(
            f"input answers has {len(texts)} answers of {of['deployment']} on suite {of['suite']}, which has {items} items"
        )
    return texts


def _prompts(job: Job, suite: str) -> dict[str, Prompt]:
    items = (SuiteItem.from_json(row.record) for row in read_suite(job.input(f"suite_{suite}")))
    return {item.prompt.prompt_id: item.prompt for item in items}


def judge_of(job: Job) -> JudgeModel:
    """Who judges, by the specification; a server's address and key are the placement's."""
    who, longest = job.config.section("who"), job.config.positive("max_new_tokens")
    if who.text("kind", ("local", "server")) == "local":
        rows = job.settings.positive("generation_batch", 8)
        return LocalJudge(job.input("judge"), job.config.text("dtype"), longest, rows)
    fingerprint = str(who.values["fingerprint"]) if who.values.get("fingerprint") else None
    key = key_of(job.settings.text("api_key_file", default="") or None)
    return ServerJudge(job.settings.text("url"), who.text("model"), fingerprint, longest, key)


def body_of(bench: Bench) -> dict[str, Any]:
    """judgements.json: pairs, and the judge's habits. An inconsistent pair is one whose two verdicts name different answers."""
    judged = [(pair, one, other, both_orders(one, other)) for pair, (one, other) in zip(bench.pairs, bench.verdicts, strict=True)]
    replies = Counter(verdict or "no_verdict" for pair in bench.verdicts for verdict in pair)
    both = [(one, other) for _, one, other, end in judged if end is not None]
    counts = {
        "pairs": len(judged),
        "kept_back_pairs": sum(len(asked.get("kept_back", ())) for asked in bench.job.config.values["pairs"]),
        "replies": 2 * len(judged),
        "no_verdict_replies": replies["no_verdict"],
        "no_verdict_pairs": len(judged) - len(both),
        "inconsistent_pairs": sum(both_orders(one, other) == TIE and (one, other) != ("tie", "tie") for one, other in both),
        "first_won": replies["A"],
        "second_won": replies["B"],
        "tie_replies": replies["tie"],
    }
    return {
        "schema": SCHEMA,
        "who": {**bench.job.config.section("who").values, **bench.judge.seen},
        "template": digest("judge-template", bench.template),
        "counts": counts,
        "pairs": [
            {
                "suite": pair.suite,
                "against": pair.against,
                "id": pair.item["id"],
                "ours_first": one,
                "theirs_first": other,
                "verdict": end,
                "value": None if end is None else _VALUES[end],
            }
            for pair, one, other, end in judged
        ],
    }


def judge(job: Job) -> None:
    job.config.only(*CONFIG_KEYS)
    pairs = pairs_of(job)
    if not pairs:
        raise EvaluationError("no two answers differ: there is nothing to judge")
    bench = Bench(job, judge_of(job), pairs)
    run_units(job, bench, portions(pairs, PORTION))  # type: ignore[arg-type]
    body = body_of(bench)
    with job.output("judgements", "report") as folder:
        (folder / "judgements.json").write_text(json.dumps(body, sort_keys=True, allow_nan=False) + "\n", "utf-8")
    job.complete({name: float(value) for name, value in body["counts"].items()}, summary={"who": body["who"]})


def judges_own_tokens(spec: RunSpec) -> dict[str, tuple[str | None, str | None]]:
    """The judge has a tokenizer and template of its own: it is no relative of the models it judges."""
    who: Mapping[str, Any] = spec.config.get("who") or {}
    return {"judge": (who.get("tokenizer"), who.get("chat_template"))}


def main(argv: Sequence[str] | None = None) -> int:
    return run_program("evaluate", judge, argv, others=judges_own_tokens)


if __name__ == "__main__":
    raise SystemExit(main())
