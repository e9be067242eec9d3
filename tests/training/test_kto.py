"""KTO in the program: its reference point is what two models give by hand, and hangs neither on ranks nor on where the reference comes from."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from include.domain.spec import RunSpec  # noqa: E402
from include.training.examples.batching import rows_at  # noqa: E402
from include.training.model_io import load_causal_lm, load_tokenizer  # noqa: E402
from include.training.pairs.mismatched import mismatched_side, with_mismatched  # noqa: E402
from include.training.pairs.rows import TokenPair, encoder, read_pairs  # noqa: E402
from tests.training.align_store import KTO  # noqa: E402
from tests.training.harness import Started, Store  # noqa: E402

INPUTS = {"policy": "policy", "reference": "moved", "preferences": "preferences"}
SLOW = {**KTO, "learning_rate": 1e-4, "steps": 4}
"""The policy stays where its reference point is above 0."""
MICRO = 3
"""So that the last micro-batch is a smaller one."""


@pytest.fixture(scope="module")
def one(paired: Store) -> Started:
    """On one rank, beside a reference that has learnt and so is another model than the policy: `moved`."""
    learnt = _run(paired, paired.spec("dpo", {**INPUTS, "reference": "policy"}, KTO, salt="kto to be moved"), 1)
    paired.artifact("moved", learnt.output("policy"))
    return _run(paired, paired.spec("dpo", INPUTS, SLOW, salt="kto"), 1)


def _run(store: Store, spec: RunSpec, ranks: int) -> Started:
    done = store.run_ranks(spec, ranks, micro_batch=MICRO)
    assert done.code == 0, done.stderr
    return done


def _told(started: Started, name: str) -> list[float]:
    return [line[name] for line in started.lines]


@pytest.mark.parametrize("stage", [0, 3])
def test_two_ranks_have_one_ranks_reference_point_and_loss(paired: Store, one: Started, stage: int) -> None:
    both = _run(paired, paired.spec("dpo", INPUTS, {**SLOW, "zero_stage": stage}, salt="kto on two"), 2)
    assert both.report.summary["ranks"] == 2
    assert min(_told(one, "reference_point")[:3]) > 0.05, "a point that stays at 0 would be the same however it is added up"
    for name in ("reference_point", "loss", "grad_norm"):
        assert _told(both, name) == pytest.approx(_told(one, name), rel=1e-3, abs=1e-4), name
    validated = [attempt.report.metrics["validation_loss"] for attempt in (one, both)]
    assert validated[0] == pytest.approx(validated[1], abs=1e-4)


def test_the_first_point_and_loss_are_those_worked_out_by_hand_with_both_models(paired: Store, one: Started) -> None:
    point, loss = _by_hand(paired, rows_at(0, KTO["global_batch"], len(_train(paired)), 5))
    assert one.lines[0]["reference_point"] == pytest.approx(point, abs=1e-3)
    assert one.lines[0]["loss"] == pytest.approx(loss, abs=1e-5)


def _train(store: Store) -> list[TokenPair]:
    folder = Path(store.places["preferences"].path)
    return read_pairs(folder, "train", encoder(load_tokenizer(Path(store.places["policy"].path))))


def _by_hand(store: Store, rows: list[int]) -> tuple[float, float]:
    """The reference point and the loss of these pairs, one sequence at a time with the models as transformers loads them."""
    models = [load_causal_lm(Path(store.places[name].path)) for name in ("policy", "moved")]
    sides = with_mismatched({"train": _train(store)}, KTO["max_length"])
    apart, pairs = ([sides[name][row] for row in rows] for name in (mismatched_side("train"), "train"))
    point = max(0.0, torch.stack([_moved(models, pair, side) for pair in apart for side in (pair.chosen, pair.rejected)]).mean().item())
    desirable = [1 - torch.sigmoid(KTO["beta"] * (_moved(models, pair, pair.chosen) - point)) for pair in pairs]
    undesirable = [1 - torch.sigmoid(KTO["beta"] * (point - _moved(models, pair, pair.rejected))) for pair in pairs]
    loss = (KTO["desirable_weight"] * torch.stack(desirable) + torch.stack(undesirable)).mean() / 2
    return point, loss.item()


@torch.no_grad()
def _moved(models: list[Any], pair: TokenPair, ids: tuple[int, ...]) -> Any:
    """log π/ref of the answer in `ids`."""
    tokens = torch.tensor([ids])
    found = []
    for model in models:
        scores = torch.log_softmax(model(tokens).logits[0, :-1].double(), -1).gather(-1, tokens[0, 1:, None])[:, 0]
        found.append(scores[pair.prompt_length - 1 :].sum())
    return found[0] - found[1]
