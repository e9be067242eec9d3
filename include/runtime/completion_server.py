"""Answers from a server of the OpenAI completions protocol that is started beside the program, as vLLM's is.

The server loads the very folder whose bytes were verified, listens on this machine alone, and ends with the program. Prompts
and answers go over as token ids, so no template or tokenizer of the server has a say. Each answer is a request of its
own with its own seed; whether its text then depends on its neighbours is the server's affair (vLLM: unless it is started
batch-invariant, it may). The server is told to give the model's own log-probabilities (`raw_logprobs`: temperature 1, before
anything is cut off), as `candidate_log_probs` keeps them.
"""

import contextlib
import http.client
import json
import math
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from include.runtime.errors import RuntimeFault
from include.runtime.generation import Generated, Sampling
from include.runtime.signals import kept_from_children

POLL_S = 0.2
END_S = 20.0
REQUEST_S = 600.0
RETRY_AFTER_S = (0.5, 2.0)
SERVER_OPTIONS = ("--generation-config", "vllm", "--logprobs-mode", "raw_logprobs")
TOKEN_PREFIX = "token_id:"  # noqa: S105 - how vLLM writes a token as its id


class ServerError(RuntimeFault):
    """The server does not start, refuses a request, or gives something that is no answer."""


class CompletionServer:
    """A running server; `rows` requests are under way at a time.

    Args:
        name: of the model it serves. Each start has a name of its own: the port may be taken, between being found free and
            being listened at, by the server of another run, which serves another model.
    """

    def __init__(self, port: int, rows: int, name: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.rows = rows
        self.name = name

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int], stop_ids: set[int], samples_per_prompt: int = 1
    ) -> list[Generated]:
        """As `generation.generate_batch`: prompt by prompt, `samples_per_prompt` answers each, one seed for each answer."""
        wanted = [prompt for prompt in prompts for _ in range(samples_per_prompt)]
        if len(wanted) != len(seeds):
            raise ServerError(f"{len(wanted)} answers need as many seeds, there are {len(seeds)}")
        with ThreadPoolExecutor(self.rows) as pool:
            return list(pool.map(lambda item: self._answer(item[0], sampling, item[1], stop_ids), zip(wanted, seeds, strict=True)))

    def option_log_probs(self, prompts: Sequence[Sequence[int]], options: Sequence[Sequence[Sequence[int]]]) -> list[list[float]]:
        """The log-probability (natural, summed over its tokens) of each option as the beginning of the answer, prompt by prompt."""
        wanted = [(prompt, option) for prompt, of_prompt in zip(prompts, options, strict=True) for option in of_prompt]
        with ThreadPoolExecutor(self.rows) as pool:
            found = iter(list(pool.map(lambda pair: self._read_back(*pair), wanted)))
        return [[next(found) for _ in of_prompt] for of_prompt in options]

    def _read_back(self, prompt: Sequence[int], option: Sequence[int]) -> float:
        """Nothing is written: the server reads the option after the prompt and says how likely it held each token."""
        given = [*prompt, *option]
        body = {
            "model": self.name,
            "prompt": given,
            "max_tokens": 0,
            "echo": True,
            "temperature": 0.0,
            "logprobs": 1,
            "return_tokens_as_token_ids": True,
        }
        told = self._post("/v1/completions", body)
        try:
            logprobs = told["choices"][0]["logprobs"]
            tokens = [int(token.removeprefix(TOKEN_PREFIX)) for token in logprobs["tokens"]]
            values = [float(value) for value in logprobs["token_logprobs"][len(prompt) :]]
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise ServerError(f"the server does not say how likely what it read is: {error!r}") from error
        if not prompt or not option or tokens != given or len(values) != len(option) or not all(math.isfinite(value) for value in values):
            raise ServerError(f"the server read {len(tokens)} tokens of {len(given)} that were given, {len(values)} log-probabilities")
        return math.fsum(values)

    def version(self) -> str:
        """Of the engine, as the server says it.

        Raises:
            ServerError: it does not say.
        """
        try:
            with urllib.request.urlopen(self.url + "/version", timeout=10) as response:  # noqa: S310 - 127.0.0.1
                return str(json.load(response)["version"])
        except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as error:
            raise ServerError(f"{self.url}/version: the server does not say which engine it is ({error})") from error

    def _answer(self, prompt: Sequence[int], sampling: Sampling, seed: int, stop_ids: set[int]) -> Generated:
        body = {
            "model": self.name,
            "prompt": list(prompt),
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or 0,
            "seed": seed,
            "stop_token_ids": sorted(stop_ids),
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "logprobs": 1,
            "return_tokens_as_token_ids": True,
        }
        return _read(self._post("/v1/completions", body), sampling, stop_ids)

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})  # noqa: S310 - 127.0.0.1
        for pause_s in (*RETRY_AFTER_S, None):
            try:
                with urllib.request.urlopen(request, timeout=REQUEST_S) as response:  # noqa: S310
                    found: dict[str, Any] = json.load(response)
                    return found
            except urllib.error.HTTPError as error:
                raise ServerError(f"{path}: the server says {error.code}: {error.read(2000).decode(errors='replace')}") from error
            except (OSError, ValueError, http.client.HTTPException) as error:
                # A seed gives the same answer each time, so a connection that broke (a full backlog resets it) may be made again.
                if pause_s is None or not _broken(error):
                    raise ServerError(f"{path}: the server gives no answer: {error}") from error
                time.sleep(pause_s)
        raise AssertionError("the last round returns or raises")

    def models(self) -> list[str]:
        with urllib.request.urlopen(self.url + "/v1/models", timeout=10) as response:  # noqa: S310 - 127.0.0.1
            return [str(entry["id"]) for entry in json.load(response)["data"]]


