"""python layouts_alone.py STAGE PRECISION FROM TO, on each of several ranks: an engine of DeepSpeed takes the state of the checkpoint folder FROM (``-``: none,
and makes three updates), and writes it into TO. The model has odd sizes, a tied embedding and frozen weights."""

import sys
from pathlib import Path

import torch

from include.runtime.checkpoint import CheckpointStore, Snapshot
from include.runtime.ranks import Ranks, join, leave, ranks_of_environment
from include.training.engines.deepspeed import DeepSpeedEngine, engines
from include.training.engines.engine import EngineSettings
from include.training.examples.batching import collate
from include.training.scoring import AnswerScorer
from tests.training.small_llama import dialogue_ids, small_llama

KEY = "sha256:" + "0" * 64


class Odd(AnswerScorer):
    """With a weight of one element, and one that is not learnt."""

    def __init__(self) -> None:
        super().__init__(small_llama(hidden_size=20, intermediate_size=33, tie_word_embeddings=True))
        self.bias = torch.nn.Parameter(torch.tensor([0.5]))
        self.model.model.norm.weight.requires_grad_(False)

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(*args, **kwargs) * self.bias


def work(stage: int, precision: str, source: str, target: Path, ranks: Ranks) -> None:
    engine = DeepSpeedEngine(Odd(), EngineSettings(learning_rate=1e-2, precision=precision, zero_stage=stage))
    if source != "-":
        found = CheckpointStore(Path(source), "1-1.0", KEY).find(ranks=ranks).checkpoint
        assert found is not None
        engine.restore(found)
    else:
        for step in range(3):
            engine.train()
            batch = collate([dialogue_ids(ranks.rank + 3 * step + at, 3 + at, 4) for at in range(2)], 0)
            engine.backward(-engine(**batch.inputs).mean() / ranks.count)
            engine.step(1e-2)
    snapshot = Snapshot(engine.capture())
    whole = engine.weights()
    written = CheckpointStore(target, "1-1.0", KEY).save(3, snapshot, {}, ranks=ranks)
    if ranks.main:
        read = CheckpointStore(target, "1-1.0", KEY).find().checkpoint
        assert read is not None, written
        assert set(read.load("model")) == set(whole)
        assert all(torch.equal(read.load("model")[name], value) for name, value in whole.items()), "what is gathered is what is written"


def main() -> None:
    stage, precision, source, target = sys.argv[1:5]
    ranks = join(ranks_of_environment())
    try:
        with engines(ranks):
            work(int(stage), precision, source, Path(target), ranks)
    finally:
        leave(ranks)


if __name__ == "__main__":
    main()
