"""PPO's update with adapters against a loop written by hand: W + (alpha / rank) · B A with plain parameters, plain AdamW, no engine."""

from collections.abc import Mapping
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.func import functional_call  # noqa: E402
from transformers import LlamaForSequenceClassification  # noqa: E402

from include.runtime.reward_stats import RewardNormaliser, RunningStats  # noqa: E402
from include.runtime.settings import Settings  # noqa: E402
from include.training.engines.deepspeed import DeepSpeedEngine  # noqa: E402
from include.training.engines.engine import EngineSettings  # noqa: E402
from include.training.lora import LoraSettings, adapters_of, add_adapters  # noqa: E402
from include.training.reward.head import Critic  # noqa: E402
from include.training.rl.adapters import OwnBase, adapt_critic  # noqa: E402
from include.training.rl.batch import Plan, Sampled, answer_mask  # noqa: E402
from include.training.rl.settings import PpoSettings  # noqa: E402
from include.training.rl.update import Learner, Lesson  # noqa: E402
from include.training.scoring import AnswerScorer  # noqa: E402
from tests.training.align_store import _joined  # noqa: E402
from tests.training.small_llama import fill, small_config, small_llama  # noqa: E402

LORA = LoraSettings(3, 6.0)
RATES = (2e-3, 5e-3)
BETAS, CLIP, VALUE_CLIP, VALUE_WEIGHT, MAX_NORM = (0.9, 0.95), 0.2, 0.5, 0.5, 1.0
NORMALISER = RewardNormaliser(RunningStats.of([0.1, 0.5, 1.4]))
ANSWERS = [
    Sampled((1, 7, 9), (11, 4, 33, 2), (0.0,) * 4, "eos"),
    Sampled((1, 5), (21, 8, 2), (0.0,) * 3, "eos"),
    Sampled((1, 50, 12, 3), (6, 2), (0.0,) * 2, "eos"),
    Sampled((1, 40), (17, 18, 19, 20, 2), (0.0,) * 5, "eos"),
]


def _reward_model() -> Any:
    config = small_config()
    config.num_labels = 1
    return fill(LlamaForSequenceClassification(config), 0.4)


def _wave(seed: float) -> Tensor:
    """B × T of something to learn."""
    return torch.sin(torch.arange(20, dtype=torch.float32) * 0.9 + seed).reshape(4, 5)


class NobodyDraws:
    """In place of the actor that draws: it is only told that the actor has learnt."""

    def changed(self) -> None: ...

    def release(self) -> None: ...


def _learner() -> Learner:
    _joined()
    plain = {"iterations": 1, "prompts_per_iteration": 4, "minibatch": 2, "epochs": 2, "max_new_tokens": 5, "precision": "fp32"}
    rates = {"learning_rate": RATES[0], "critic_learning_rate": RATES[1], "lora": {"rank": 3, "alpha": 6.0}}
    settings = PpoSettings.of(Settings({**plain, **rates}, "config"))
    assert settings.lora == LORA
    actor, critic = small_llama(), adapt_critic(_reward_model(), LORA, 2)
    add_adapters(actor, LORA, 1)
    engines = [
        DeepSpeedEngine(module, EngineSettings(learning_rate=rate, betas=BETAS, max_grad_norm=MAX_NORM))
        for module, rate in zip((AnswerScorer(actor), Critic(critic, NORMALISER)), RATES, strict=True)
    ]
    for engine in engines:
        engine.eval()
    return Learner(*engines, OwnBase(engines[0]), settings, NobodyDraws())  # type: ignore[arg-type]


