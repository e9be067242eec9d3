"""Planning: which change of a recipe or an input moves which key."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from include.domain.canonical import digest
from include.domain.closure import import_closure
from include.domain.errors import AlignmentError
from include.settings.catalogue import cluster, project_root, recipe
from include.settings.recipes import Recipe
from include.settings.training import Mixture
from include.stages import plan as planning
from include.stages import programs
from include.stages.plan import Bench, Plan
from include.stages.refs import DatasetRef, FileRef, ModelRef

D = ["sha256:" + f"{i:064x}" for i in range(20)]
BASE = ModelRef("base", D[1], D[2], D[3])
SFT = ModelRef("model", D[4], D[2], D[3])
REWARD = ModelRef("reward_model", D[5], D[2], D[3])
DEMONSTRATIONS = DatasetRef("demonstrations", 1, D[6], D[7])
PAIRS = DatasetRef("preferences", 1, D[8], D[9])
PROMPTS = DatasetRef("prompts", 1, D[10], D[11])


def bench(**changed: Any) -> Bench:
    return Bench(recipe("tiny").model_copy(update=changed), cluster("local"))


def plans(at: Bench) -> Mapping[str, Plan]:
    suites = {"word_problems": DatasetRef("word_problems", 1, D[12], D[13])}
    settings = {"word_problems": {"scorers": ["exact_match", "asked_form"], "limit": 200}}
    models = {"candidate": ModelRef("model", D[14], D[2], D[3]), "base": BASE, "sft": SFT}
    return {
        "base_import": programs.base_import(at, FileRef(D[15], "corpus.jsonl")),
        "sft": programs.sft(at, BASE, DEMONSTRATIONS),
        "generate": programs.generate(at, SFT, PROMPTS),
        "reward_model": programs.reward_model(at, SFT, PAIRS),
        "dpo": programs.dpo(at, SFT, PAIRS),
        "ppo": programs.ppo(at, SFT, REWARD, PROMPTS),
        "evaluate": programs.evaluate(at, models, suites, settings, REWARD),
        "shadow": programs.shadow(at, models["candidate"], SFT, "sft", PROMPTS),
    }


def moved(before: Bench, after: Bench) -> set[str]:
    first, second = plans(before), plans(after)
    return {stage for stage in first if first[stage].key != second[stage].key}


def test_every_stage_can_be_planned_and_repeated() -> None:
    assert moved(bench(), bench()) == set()
    assert len({plan.key for plan in plans(bench()).values()}) == 8


@pytest.mark.parametrize(("stage", "field", "value"), [("sft", "learning_rate", 1e-4), ("dpo", "beta", 0.2), ("ppo", "clip", 0.1)])
def test_a_setting_of_one_stage_moves_that_stage_alone(stage: str, field: str, value: float) -> None:
    settings = getattr(recipe("tiny"), stage).model_copy(update={field: value})
    assert moved(bench(), bench(**{stage: settings})) == {stage}


@pytest.mark.parametrize(
    ("field", "value"), [("log_every_steps", 9), ("save_every_steps", 7), ("micro_batch", 1), ("threads", 1), ("keep_checkpoints", 9)]
)
def test_placement_moves_no_key(field: str, value: int) -> None:
    settings = recipe("tiny").sft.model_copy(update={field: value})
    assert moved(bench(), bench(sft=settings)) == set()


def test_another_partition_moves_no_key() -> None:
    elsewhere = cluster("local").model_copy(update={"partition": "other", "account": "someone", "nice": 5})
    assert moved(bench(), Bench(recipe("tiny"), elsewhere)) == set()


def test_another_python_on_the_cluster_moves_every_key() -> None:
    elsewhere = cluster("local").model_copy(update={"python": "3.12"})
    assert moved(bench(), Bench(recipe("tiny"), elsewhere)) == set(plans(bench()))


def test_a_rerun_salt_moves_every_key() -> None:
    assert moved(bench(), Bench(recipe("tiny"), cluster("local"), rerun_salt="again")) == set(plans(bench()))


def test_one_flipped_label_moves_what_learns_from_it() -> None:
    """Another content hash of the pairs: another key of everything that reads them."""
    flipped = DatasetRef("preferences", 2, D[16], D[9])
    assert programs.dpo(bench(), SFT, flipped).key != programs.dpo(bench(), SFT, PAIRS).key
    assert programs.reward_model(bench(), SFT, flipped).key != programs.reward_model(bench(), SFT, PAIRS).key


def test_the_transport_of_a_dataset_is_no_identity() -> None:
    """The same rows in other Parquet bytes: the same key."""
    packed_again = DatasetRef("preferences", 1, D[8], D[17])
    again = programs.dpo(bench(), SFT, packed_again)
    assert again.key == programs.dpo(bench(), SFT, PAIRS).key
    assert again.artifacts["preferences"] == D[17]


@pytest.mark.parametrize("other", [ModelRef("reward_model", D[5], D[18], D[3]), ModelRef("reward_model", D[5], D[2], D[18])])
def test_models_of_different_tokenizers_do_not_meet(other: ModelRef) -> None:
    with pytest.raises(AlignmentError, match="different tokenizers"):
        programs.ppo(bench(), SFT, other, PROMPTS)


def test_a_champion_of_another_base_is_measured_and_shadowed_with_its_own_tokens() -> None:
    earlier = ModelRef("model", D[5], D[18], D[19])
    released = {**{k: v for k, v in programs.deployment(recipe("tiny"), earlier).items() if k != "digest"}, "system_prompt": "Be brief."}
    released["digest"] = digest("deployment", released)
    plan = programs.evaluate(bench(), {"candidate": SFT, "champion": earlier}, {}, {}, None, {"champion": released})
    assert (plan.spec.tokenizer, plan.spec.chat_template) == (SFT.tokenizer, SFT.chat_template)
    assert plan.spec.config["deployments"]["champion"] == released
    shadow = programs.shadow(bench(), SFT, earlier, "champion", PROMPTS, released)
    assert shadow.spec.config["deployments"] == {"candidate": programs.deployment(recipe("tiny"), SFT), "champion": released}
    assert shadow.spec.tokenizer == SFT.tokenizer


def test_a_reward_model_of_another_tokenizer_scores_no_candidate() -> None:
    other = ModelRef("reward_model", D[5], D[18], D[3])
    with pytest.raises(AlignmentError, match="different tokenizers"):
        programs.evaluate(bench(), {"candidate": SFT}, {}, {}, other)


def test_the_deployment_is_more_than_its_weights() -> None:
    plain: Recipe = recipe("tiny")
    prompted = plain.model_copy(update={"release": plain.release.model_copy(update={"system_prompt": "Be brief."})})
    assert programs.deployment(plain, SFT)["digest"] != programs.deployment(prompted, SFT)["digest"]
    assert programs.deployment(plain, SFT)["digest"] == programs.deployment(plain, SFT)["digest"]


def test_the_data_sets_of_a_mixture_are_inputs_and_their_shares_identity() -> None:
    others = {"extra@3": DatasetRef("extra", 3, D[16], D[17])}

    def planned(weight: float) -> Plan:
        mixture = Mixture.model_validate({"parts": [{"dataset": "own", "weight": 3}, {"dataset": "extra@3", "weight": weight}], "seed": 4})
        return programs.sft(bench(sft=recipe("tiny").sft.model_copy(update={"mixture": mixture})), BASE, DEMONSTRATIONS, others)

    plan = planned(1)
    assert plan.spec.inputs["demonstrations_1"] == D[16]
    assert plan.artifacts["demonstrations_1"] == D[17]
    assert plan.spec.config["mixture"] == {
        "parts": [
            {"input": "demonstrations", "weight": 3.0, "max_epochs": None},
            {"input": "demonstrations_1", "weight": 1.0, "max_epochs": None},
        ],
        "seed": 4,
    }
    assert planned(2).key != plan.key == planned(1).key


def test_an_image_says_its_commit_and_no_key_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    before = programs.sft(bench(), BASE, DEMONSTRATIONS)
    monkeypatch.setenv("ALIGN_GIT_COMMIT", "4f0c2d")
    planning.git_commit.cache_clear()
    after = programs.sft(bench(), BASE, DEMONSTRATIONS)
    planning.git_commit.cache_clear()
    assert (after.spec.note["git_commit"], after.key) == ("4f0c2d", before.key)


def test_another_trainer_is_another_program_of_the_same_stage_with_a_key_of_its_own() -> None:
    own = programs.sft(bench(), BASE, DEMONSTRATIONS)
    foreign = programs.sft(bench(sft=recipe("tiny").sft.model_copy(update={"trainer": "trl"})), BASE, DEMONSTRATIONS)
    assert (own.spec.program, foreign.spec.program) == ("include.training.sft", "include.training.foreign.trl_sft")
    assert (foreign.spec.stage, foreign.spec.config["trainer"]) == ("sft", "trl")
    assert foreign.spec.code_revision != own.spec.code_revision
    assert foreign.key != own.key


def test_another_engine_is_another_program_of_the_same_stage_and_no_part_of_the_others_key() -> None:
    tiny = recipe("tiny")
    mega = bench(**{name: getattr(tiny, name).model_copy(update={"engine": "megatron"}) for name in ("sft", "reward_model", "dpo")})
    for stage, own, other in (
        ("sft", programs.sft(bench(), BASE, DEMONSTRATIONS), programs.sft(mega, BASE, DEMONSTRATIONS)),
        ("reward_model", programs.reward_model(bench(), SFT, PAIRS), programs.reward_model(mega, SFT, PAIRS)),
        ("dpo", programs.dpo(bench(), SFT, PAIRS), programs.dpo(mega, SFT, PAIRS)),
    ):
        assert (own.spec.program, other.spec.program) == (f"include.training.{stage}", f"include.training.{stage}_megatron")
        assert other.spec.stage == stage
        closures = [import_closure(Path(project_root()), plan.spec.program) for plan in (own, other)]
        assert "include.training.megatron.engine" not in closures[0]
        assert "include.training.engines.deepspeed" not in closures[1]
        assert own.key != other.key
