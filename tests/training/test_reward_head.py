"""The scalar head is read at the last real token, also where padding and end token are one id."""

import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from transformers import AutoModelForSequenceClassification, LlamaConfig, LlamaForCausalLM  # noqa: E402

from include.domain.errors import IntegrityError  # noqa: E402
from include.runtime.reward_model import last_token_scores, padded, score_sequences, token_values  # noqa: E402
from include.runtime.reward_stats import RewardNormaliser, RunningStats  # noqa: E402
from include.training.reward.head import Critic, load_reward_model, new_reward_model, save_reward_model  # noqa: E402

END = 2
SEQUENCES = [(5, 6, 7, END), (5, 6, 9, 11, 12, END), (8, END)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Llama whose padding is its end token."""
    folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(3)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
    LlamaForCausalLM(LlamaConfig(vocab_size=40, pad_token_id=END, eos_token_id=END, tie_word_embeddings=True, **shape)).save_pretrained(
        folder
    )
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def model(base: Path) -> Any:
    return new_reward_model(base, seed=1)


def _alone(model: Any, sequence: tuple[int, ...]) -> float:
    """The head at the last position of one unpadded sequence, written out."""
    hidden = model.model(torch.tensor([sequence])).last_hidden_state[0, -1]
    return float(hidden @ model.score.weight[0])


def test_a_score_is_the_head_at_the_end_token_although_padding_has_its_id(model: Any) -> None:
    input_ids, mask = padded(SEQUENCES, END)
    with torch.no_grad():
        scores = last_token_scores(model, input_ids, mask).tolist()
    assert scores == pytest.approx([_alone(model, s) for s in SEQUENCES], abs=1e-6)
    assert scores[0] != pytest.approx(_alone(model, SEQUENCES[0][:-1]), abs=1e-4)


def test_neighbours_order_and_padding_id_change_no_score(model: Any) -> None:
    together = score_sequences(model, SEQUENCES, END)
    assert score_sequences(model, SEQUENCES[::-1], 0, rows=1)[::-1] == pytest.approx(together, abs=1e-6)


def test_swapping_the_sides_of_a_batch_swaps_the_scores(model: Any) -> None:
    first = score_sequences(model, [*SEQUENCES[:1], *SEQUENCES[1:2]], END)
    second = score_sequences(model, [*SEQUENCES[1:2], *SEQUENCES[:1]], END)
    assert second == pytest.approx(first[::-1], abs=1e-6)


def test_the_last_value_of_a_critic_is_the_normalised_score(model: Any) -> None:
    normaliser = RewardNormaliser(RunningStats.of([1.0, 3.0]))
    input_ids, mask = padded(SEQUENCES, END)
    rows, columns = torch.arange(3), mask.sum(1) - 1
    with torch.no_grad():
        values = Critic(model, normaliser)(input_ids, mask, rows, columns)
        everywhere = token_values(model, input_ids, mask)
    assert values.tolist() == pytest.approx([normaliser.normalise(s) for s in score_sequences(model, SEQUENCES, END)], abs=1e-5)
    assert everywhere.shape == (3, 6)


def test_scoring_in_train_mode_or_of_nothing_is_refused(model: Any) -> None:
    with pytest.raises(ValueError, match="is empty"):
        score_sequences(model, [(1,), ()], END, rows=2)
    model.train()
    try:
        with pytest.raises(ValueError, match="train mode"):
            score_sequences(model, SEQUENCES, END)
    finally:
        model.eval()


def test_two_seeds_give_two_heads_and_one_seed_the_same(base: Path, model: Any) -> None:
    assert torch.equal(new_reward_model(base, 1).score.weight, model.score.weight)
    assert not torch.equal(new_reward_model(base, 2).score.weight, model.score.weight)


def test_the_saved_folder_loads_offline_and_hugging_faces_forward_gives_the_same_score(base: Path, model: Any, tmp_path: Path) -> None:
    save_reward_model(model, base, tmp_path, RewardNormaliser(RunningStats.of([0.0, 2.0])))
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path, local_files_only=True).eval()
    with torch.no_grad():
        scores = [float(plain(torch.tensor([sequence])).logits) for sequence in SEQUENCES]
    assert scores == pytest.approx(score_sequences(load_reward_model(tmp_path), SEQUENCES, END), abs=1e-6)
    assert RewardNormaliser.read(tmp_path).stats.mean == 1.0


def test_a_causal_language_model_is_no_reward_model(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "m")
    with pytest.raises(IntegrityError, match="is not a reward model"):
        load_reward_model(tmp_path / "m")
