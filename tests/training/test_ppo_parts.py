"""Pieces of PPO: batches, scores, rollout files, and what is checked before the first step."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from include.domain.errors import IntegrityError, SpecError  # noqa: E402
from include.domain.records import Message, Prompt, Reference, Rollout, prompt_id_of  # noqa: E402
from include.runtime.ranks import Ranks  # noqa: E402
from include.runtime.reward_stats import RewardNormaliser, RunningStats  # noqa: E402
from include.runtime.settings import Settings  # noqa: E402
from include.training.rl import rewards as reward_scoring  # noqa: E402
from include.training.rl.batch import MicroBatch, Plan, Sampled, answer_mask  # noqa: E402
from include.training.rl.checks import ModelsError, check_models, check_same_sequence, freeze  # noqa: E402
from include.training.rl.draw import answer_seed  # noqa: E402
from include.training.rl.rewards import Answer, Member, RewardError, RewardScorer, Usable, usable_prompts, verifier_score  # noqa: E402
from include.training.rl.rollouts import RolloutLog, Written, read_rollouts, with_id  # noqa: E402
from include.training.rl.settings import PpoSettings, RewardMix  # noqa: E402

ANSWERS = [
    Sampled((1, 2, 3), (4, 5), (-0.1, -0.2), "eos"),
    Sampled((1,), (6, 7, 8), (-0.3, -0.4, -0.5), "length"),
    Sampled((9, 9), (5,), (-0.6,), "eos"),
]


def test_each_answer_token_is_predicted_from_the_position_before_it() -> None:
    micro = MicroBatch.of(ANSWERS, [1, 0], pad_id=0)
    assert micro.input_ids.tolist() == [[1, 6, 7, 8, 0], [1, 2, 3, 4, 5]]
    assert micro.rows.tolist() == [0, 0, 0, 1, 1]
    assert micro.columns.tolist() == [0, 1, 2, 2, 3]
    assert micro.targets.tolist() == [6, 7, 8, 4, 5]
    assert [cell.tolist() for cell in micro.cells] == [[1, 1, 1, 0, 0], [0, 1, 2, 0, 1]]


def test_a_plan_holds_every_answer_token_once_and_groups_by_length() -> None:
    answers = [Sampled((1,) * n, (2,), (0.0,), "eos") for n in (9, 1, 5, 3, 8, 2)]
    plan = Plan.of(answers, (3, 2), pad_id=0, seed=4)
    assert sorted(int(row) for micro in plan for row in micro.cells[0]) == [0, 1, 2, 3, 4, 5]
    for minibatch in plan.minibatches:
        widths = [micro.input_ids.shape[1] for micro in minibatch.micros]
        assert widths == sorted(widths)


@pytest.mark.parametrize("count", [2, 3])
def test_ranks_share_every_minibatch_of_one_and_the_same_plan(count: int) -> None:
    answers = [Sampled((1,) * n, (2,), (0.0,), "eos") for n in (9, 1, 5, 3, 8, 2, 7, 4, 6, 10, 12, 11)]
    whole = Plan.of(answers, (6, 2), pad_id=0, seed=4)
    shares = [Plan.of(answers, (6, 2), pad_id=0, seed=4, ranks=Ranks(rank, count)) for rank in range(count)]
    for at, minibatch in enumerate(whole.minibatches):
        own = [[int(row) for micro in share.minibatches[at].micros for row in micro.cells[0]] for share in shares]
        assert [len(rows) for rows in own] == [6 // count] * count
        assert sorted(row for rows in own for row in rows) == sorted(minibatch.rows.tolist())
        assert all(torch.equal(share.minibatches[at].rows, minibatch.rows) for share in shares)


def test_an_answer_without_a_reward_is_masked_whole() -> None:
    assert answer_mask(ANSWERS, [True, False, True]).tolist() == [[1, 1, 0], [0, 0, 0], [1, 0, 0]]


def test_seeds_of_answers_differ_by_run_iteration_and_place() -> None:
    seeds = {answer_seed(seed, step, index) for seed in (1, 2) for step in (0, 1, 11) for index in (0, 1, 10)}
    assert len(seeds) == 18
    assert answer_seed(1, 0, 0) == answer_seed(1, 0, 0)


def _mix(**changes: Any) -> RewardMix:
    return RewardMix.of(Settings({"model_weight": 1.0, "verifier_weight": 1.0, "length_penalty": 0.2, **changes}, "config.reward"))


def _prompt(expected: Any = "15", reference: bool = True) -> Prompt:
    messages = (Message("user", "6 + 9 ="),)
    known = Reference("arithmetic", "1", expected) if reference else None
    return Prompt(prompt_id_of(messages), messages, "made here", "CC0-1.0", "test", "g", pii="none", reference=known)


def _scorer(monkeypatch: pytest.MonkeyPatch, raw: dict[str, list[float]], mix: RewardMix) -> RewardScorer:
    """Members whose raw scores are given: mean 10, deviation 2."""
    monkeypatch.setattr(reward_scoring, "score_sequences", lambda model, *_: raw[model])
    members = [Member(name, name, RewardNormaliser(RunningStats.of([8.0, 12.0]))) for name in raw]
    return RewardScorer(members, mix, max_new_tokens=10, pad_id=0, rows=4)


def _answer(text: str = "6 + 9 = 15\nAnswer: 15", tokens: int = 5, prompt: Prompt | None = None) -> Answer:
    return Answer(prompt or _prompt(), (1, 2), tokens, text)


def test_a_score_is_model_plus_verifier_minus_length_each_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    [scored] = _scorer(monkeypatch, {"reward_model": [13.0]}, _mix()).score([_answer()])
    assert scored.components == pytest.approx(
        {"raw_reward_model": 13.0, "model": 1.5, "verifier": 1.0, "length_penalty": -0.1, "score": 2.4}
    )
    assert (scored.verified, scored.in_form) == (True, True)


def test_the_model_part_is_clipped_before_anything_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    [scored] = _scorer(monkeypatch, {"reward_model": [1000.0]}, _mix(verifier_weight=0.0)).score([_answer()])
    assert scored.model == 5.0
    assert scored.score == pytest.approx(4.9)


def test_a_missing_reward_is_missing_and_leaves_no_trace_in_the_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = _scorer(monkeypatch, {"reward_model": [math.nan, 10.0]}, _mix())
    lost, found = scorer.score([_answer(), _answer()])
    assert lost.missing
    assert "score" not in lost.components
    assert not found.missing
    assert scorer.members[0].normaliser.stats.count == 3


def test_an_answer_the_verifier_cannot_judge_is_missing_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    [scored] = _scorer(monkeypatch, {"reward_model": [10.0]}, _mix()).score([_answer("fifteen")])
    assert (scored.verified, scored.missing) == (None, True)


def test_a_batch_is_scored_by_the_statistics_known_before_it_then_joins_them(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = _scorer(monkeypatch, {"reward_model": [14.0, 14.0]}, _mix(verifier_weight=0.0, length_penalty=0.0))
    first = [scored.score for scored in scorer.score([_answer(), _answer()])]
    assert first == pytest.approx([2.0, 2.0])
    assert scorer.members[0].normaliser.stats == RunningStats.of([8.0, 12.0]).merge(RunningStats.of([14.0, 14.0]))
    assert scorer.score([_answer(), _answer()])[0].score == pytest.approx((14 - 12) / math.sqrt(6), rel=1e-6)


def test_the_minimum_of_an_ensemble_is_never_above_its_mean_and_a_shifted_member_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = {"reward_model": [11.0, 9.0, 14.0], "reward_model_2": [10.0, 13.0, 8.0]}
    scores = {}
    for how in ("mean", "minimum"):
        mix = _mix(verifier_weight=0.0, combine=how)
        scores[how] = [scored.score for scored in _scorer(monkeypatch, raw, mix).score([_answer()] * 3)]
    assert all(low <= mean for low, mean in zip(scores["minimum"], scores["mean"], strict=True))
    assert scores["minimum"] != scores["mean"]
    shifted = {**raw, "reward_model_2": [value + 100 for value in raw["reward_model_2"]]}
    scorer = _scorer(monkeypatch, shifted, _mix(verifier_weight=0.0, combine="minimum"))
    scorer.members[1].normaliser = RewardNormaliser(RunningStats.of([108.0, 112.0]))
    assert [scored.score for scored in scorer.score([_answer()] * 3)] == pytest.approx(scores["minimum"])


def test_the_verifier_puts_right_before_form() -> None:
    assert [verifier_score(right, form) for right, form in ((True, True), (True, False), (False, True), (False, False))] == pytest.approx(
        [1.0, 1 / 3, -1 / 3, -1.0]
    )


def test_prompts_whose_reference_the_verifier_cannot_read_are_left_out_and_counted() -> None:
    found = usable_prompts([_prompt("15"), _prompt("3; 4")], _mix())
    assert found == Usable([_prompt("15")], unreadable=1)
    assert found.words(_mix()) == "1 prompts are left out: the verifier cannot read their reference"
    with pytest.raises(RewardError, match="none of 1 prompts can be rewarded: 0 have no reference, of 1 the verifier cannot read it"):
        usable_prompts([_prompt("3; 4")], _mix())


def test_prompts_without_a_reference_stay_and_are_scored_by_the_reward_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = [_prompt("15"), _prompt(reference=False)]
    found = usable_prompts(mixed, _mix())
    assert found == Usable(mixed, unverified=1)
    assert found.metrics() == {"prompts": 2.0, "prompts_unreadable": 0.0, "prompts_without_reference": 1.0}
    assert found.words(_mix()) is None
    scorer = _scorer(monkeypatch, {"reward_model": [13.0, 13.0]}, _mix())
    verified, bare = scorer.score([_answer(prompt=prompt) for prompt in mixed])
    assert (verified.missing, bare.missing, bare.verified) == (False, False, None)
    assert "verifier" in verified.components
    assert bare.components == pytest.approx({"raw_reward_model": 13.0, "model": 1.5, "length_penalty": -0.1, "score": 1.4})


def test_a_weighed_verifier_without_any_reference_is_said_and_with_nothing_else_weighed_refused() -> None:
    bare = [_prompt(reference=False)]
    assert usable_prompts(bare, _mix()).words(_mix()) == "no prompt has a reference: reward.verifier_weight 1 adds to no reward"
    assert usable_prompts(bare, _mix(verifier_weight=0.0)).words(_mix(verifier_weight=0.0)) is None
    alone = _mix(model_weight=0.0)
    assert usable_prompts([*bare, _prompt("15")], alone) == Usable([_prompt("15")], unscored=1)
    with pytest.raises(RewardError, match="model_weight 0, and none of 1 prompts can be rewarded"):
        usable_prompts(bare, alone)


def _rollout(index: int) -> Rollout:
    actor = {"run_key": "sha256:" + "a" * 64, "attempt": "1-1.0", "published_version": 0, "step": 0}
    made = Rollout(
        "",
        "sha256:" + "b" * 64,
        actor,
        "sha256:" + "c" * 64,
        ("sha256:" + "d" * 64,),
        (3, 2),
        (-0.5, -0.25),
        {"score": 1.0},
        "2026-01-01T00:00:00Z",
    )
    return with_id(made, 1, index)


def _batch(count: int) -> list[Written]:
    return [Written(_rollout(i), "eos", "text\u2028", i == 0) for i in range(count)]


def _log(folder: Path, attempt: str = "1-1.0") -> RolloutLog:
    (folder / attempt).mkdir(exist_ok=True)
    return RolloutLog(folder, attempt)


def test_rollouts_come_back_with_every_field_and_the_counts(tmp_path: Path) -> None:
    log = _log(tmp_path)
    log.write(1, 0, _batch(3), expected=3)
    log.write(2, 1, _batch(3), expected=3)
    (tmp_path / "out").mkdir()
    summary = log.assemble(tmp_path / "out")
    assert (summary["expected"], summary["count"], summary["missing_rewards"]) == (6, 6, 2)
    assert read_rollouts(tmp_path / "out")[:3] == [_rollout(i) for i in range(3)]
    assert json.loads((tmp_path / "out" / "rollouts.json").read_text()) == summary


def test_a_batch_of_another_count_than_expected_is_not_released(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="has 2 rollouts, expected are 3"):
        _log(tmp_path).write(1, 0, _batch(2), expected=3)


def test_a_shard_that_changed_or_is_gone_is_named(tmp_path: Path) -> None:
    log = _log(tmp_path)
    shard = log.write(1, 0, _batch(2), expected=2)
    path = tmp_path / shard.attempt / "rollouts" / shard.file
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(IntegrityError, match="is corrupt"):
        log.assemble(tmp_path)
    path.unlink()
    with pytest.raises(IntegrityError, match="rollouts of iteration 1 are gone"):
        log.assemble(tmp_path)


def test_the_next_attempt_counts_only_what_the_checkpoint_names(tmp_path: Path) -> None:
    dead = _log(tmp_path)
    dead.write(1, 0, _batch(2), expected=2)
    saved = json.loads(json.dumps(dead.state()))
    dead.write(2, 1, _batch(2), expected=2)
    following = _log(tmp_path, "2-2.0")
    following.load_state(saved)
    following.write(2, 1, _batch(2), expected=2)
    summary = following.assemble(tmp_path)
    assert [shard["attempt"] for shard in summary["iterations"]] == ["1-1.0", "2-2.0"]
    assert summary["count"] == 4


def test_a_missing_iteration_is_refused(tmp_path: Path) -> None:
    log = _log(tmp_path)
    log.write(2, 1, _batch(1), expected=1)
    with pytest.raises(IntegrityError, match="one is missing or stands twice"):
        log.assemble(tmp_path)


def test_two_equal_answers_in_one_iteration_have_two_names_and_time_none() -> None:
    assert _rollout(0).rollout_id != _rollout(1).rollout_id
    later = dataclasses.replace(_rollout(0), created_at="2027-01-01T00:00:00Z")
    assert with_id(later, 1, 0).rollout_id == _rollout(0).rollout_id


class Small(torch.nn.Module):
    """Anything with an embedding."""

    def __init__(self, rows: int = 6) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(rows, 2)

    def get_input_embeddings(self) -> Any:
        return self.embedding


def _models(**changes: Any) -> dict[str, Any]:
    return {"actor": Small(), "critic": Small(), "reference": freeze(Small()), "reward_model": freeze(Small()), **changes}


def test_models_in_their_right_state_pass() -> None:
    check_models(_models())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reference": Small().requires_grad_(False)}, "reference is in train mode, it must be in eval mode"),
        ({"actor": Small().eval()}, "actor is in eval mode"),
        ({"reward_model": Small().eval()}, "reward_model: embedding.weight .* has a gradient"),
        ({"critic": Small().requires_grad_(False)}, "critic: embedding.weight .* has no gradient"),
        ({"reference": freeze(Small(7))}, "vocabularies differ: .*reference 7"),
    ],
)
def test_a_model_in_a_wrong_state_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelsError, match=said):
        check_models(_models(**changes))


def test_a_reference_that_shares_weights_with_the_actor_is_refused() -> None:
    actor, reference = Small(), Small()
    reference.embedding.weight = torch.nn.Parameter(actor.embedding.weight.data, requires_grad=False)
    with pytest.raises(ModelsError, match="reference shares the weight embedding.weight with actor"):
        check_models(_models(actor=actor, reference=reference.eval()))


def test_models_that_see_another_sequence_are_refused_with_the_place() -> None:
    check_same_sequence({"policy": [1, 2, 3], "reward_model": [1, 2, 3]})
    with pytest.raises(ModelsError, match="policy and reward_model do not see the same sequence: they differ at token 1"):
        check_same_sequence({"policy": [1, 2, 3], "reward_model": [1, 9, 2, 3]})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"minibatch": 5}, "does not divide"),
        ({"temperature": 0.0}, "PPO samples"),
        ({"kl_target": 6}, "config.kl_target is not a setting"),
        ({"lora": {"rank": 4, "dropout": 0.1}}, "config.lora.dropout is 0.1: PPO needs 0"),
        ({"reward": {"model_weight": 0.0, "verifier_weight": 0.0}}, "nothing to optimise"),
    ],
)
def test_senseless_settings_are_refused(changes: dict[str, Any], said: str) -> None:
    plain = {"iterations": 1, "prompts_per_iteration": 8, "max_new_tokens": 4, "learning_rate": 1e-4, "critic_learning_rate": 1e-4}
    with pytest.raises(SpecError, match=said):
        PpoSettings.of(Settings({**plain, **changes}, "config"))


def test_a_prompts_own_verifier_rewards_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [("multiple_choice", "B"), ("instructions", [{"id": "punctuation:no_comma"}]), ("json_schema", {"type": "array"})]
    prompts = [dataclasses.replace(_prompt("15"), reference=Reference(name, "1", expected)) for name, expected in asked]
    assert len(usable_prompts(prompts, _mix(model_weight=0.0)).prompts) == 3
    said = [("Answer: B", 1.0), ("one, two", -1.0), ("So:\n```json\n[1]\n```", 1 / 3)]
    scorer = _scorer(monkeypatch, {"reward_model": [0.0] * 3}, _mix(model_weight=0.0, length_penalty=0.0))
    scored = scorer.score([Answer(prompt, (1, 2), 1, text) for prompt, (text, _) in zip(prompts, said, strict=True)])
    assert [one.score for one in scored] == pytest.approx([score for _, score in said])
