"""Candidates by a server of the completions protocol: the same records, and every way in which it can fail has a name."""

import os
import signal
import socket
import socketserver
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from include.domain.spec import RunSpec  # noqa: E402
from include.runtime import completion_server as completion_server_module  # noqa: E402
from include.runtime.completion_server import CompletionServer, ServerError, ServerStart, _read, completion_server  # noqa: E402
from include.runtime.generation import Sampling  # noqa: E402
from include.training.candidate_log_probs import read_log_probs  # noqa: E402
from tests.training.harness import PROJECT, Started, Store, cluster_python  # noqa: E402
from tests.training.test_generate import CONFIG, INPUTS, _candidates  # noqa: E402

COMMAND = [cluster_python(), str(PROJECT / "tests" / "training" / "small_server.py")]
CHOICE: dict[str, Any] = {"logprobs": {"tokens": ["token_id:5", "token_id:2"], "token_logprobs": [-0.5, -0.1]}, "finish_reason": "stop"}


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))


def start(log: Path, within_s: float) -> ServerStart:
    return ServerStart("float32", log, rows=2, within_s=within_s)


def _served(store: Store, salt: str) -> Started:
    if "policy" not in store.places:
        store.artifact("policy", Path(store.places["base"].path))
    return store.run(store.spec("generate", INPUTS, {**CONFIG, "backend": "vllm"}, salt=salt), server_command=COMMAND, server_start_s=100)


def test_the_server_writes_what_the_model_itself_would(store: Store) -> None:
    served = _served(store, "served")
    assert served.code == 0, served.stderr
    alone = store.run(store.spec("generate", INPUTS, CONFIG, salt="alone"))
    assert [c.to_json() for c in _candidates(served)] == [c.to_json() for c in _candidates(alone)]
    expected = read_log_probs(alone.output("log_probs"))
    assert read_log_probs(served.output("log_probs")) == {name: pytest.approx(values, abs=1e-5) for name, values in expected.items()}


def test_a_server_that_refuses_fails_the_run_with_its_words(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALIGN_TEST_SERVER", "refuse")
    refused = _served(store, "refused")
    assert refused.code == 1
    assert "400" in refused.report.message
    assert "max_tokens is too large" in refused.report.message


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _signalled(store: Store, spec: RunSpec, number: signal.Signals) -> Started:
    """One attempt that gets the signal as Slurm sends it, to every process, once three answers are written; its server first."""
    arguments = store.prepare(spec, server_command=COMMAND, server_start_s=100)
    process = store.start(spec, arguments)
    try:
        until = time.monotonic() + 100
        while not (Path(arguments[-1]) / "metrics.jsonl").exists():
            assert process.poll() is None, process.stderr.read_text()
            assert time.monotonic() < until
            time.sleep(0.02)
        for child in _children(process.pid):
            os.kill(child, number)
        time.sleep(0.3)
        process.send_signal(number)
        _, stderr = process.communicate(60)
    finally:
        process.kill()
    return Started(Path(arguments[-1]), process.returncode, stderr)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGUSR1])
def test_a_signal_to_all_processes_is_an_interruption_and_the_next_attempt_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("ALIGN_TEST_SERVER_S", "0.4")
    store.artifact("policy", Path(store.places["base"].path))
    spec = store.spec("generate", INPUTS, {**CONFIG, "backend": "vllm", "portion_prompts": 1}, salt=f"{number.name} to all")
    first = _signalled(store, spec, number)
    assert (first.code, first.report.outcome, first.report.stop_reason) == (75, "interrupted", "signal"), first.stderr
    assert 0 < first.report.last_step < 7
    monkeypatch.setenv("ALIGN_TEST_SERVER_S", "0")
    second = store.run(spec, n=2, server_command=COMMAND, server_start_s=100)
    assert second.code == 0, second.stderr
    assert second.report.first_step == first.report.last_step
    alone = store.run(store.spec("generate", INPUTS, {**CONFIG, "portion_prompts": 1}, salt=f"alone beside {number.name}"))
    assert [c.to_json() for c in _candidates(second)] == [c.to_json() for c in _candidates(alone)]


