"""Likelihood of options: equal to one plain forward pass, whatever the batch."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from include.domain.records import Message, Prompt, SuiteItem, prompt_id_of  # noqa: E402
from include.eval.errors import EvaluationError  # noqa: E402
from include.eval.likelihood import option_log_probs  # noqa: E402
from include.eval.likelihood_choice import choice, score  # noqa: E402

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13], [3], [20, 21]]
OPTIONS = [[[1, 2], [3, 4, 5, 6]], [[7], [8, 9]], [[10, 11, 12], [13]], [[1], [2], [3, 4, 5]]]


@pytest.fixture(scope="module")
def model() -> object:
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 40}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, num_key_value_heads=2)).eval()


def plain(model: object, prompt: list[int], option: list[int]) -> float:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *option]])).logits[0].float()  # type: ignore[operator]
    log_probs = torch.log_softmax(logits, -1)
    return sum(float(log_probs[len(prompt) - 1 + k, token]) for k, token in enumerate(option))


@pytest.mark.parametrize("rows", [1, 4, 64])
def test_every_option_has_the_log_probability_of_a_plain_pass(model: object, rows: int) -> None:
    found = option_log_probs(model, PROMPTS, OPTIONS, rows)
    for prompt, options, values in zip(PROMPTS, OPTIONS, found, strict=True):
        assert values == pytest.approx([plain(model, prompt, option) for option in options], abs=1e-4)


def test_an_option_without_tokens_is_refused(model: object) -> None:
    with pytest.raises(EvaluationError, match="prompt 0 or one of its options holds no token"):
        option_log_probs(model, [[1]], [[[2], []]], 8)


def item(options: tuple[str, ...], answer: int) -> SuiteItem:
    messages = (Message("user", "which?"),)
    return SuiteItem("i", Prompt(prompt_id_of(messages), messages, "s", "CC0-1.0", "test", "g"), options, answer)


def test_length_is_taken_out_of_the_choice() -> None:
    two = item(("ab", "abcdefgh"), 1)
    assert choice(two, [-4.0, -8.0]) == 1
    assert score(two, [-4.0, -8.0]) == 1.0
    assert choice(two, [-1.0, -8.0]) == 0


def test_bytes_count_not_characters() -> None:
    assert choice(item(("aa", "éé"), 0), [-4.0, -6.0]) == 1


def test_of_equals_the_first_is_chosen() -> None:
    assert choice(item(("ab", "cd"), 0), [-4.0, -4.0]) == 0


def test_another_number_of_values_than_options_is_refused() -> None:
    with pytest.raises(EvaluationError, match="2 options and 1 log-probabilities"):
        choice(item(("ab", "cd"), 0), [-4.0])
