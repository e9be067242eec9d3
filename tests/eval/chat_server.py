"""A small server of the OpenAI chat protocol, in a thread, whose judge a test scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Judge = Callable[[str, str], str]
"""From the answers A and B to the reply."""


class ChatServer:
    """`requests`: what was asked. `fails`: statuses that are given first. `fingerprints`: given in turn, the last one for ever."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.fails: list[int] = []
        self.fingerprints = ["fp-1"]
        self.model = "judge-model"
        self.url = ""

    def reply(self, asked: dict[str, Any]) -> dict[str, Any]:
        text = asked["messages"][0]["content"]
        answers = [_between(text, name) for name in ("answer A", "answer B")]
        print_of = self.fingerprints.pop(0) if len(self.fingerprints) > 1 else self.fingerprints[0]
        message = {"role": "assistant", "content": self.judge(answers[0], answers[1])}
        return {"model": self.model, "system_fingerprint": print_of, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def _between(text: str, name: str) -> str:
    found = re.search(rf"\[begin of {name} ([0-9a-f]{{16}})\]\n(.*)\n\[end of {name} \1\]", text, re.DOTALL)
    assert found, text
    return found[2]


@contextmanager
def serving(judge: Judge) -> Iterator[ChatServer]:
    told = ChatServer(judge)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told.keys.append(self.headers.get("Authorization"))
            if told.fails:
                self._say(told.fails.pop(0), {"error": {"message": "later"}})
                return
            assert self.path == "/v1/chat/completions"
            told.requests.append(asked)
            self._say(200, told.reply(asked))

        def _say(self, status: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()
