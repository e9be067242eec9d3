"""Who answers for a deployment: the model in this process, or the engine it is deployed on, started in the job on the verified folder."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from include.eval.answers import Answer, Asked, answer, answer_seed, read_answer
from include.eval.deployment import Deployment
from include.eval.errors import EvaluationError
from include.eval.likelihood import option_log_probs
from include.eval.models import load_policy
from include.runtime.chat import eos_ids, prompt_ids
from include.runtime.completion_server import CompletionServer, ServerStart, completion_server
from include.runtime.generation import Sampling
from include.runtime.job import Job

COMMAND = ["vllm", "serve"]
START_S = 900.0
DEFAULT_ROWS = 64
_PARALLEL = (("--tensor-parallel-size", "-tp"), ("--pipeline-parallel-size", "-pp"), ("--data-parallel-size", "-dp"))


class Engine(Protocol):
    """devices: on how many it runs."""

    devices: int

    def answers(self, asked: Sequence[Asked], sampling: Sampling, seed: int, rows: int) -> list[Answer]: ...

    def option_log_probs(
        self, prompts: Sequence[Sequence[int]], options: Sequence[Sequence[Sequence[int]]], rows: int
    ) -> list[list[float]]: ...

    def close(self) -> None: ...


@dataclass
class Local:
    """The model in this process."""

    model: Any
    tokenizer: Any
    devices: int = 1

    def answers(self, asked: Sequence[Asked], sampling: Sampling, seed: int, rows: int) -> list[Answer]:
        return answer(self.model, self.tokenizer, asked, sampling, seed, rows)

    def option_log_probs(
        self, prompts: Sequence[Sequence[int]], options: Sequence[Sequence[Sequence[int]]], rows: int
    ) -> list[list[float]]:
        return option_log_probs(self.model, prompts, options, rows)

    def close(self) -> None:
        self.model = None


@dataclass
class Served:
    """A server beside this process; `rows` of a call is its own affair, as is which requests it computes together."""

    server: CompletionServer
    tokenizer: Any
    devices: int
    stack: contextlib.ExitStack

    def answers(self, asked: Sequence[Asked], sampling: Sampling, seed: int, rows: int) -> list[Answer]:
        ids = [prompt_ids(self.tokenizer, one.messages, one.tools) for one in asked]
        seeds = [answer_seed(seed, one.id) for one in asked]
        written = self.server.generate(ids, sampling, seeds, eos_ids(self.tokenizer))
        return [read_answer(self.tokenizer, one) for one in written]

    def option_log_probs(
        self, prompts: Sequence[Sequence[int]], options: Sequence[Sequence[Sequence[int]]], rows: int
    ) -> list[list[float]]:
        return self.server.option_log_probs(prompts, options)

    def close(self) -> None:
        self.stack.close()


def open_engine(job: Job, deployment: Deployment, folder: Path, tokenizer: Any) -> Engine:
    """The engine of a deployment, ready to answer; whoever opens it closes it.

    Raises:
        EvaluationError: the server is of another version than the deployment.
        ServerError: it does not start.
    """
    if not deployment.served:
        return Local(load_policy(folder, deployment.dtype), tokenizer)
    command = job.settings.texts("server_command", COMMAND)
    quantised = [] if deployment.quantisation == "none" else ["--quantization", deployment.quantisation]
    options = [*quantised, *deployment.engine_options]
    log = job.out / f"server-{deployment.digest.removeprefix('sha256:')[:12]}.log"
    start = ServerStart(
        deployment.dtype, log, job.settings.positive("generation_batch", DEFAULT_ROWS), job.settings.number("server_start_s", START_S)
    )
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(completion_server(command, folder, start, options, lambda: job.stop_requested))
        if (seen := server.version()) != deployment.engine_version:
            raise EvaluationError(
                f"the server is {deployment.engine} {seen}, and the deployment is of {deployment.engine_version}: set "
                "evaluation.engine_version to what will serve it, or evaluation.server_command to that release"
            )
        return Served(server, tokenizer, devices_of([*command, *options]), stack.pop_all())


def devices_of(arguments: Sequence[str]) -> int:
    """On how many devices a server with these arguments runs: the product of its parallel sizes."""
    count = 1
    for names in _PARALLEL:
        for at, argument in enumerate(arguments):
            name, _, value = argument.partition("=")
            if name in names:
                told = value or (arguments[at + 1] if at + 1 < len(arguments) else "")
                if not told.isdigit() or int(told) < 1:
                    raise EvaluationError(f"the server's option {name} {told!r} is no count of devices")
                count *= int(told)
    return count
