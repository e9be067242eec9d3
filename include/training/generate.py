"""Candidates: several answers of a policy to each prompt, with all that is needed to say where they came from.

The portions of prompts may be shared among several runs, its parts. The whole's job then takes their answers: the same bytes.
"""

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from include.domain.canonical import MAX_INTEGER, canonical_bytes, digest
from include.domain.parts import PART as PART_OF
from include.domain.records import Candidate, Prompt, SamplingConfig, candidate_id_of
from include.runtime.chat import answer_text, eos_ids, prompt_ids
from include.runtime.checkpoint import Checkpoint, Snapshot
from include.runtime.completion_server import CompletionServer, ServerError, ServerStart, completion_server
from include.runtime.errors import Interrupted
from include.runtime.generation import Generated, Sampling, generate_batch
from include.runtime.job import Job
from include.runtime.parts import taken
from include.runtime.program import run_program
from include.training.candidate_log_probs import KIND, TEMPERATURE, check_lengths, log_probs_table, per_token, read_log_probs
from include.training.candidate_parts import check_whole, read_candidates
from include.training.errors import TrainingError
from include.training.examples.batching import micro_batches
from include.training.examples.special import warn_of_special_tokens
from include.training.loop import LoopOutcome, StepResult, run_steps
from include.training.model_io import compute_device, load_causal_lm, load_tokenizer
from include.transforms.datasets_io import iter_rows
from include.transforms.split import EVALUATION

CONFIG_KEYS = (
    "sampling",
    "candidates_per_prompt",
    "prompt_limit",
    "side",
    "sides",
    "use",
    "dtype",
    "safety_filter_version",
    "portion_prompts",
    "backend",
    PART_OF,
)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PART = "candidates.jsonl"
LOG_PROBS_PART = "log_probs.json"
DEFAULT_PORTION_PROMPTS = 32
FURTHER_SIDES = ("validation", "holdout")
HELD = {"holdout": ("holdout", "safety_holdout")}
"""Sides that count as one here."""


def candidate_seed(seed: int, prompt_id: str, index: int) -> int:
    """The random seed of one answer: a function of the run's seed, its prompt and its number."""
    return int(digest("candidate-seed", [seed, prompt_id, index])[7:23], 16) % MAX_INTEGER


def read_prompts(job: Job) -> list[Prompt]:
    """The prompts asked for, of each side in an order by hash: a limit takes no special part of a set that is sorted by difficulty."""
    limits = job.config.section("sides", {})
    limits.only(*FURTHER_SIDES)
    asked = {job.config.text("side", None, "train"): job.config.integer("prompt_limit", 0)}
    asked |= {side: limits.positive(side) for side in FURTHER_SIDES if side in limits}
    return [prompt for side, limit in asked.items() for prompt in _prompts_on(job, side, limit)]


def _prompts_on(job: Job, side: str, limit: int) -> list[Prompt]:
    use = job.config.text("use", None, "")
    # A hold-out row is for evaluation, whatever its set is for.
    uses = {use, EVALUATION} if side in HELD else {use}
    found = [row for part in HELD.get(side, (side,)) for row in iter_rows(job.input("prompts"), part) if not use or row.use in uses]
    prompts = sorted((Prompt.from_json(row.record) for row in found), key=lambda p: digest("prompt-order", [job.seed, p.prompt_id]))
    if not prompts:
        raise TrainingError(f"{job.input('prompts')} has no prompt on side {side!r} for use {use or 'any'!r}")
    return prompts[: limit or None]


