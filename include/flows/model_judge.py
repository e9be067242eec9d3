"""A model that compares answers: what it is asked, whether people agree with it, and the measurements that come of it.

Its word counts only where the people of the same run, on the same answers, say the same beyond chance; else its metric is *not evaluated*.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from include.domain.canonical import digest
from include.flows import services
from include.flows.benches import bench_of, evaluation
from include.flows.errors import FlowError
from include.flows.measured import answers_of, committed_file, gate_set
from include.flows.panel import SHOWN, Pairing, opponents, pairings, prompts_of_suite
from include.flows.panel_result import Said, put, rows_of
from include.settings.catalogue import judge, recipe
from include.settings.judges import JudgeFile, ModelJudgeSettings
from include.settings.recipes import Recipe
from include.stages.programs import JudgeAsked

Json = Mapping[str, Any]
FILE, SCHEMA = "judge.json", "align/judge/v1"
ROLE = "model_judge"


def pairings_of(run: Json, wanted: Json, measured: Json) -> list[Pairing]:
    """What the recipe's gates ask a judge about; none where no gate does."""
    from include.gates.metrics import JUDGE_WIN_RATE

    beside = opponents(gate_set(run), sorted(wanted["models"]), JUDGE_WIN_RATE)
    return pairings(answers_of(measured), beside, settings_of(recipe(run["recipe"])).items) if beside else []


def settings_of(found: Recipe) -> ModelJudgeSettings:
    """The recipe's judge; raises FlowError where gates read one and the recipe names none."""
    if found.model_judge is None:
        raise FlowError(f"recipe {found.reference}: gates {found.gates} read judge_win_rate, and the recipe has no `model_judge`")
    return found.model_judge


def something_to_judge(run: Json, wanted: Json, measured: Json) -> bool:
    """Whether a gate reads a judge and any two answers differ that it may see."""
    if not (asked := pairings_of(run, wanted, measured)):
        return False
    found = recipe(run["recipe"])
    back = _kept_back(found, asked, wanted) if judge(settings_of(found).judge).server is not None else {}
    return any(len(one.different()) > len(back.get((one.suite, one.opponent), {"kept_back": []})["kept_back"]) for one in asked)


def asked_of(run: Json, wanted: Json, measured: Json) -> JudgeAsked:
    """The judge and the pairs of deployments, as the gates name them now. A server is sent no item that holds personal data."""
    from include.gates.metrics import JUDGE_WIN_RATE

    found = recipe(run["recipe"])
    file = judge(settings_of(found).judge)
    deployments = _deployments(run, wanted)
    beside = opponents(gate_set(run), sorted(wanted["models"]), JUDGE_WIN_RATE)
    back = _kept_back(found, pairings_of(run, wanted, measured), wanted) if file.server is not None else {}
    pairs: list[dict[str, Any]] = [
        {"suite": suite, "candidate": deployments["candidate"], "against": deployments[role], **back.get((suite, deployments[role]), {})}
        for suite, role in beside
    ]
    distinct = list({(pair["suite"], pair["against"]): pair for pair in pairs}.values())
    candidate = wanted["models"]["candidate"]
    tokenizer, template = _tokens(file) or (candidate["tokenizer"], candidate["chat_template"])
    return JudgeAsked(file, tokenizer, template, distinct)


def _kept_back(found: Recipe, asked: Sequence[Pairing], wanted: Json) -> dict[tuple[str, str], dict[str, list[str]]]:
    """(suite, other deployment) → items that no server is sent: their prompt, or one of the answers, holds or may hold personal data."""
    from include.data.plan import pii_of
    from include.data.shown_answers import shown_texts

    back: dict[tuple[str, str], dict[str, list[str]]] = {}
    for one in asked:
        prompts = prompts_of_suite(wanted["suites"][one.suite])
        for item, own, other in one.different():
            prompt = prompts[item["prompt_id"]]
            if prompt.pii not in SHOWN or shown_texts(prompt, (own, other), pii_of(found.data))[0] != (own, other):
                back.setdefault((one.suite, one.opponent), {"kept_back": []})["kept_back"].append(item["id"])
    return back


