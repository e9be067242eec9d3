"""Whatever takes a reward model reads its preference; its dimensions are told by evaluation, and named by gates."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from transformers import AutoModelForSequenceClassification  # noqa: E402

from include.domain.errors import IntegrityError  # noqa: E402
from include.domain.manifest import MANIFEST, build_manifest  # noqa: E402
from include.eval import models as eval_models  # noqa: E402
from include.eval.answers import Answer  # noqa: E402
from include.eval.errors import EvaluationError  # noqa: E402
from include.eval.reward_score import RewardMember, rewarded  # noqa: E402
from include.runtime.reward_model import dimensions_of, output_sequences  # noqa: E402
from include.runtime.reward_stats import RewardNormaliser  # noqa: E402
from include.training.reward.head import load_reward_model  # noqa: E402
from tests.training.align_store import (  # noqa: E402
    PPO,
    PlantedPair,
    aligned_store,
    curve,
    planted_pairs,
    planted_scores,
    preferences,
    reward_spec,
    rollouts_of,
    run_here,
    shared_root,
)
from tests.training.harness import Started, Store  # noqa: E402

DIMENSIONS = ["clarity", "safety"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = aligned_store(shared_root(tmp_path_factory))
    preferences(made, "consumed", scored=planted_scores)
    return made


@pytest.fixture(scope="module")
def done(store: Store) -> Started:
    return run_here(store, reward_spec(store, data="consumed", dimensions=DIMENSIONS, salt="consumed"))


@pytest.fixture(scope="module")
def other(store: Store) -> Started:
    return run_here(store, reward_spec(store, data="consumed", dimensions=DIMENSIONS, seed=6, steps=4))


def _held(store: Store) -> list[PlantedPair]:
    return planted_pairs(store, "holdout")


def test_the_folder_loads_offline_and_names_its_outputs(store: Store, done: Started) -> None:
    folder = done.output("reward_model")
    plain = AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True).eval()
    assert plain.config.id2label == {0: "preference", 1: "clarity", 2: "safety"}
    assert dimensions_of(plain.config, folder) == ("clarity", "safety")
    sequences = [chosen for _, chosen, *_ in _held(store)][:4]
    with torch.no_grad():
        wanted = [plain(torch.tensor([ids])).logits[0].tolist() for ids in sequences]
    for outputs, logits in zip(output_sequences(load_reward_model(folder), sequences, 0), wanted, strict=True):
        assert outputs == pytest.approx(logits, abs=1e-5)


def _preference_alone(store: Store, folder: Path, out: Path) -> None:
    """The same reward model with its first output as the only one."""
    model = load_reward_model(folder)
    weight = model.score.weight.detach()[:1].clone()
    model.score = torch.nn.Linear(weight.shape[1], 1, bias=False)
    model.score.weight.data.copy_(weight)
    model.config.num_labels, model.num_labels = 1, 1
    model.save_pretrained(out)
    for path in folder.iterdir():
        if path.name not in ("config.json", "model.safetensors", MANIFEST):
            (out / path.name).write_bytes(path.read_bytes())
    (out / MANIFEST).write_text(json.dumps(build_manifest("reward_model", out).to_json()))


def test_ppo_and_evaluation_read_the_preference_alone(store: Store, done: Started, tmp_path: Path) -> None:
    _preference_alone(store, done.output("reward_model"), tmp_path / "alone")
    folders = {"with dimensions": done.output("reward_model"), "alone": tmp_path / "alone"}
    drawn, rewards, curves, judged = [], [], [], []
    written = [Answer("", tuple(chosen[4:]), "eos") for _, chosen, *_ in _held(store)]
    for name, folder in folders.items():
        store.artifact(name, folder)
        inputs = {"policy": "policy", "reference": "policy", "prompts": "prompts", "reward_model": name}
        optimised = run_here(store, store.spec("ppo", inputs, {**PPO, "iterations": 1}))
        assert optimised.code == 0, optimised.report.message
        drawn.append([row["tokens"] for row in rollouts_of(optimised)])
        rewards.append([row["reward_components"]["model"] for row in rollouts_of(optimised)])
        curves.append({name: value for name, value in curve(optimised)[0].items() if not name.endswith("_s")})
        member = RewardMember(eval_models.load_reward_model(folder), RewardNormaliser.read(folder))
        judged.append([one.score for one in rewarded([member], "mean", [chosen[:4] for _, chosen, *_ in _held(store)], written)])
    assert drawn[0] == drawn[1]
    assert rewards[0] == pytest.approx(rewards[1], abs=1e-4)
    assert curves[0] == pytest.approx(curves[1], rel=1e-3, abs=1e-4), "the critic starts from the preference too"
    assert judged[0] == pytest.approx(judged[1], abs=1e-6)
    assert len({round(score, 3) for score in judged[0]}) > 3


@pytest.mark.parametrize("load", [load_reward_model, eval_models.load_reward_model])
def test_a_classifier_of_something_else_is_no_reward_model(done: Started, tmp_path: Path, load: Any) -> None:
    model = load_reward_model(done.output("reward_model"))
    model.config.id2label = {0: "negative", 1: "neutral", 2: "positive"}
    model.save_pretrained(tmp_path)
    with pytest.raises(IntegrityError, match=r"its labels are \['negative', 'neutral', 'positive'\]"):
        load(tmp_path)


def test_evaluation_tells_the_points_of_each_dimension_as_the_mean_of_members(done: Started, other: Started) -> None:
    folders = [done.output("reward_model"), other.output("reward_model")]
    members = [RewardMember(eval_models.load_reward_model(folder), RewardNormaliser.read(folder)) for folder in folders]
    found = rewarded(members, "mean", [(5, 6, 7)], [Answer("", (8, 9), "eos")])
    (first,), (second,) = (output_sequences(member.model, [(5, 6, 7, 8, 9)], 0) for member in members)
    assert found[0].dimensions == pytest.approx({name: 3 + first[at] + second[at] for at, name in enumerate(DIMENSIONS, 1)}, abs=1e-5)
    members[1].model.config.id2label = {0: "preference", 1: "safety", 2: "clarity"}
    with pytest.raises(EvaluationError, match="learnt different dimensions"):
        rewarded(members, "mean", [(5, 6, 7)], [Answer("", (8, 9), "eos")])