def _broken(error: Exception) -> bool:
    """Whether the connection itself failed, not what came over it."""
    return isinstance(getattr(error, "reason", error), (ConnectionError, http.client.IncompleteRead))


def _read(body: Mapping[str, Any], sampling: Sampling, stop_ids: set[int]) -> Generated:
    """One choice as tokens with their log-probabilities; an end token is the last token, as everywhere here."""
    try:
        choice = body["choices"][0]
        written, log_probs = choice["logprobs"]["tokens"], [float(value) for value in choice["logprobs"]["token_logprobs"]]
        tokens = [int(token.removeprefix(TOKEN_PREFIX)) for token in written if token.startswith(TOKEN_PREFIX)]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ServerError(f"the server's answer has no tokens with log-probabilities: {error!r}") from error
    if not all(math.isfinite(value) for value in log_probs):
        raise ServerError("the server gave a log-probability that is no number, for a token that it wrote itself")
    if len(tokens) != len(written) or len(tokens) != len(log_probs) or not 0 < len(tokens) <= sampling.max_new_tokens:
        raise ServerError(f"the server gave {len(written)} tokens ({len(tokens)} as ids), {len(log_probs)} log-probabilities")
    reason = "eos" if tokens[-1] in stop_ids else "length"
    if reason == "length" and (choice.get("finish_reason") != "length" or len(tokens) != sampling.max_new_tokens):
        raise ServerError(f"an answer of {len(tokens)} tokens ended as {choice.get('finish_reason')!r} without an end token")
    return Generated(tokens, reason, log_probs)


@dataclass(frozen=True)
class ServerStart:
    """dtype: of weights and arithmetic. log: where the server's words go. rows: requests under way at a time. within_s: how long it may load."""

    dtype: str
    log: Path
    rows: int
    within_s: float


@contextlib.contextmanager
def completion_server(
    command: Sequence[str],
    folder: Path,
    start: ServerStart,
    options: Sequence[str] = (),
    stopping: Callable[[], bool] = lambda: False,
) -> Iterator[CompletionServer]:
    """Starts `command` (such as ``vllm serve``) on `folder`; ends it on leaving. USR1, which warns the program, does not reach it.

    Args:
        options: further ones of the server, such as how it quantises.
        stopping: whether the program was asked to stop; then a server that is still loading is not waited for.

    Raises:
        ServerError: it ends before it answers, does not answer in `start_s`, or serves something else.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    name = f"policy-{uuid4().hex}"
    arguments = [str(folder), "--host", "127.0.0.1", "--port", str(port), "--served-model-name", name, "--dtype", start.dtype]
    with start.log.open("ab") as out, kept_from_children(signal.SIGUSR1):
        process = subprocess.Popen([*command, *arguments, *SERVER_OPTIONS, *options], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        server = CompletionServer(port, start.rows, name)
        _await(server, process, start.log, start.within_s, stopping)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(server: CompletionServer, process: subprocess.Popen[bytes], log: Path, start_s: float, stopping: Callable[[], bool]) -> None:
    until = time.monotonic() + start_s
    while True:
        if process.poll() is not None:
            raise ServerError(f"the server ended with code {process.returncode} before it answered; its words are in {log}")
        try:
            served = server.models()
            break
        except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as error:
            if stopping():
                raise ServerError("the program was asked to stop before the server answered") from error
            if time.monotonic() > until:
                raise ServerError(f"the server does not answer after {start_s:g} s ({error}); its words are in {log}") from error
            time.sleep(POLL_S)
    if served != [server.name]:
        raise ServerError(f"{server.url} serves {served}, not {server.name}: another server is there")
