"""From raw rows to the drafts of one dataset or several."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from include.data.errors import DataError
from include.data.plan import BuildPlan, SourcePlan
from include.domain.split import USES
from include.transforms.draft import Draft
from include.transforms.normalise import ROW_KINDS, normalise_row
from include.transforms.problems import Problem
from include.transforms.rows import Quarantined, RawRow
from include.transforms.source import Source
from include.transforms.sources import arithmetic, asdiv, bbq, ifeval, piqa, xstest
from include.transforms.split import EVALUATION
from include.transforms.synthetic import limited, pairs_of
from include.verifiers.errors import VerifierError
from include.verifiers.registry import verify

Rows = Iterable[RawRow | Quarantined]


@dataclass(frozen=True)
class Contribution:
    """Drafts for one dataset.

    use: demonstration, preference, rl or evaluation. shared: the same rows feed several uses, so each training group is given to
    one of them by the project's shares; otherwise the rows serve the use they were brought for.
    """

    dataset_id: str
    rows: str
    use: str
    drafts: list[Draft]
    shared: bool = False


@dataclass(frozen=True)
class Mapped:
    contributions: list[Contribution]
    quarantined: list[Quarantined]


def map_rows(rows: Rows, item: SourcePlan, plan: BuildPlan) -> Mapped:
    """The rows of one source as its mapping has them."""
    return _MAPPINGS[item.mapping](rows, item, plan)


def _parted(rows: Iterable[Draft | Quarantined]) -> tuple[list[Draft], list[Quarantined]]:
    drafts: list[Draft] = []
    quarantined: list[Quarantined] = []
    for row in rows:
        (quarantined if isinstance(row, Quarantined) else drafts).append(row)  # type: ignore[arg-type]
    return drafts, quarantined


def _own_rows(rows: Rows, item: SourcePlan, plan: BuildPlan) -> Mapped:
    """A file of the user's: options name the dataset, what its rows are, and what they are for."""
    options = {"use": None, "shared": False, **item.options}
    if unknown := set(options) - {"dataset", "rows", "use", "shared"}:
        raise DataError(f"source {item.source.name}: option {sorted(unknown)[0]!r} is none of dataset, rows, use, shared")
    kind, dataset_id = options.get("rows"), options.get("dataset")
    if kind not in ROW_KINDS or not dataset_id:
        raise DataError(f"source {item.source.name}: options need `dataset` and `rows` ({', '.join(ROW_KINDS)}); got {dict(item.options)}")
    use = options["use"] or {"demonstration": "demonstration", "pair": "preference", "suite": EVALUATION}.get(kind)
    if use not in (*USES, EVALUATION):
        raise DataError(f"source {item.source.name}: `use` {use!r} of {kind} rows is none of {', '.join((*USES, EVALUATION))}")
    drafts, quarantined = _parted(
        row if isinstance(row, Quarantined) else _verifiable(normalise_row(row, kind, item.source), row, item.source) for row in rows
    )
    if kind == "pair":
        drafts = [_imported(draft, item) for draft in drafts]
    return Mapped([Contribution(dataset_id, kind, use, drafts, bool(options["shared"]))], quarantined)


def _verifiable(draft: Draft | Quarantined, row: RawRow | Quarantined, source: Source) -> Draft | Quarantined:
    """The draft of `row`; set aside where its reference names no verifier, or holds what that verifier refuses."""
    if isinstance(draft, Draft) and draft.reference is not None:
        try:
            verify(draft.reference, "")
        except VerifierError as error:
            return Quarantined(source.name, row.line, f"reference: {error}", row.raw)
    return draft


def _imported(draft: Draft, item: SourcePlan) -> Draft:
    return replace(draft, origin=f"external:{draft.source}@{item.sha256}")


def _asdiv(rows: Rows, item: SourcePlan, plan: BuildPlan) -> Mapped:
    problems: list[Problem] = []
    quarantined: list[Quarantined] = []
    for row in rows:
        found = row if isinstance(row, Quarantined) else asdiv.problem_of(row, item.source, plan.verifier_version)
        (quarantined if isinstance(found, Quarantined) else problems).append(found)  # type: ignore[arg-type]
    return Mapped(_of_problems(problems, plan), quarantined)


