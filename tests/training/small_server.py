"""A small server of the completions protocol, started as vLLM's is: ``small_server.py FOLDER --port P …``; answers with the model in FOLDER."""

import argparse
import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from include.runtime.generation import Sampling, generate_batch
from include.training.model_io import load_causal_lm


class Server(ThreadingHTTPServer):
    request_queue_size = 128


class Handler(BaseHTTPRequestHandler):
    model: Any
    name: str
    lock = Lock()

    def do_GET(self) -> None:
        if self.path == "/version":
            self._say(200, {"version": os.environ.get("ALIGN_TEST_SERVER_VERSION", "1.2.3")})
            return
        self._say(200, {"object": "list", "data": [{"id": self.name}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if os.environ.get("ALIGN_TEST_SERVER") == "refuse":
            self._say(400, {"error": {"message": "max_tokens is too large"}})
            return
        if os.environ.get("ALIGN_TEST_SERVER") == "exit":
            os._exit(3)
        if asked.get("echo"):
            self._say(200, self._read(asked["prompt"]))
            return
        sampling = Sampling(asked["temperature"], asked["top_p"], asked["top_k"] or None, asked["max_tokens"])
        with self.lock:
            time.sleep(float(os.environ.get("ALIGN_TEST_SERVER_S", "0")))
            [made] = generate_batch(
                self.model,
                [asked["prompt"]],
                sampling,
                [asked["seed"]],
                stop_ids=set(asked["stop_token_ids"]),
                return_log_probs=True,
                log_probs_at=1.0,
            )
        told = {"tokens": [f"token_id:{token}" for token in made.tokens], "token_logprobs": made.log_probs}
        reason = "stop" if made.finish_reason == "eos" else "length"
        self._say(200, {"model": asked["model"], "choices": [{"index": 0, "text": "", "logprobs": told, "finish_reason": reason}]})

    def _read(self, prompt: list[int]) -> Any:
        """How likely each token was after those before it; of the first nothing is known."""
        with self.lock, torch.no_grad():
            logits = self.model(input_ids=torch.tensor([prompt])).logits[0].float()
        known = torch.log_softmax(logits[:-1], -1).gather(1, torch.tensor(prompt[1:])[:, None]).squeeze(1).tolist()
        told = {"tokens": [f"token_id:{token}" for token in prompt], "token_logprobs": [None, *known]}
        return {"choices": [{"index": 0, "text": "", "logprobs": told, "finish_reason": "length"}]}

    def _say(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--host")
    parser.add_argument("--served-model-name")
    parser.add_argument("--dtype")
    parser.add_argument("--generation-config")
    parser.add_argument("--logprobs-mode", choices=["raw_logprobs"], required=True)
    parser.add_argument("--quantization", choices=["coarse"])
    parser.add_argument("--tensor-parallel-size", type=int)
    asked = parser.parse_args()
    Handler.model, Handler.name = load_causal_lm(asked.folder), asked.served_model_name
    if asked.quantization:  # as an engine does when it loads: each weight matrix in 15 steps
        for weight in (parameter for parameter in Handler.model.parameters() if parameter.dim() == 2):
            scale = weight.data.abs().amax() / 7
            weight.data = (weight.data / scale).round() * scale
    Server((asked.host, asked.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
