"""A model judge in the chain: what it is asked, whether people agree with it, and what the gates make of that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from include.domain.canonical import digest, sha256_bytes
from include.domain.errors import IntegrityError
from include.domain.layout import RunDir
from include.domain.manifest import FileEntry, Manifest
from include.domain.spec import Report
from include.flows import services
from include.flows.benches import bench_of
from include.flows.errors import FlowError, Rejected
from include.flows.evaluation_tasks import Asked, judge_candidate
from include.flows.gates_fit import require_gates_fit
from include.flows.judge_operator import JudgeOperator
from include.flows.measured import gate_set
from include.flows.model_judge import something_to_judge
from include.flows.planners import PLANNERS
from include.gates.errors import GateError
from include.settings.catalogue import judge, recipe
from include.settings.errors import SettingsError
from tests.annotation.support import World
from tests.flows.conftest import Plane
from tests.flows.releasing import ATTEMPT
from tests.flows.test_panel import CONTEXT, GATES, ITEMS, Evaluated, configure, everybody, waits
from tests.flows.test_people_reach import people  # noqa: F401  the fixture
from tests.stores.things import spec

SERVER = {"url": "http://127.0.0.1:9/v1", "model": "judge-model", "fingerprint": "fp-1", "api_key_file": "/keys/judge"}
HOUSE: dict[str, Any] = {"name": "house", "version": 1, "family": "house", "template": "{question}{first}{second}", "server": SERVER}
JUDGE: dict[str, Any] = {"judge": "house@1", "min_kappa": 0.4, "min_calibration": 10}
BY_JUDGE = {"group": "capability_format", "metric": "judge_win_rate", "suite": "chat", "min_n": 12, "name": "judge_likes_it"}
WITH_JUDGE = [*GATES, {**BY_JUDGE, "kind": "superiority", "against": "sft"}]


@pytest.fixture
def control(plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plane:
    monkeypatch.setenv("ALIGN_WORK", str(tmp_path / "work"))
    configure(plane, gates=WITH_JUDGE)
    suites = {"chat": {"dataset": "chat", "scorers": ["human_win_rate", "judge_win_rate"]}}
    (plane.configs / "suites/tiny.yaml").write_text(yaml.safe_dump({"name": "tiny", "version": 1, "suites": suites}))
    path = plane.configs / "gates/tiny.yaml"
    body = yaml.safe_load(path.read_text())
    del body["not_built"]["capability_format"]
    path.write_text(yaml.safe_dump(body))
    (plane.configs / "judges/house.yaml").write_text(yaml.safe_dump(HOUSE))
    plane.change_recipe("tiny", model_judge=JUDGE)
    return plane


def judged(made: Evaluated, prefers: str = "good", silent: int = 0, said: Mapping[tuple[str, str], float] | None = None) -> dict[str, Any]:
    """The judge's committed run: it takes the answer that says `prefers`, and gives no verdict on the first `silent` pairs. said: the values
    instead, by the other deployment and item."""
    given = {"wanted": made.wanted, "measured": {**whole_result(made)}}
    spec = PLANNERS["judge"](bench_of(made.run), made.run, given).spec
    answers = {one["deployment"]: one["texts"] for one in answers_of(made)["answers"]}
    pairs = []
    for pair in spec.config["pairs"]:
        both = zip(answers_of(made)["suites"]["chat"]["items"], answers[pair["candidate"]], answers[pair["against"]], strict=True)
        pairs += [
            {**pair, "id": item["id"], "value": 1.0 if prefers in own else 0.0 if prefers in other else 0.5} for item, own, other in both
        ]
    for pair in pairs if said is not None else ():
        pair["value"] = said[pair["against"], pair["id"]]
    for pair in pairs[:silent]:
        pair["value"] = None
    counts = {"pairs": len(pairs), "no_verdict_pairs": silent, "inconsistent_pairs": 1, "first_won": 9, "second_won": 9}
    body = {"schema": "align/judgements/v1", "who": {**spec.config["who"]}, "counts": counts, "pairs": pairs}
    data = json.dumps(body).encode()
    manifest = Manifest("report", (FileEntry("judgements.json", len(data), sha256_bytes(data)),))
    folder, store = RunDir(spec.key).attempt(ATTEMPT), services.store()
    store.put_bytes(f"{folder}/output/judgements/judgements.json", data)
    store.put_json(f"{folder}/output/manifest.json", {"schema": "align/outputs/v1", "artifacts": {"judgements": manifest.to_json()}})
    services.catalog().runs.plan(spec)
    report = Report(spec.key, ATTEMPT, "complete", "last_step", 0, 1, 1, {}, {"judgements": manifest.digest}).to_json()
    services.catalog().runs.commit_attempt(spec.key, ATTEMPT, report, {"judgements": manifest.to_json()}, store.uri)
    return {"key": spec.key, "attempt": ATTEMPT, "outputs": {"judgements": {"digest": manifest.digest}}}


def whole_result(made: Evaluated) -> dict[str, Any]:
    outputs = {name: {"kind": "report", **one} for name, one in made.result["outputs"].items()}
    return {**made.result, "stage": "evaluate", "reused": False, "metrics": {}, "summary": {}, "outputs": outputs}


def answers_of(made: Evaluated) -> dict[str, Any]:
    from include.flows.measured import answers_of as read

    return read(made.result)


def by_people(made: Evaluated, world: World) -> dict[str, Any]:
    everybody(world, waits(made.sensor()).batches)
    found: dict[str, Any] = made.sensor().execute(CONTEXT)
    return found


def test_the_job_is_named_by_the_judge_and_the_answers_and_not_by_where_the_server_is(control: Plane, tmp_path: Path) -> None:
    made = Evaluated(control, tmp_path)
    given = {"wanted": made.wanted, "measured": whole_result(made)}
    plan = PLANNERS["judge"](bench_of(made.run), made.run, given)
    assert (plan.spec.program, plan.spec.inputs["answers"]) == ("include.eval.judge", made.result["outputs"]["answers"]["digest"])
    assert plan.spec.config["who"] == {"kind": "server", "model": "judge-model", "fingerprint": "fp-1"}
    assert plan.spec.config["pairs"] == [{"suite": "chat", "candidate": made.deployments["candidate"], "against": made.deployments["sft"]}]
    assert (plan.settings["url"], plan.settings["api_key_file"]) == (SERVER["url"], SERVER["api_key_file"])
    assert "127.0.0.1" not in json.dumps(plan.spec.to_json())
    moved = {**HOUSE, "server": {**SERVER, "url": "http://10.0.0.1:9/v1"}}
    (control.configs / "judges/house.yaml").write_text(yaml.safe_dump(moved))
    assert PLANNERS["judge"](bench_of(made.run), made.run, given).key == plan.key
    (control.configs / "judges/house.yaml").write_text(yaml.safe_dump({**HOUSE, "template": "Now: {question}{first}{second}"}))
    assert PLANNERS["judge"](bench_of(made.run), made.run, given).key != plan.key


def test_a_judge_that_people_agree_with_is_heard_and_its_habits_are_told(control: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    made = Evaluated(control, tmp_path)
    panel = by_people(made, people)
    mixed = services.store().read_json(f"{panel['path']}/panel.json")
    flip_some_of_what_people_said(mixed, made)
    asked = Asked(rewritten(mixed, panel), judged_like(made, mixed))
    verdict = judge_candidate(made.run, made.wanted, made.result, asked)
    assert verdict["passed"]
    assert "model judge house@1 (judge-model): kappa with people 1.00" in verdict["table"]
    assert "1 changed with the order and count as ties" in verdict["table"]
    behind = {node.ref for node in services.catalog().lineage.trace(verdict["digest"]).walk()}
    assert asked.judge["outputs"]["judgements"]["digest"] in behind
    assert judge_candidate(made.run, made.wanted, made.result, asked) == verdict


def flip_some_of_what_people_said(panel: dict[str, Any], made: Evaluated) -> None:
    """Four of the items went the other way: where all say one thing, agreement beyond chance is not defined."""
    for one in panel["comparisons"]:
        if "sft" in one["roles"]:
            for item in one["items"][:4]:
                item["value"] = 0.0


def rewritten(panel: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    from include.flows.panel_result import put

    kept, path = put("panels", "panel.json", panel, [], "dag:test")
    return {"digest": kept, "path": path}


def judged_like(made: Evaluated, panel: dict[str, Any]) -> dict[str, Any]:
    """A judge that says what the people of `panel` said."""
    said = {(one["deployment"], item["id"]): item["value"] for one in panel["comparisons"] for item in one["items"]}
    return judged(made, said=said)


def test_judgements_of_other_answers_or_changed_since_are_not_heard(control: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    made = Evaluated(control, tmp_path)
    panel, found = by_people(made, people), judged(made)
    spec = services.catalog().runs.get(found["key"]).spec  # type: ignore[union-attr]
    other = replace(spec, inputs={**spec.inputs, "answers": digest("test", "answers of another candidate")})
    services.catalog().runs.plan(other)
    with pytest.raises(FlowError, match="of another judge, or of other answers than this evaluation gave: clear `ask_judge`"):
        judge_candidate(made.run, made.wanted, made.result, Asked(panel, {**found, "key": other.key}))
    file = control.store_root / f"{RunDir(found['key']).attempt(ATTEMPT)}/output/judgements/judgements.json"
    file.chmod(0o600)
    body = json.loads(file.read_text())
    data = json.dumps({**body, "pairs": [{**pair, "value": 0.0} for pair in body["pairs"]]}).encode()
    file.write_bytes(data)
    manifest = Manifest("report", (FileEntry("judgements.json", len(data), sha256_bytes(data)),))
    told = file.parent.parent / "manifest.json"
    told.chmod(0o600)
    told.write_text(json.dumps({"schema": "align/outputs/v1", "artifacts": {"judgements": manifest.to_json()}}))
    with pytest.raises(IntegrityError, match=r"judgements\.json"):
        judge_candidate(made.run, made.wanted, made.result, Asked(panel, found))


def test_a_judge_that_people_do_not_agree_with_is_not_evaluated_whatever_it_says(control: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    made = Evaluated(control, tmp_path)
    asked = Asked(by_people(made, people), judged(made))
    with pytest.raises(Rejected) as no:
        judge_candidate(made.run, made.wanted, made.result, asked)
    assert no.value.reason == "not evaluated: judge_likes_it"
    assert "the judge house@1 is not heard: its kappa with people is not defined" in str(no.value), "all say the same: chance would, too"


def test_a_judge_that_gives_too_few_verdicts_is_not_evaluated(control: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    made = Evaluated(control, tmp_path)
    asked = Asked(by_people(made, people), judged(made, silent=5))
    with pytest.raises(Rejected, match=rf"5 of {ITEMS} pairs have no verdict, 10% may"):
        judge_candidate(made.run, made.wanted, made.result, asked)


def test_what_a_judge_must_show_is_part_of_the_gates_that_a_verdict_is_bound_to(control: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    made = Evaluated(control, tmp_path)
    panel = by_people(made, people)
    mixed = services.store().read_json(f"{panel['path']}/panel.json")
    flip_some_of_what_people_said(mixed, made)
    asked = Asked(rewritten(mixed, panel), judged_like(made, mixed))
    first = judge_candidate(made.run, made.wanted, made.result, asked)["policies"]
    seen = {first}
    for changed in ({"min_kappa": 0.5}, {"min_calibration": 11}, {"max_no_verdict_share": 0.2}):
        control.change_recipe("tiny", model_judge={**JUDGE, **changed})
        seen.add(gate_set(made.run).digest)
    assert len(seen) == 4
    control.change_recipe("tiny", model_judge={**JUDGE, "generation_batch": 2})
    assert gate_set(made.run).digest == first, "how it is run is no rule"


def test_gates_of_a_recipe_without_a_judge_keep_their_digest(plane: Plane) -> None:
    assert recipe("quickstart").model_judge is None
    assert gate_set({"recipe": "quickstart"}).digest == "sha256:81e4d45348afb18106e3bfdfe730fe55b15eb7334eaea62a21c2e77034144a89"


def test_a_judge_without_people_is_not_heard(control: Plane, tmp_path: Path) -> None:
    made = Evaluated(control, tmp_path)
    with pytest.raises(Rejected, match="people and the judge both judged 0 pairs, 10 are asked for"):
        judge_candidate(made.run, made.wanted, made.result, Asked(judge=judged(made)))


def test_equal_answers_are_ties_that_no_job_is_sent_for(control: Plane, tmp_path: Path) -> None:
    made = Evaluated(control, tmp_path, says="a bad answer")
    given = {"wanted": made.wanted, "measured": whole_result(made)}
    assert not something_to_judge(made.run, made.wanted, made.result)
    assert JudgeOperator(task_id="ask_judge", run=made.run, given=given).prepare(CONTEXT).result == {}  # type: ignore[union-attr]


def test_a_judge_of_the_policy_s_own_family_is_flagged(control: Plane, people: World, tmp_path: Path) -> None:  # noqa: F811
    from include.flows.model_judge import _kin

    made = Evaluated(control, tmp_path)
    file = judge("house@1")
    assert _kin(recipe("tiny"), file, made.wanted) is None
    base = recipe("tiny").base_source.model_copy(update={"repository": "Acme/House-7B"})
    assert _kin(recipe("tiny").model_copy(update={"base_source": base}), file, made.wanted) == "the policy's base is Acme/House-7B"
    own = made.wanted["models"]["candidate"]["digest"]
    parent = digest("test", "judge weights")
    services.catalog().lineage.edge(own, parent, "base", "dag:test")
    kin = file.model_copy(update={"model": parent, "server": None})
    assert _kin(recipe("tiny"), kin, made.wanted) == "the policy was trained from the judge's own weights"


def test_a_recipe_and_its_gates_name_a_judge_both_or_neither_and_people_beside_it(control: Plane) -> None:
    require_gates_fit(recipe("tiny"))
    control.change_recipe("tiny", model_judge=None)
    with pytest.raises(FlowError, match="read judge_win_rate .judge_likes_it., and the recipe has no `model_judge`"):
        require_gates_fit(recipe("tiny"))
    control.change_recipe("tiny", model_judge={**JUDGE, "judge": "nobody@1"})
    with pytest.raises(SettingsError, match="nobody"):
        require_gates_fit(recipe("tiny"))
    control.change_recipe("tiny", model_judge=JUDGE)
    path = control.configs / "gates/tiny.yaml"
    body = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**body, "gates": [*GATES, {**BY_JUDGE, "kind": "superiority", "against": "base"}]}))
    with pytest.raises(FlowError, match="people compare nothing that the judge does"):
        require_gates_fit(recipe("tiny"))
    alone = [{**BY_JUDGE, "kind": "superiority", "against": "sft"}, GATES[1]]
    path.write_text(yaml.safe_dump({**body, "gates": alone}))
    with pytest.raises(GateError, match="never alone at the gate"):
        require_gates_fit(recipe("tiny"))


def test_a_judge_s_file_names_one_judge_and_shows_each_place_once(plane: Plane) -> None:
    assert judge("example@1").server is not None
    for change, words in (
        ({"model": digest("test", "m")}, "either `model`, by digest, or `server`"),
        ({"server": None, "model": "latest"}, "sha256"),
        ({"template": "{question}{first}"}, "second.* must stand in it once"),
        ({"server": {**SERVER, "url": "file:///etc/passwd"}}, "url"),
    ):
        (plane.configs / "judges/house.yaml").write_text(yaml.safe_dump({**HOUSE, **change}))
        with pytest.raises(SettingsError, match=words):
            judge("house@1")


def test_a_server_is_sent_no_answer_with_personal_data_and_a_local_judge_is(control: Plane, tmp_path: Path) -> None:
    made = Evaluated(control, tmp_path, says="a good answer, ask ada@analytical.example.org,")
    given = {"wanted": made.wanted, "measured": whole_result(made)}
    (pair,) = PLANNERS["judge"](bench_of(made.run), made.run, given).spec.config["pairs"]
    assert len(pair["kept_back"]) == ITEMS
    assert not something_to_judge(made.run, made.wanted, made.result)
    folder = Manifest("base", (FileEntry("model.safetensors", 1, digest("test", "bytes of a judge")),))
    asked = spec("base_import", inputs={"source": digest("test", "source")})
    committed_base(asked, folder)
    local = {name: value for name, value in HOUSE.items() if name != "server"} | {"model": folder.digest}
    (control.configs / "judges/house.yaml").write_text(yaml.safe_dump(local))
    plan = PLANNERS["judge"](bench_of(made.run), made.run, given)
    assert something_to_judge(made.run, made.wanted, made.result)
    assert "kept_back" not in plan.spec.config["pairs"][0]
    assert plan.spec.inputs["judge"] == folder.digest == plan.spec.config["who"]["model"]
    assert plan.spec.config["who"]["tokenizer"] == asked.tokenizer


def committed_base(asked: Any, manifest: Manifest) -> None:
    services.catalog().runs.plan(asked)
    report = Report(asked.key, ATTEMPT, "complete", "last_step", 0, 1, 1, {}, {"base": manifest.digest}).to_json()
    services.catalog().runs.commit_attempt(asked.key, ATTEMPT, report, {"base": manifest.to_json()}, services.store().uri)
