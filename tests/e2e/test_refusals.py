"""What must not go on: weights whose bytes changed, and a candidate that is no better than what it started from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.runs import PATIENCE
from tests.e2e.world import Chain, World

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600 * PATIENCE)]


@pytest.fixture
def flipped(chain: Chain, world: World) -> Iterator[Path]:
    """The SFT policy's weights, where the next stage finds them, with one bit of one byte changed; put back afterwards."""
    done = world.catalog.runs.committed(chain.state["sft"]["key"])
    assert done is not None
    weights = world.stack.layout.store / world.catalog.artifacts.locate(done.outputs["policy"].digest, done.store) / "model.safetensors"
    mode, good = weights.stat().st_mode, weights.read_bytes()
    place = len(good) // 2
    weights.chmod(0o600)
    weights.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
    yield weights
    weights.write_bytes(good)
    weights.chmod(mode)


def test_one_changed_byte_of_a_model_is_refused_by_name(world: World, chain: Chain, flipped: Path) -> None:
    state = {**chain.salted("corrupted"), "sft": chain.state["sft"]}
    run = world.runs.start("collect_preferences", "corrupted", {"state": state})
    run.wait_for("candidates.generate", "up_for_retry", "failed")
    said = run.log("candidates.generate", 1)
    run.set_state("failed")
    assert "generate failed at step 0" in said
    assert flipped.name in said
    assert run.xcom("candidates.generate") is None


def test_an_untouched_copy_of_the_sft_model_is_no_improvement(world: World, chain: Chain) -> None:
    aliases, head = world.aliases(), world.catalog.ledger.head()
    copy = {**chain.state["sft"], "stage": "dpo"}
    run = world.runs.start("release_policy", "untouched", {"state": {**chain.state, "policy": copy}})
    run.wait("failed")
    assert run.states()["evaluation.gates"] == "failed"
    said = run.log("evaluation.gates")
    assert "the gates do not let this candidate through" in said
    assert "blocks: asked_form_better against sft: no improvement: not one of 200 items differs" in said
    assert run.questions() == []
    assert "asked_form_better" in run.xcom("outcome")
    assert (world.aliases(), world.catalog.ledger.head()) == (aliases, head)
