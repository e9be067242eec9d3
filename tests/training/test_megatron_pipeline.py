"""Megatron-core with the layers in stages: the losses, norms and weights of one stage, and exact after a death."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402
from transformers import LlamaForCausalLM  # noqa: E402

from include.training.errors import TrainingError  # noqa: E402
from include.training.megatron.pieces import LlamaPieces, check_supported  # noqa: E402
from include.training.model_io import load_causal_lm  # noqa: E402
from tests.training import align_store  # noqa: E402
from tests.training.harness import SFT, Started, Store  # noqa: E402
from tests.training.resume_matrix import outcomes  # noqa: E402
from tests.training.resume_matrix_cells import Cell  # noqa: E402
from tests.training.rounding import to_rounding  # noqa: E402
from tests.training.small_llama import small_llama  # noqa: E402

QUICK = {**SFT, "eval_rows": 0}
ALONE = str(Path(__file__).with_name("stages_alone.py"))


def cell(program: str, ranks: int, tensor_parallel: int, pipeline_parallel: int) -> Cell:
    return Cell(program, ranks, 0, "megatron", tensor_parallel, pipeline_parallel)


def curve(started: Started, name: str = "loss") -> list[float]:
    assert started.code == 0, started.stderr
    return [line[name] for line in started.lines]


@pytest.fixture(scope="module")
def alone(store: Store) -> Started:
    one = cell("sft", 1, 1, 1)
    return one.run(store, one.spec(store, QUICK, "one stage"))


@pytest.fixture(scope="module")
def staged(store: Store) -> Started:
    two = cell("sft", 2, 1, 2)
    return two.run(store, two.spec(store, QUICK, "two stages"))


@pytest.mark.parametrize(("tensor_parallel", "ranks"), [(1, 2), (2, 4), (1, 4)])
def test_updates_through_stages_are_those_of_adamw_on_the_whole_model(
    store: Store, tmp_path: Path, tensor_parallel: int, ranks: int
) -> None:
    wrappers = {rank: [ALONE, str(tensor_parallel), "2"] for rank in range(ranks)}
    started = store.start_ranks(cell("sft", ranks, 1, 2).spec(store, QUICK, "unused"), [str(tmp_path)], ranks, wrappers)
    told = [rank.communicate(store.timeout_s)[1] for rank in started]
    assert [rank.returncode for rank in started] == [0] * ranks, "\n".join(told)


def test_two_stages_have_the_losses_and_norms_of_one(alone: Started, staged: Started) -> None:
    assert curve(staged) == to_rounding(curve(alone), abs=1e-5)
    assert curve(staged, "grad_norm") == to_rounding(curve(alone, "grad_norm"), rel=1e-4)
    for name in ("tokens", "learning_rate", "learned_tokens", "step"):
        assert curve(staged, name) == curve(alone, name)


def test_the_policy_of_two_stages_is_that_of_one_to_rounding(alone: Started, staged: Started) -> None:
    assert alone.code == staged.code == 0
    assert type(load_causal_lm(staged.output("policy"))) is LlamaForCausalLM
    one, two = (load_file(started.output("policy") / "model.safetensors") for started in (alone, staged))
    assert one.keys() == two.keys()
    assert all(torch.allclose(value, two[name], atol=1e-4) for name, value in one.items())


def test_four_ranks_share_layers_and_weights(store: Store, alone: Started) -> None:
    four = cell("sft", 4, 2, 2)
    started = four.run(store, four.spec(store, QUICK, "two stages of two"))
    assert curve(started) == to_rounding(curve(alone), abs=1e-5)
    assert curve(started, "grad_norm") == to_rounding(curve(alone, "grad_norm"), rel=1e-4)
    assert started.report.summary["ranks"] == 4


def test_after_a_death_it_goes_on_to_the_same_bits(store: Store) -> None:
    seen = list(outcomes(store, cell("sft", 2, 1, 2), QUICK, ("update",)))
    assert [(outcome.moment, outcome.exact) for outcome in seen] == [("update", True)]


def test_another_cutting_goes_on_from_what_two_stages_saved(store: Store, alone: Started) -> None:
    """Two stages, then two tensor-parallel ranks, then one process: each dies after its first save."""
    staged, cut, one = cell("sft", 2, 1, 2), cell("sft", 2, 2, 1), cell("sft", 1, 1, 1)
    spec = staged.spec(store, QUICK, "two stages, then two parts, then one")
    assert staged.run(store, spec, 1, "after-rename").code != 0
    second = cut.run(store, spec, 2, "after-rename")
    assert second.code != 0
    third = one.run(store, spec, 3)
    assert third.report.first_step == 6
    wanted = curve(alone)
    assert [line["loss"] for line in second.lines] == to_rounding(wanted, abs=1e-5)[3:6]
    assert curve(third) == to_rounding(wanted, abs=1e-5)[6:]


def test_packing_early_stop_and_a_look_at_validation_rows_are_deepspeeds(store: Store) -> None:
    config = {**SFT, "packing": True, "early_stop": {"every_steps": 2, "patience": 2}, "attention": "eager"}
    both = (Cell("sft", 1), cell("sft", 2, 1, 2))
    own, staged = (each.run(store, each.spec(store, config, f"options of stages {each.engine}")) for each in both)
    assert curve(staged) == to_rounding(curve(own), abs=1e-4)
    for name in ("heldout_loss_before", "heldout_loss_after", "validation_loss_best", "best_step"):
        assert staged.report.metrics[name] == pytest.approx(own.report.metrics[name], abs=1e-4)


@pytest.mark.parametrize(("program", "config"), align_store.PAIRED)
def test_on_pairs_it_has_deepspeeds_losses(paired: Store, program: str, config: dict[str, Any]) -> None:
    both = [
        each.run(paired, each.spec(paired, config, f"stages {program} {each.engine}"))
        for each in (Cell(program, 1), cell(program, 2, 1, 2))
    ]
    own, staged = (curve(started) for started in both)
    assert staged[:3] == pytest.approx(own[:3], abs=1e-5)
    assert staged == pytest.approx(own, abs=1e-4)
    assert {"policy", "reward_model"} & set(both[1].report.outputs)
    assert _foretold(both[1]) == pytest.approx(_foretold(both[0]), abs=1e-3)
    assert bool(_foretold(both[1])) == ("dimensions" in config)


def _foretold(started: Started) -> dict[str, float]:
    """What the report says of dimensions."""
    return {name: value for name, value in started.report.metrics.items() if name.startswith("holdout_dimension_")}


def test_a_model_that_stages_cannot_share_is_refused() -> None:
    with pytest.raises(TrainingError, match="pipeline_parallel 2 does not divide num_hidden_layers 3"):
        check_supported(small_llama(num_hidden_layers=3), 1, 2)


def test_a_tied_embedding_is_held_by_both_ends_and_spoken_for_by_the_first() -> None:
    pieces = LlamaPieces.of(small_llama(tie_word_embeddings=True), 1, 2)
    (copy,) = (piece for piece in pieces.of_stage(1) if piece.copy)
    assert (copy.name, copy.sources) == ("output_layer.weight", ("model.embed_tokens.weight",))
    sources = [name for piece in pieces for name in piece.sources]
    assert len(sources) == len(set(sources)) == len(dict(small_llama(tie_word_embeddings=True).named_parameters()))