class ByHand:
    """One model: its frozen weights, and A and B of each adapted layer (and a head) as plain parameters."""

    def __init__(self, model: Any, seed: int, rate: float, head: str = "") -> None:
        self.model = model.requires_grad_(False)
        weights = dict(model.named_parameters())
        names = [n for n in weights if "_proj" in n]
        generator = torch.Generator().manual_seed(seed)
        self.low: dict[str, tuple[Tensor, Tensor]] = {}
        for layer in [n for n, part in model.named_modules() if isinstance(part, torch.nn.Linear) and f"{n}.weight" in names]:
            rows, columns = weights[f"{layer}.weight"].shape
            drawn = (torch.rand(3, columns, generator=generator) * 2 - 1) / columns**0.5
            self.low[f"{layer}.weight"] = (drawn.requires_grad_(True), torch.zeros(rows, 3, requires_grad=True))
        self.head = {head: weights[head].clone().requires_grad_(True)} if head else {}
        self.learnt = [value for pair in self.low.values() for value in pair] + list(self.head.values())
        self.optimizer = torch.optim.AdamW(self.learnt, lr=rate, betas=BETAS, weight_decay=0.0)

    def hidden(self, ids: Tensor) -> Tensor:
        weights = dict(self.model.named_parameters())
        now = {name: weights[name] + 2.0 * b @ a for name, (a, b) in self.low.items()}
        found: Tensor = functional_call(
            self.model, {**now, **self.head}, kwargs={"input_ids": ids, "output_hidden_states": True}
        ).hidden_states[-1]
        return found

    def step(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.learnt, MAX_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()


def _log_probs(actor: ByHand, answer: Sampled) -> Tensor:
    logits = actor.hidden(torch.tensor([answer.sequence]))[0, len(answer.prompt) - 1 : -1] @ actor.model.lm_head.weight.T
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]


def _values(critic: ByHand, answer: Sampled) -> Tensor:
    hidden = critic.hidden(torch.tensor([answer.sequence]))[0, len(answer.prompt) - 1 : -1]
    raw = (hidden @ critic.head["score.weight"].T)[:, 0]
    return (raw - NORMALISER.stats.mean) / (NORMALISER.stats.std + NORMALISER.epsilon)


def _update(actor: ByHand, critic: ByHand, groups: list[list[int]], old: Mapping[str, list[Tensor]]) -> None:
    """One epoch; every minibatch is one step of both."""
    for rows in groups:
        tokens = sum(len(ANSWERS[row].tokens) for row in rows)
        for row in rows:
            n = len(ANSWERS[row].tokens)
            advantage, returns = _wave(0.3)[row, :n], _wave(1.1)[row, :n]
            ratio = (_log_probs(actor, ANSWERS[row]) - old["log_probs"][row]).exp()
            (-torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).sum() / tokens).backward()
            value, before = _values(critic, ANSWERS[row]), old["values"][row]
            near = before + (value - before).clamp(-VALUE_CLIP, VALUE_CLIP)
            (VALUE_WEIGHT * 0.5 * torch.maximum((value - returns) ** 2, (near - returns) ** 2).sum() / tokens).backward()
        actor.step()
        critic.step()


def test_an_update_is_that_of_a_loop_written_by_hand() -> None:
    learner = _learner()
    actor, critic = ByHand(small_llama(), 1, RATES[0]), ByHand(_reward_model(), 2, RATES[1], "score.weight")
    with torch.no_grad():
        old = {"log_probs": [_log_probs(actor, a) for a in ANSWERS], "values": [_values(critic, a) for a in ANSWERS]}
    plan, mask = Plan.of(ANSWERS, (2, 1), 0, seed=3), answer_mask(ANSWERS, [True] * 4)
    looked = learner.look(plan, (4, 5))
    assert torch.equal(looked.old_BT, looked.reference_BT)
    for row, answer in enumerate(ANSWERS):
        assert torch.allclose(looked.old_BT[row, : len(answer.tokens)], old["log_probs"][row], atol=1e-5)
        assert torch.allclose(looked.value_BT[row, : len(answer.tokens)], old["values"][row], atol=1e-5)
    learner.actor.train()
    learner.critic.train()
    gaps: list[float] = []
    learner.update(plan, Lesson(looked.old_BT, looked.value_BT, _wave(0.3), _wave(1.1), mask), gaps.append)
    assert gaps[0] < 1e-6
    for _ in range(2):
        _update(actor, critic, [minibatch.rows.tolist() for minibatch in plan.minibatches], old)
    for engine, ours in ((learner.actor, actor), (learner.critic, critic)):
        layers = adapters_of(engine.module.model)
        assert {f"{name}.weight" for name in layers} == set(ours.low)
        for name, layer in layers.items():
            a, b = ours.low[f"{name}.weight"]
            assert torch.allclose(layer.lora_A, a, atol=1e-5), name
            assert torch.allclose(layer.lora_B, b, atol=1e-5), name
            assert layer.lora_B.abs().max() > 1e-3
    assert torch.allclose(learner.critic.module.model.score.weight, critic.head["score.weight"], atol=1e-5)
    learner.actor.eval()
    learner.critic.eval()
    again = learner.look(plan, (4, 5))
    assert torch.equal(again.reference_BT, looked.reference_BT), "the reference has not moved along"
    assert (again.old_BT - looked.old_BT).abs().max() > 1e-2