def _of_problems(problems: list[Problem], plan: BuildPlan) -> list[Contribution]:
    demonstrations = [draft for problem in problems if (draft := problem.demonstration())]
    pairs = limited([draft for problem in problems for draft in pairs_of(problem, plan.synthetic)], plan.synthetic)
    prompts = [problem.draft for problem in problems]
    return [
        Contribution("demonstrations", "demonstration", "demonstration", demonstrations, shared=True),
        Contribution("preference_prompts", "prompt", "preference", prompts, shared=True),
        Contribution("rl_prompts", "prompt", "rl", prompts, shared=True),
        Contribution("synthetic_pairs", "pair", "preference", pairs, shared=True),
        Contribution("word_problems", "suite", EVALUATION, [problem.suite_item() for problem in problems]),
    ]


def _piqa(rows: Rows, item: SourcePlan, plan: BuildPlan) -> Mapped:
    drafts, quarantined = _parted(row if isinstance(row, Quarantined) else piqa.item_of(row, item.source) for row in rows)
    return Mapped([Contribution("piqa", "suite", EVALUATION, drafts)], quarantined)


def _bbq(rows: Rows, item: SourcePlan, plan: BuildPlan) -> Mapped:
    drafts, quarantined = _parted(row if isinstance(row, Quarantined) else bbq.item_of(row, item.source) for row in rows)
    return Mapped([Contribution("bbq", "suite", EVALUATION, drafts)], quarantined)


def _xstest(rows: Rows, item: SourcePlan, plan: BuildPlan) -> Mapped:
    """Requests to be answered and to be declined; options: dataset (the suite's name)."""
    options = {"dataset": "requests", **item.options}
    if unknown := set(options) - {"dataset"}:
        raise DataError(f"source {item.source.name}: option {sorted(unknown)[0]!r} is not known; there is dataset")
    drafts, quarantined = _parted(row if isinstance(row, Quarantined) else xstest.item_of(row, item.source) for row in rows)
    return Mapped([Contribution(str(options["dataset"]), "suite", EVALUATION, drafts)], quarantined)


def _ifeval(rows: Rows, item: SourcePlan, plan: BuildPlan) -> Mapped:
    """Instructions whose following is checked; options: dataset (the suite's name)."""
    options = {"dataset": "instructions", **item.options}
    if unknown := set(options) - {"dataset"}:
        raise DataError(f"source {item.source.name}: option {sorted(unknown)[0]!r} is not known; there is dataset")
    found = ((row, row if isinstance(row, Quarantined) else ifeval.item_of(row, item.source)) for row in rows)
    drafts, quarantined = _parted(_verifiable(draft, row, item.source) for row, draft in found)
    return Mapped([Contribution(str(options["dataset"]), "suite", EVALUATION, drafts)], quarantined)


def _arithmetic(rows: Rows, item: SourcePlan, plan: BuildPlan) -> Mapped:
    """Generated; options: seed, rows (problems), choices and names (items drawn for these suites, of which the hold-out stays)."""
    options = {"seed": 0, "rows": 2400, "choices": 1600, "names": 1600, **item.options}
    if unknown := set(options) - {"seed", "rows", "choices", "names"}:
        raise DataError(f"source {item.source.name}: option {sorted(unknown)[0]!r} is none of seed, rows, choices, names")
    seed = int(options["seed"])
    problems = arithmetic.problems(item.source, seed, int(options["rows"]), plan.verifier_version)
    suites = [
        Contribution("choices", "suite", EVALUATION, arithmetic.choices(item.source, seed, int(options["choices"]))),
        Contribution("names", "suite", EVALUATION, arithmetic.names(item.source, seed, int(options["names"]))),
    ]
    return Mapped([*_of_problems(problems, plan), *suites], [])


_MAPPINGS: Mapping[str, Callable[[Rows, SourcePlan, BuildPlan], Mapped]] = {
    "rows": _own_rows,
    "asdiv": _asdiv,
    "piqa": _piqa,
    "bbq": _bbq,
    "xstest": _xstest,
    "ifeval": _ifeval,
    "arithmetic": _arithmetic,
}
