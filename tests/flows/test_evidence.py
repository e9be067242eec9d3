"""What a person is asked to approve names all that the candidate learnt from, the base, risks, waivers and the fallback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from include.domain.canonical import digest
from include.flows import services
from include.flows.evidence import dataset_facts, learnt_from, together
from include.settings.catalogue import recipe
from include.settings.errors import SettingsError
from include.settings.loader import parse
from include.settings.recipes import Recipe
from include.stages import programs
from include.stages.plan import Bench
from include.stages.refs import FileRef
from tests.flows.conftest import Plane
from tests.flows.releasing import Candidate, committed, dataset
from tests.stores.things import manifest, spec


def body_of(filed: dict[str, Any]) -> Any:
    return services.catalog().releases.dossier(filed["digest"]).body


def test_pairs_that_dpo_learnt_from_are_in_the_dossier_the_question_and_the_card(plane: Plane) -> None:
    made = Candidate(plane.run(), "pairs")
    filed = made.dossier()
    (pairs,) = [fact for fact in body_of(filed)["datasets"] if fact["content_hash"] == digest("test", "pairs")]
    assert (pairs["dataset"], pairs["licences"]) == ("tiny-pairs@v1", {"cc-by-4.0": 8})
    assert (pairs["imported_share"], pairs["synthetic_share"]) == (0.125, 0.375)
    assert "tiny-pairs@v1: cc-by-4.0; imported 12%, synthetic 38%" in filed["text"]
    made.approve(filed)
    made.promote_after_canary(filed)
    card = plane.registry.papers[made.deployment].card
    assert "| tiny-pairs@v1 | cc-by-4.0 | 12.5% | 37.5% |" in card
    assert "cc-by-4.0: 8 rows" in card


def test_what_every_stage_learnt_from_is_found_by_its_own_run(plane: Plane) -> None:
    own, other = dataset("demonstrations"), dataset("other", dataset_id="elsewhere-demonstrations")
    inputs = {"base": digest("test", "base"), "demonstrations": own["content_hash"], "demonstrations_1": other["content_hash"]}
    sft, reward = spec("sft", inputs=inputs), spec("reward_model", inputs={"preferences": dataset("reward_pairs")["content_hash"]})
    committed(sft, {"policy": manifest("sft")})
    committed(reward, {"reward_model": manifest("r", "reward_model")})
    found = learnt_from({"key": sft.key}, {"key": reward.key}, {"key": digest("test", "never planned")})
    assert {name: ref["dataset_id"] for name, ref in found.items()} == {
        "demonstrations of sft": "tiny-demonstrations",
        "demonstrations_1 of sft": "elsewhere-demonstrations",
        "preferences of reward_model": "tiny-reward_pairs",
    }
    assert list(together({"demonstrations": own}, found)) == ["demonstrations", "demonstrations_1 of sft", "preferences of reward_model"]
    assert len(dataset_facts({"twice": own, **found})) == 3


def test_waivers_and_known_risks_are_on_the_card(plane: Plane) -> None:
    made = Candidate(plane.run(), "pairs")
    filed = made.dossier()
    waivers = body_of(filed)["waivers"]
    assert [text.split(":")[0] for text in waivers] == ["human_pairwise", "multilingual_longtail"]
    assert body_of(filed)["base"]["licence"] == "own (generated here)"
    made.approve(filed)
    made.promote_after_canary(filed)
    card = plane.registry.papers[made.deployment].card
    _, said = card.split("## Waivers")
    assert all(text in said.split("##")[0] for text in waivers)


def test_a_base_whose_licence_nobody_stated_is_a_known_risk_and_says_so_on_the_card(plane: Plane) -> None:
    body = yaml.safe_load((plane.configs / "recipes/tiny.yaml").read_text())
    plane.change_recipe("tiny", base_source={"kind": "file", "path": "x.gguf", "sha256": digest("test", "x")}, base=body["base"])
    made = Candidate(plane.run(), "pairs")
    filed = made.dossier()
    assert "licence: that of the base is not stated" in body_of(filed)["known_risks"]
    assert "- known risk: licence: that of the base is not stated" in filed["text"]
    made.approve(filed)
    made.promote_after_canary(filed)
    assert "Its licence is not stated: do not distribute." in plane.registry.papers[made.deployment].card


def of(plane: Plane, **release: Any) -> dict[str, Any]:
    body = yaml.safe_load((plane.configs / "recipes/tiny.yaml").read_text())
    plane.change_recipe("tiny", release={**body["release"], **release})
    return plane.run()


def test_a_fallback_is_a_deployment_by_role_and_digest(plane: Plane) -> None:
    made = Candidate(of(plane, fallback="sft"), "pairs")
    filed = made.dossier()
    assert body_of(filed)["fallback"] == {"to": "sft", "deployment": made.sft_deployment}
    assert f"Fallback for uncertain inputs: the sft's deployment `{made.sft_deployment}`." in filed["text"]


def test_a_fallback_in_words_has_an_owner(plane: Plane) -> None:
    made = Candidate(of(plane, fallback={"policy": "hand over to the help desk", "owner": "support"}), "pairs")
    assert "hand over to the help desk (owner: support)" in made.dossier()["text"]


@pytest.mark.parametrize("fallback", ["the old one", {"policy": "hand over to somebody"}, {"policy": "x", "owner": "y"}])
def test_a_fallback_that_nobody_can_act_on_is_refused(fallback: Any) -> None:
    body = recipe("tiny").model_dump(mode="json")
    body["release"]["fallback"] = fallback
    with pytest.raises(SettingsError, match="fallback"):
        parse(Recipe, body, "x.yaml")


def test_the_licence_of_a_base_has_to_be_on_the_allow_list(plane: Plane) -> None:
    body = recipe("quickstart").model_dump(mode="json")
    body["base_source"]["licence"] = "CC-BY-NC-4.0"
    with pytest.raises(SettingsError, match=r"base_source.licence 'CC-BY-NC-4.0' is not on data.licences \(Apache-2.0\)"):
        parse(Recipe, body, "x.yaml")


def test_a_base_is_imported_with_its_licence_on_record_and_under_the_key_it_had(plane: Plane) -> None:
    source = FileRef(digest("test", "file"), "x.gguf")
    with_it, body = recipe("quickstart"), recipe("quickstart").model_dump(mode="json")
    body["base_source"]["licence"] = None
    without = parse(Recipe, body, "x.yaml")
    plans = [programs.base_import(Bench(found, services_cluster()), source) for found in (with_it, without)]
    assert plans[0].key == plans[1].key
    assert (plans[0].spec.note["base_licence"], plans[1].spec.note.get("base_licence")) == ("Apache-2.0", None)


def services_cluster() -> Any:
    from include.settings.catalogue import cluster

    return cluster()


def test_the_base_in_the_dossier_is_what_its_import_recorded(plane: Plane) -> None:
    note = {"recipe": "tiny@v1", "base_name": "team/base", "base_licence": "Apache-2.0"}
    base = spec("base_import", inputs={"source": digest("test", "raw")}, note=note)
    committed(base, {"base": manifest("base", "base")})
    made = Candidate(plane.run(), "pairs")
    made.extra = {"base_key": base.key, "models": {**made.models, "base": {**made.models["sft"], "digest": manifest("base").digest}}}
    body = body_of(made.dossier())
    assert (body["base"]["name"], body["base"]["licence"], body["base"]["weights"]) == ("team/base", "Apache-2.0", manifest("base").digest)
    assert not any(risk.startswith("licence") for risk in body["known_risks"])


def test_shipped_recipes_of_bases_from_elsewhere_state_the_licence() -> None:
    for path in sorted((Path(__file__).resolve().parents[2] / "configs/recipes").glob("*.yaml")):
        found = recipe(path.stem)
        assert found.base_source.kind == "generated" or found.base_source.licence, path.stem
