"""A real model through Megatron's layers: SmolLM2-135M (tied embedding, three queries to a key), its log-probabilities those of transformers."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gguf")

from include.runtime.chat import Encoded  # noqa: E402
from include.runtime.ranks import Ranks  # noqa: E402
from include.training.base.gguf_import import read_gguf  # noqa: E402
from include.training.engines.engine import EngineSettings  # noqa: E402
from include.training.examples.batching import collate, collate_packed  # noqa: E402
from include.training.megatron.engine import MegatronEngine  # noqa: E402
from include.training.megatron.place import engines  # noqa: E402
from include.training.scoring import AnswerScorer  # noqa: E402
from tests.training.harness import PROJECT  # noqa: E402

GGUF = Path(PROJECT) / ".local" / "sources" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXTS = ("The capital of France is Paris, and that of Italy is Rome.", "Two and two make four.", "Water boils at a hundred degrees.")


@pytest.mark.timeout(600)
@pytest.mark.skipif(not GGUF.exists(), reason="the quick start's model is not there: make sources")
def test_a_real_models_log_probs_through_megatron_are_those_of_transformers() -> None:
    model, tokenizer = read_gguf(GGUF)
    assert (model.config.tie_word_embeddings, model.config.num_attention_heads // model.config.num_key_value_heads) == (True, 3)
    ids = [tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in TEXTS]
    items = [Encoded(each, tuple(at >= 3 for at in range(len(each))), 3) for each in ids]
    scorer = AnswerScorer(model)
    with engines(Ranks(), 1), torch.no_grad():
        engine = MegatronEngine(scorer, EngineSettings(learning_rate=1e-5))
        for batch in (collate(items, 0), collate_packed([items[:2], items[2:]], 0)):
            wanted = batch.scored_by(scorer)
            assert float(wanted.mean()) > -6, "it knows such sentences: chance would be -10.8"
            assert torch.allclose(batch.scored_by(engine), wanted, rtol=0, atol=1e-4 * max(1.0, float(wanted.abs().max())))
        assert all(torch.equal(engine.weights()[name], value) for name, value in list(scorer.named_parameters())[:3])
