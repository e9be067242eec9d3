"""Who judges: a model folder that is named by its digest, or a server of the OpenAI chat protocol, by model name and fingerprint."""

import http.client
import json
import os
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from include.domain.canonical import MAX_INTEGER, digest
from include.domain.records import Message
from include.eval.answers import Asked, answer
from include.eval.errors import EvaluationError
from include.eval.models import load_policy, load_tokenizer
from include.runtime.generation import Sampling

REQUEST_S = 120.0
RETRY_AFTER_S = (0.5, 2.0, 10.0)
_BUSY = (429, 500, 502, 503, 504)
MAX_BYTES = 1 << 20
"""Of a server's answer: it holds one line."""


class _Here(urllib.request.HTTPRedirectHandler):
    """Follows nothing: key and answers go to the server that was named, and to no other."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_Here)


class JudgeModel(Protocol):
    """Replies to texts, each by itself."""

    @property
    def special(self) -> Sequence[str]:
        """What its tokenizer reads as tokens of their own."""

    @property
    def seen(self) -> Mapping[str, Any]:
        """What is told of it in the output."""

    def replies(self, texts: Sequence[str]) -> list[str]: ...

    def go_on(self, seen: Mapping[str, Any]) -> None:
        """An earlier attempt of this run saw this; it is still the same judge, or the next reply is refused."""


class LocalJudge:
    """A causal language model from its verified folder; greedy, so that the same text gets the same reply."""

    def __init__(self, folder: Path, dtype: str, max_new_tokens: int, rows: int) -> None:
        self.model, self.tokenizer = load_policy(folder, dtype), load_tokenizer(folder)
        self.special = sorted({*self.tokenizer.all_special_tokens, *self.tokenizer.get_added_vocab()})
        self.sampling = Sampling(temperature=0.0, top_p=1.0, top_k=None, max_new_tokens=max_new_tokens)
        self.rows = rows
        self.seen: dict[str, Any] = {}

    def replies(self, texts: Sequence[str]) -> list[str]:
        asked = [Asked(digest("judge-text", text), [Message("user", text)]) for text in texts]
        return [one.text for one in answer(self.model, self.tokenizer, asked, self.sampling, 0, self.rows)]

    def go_on(self, seen: Mapping[str, Any]) -> None:
        """The folder's digest says that it is the same."""


class ServerJudge:
    """A server at `url` (with ``/v1``). Every reply must come from the model that was named, and from one fingerprint throughout."""

    def __init__(self, url: str, model: str, fingerprint: str | None, max_new_tokens: int, key: str | None) -> None:
        if not url.startswith(("http://", "https://")):
            raise EvaluationError(f"settings.url {url!r} is neither http:// nor https://")
        self.url, self.model, self.max_new_tokens = url.rstrip("/"), model, max_new_tokens
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        self._expected = fingerprint
        self.special: Sequence[str] = ()
        self.seen: dict[str, Any] = {"fingerprint": fingerprint}

    def replies(self, texts: Sequence[str]) -> list[str]:
        return [self._reply(text) for text in texts]

    def go_on(self, seen: Mapping[str, Any]) -> None:
        if self._expected is None and seen.get("fingerprint"):
            self._expected = self.seen["fingerprint"] = str(seen["fingerprint"])

    def _reply(self, text: str) -> str:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "temperature": 0.0,
            "max_tokens": self.max_new_tokens,
            "seed": int(digest("judge-text", text)[7:20], 16) % min(MAX_INTEGER, 2**31),
        }
        found = self._post(body)
        self._check(found)
        try:
            reply = found["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError) as error:
            raise EvaluationError(f"the judge's server gave no choice with a message: {error!r}") from error
        return reply if isinstance(reply, str) else ""

    def _check(self, found: Mapping[str, Any]) -> None:
        if found.get("model") != self.model:
            raise EvaluationError(f"the judge's server answered as {found.get('model')!r}, {self.model!r} was asked")
        seen = str(found.get("system_fingerprint") or "none given")
        if self._expected is None:
            self._expected = self.seen["fingerprint"] = seen
        if seen != self._expected:
            raise EvaluationError(f"the judge's server has fingerprint {seen!r}, {self._expected!r} is expected: it is another judge")

    def _post(self, body: Mapping[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(f"{self.url}/chat/completions", json.dumps(body).encode(), self._headers)  # noqa: S310 - http(s) alone
        for pause_s in (*RETRY_AFTER_S, None):
            try:
                with _OPENER.open(request, timeout=REQUEST_S) as response:
                    return _object(response, time.monotonic() + REQUEST_S)
            except urllib.error.HTTPError as error:
                if pause_s is None or error.code not in _BUSY:
                    said = error.read(2000).decode(errors="replace")
                    raise EvaluationError(f"the judge's server says {error.code}: {said}") from error
            except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
                if pause_s is None:
                    raise EvaluationError(f"the judge's server gives no answer: {error}") from error
            time.sleep(pause_s)
        raise AssertionError("the last round returns or raises")


def _object(response: http.client.HTTPResponse, until: float) -> dict[str, Any]:
    """The JSON object that a server answers.

    Raises:
        EvaluationError: it is longer than MAX_BYTES, or something else.
        OSError: it is not there `until` then, by the monotonic clock.
        ValueError: it is no JSON.
    """
    body = b""
    while piece := response.read1(1 << 16):
        body += piece
        if len(body) > MAX_BYTES:
            raise EvaluationError(f"the judge's server answers with more than {MAX_BYTES} bytes")
        if time.monotonic() > until:
            raise TimeoutError(f"no whole answer in {REQUEST_S:g} s")
    found = json.loads(body)
    if not isinstance(found, dict):
        raise EvaluationError(f"the judge's server answers with a {type(found).__name__}, not with an object")
    return found


def key_of(file: str | None) -> str | None:
    """The server's key, from a file that nobody else may read; None where none is named.

    Raises:
        EvaluationError: the file cannot be read, others can read it, or it is not one key; the message has nothing of it.
    """
    if not file:
        return None
    try:
        mode = stat.S_IMODE(os.stat(file).st_mode)
        key = Path(file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise EvaluationError(f"settings.api_key_file: {error}") from error
    if not all("!" <= sign <= "~" for sign in key):
        raise EvaluationError(f"settings.api_key_file {file}: a key is one word of ASCII, in one line")
    if mode & 0o077 or not key:
        raise EvaluationError(f"settings.api_key_file {file}: the key's file has mode 0600 and is not empty (mode is {mode:04o})")
    return key