def _deployments(run: Json, wanted: Json) -> dict[str, str]:
    """role → digest of what the evaluation deploys, as its own plan says."""

    spec = evaluation(bench_of(run), wanted).spec
    return {role: str(body["digest"]) for role, body in spec.config["deployments"].items()}


def _tokens(file: JudgeFile) -> tuple[str, str] | None:
    """Tokenizer and template of a judge's own folder, as the run that made it says; None of a server.

    Raises:
        FlowError: no run of this catalog made the model.
    """
    if file.model is None:
        return None
    catalog = services.catalog()
    known = catalog.artifacts.get(file.model)
    parts = (known.writer or "").split("/") if known else []
    run = catalog.runs.get(f"sha256:{parts[1]}") if len(parts) > 1 and parts[0] == "runs" else None
    done = catalog.runs.committed(run.key) if run else None
    if run is None or done is None:
        raise FlowError(f"judge {file.name}@{file.version}: no committed run of this catalog made {file.model}; import it as a base first")
    told = done.report.summary
    tokenizer, template = run.spec.tokenizer or told.get("tokenizer"), run.spec.chat_template or told.get("chat_template")
    return str(tokenizer), str(template)


def read(run: Json, wanted: Json, of: tuple[Json, Json], judged: Json, writer: str) -> Said:
    """What the judge said as measurements, held against what people said (`of`: the evaluation's result, and panel.json). Kept by digest.

    A judge that people do not agree with, or that gave too few verdicts, gives rows that no gate may use, and says why.
    """
    measured, panel = of
    asked = pairings_of(run, wanted, measured) if _reads_a_judge(run) else []
    if not asked:
        return Said(ROLE)
    found = recipe(run["recipe"])
    settings, file = settings_of(found), judge(settings_of(found).judge)
    body = _judgements(found, file, judged, measured) if judged else {"pairs": [], "counts": {}, "who": None}
    values = {(pair["suite"], pair["against"], pair["id"]): pair["value"] for pair in body["pairs"]}
    told = _calibration(panel, values)
    why = [*told.shortfalls(settings.min_kappa, settings.min_calibration), *_silence(body["counts"], settings)]
    scorer = _scorer(file, body["who"])
    refused = {"refused": {"cause": "uncalibrated", "message": f"the judge {settings.judge} is not heard: {'; '.join(why)}"}} if why else {}
    rows = [{**row, **refused} for one in asked for row in rows_of(_metric(), one, _items(one, values), scorer)]
    kin = _kin(found, file, wanted)
    whole = {
        "schema": SCHEMA,
        "judge": settings.judge,
        "who": body["who"],
        "family": file.family,
        "own_family": kin,
        "template": file.template_digest,
        "counts": body["counts"],
        "calibration": told.to_json(),
        "not_heard": why,
        "rows": rows,
    }
    kept, folder = put("judges", FILE, whole, _parents(file, judged, panel, measured), writer)
    return Said(ROLE, whole, {_metric(): scorer}, _notes(whole, settings), kept, f"{folder}/{FILE}")


def _metric() -> str:
    from include.gates.metrics import JUDGE_WIN_RATE

    return JUDGE_WIN_RATE


def _reads_a_judge(run: Json) -> bool:

    return any(gate.metric == _metric() for gate in gate_set(run).gates)


def _judgements(found: Recipe, file: JudgeFile, judged: Json, measured: Json) -> dict[str, Any]:
    """judgements.json of the judge's run, as it was committed.

    Raises:
        FlowError: another judge, or other answers, than are asked about now.
    """
    run = services.catalog().runs.get(judged["key"])
    now = (settings_of(found).judge, file.template, measured["outputs"]["answers"]["digest"])
    if run is None or (run.spec.config["judge"], run.spec.config["template"], run.spec.inputs["answers"]) != now:
        raise FlowError(
            f"judgements {judged['key']} are of another judge, or of other answers than this evaluation gave: clear `ask_judge`"
        )
    return committed_file(judged["key"], "judgements", "judgements.json")