class Generator:
    """Answers the prompts in portions; a step is a portion, and what is written so far is the state."""

    def __init__(self, job: Job, prompts: Sequence[Prompt], server: CompletionServer | None = None, *, writes: bool = True) -> None:
        """`server`: writes the answers instead of the model in this process. `writes`: whether any answer is to be written at all."""
        self.job = job
        self.server = server
        self.tokenizer = load_tokenizer(job.input("policy"))
        dtype = DTYPES[job.config.text("dtype", tuple(DTYPES), "float32")]
        portion = job.config.positive("portion_prompts", DEFAULT_PORTION_PROMPTS)
        self.model = None if server or not writes else load_causal_lm(job.input("policy")).to(compute_device(), dtype)
        self.samples = job.config.positive("candidates_per_prompt")
        section = job.config.section("sampling")
        section.only("temperature", "top_p", "top_k", "max_new_tokens")
        top_k = section.integer("top_k") if "top_k" in section else None
        self.sampling = Sampling(section.number("temperature"), section.number("top_p", 1.0), top_k, section.positive("max_new_tokens"))
        # In bfloat16 the rounding, and so the text, depends on how many rows are computed together: there it is not placement.
        self.rows = portion * self.samples if dtype is torch.bfloat16 else job.settings.positive("generation_batch", 64)
        self.ids = {prompt.prompt_id: prompt_ids(self.tokenizer, prompt.messages, prompt.tools) for prompt in prompts}
        by_length = sorted(prompts, key=lambda prompt: (len(self.ids[prompt.prompt_id]), prompt.prompt_id))
        self.portions = _own_share(job, list(micro_batches(by_length, portion)))
        self.written: list[dict[str, Any]] = []
        self.log_probs: dict[str, list[float]] = {}
        self.ended = 0

    @property
    def asked(self) -> dict[tuple[str, int], None]:
        """(prompt, random seed) of every answer that is asked for."""
        named = (prompt.prompt_id for portion in self.portions for prompt in portion)
        return {(name, candidate_seed(self.job.seed, name, k)): None for name in named for k in range(self.samples)}

    def take(self, rows: Mapping[str, Sequence[dict[str, Any]]], log_probs: Mapping[str, Mapping[str, list[float]]]) -> None:
        """The answers that the parts wrote, and their log-probabilities, by part."""
        check_whole(rows, self.asked)
        for part, of_part in rows.items():
            check_lengths(part, of_part, log_probs[part])
            self.log_probs |= log_probs[part]
        self.written = [row for of_part in rows.values() for row in of_part]
        self.ended = sum(row["finish_reason"] == "eos" for row in self.written)

    def train_step(self, step: int) -> StepResult:
        portion = self.portions[step]
        seeds = [candidate_seed(self.job.seed, prompt.prompt_id, k) for prompt in portion for k in range(self.samples)]
        answers = self._written(step, [self.ids[prompt.prompt_id] for prompt in portion], seeds)
        for at, (answer, seed) in enumerate(zip(answers, seeds, strict=True)):
            row = self._candidate(portion[at // self.samples], answer, seed).to_json()
            self.written.append(row)
            self.log_probs[row["candidate_id"]] = list(answer.log_probs or ())
        self.ended += sum(answer.finish_reason == "eos" for answer in answers)
        tokens = sum(len(answer.tokens) for answer in answers)
        return StepResult({"answers": float(len(self.written)), "tokens_per_answer": tokens / len(answers)}, tokens)

    def _written(self, step: int, ids: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Generated]:
        """The answers; where the stop that this program was asked for ended its server, what was answered before is saved first."""
        try:
            return self._answers(ids, seeds)
        except ServerError:
            if step > self.job.progress.first_step and self.job.stop_comes():
                self.job.save(step, self.capture())
            raise

    def _answers(self, ids: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Generated]:
        stops = eos_ids(self.tokenizer)
        if self.server is not None:
            return self.server.generate(ids, self.sampling, seeds, stops, self.samples)
        return generate_batch(
            self.model,
            ids,
            self.sampling,
            seeds,
            stop_ids=stops,
            samples_per_prompt=self.samples,
            return_log_probs=True,
            log_probs_at=TEMPERATURE,
            max_rows=self.rows,
        )

    def _candidate(self, prompt: Prompt, answer: Generated, seed: int) -> Candidate:
        spec = self.job.spec
        sampling = SamplingConfig(self.sampling.temperature, self.sampling.top_p, self.sampling.max_new_tokens, self.sampling.top_k)
        fields: dict[str, Any] = {
            "prompt_id": prompt.prompt_id,
            "policy_checkpoint": spec.inputs["policy"],
            "tokenizer_version": spec.tokenizer,
            "chat_template": spec.chat_template,
            "sampling_config": sampling,
            "random_seed": seed,
            "response_text": answer_text(self.tokenizer, answer.tokens),
            "finish_reason": answer.finish_reason,
            "safety_filter_version": self.job.config.text("safety_filter_version", None, "none"),
            "token_ids": tuple(answer.tokens),
        }
        unnamed = Candidate(candidate_id="", **fields)
        return Candidate(candidate_id=candidate_id_of(unnamed.to_json()), **fields)

    def capture(self) -> Snapshot:
        text = "".join(json.dumps(row, sort_keys=True) + "\n" for row in self.written)
        return Snapshot({}, {"ended": self.ended}, {PART: text.encode(), LOG_PROBS_PART: json.dumps(self.log_probs).encode()})

    def restore(self, checkpoint: Checkpoint) -> None:
        self.written = [json.loads(line) for line in checkpoint.file(PART).read_bytes().split(b"\n") if line]
        self.log_probs = json.loads(checkpoint.file(LOG_PROBS_PART).read_bytes())
        self.ended = checkpoint.state["ended"]


def candidates_table(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Parquet with columns id, prompt_id, record, sorted by prompt and then by id."""
    ordered = sorted(rows, key=lambda row: (row["prompt_id"], row["candidate_id"]))
    columns = {
        "id": [row["candidate_id"] for row in ordered],
        "prompt_id": [row["prompt_id"] for row in ordered],
        "record": [canonical_bytes(row).decode() for row in ordered],
    }
    table = pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _server(job: Job) -> AbstractContextManager[CompletionServer | None]:
    """The server that writes the answers, where the recipe asks for one."""
    if job.config.text("backend", ("transformers", "vllm"), "transformers") == "transformers":
        return nullcontext()
    command = job.settings.texts("server_command", ["vllm", "serve"])
    dtype, rows = job.config.text("dtype", tuple(DTYPES), "float32"), job.settings.positive("generation_batch", 64)
    start_s = job.settings.number("server_start_s", 900.0)
    start = ServerStart(dtype, job.out / "server.log", rows, start_s)
    return completion_server(command, job.input("policy"), start, stopping=lambda: job.stop_requested)


def _own_share(job: Job, portions: Sequence[Sequence[Prompt]]) -> list[Sequence[Prompt]]:
    """All portions, or every n-th where this run is one of n parts."""
    if PART_OF not in job.config:
        return list(portions)
    section = job.config.section(PART_OF)
    section.only("index", "of")
    index, count = section.integer("index"), section.positive("of")
    if not (own := list(portions[index::count])):
        raise TrainingError(
            f"part {index + 1} of {count} has nothing to do: the prompts make {len(portions)} portions; set shards to at most that"
        )
    return own


def generate(job: Job) -> None:
    job.config.only(*CONFIG_KEYS)
    prompts = read_prompts(job)
    texts: dict[str, float] = {}
    if parts := taken(job):
        writer, outcome = _joined(job, prompts, parts)
    else:
        texts = warn_of_special_tokens(job, load_tokenizer(job.input("policy")), "prompts", (prompt.messages for prompt in prompts))
        writer, outcome = _written(job, prompts)
    own = sum(len(portion) for portion in writer.portions)
    if len(writer.written) != own * writer.samples:
        raise TrainingError(f"{len(writer.written)} answers were written, {own * writer.samples} were asked for")
    with job.output("candidates", "candidate_set", {"prompts": own, "per_prompt": writer.samples}) as folder:
        (folder / "candidates.parquet").write_bytes(candidates_table(writer.written))
    with job.output("log_probs", KIND, {"answers": len(writer.log_probs)}) as folder:
        (folder / "log_probs.parquet").write_bytes(log_probs_table(writer.written, writer.log_probs))
    figures = {
        **outcome.metrics(),
        "prompts": own,
        "candidates": len(writer.written),
        "share_ended": writer.ended / len(writer.written),
        "log_prob_per_token": per_token(writer.log_probs.values()),
        **texts,
    }
    job.complete(figures, {"parts": list(parts)} if parts else None, stop_reason=outcome.stop_reason)


def _written(job: Job, prompts: Sequence[Prompt]) -> tuple[Generator, LoopOutcome]:
    """All answers by the model, here or in its server. A server that fell to the signal which stops this program is no failure."""
    try:
        with _server(job) as server:
            writer = Generator(job, prompts, server)
            return writer, run_steps(job, writer, len(writer.portions))
    except ServerError as error:
        if not job.stop_comes():
            raise
        raise Interrupted(f"asked to stop, and the server ended too ({error}); stopped after step {job.progress.step}") from error


def _joined(job: Job, prompts: Sequence[Prompt], parts: Mapping[str, Path]) -> tuple[Generator, LoopOutcome]:
    """The whole out of its parts: nothing is written anew."""
    writer = Generator(job, prompts, writes=False)
    steps = len(writer.portions)
    job.expect(steps)
    beside = {name: read_log_probs(folder) for name, folder in taken(job, "log_probs").items()}
    writer.take({name: read_candidates(folder) for name, folder in parts.items()}, beside)
    job.record(steps, {"answers": float(len(writer.written)), "parts": float(len(parts))})
    return writer, LoopOutcome(0, steps)


def main(argv: Sequence[str] | None = None) -> int:
    return run_program("generate", generate, argv)


if __name__ == "__main__":
    raise SystemExit(main())
