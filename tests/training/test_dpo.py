"""DPO's program: equal to an independent computation, learns the preference, and resumes to the bit."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from transformers import AutoModelForCausalLM  # noqa: E402

from include.domain.canonical import digest  # noqa: E402
from include.domain.manifest import build_manifest  # noqa: E402
from include.domain.records import PreferencePair  # noqa: E402
from include.runtime.chat import prompt_ids  # noqa: E402
from include.training.examples.batching import rows_at  # noqa: E402
from include.training.model_io import load_tokenizer  # noqa: E402
from include.training.pairs.rows import encoder  # noqa: E402
from include.transforms.datasets_io import SidedRow, read_rows  # noqa: E402
from tests.training.align_store import DPO, aligned_store, candidate, curve, dpo_spec, killed, pair, run_here, shared_root, signalled  # noqa: E402
from tests.training.harness import Started, Store, sums  # noqa: E402
from tests.training.rounding import to_rounding  # noqa: E402


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return aligned_store(shared_root(tmp_path_factory))


@pytest.fixture(scope="module")
def done(store: Store) -> Started:
    return run_here(store, dpo_spec(store, salt="module"))


class Independent:
    """DPO once more, the long way round: one sequence at a time, logits at every position, torch's AdamW, no engine."""

    def __init__(self, store: Store, learning_rate: float) -> None:
        folder = Path(store.places["policy"].path)
        self.tokenizer = load_tokenizer(folder)
        self.policy = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
        self.reference = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
        self.pairs = [PreferencePair.from_json(row.record) for row in read_rows(Path(store.places["preferences"].path), "train")]
        self.learning_rate = learning_rate
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)

    def log_prob(self, model: Any, made: PreferencePair, text: str) -> Any:
        start = prompt_ids(self.tokenizer, made.prompt.messages)
        answer = [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]
        logits = model(torch.tensor([[*start, *answer]])).logits[0]
        picked = torch.log_softmax(logits[len(start) - 1 : -1], -1).gather(1, torch.tensor(answer)[:, None])
        return picked.sum()

    def step(self, step: int, loss_of: Any) -> tuple[float, float]:
        losses = []
        for index in rows_at(step, DPO["global_batch"], len(self.pairs), 5):
            made = self.pairs[index]
            texts = made.chosen.response_text, made.rejected.response_text
            policy = [self.log_prob(self.policy, made, text) for text in texts]
            with torch.no_grad():
                reference = [self.log_prob(self.reference, made, text) for text in texts]
            losses.append(loss_of((policy[0] - reference[0]) - (policy[1] - reference[1])))
        loss = torch.stack(losses).mean()
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate * min(1.0, (step + 1) / DPO["warmup_steps"])
        self.optimizer.step()
        return float(loss.detach()), float(norm)


def test_losses_and_gradient_norms_of_three_steps_equal_an_independent_loop(store: Store) -> None:
    # A low rate: where a gradient is rounding alone Adam makes a whole step of it, and what that does to the loss grows with its square.
    rate = DPO["learning_rate"] / 10
    done = run_here(store, dpo_spec(store, salt="beside an independent loop", steps=3, learning_rate=rate))
    independent = Independent(store, rate)
    steps = [independent.step(step, lambda margin: torch.log1p(torch.exp(-DPO["beta"] * margin))) for step in range(3)]
    assert steps[0][0] - steps[2][0] > 1e-3, "what is learnt is far more than rounding"
    assert [line["loss"] for line in done.lines] == to_rounding([loss for loss, _ in steps], abs=2e-6)
    assert [line["grad_norm"] for line in done.lines] == to_rounding([norm for _, norm in steps], rel=2e-5)


def test_the_first_step_stands_at_the_reference(done: Started) -> None:
    first = done.lines[0]
    assert first["loss"] == pytest.approx(0.6931472, abs=1e-6)
    assert abs(first["margin"]) < 1e-5
    assert abs(first["kl_estimate"]) < 1e-4


def test_a_long_answers_padding_and_the_micro_batch_change_the_loss_by_rounding_only(store: Store, done: Started) -> None:
    small = run_here(store, dpo_spec(store, salt="small pieces"), micro_batch=3)
    assert [line["loss"] for line in small.lines] == to_rounding([line["loss"] for line in done.lines], abs=2e-5)


def test_ipo_starts_at_its_hand_worked_value_and_label_smoothing_at_ln_2(store: Store) -> None:
    ipo = run_here(store, dpo_spec(store, loss="ipo", steps=2))
    assert ipo.lines[0]["loss"] == pytest.approx((1 / (2 * 0.1)) ** 2, abs=1e-3)
    assert ipo.lines[1]["loss"] < ipo.lines[0]["loss"]
    smoothed = run_here(store, dpo_spec(store, label_smoothing=0.2, steps=2))
    assert smoothed.lines[0]["loss"] == pytest.approx(0.6931472, abs=1e-6)


def test_the_preferred_form_is_written_more_often_to_prompts_of_the_validation_side(store: Store) -> None:
    learnt = run_here(store, dpo_spec(store, steps=20, learning_rate=1e-4, eval_rows=12, eval_max_new_tokens=20))
    metrics = learnt.report.metrics
    assert metrics["heldout_form_after"] > metrics["heldout_form_before"] + 0.2
    assert metrics["validation_accuracy"] == 1.0
    assert metrics["validation_margin"] > 0


