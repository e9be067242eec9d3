"""Whole weights of a model that is dealt out: put in place of the present ones, gathered once, and brought to a GPU that has room."""

from dataclasses import replace

import pytest
import torch

from include.runtime.checkpoint import Snapshot
from include.training.engines.deepspeed import DeepSpeedEngine
from include.training.engines.whole import home_of
from include.training.errors import TrainingError
from include.training.examples.batching import collate
from include.training.scoring import AnswerScorer
from tests.training import test_engine as small

SETTINGS, group = small.SETTINGS, small.group


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_whole_weights_are_put_in_place_of_the_present_ones_and_moments_stay(stage: int) -> None:
    engine = DeepSpeedEngine(AnswerScorer(small._model()), replace(SETTINGS, zero_stage=stage))
    _, best = small._train_with(engine, 2)
    small._train_with(engine, 2, steps=1)
    held = {name: value.clone() for name, value in engine.capture()["optimizer"].items()}
    engine.use(best)
    assert all(torch.equal(best[name], value) for name, value in engine.weights().items())
    assert all(torch.equal(held[name], value) for name, value in engine.capture()["optimizer"].items())
    batch = collate(small._items(), 0)
    scored = small._score(engine, batch)
    engine.publish()
    assert all(torch.equal(best[name], value) for name, value in engine.module.named_parameters())
    assert torch.equal(small._score(engine, batch), scored)
    engine.use({name: torch.zeros_like(value) for name, value in best.items()})
    assert not any(value.any() for value in engine.module.parameters())
    with pytest.raises(TrainingError, match="parameter model.lm_head.other is only in the weights"):
        engine.use(best | {"model.lm_head.other": torch.zeros(1)})


def test_what_an_engine_gathers_is_written_without_another_copy() -> None:
    """Whole tensors of a stage that cuts them up are copies already; those of stage 0 are the live ones."""
    for stage in (0, 1, 3):
        engine = DeepSpeedEngine(AnswerScorer(small._model()), replace(SETTINGS, zero_stage=stage))
        small._train_with(engine, 2, steps=1)
        groups = engine.capture()
        copied = Snapshot(groups).copied().groups
        same = {copied[group][name].data_ptr() == value.data_ptr() for group, tensors in groups.items() for name, value in tensors.items()}
        assert same == {stage > 0}
        before = {name: value.clone() for name, value in copied["model"].items()}
        small._train_with(engine, 2, steps=1)
        assert all(torch.equal(before[name], value) for name, value in copied["model"].items())


@pytest.mark.parametrize(("free", "there"), [(1.1, "cpu"), (1.3, "cuda")])
def test_a_whole_model_comes_to_a_gpu_that_has_room_for_it(monkeypatch: pytest.MonkeyPatch, free: float, there: str) -> None:
    model = small._model()
    size = sum(value.nbytes for value in model.parameters())
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free * size, 0))
    assert home_of(model, torch.device("cuda", 0)).type == there
    assert home_of(model, torch.device("cpu")).type == "cpu"