def _scorer(file: JudgeFile, who: Json | None) -> str:
    """What a judge's share of wins is by: its code, who it is, what it was shown, how it decoded."""
    from include.stages.plan import revision
    from include.stages.programs import SCORERS

    body = {"code": revision(SCORERS[_metric()]), "who": dict(who or {}), "template": file.template_digest}
    return digest("judge-scorer", {**body, "max_new_tokens": file.max_new_tokens, "dtype": file.dtype})


def _items(pairing: Pairing, values: Mapping[tuple[str, str, str], float | None]) -> list[dict[str, Any]]:
    found = []
    for item, own, other in pairing.texts():
        value = 0.5 if own == other else values.get((pairing.suite, pairing.opponent, item["id"]))
        found.append({**item, "value": value})
    return found


def _calibration(panel: Json, values: Mapping[tuple[str, str, str], float | None]) -> Any:
    """Pairs that people and the judge both judged. Equal answers, which nobody was asked about, show nothing."""
    from include.gates.calibration import Both, calibration_of

    pairs = []
    for one in panel["comparisons"]:
        for item in one["items"]:
            said = values.get((one["suite"], one["deployment"], item["id"]))
            if said is not None and item["value"] is not None and not item["equal"]:
                pairs.append(Both(item["group"], float(item["value"]), float(said), {"suite": one["suite"], **item["slices"]}))
    return calibration_of(pairs)


def _silence(counts: Json, settings: ModelJudgeSettings) -> list[str]:
    back = int(counts.get("kept_back_pairs", 0))
    pairs, silent = int(counts.get("pairs", 0)) + back, int(counts.get("no_verdict_pairs", 0)) + back
    if not pairs or silent / pairs <= settings.max_no_verdict_share:
        return []
    return [f"{silent} of {pairs} pairs have no verdict, {settings.max_no_verdict_share:.0%} may"]


def _kin(found: Recipe, file: JudgeFile, wanted: Json) -> str | None:
    """Why the judge is of the policy's own family, in words; None where nothing says so."""
    base = found.base_source.repository or found.base_source.path or ""
    if file.family.lower() in base.lower():
        return f"the policy's base is {base}"
    weights = {role: ref["digest"] for role, ref in wanted["models"].items()}
    if file.model is not None and weights["candidate"] in services.catalog().lineage.spread({file.model}, lambda _: True):
        return "the policy was trained from the judge's own weights"
    return None


def _parents(file: JudgeFile, judged: Json, panel: Json, measured: Json) -> Sequence[tuple[str, str]]:
    found = [(str(measured["outputs"]["answers"]["digest"]), "answers")]
    found += [(str(judged["outputs"]["judgements"]["digest"]), "judgements")] if judged else []
    found += [(file.model, "judge")] if file.model else []
    return [*found, *((f"label:{name}", "calibration") for one in panel["comparisons"] for item in one["items"] for name in item["labels"])]


def _notes(whole: Json, settings: ModelJudgeSettings) -> tuple[str, ...]:
    """What stands in the report: who judged, how sure people make us of it, its habits, and its kinship."""
    counts, overall = whole["counts"], whole["calibration"]["overall"]
    if not counts:
        return (f"model judge {settings.judge}: no two answers differ that it may see, so it was asked nothing",)
    kappa = "not defined" if overall["kappa"] is None else f"{overall['kappa']:.2f} [{overall['lower']}, {overall['upper']}]"
    decided = counts["first_won"] + counts["second_won"]
    habit = f"{counts['first_won'] / decided:.0%}" if decided else "–"
    lines = [
        f"model judge {settings.judge} ({whole['who']['model']}): kappa with people {kappa} on {overall['n']} pairs; of {counts['pairs']} pairs "
        f"{counts['inconsistent_pairs']} changed with the order and count as ties, {counts['no_verdict_pairs']} have no verdict, "
        f"{counts.get('kept_back_pairs', 0)} more hold personal data and were sent to no server; "
        f"the first answer won {habit} of the decided replies"
    ]
    if whole["own_family"]:
        lines.append(f"model judge {settings.judge} is of the policy's own family: {whole['own_family']}")
    return tuple(lines)