def test_a_server_that_falls_without_a_stop_is_a_failure(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALIGN_TEST_SERVER", "exit")
    failed = _served(store, "fallen")
    assert (failed.code, failed.report.outcome, failed.report.stop_reason) == (1, "failed", "error")
    assert "gives no answer" in failed.report.message


def test_a_stop_while_the_server_loads_is_not_waited_out(tmp_path: Path) -> None:
    began = time.monotonic()
    with (
        pytest.raises(ServerError, match="asked to stop before the server answered"),
        completion_server(
            [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path, start(tmp_path / "log", 60), stopping=lambda: True
        ),
    ):
        pass
    assert time.monotonic() - began < 20


def test_a_server_that_ends_at_once_is_said_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit(7)"]
    with (
        pytest.raises(ServerError, match="code 7"),
        completion_server(command, tmp_path, start(tmp_path / "log", 30)),
    ):
        pass


def test_a_server_that_never_answers_is_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import os, sys, time; open(sys.argv[1] + '/pid', 'w').write(str(os.getpid())); time.sleep(60)"]
    with (
        pytest.raises(ServerError, match="does not answer after"),
        completion_server(command, tmp_path, start(tmp_path / "log", 3)),
    ):
        pass
    if (tmp_path / "pid").exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)


def test_the_server_of_another_run_that_got_the_port_first_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are started in the same way; ours cannot listen, and takes a while to say so."""
    listen = "import http.server, json, sys; name = sys.argv[sys.argv.index('--served-model-name') + 1]; port = int(sys.argv[sys.argv.index('--port') + 1])"
    theirs = f"""{listen}
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(json.dumps({{"data": [{{"id": name}}]}}).encode())
http.server.HTTPServer(("127.0.0.1", port), Answer).serve_forever()"""
    with completion_server([sys.executable, "-c", theirs], tmp_path, start(tmp_path / "theirs.log", 30)) as first:
        port = int(first.url.rpartition(":")[2])

        class Taken(socket.socket):
            def bind(self, _: Any) -> None: ...

            def getsockname(self) -> tuple[str, int]:
                return ("127.0.0.1", port)

        monkeypatch.setattr(completion_server_module.socket, "socket", Taken)
        ours = [sys.executable, "-c", "import time; time.sleep(30)"]
        with (
            pytest.raises(ServerError, match="another server is there"),
            completion_server(ours, tmp_path, start(tmp_path / "ours.log", 20)),
        ):
            pass


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"logprobs": None}, "no tokens with log-probabilities"),
        ({"logprobs": {"tokens": ["a", "b"], "token_logprobs": [-0.5, -0.1]}}, "0 as ids"),
        ({"logprobs": {"tokens": ["token_id:5"], "token_logprobs": [-0.5, -0.1]}}, "2 log-probabilities"),
        ({"logprobs": {"tokens": ["token_id:5", "token_id:6"], "token_logprobs": [-0.5, -0.1]}}, "without an end token"),
        ({"logprobs": {"tokens": [], "token_logprobs": []}}, "gave 0 tokens"),
        (
            {"logprobs": {"tokens": ["token_id:5", "token_id:2"], "token_logprobs": [float("-inf"), -0.1]}},
            "log-probability that is no number",
        ),
    ],
)
def test_what_is_no_answer_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ServerError, match=said):
        _read({"choices": [{**CHOICE, **change}]}, Sampling(1.0, max_new_tokens=4), {2})


def test_an_answer_ends_with_its_end_token_or_at_its_length() -> None:
    ended = _read({"choices": [CHOICE]}, Sampling(1.0, max_new_tokens=4), {2})
    assert (ended.tokens, ended.finish_reason, ended.log_probs) == ([5, 2], "eos", [-0.5, -0.1])
    cut = {"logprobs": {"tokens": ["token_id:5", "token_id:6"], "token_logprobs": [-0.5, -0.1]}, "finish_reason": "length"}
    assert _read({"choices": [cut]}, Sampling(1.0, max_new_tokens=2), {2}).finish_reason == "length"


@pytest.mark.parametrize("sent", [b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"choices":', b"SSH-2.0-OpenSSH_9.2\r\n\r\n"])
def test_a_server_that_falls_in_the_middle_of_an_answer_gives_none(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that the signal reached which stops the program: this error is what tells an interruption from a failure."""
    monkeypatch.setattr(completion_server_module, "RETRY_AFTER_S", (0.0,))

    class Falls(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1 << 16)
            self.request.sendall(sent)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Falls) as fallen:
        threading.Thread(target=fallen.serve_forever, daemon=True).start()
        server = CompletionServer(fallen.server_address[1], 1, "policy")
        with pytest.raises(ServerError, match="gives no answer"):
            server.generate([[1]], Sampling(0.0, 1.0, None, 4), [1], {2})
        with pytest.raises(ServerError, match="does not say which engine it is"):
            server.version()
        fallen.shutdown()