def test_the_policy_folder_is_a_plain_one_with_the_same_tokenizer_and_other_weights(store: Store, done: Started) -> None:
    source, folder = Path(store.places["policy"].path), done.output("policy")
    assert {path.name for path in folder.iterdir()} == {path.name for path in source.iterdir()}
    assert (folder / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert (folder / "model.safetensors").read_bytes() != (source / "model.safetensors").read_bytes()


def test_pairs_of_this_reference_are_on_policy_and_others_are_warned_of(store: Store, done: Started) -> None:
    assert done.report.metrics["own_share"] == 1.0
    assert done.report.summary["warnings"] == []
    rows = []
    for first, second in sums()[:20]:
        foreign = {"policy_checkpoint": None, "origin": "external:elsewhere@sha256:" + "1" * 64}
        texts = (f"{first} + {second} = {first + second}", "no idea")
        sides = [candidate(store, "sha256:" + "0" * 64, text, **foreign) for text in texts]
        made = pair(store, first, second, sides[0], sides[1])
        rows.append(SidedRow(made.pair_id, "train", f"{first}+{second}", "preference", made.to_json()))
    store.dataset("foreign", "pair", rows)
    other = run_here(store, dpo_spec(store, data="foreign", steps=2))
    assert other.report.metrics["own_share"] == 0.0
    assert "off-policy pairs: the reference wrote a share of 0.00" in other.report.summary["warnings"][0]
    assert other.report.metrics["reference_nll_per_token"] > done.report.metrics["reference_nll_per_token"]


def test_answers_of_another_tokenizer_are_counted(store: Store) -> None:
    rows = []
    for at, (first, second) in enumerate(sums()[:16]):
        other = {"tokenizer_version": digest("tokenizer", {"tokenizer.json": "another"})} if at < 3 else {}
        sides = [candidate(store, "sha256:" + "0" * 64, text, **other) for text in ("7", "8")]
        made = pair(store, first, second, sides[0], sides[1])
        rows.append(SidedRow(made.pair_id, "train", f"{first}+{second}", "preference", made.to_json()))
    store.dataset("other tokenizer", "pair", rows)
    done = run_here(store, dpo_spec(store, data="other tokenizer", steps=2))
    assert done.report.metrics["other_tokenizer"] == 6.0
    assert any("6 answers were written under another tokenizer" in said for said in done.report.summary["warnings"])


def test_a_reference_of_another_tokenizer_is_refused_before_the_first_step(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "reference"
    shutil.copytree(store.places["policy"].path, folder)
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text() + "\n")
    (folder / "manifest.json").write_text(json.dumps(build_manifest("model", folder).to_json()))
    store.artifact("stranger", folder)
    spec = dpo_spec(store)
    refused = run_here(store, replace(spec, inputs={**spec.inputs, "reference": store.places["stranger"].digest}))
    assert (refused.code, refused.report.last_step) == (1, 0)
    assert "input reference" in refused.report.message
    assert "tokenizer" in refused.report.message


def test_an_answer_that_was_cut_short_gets_no_end_token_it_never_had(store: Store) -> None:
    tokenizer = load_tokenizer(Path(store.places["policy"].path))
    encode = encoder(tokenizer)
    ended, cut = (candidate(store, "sha256:" + "0" * 64, "1 + 2 = 3", finish) for finish in ("eos", "length"))
    made = pair(store, 1, 2, ended, cut)
    assert encode(made, ended).ids[:-1] == encode(made, cut).ids
    assert encode(made, ended).ids[-1] == tokenizer.eos_token_id


def test_a_data_set_without_a_training_pair_is_refused(store: Store) -> None:
    made = pair(store, 1, 2, *(candidate(store, "sha256:" + "0" * 64, text) for text in ("3", "4")))
    store.dataset("validation alone", "pair", [SidedRow(made.pair_id, "validation", "1+2", "preference", made.to_json())])
    refused = run_here(store, dpo_spec(store, data="validation alone"))
    assert "there is no training pair" in refused.report.message


def test_an_early_stop_that_nobody_would_make_is_refused(store: Store) -> None:
    assert run_here(store, dpo_spec(store, allow_early_stop=False, steps=1)).code == 0
    assert "DPO runs to its last step" in run_here(store, dpo_spec(store, allow_early_stop=True)).report.message


def test_killed_in_the_middle_of_a_save_it_goes_on_to_the_same_bits(store: Store, done: Started) -> None:
    spec = dpo_spec(store, salt="killed")
    first = killed(store, spec, "half-saved", 4, save_every_steps=4)
    assert first.code == -9
    second = run_here(store, spec, n=2, save_every_steps=4)
    assert (second.report.first_step, second.report.last_step) == (4, 10)
    assert curve(first, second) == curve(done)
    assert second.report.outputs == done.report.outputs


def test_after_usr1_the_next_attempt_uses_the_stored_reference_and_ends_in_the_same_bits(
    store: Store, done: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = dpo_spec(store, salt="usr1")
    first = signalled(store, spec, 3, monkeypatch)
    assert (first.code, first.report.outcome, first.report.last_step) == (75, "interrupted", 3)

    def never(*_: Any) -> None:
        raise AssertionError("the reference was run again")

    monkeypatch.setattr("include.training.dpo_program.DpoTrainer.make_reference", never)
    second = run_here(store, spec, n=2)
    assert second.report.outputs == done.report.outputs


def test_a_replay_under_a_salt_gives_the_same_digest(store: Store, done: Started) -> None:
    assert run_here(store, dpo_spec(store, salt="again")).report.outputs == done.report.outputs
