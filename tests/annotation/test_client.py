"""The client, against the service as a process, through a connection that may break."""

import contextlib
import dataclasses
import socket
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from include.data.annotation_batches import BatchRequest, Comparison, Gold
from include.data.annotation_client import (
    AnnotationClient,
    AnnotationConflict,
    AnnotationDenied,
    AnnotationNotFound,
    AnnotationRefused,
    AnnotationUnreachable,
    Judgement,
)
from include.domain.canonical import digest
from include.domain.errors import IntegrityError
from include.domain.records import Candidate, Message, Prompt, Reference, Rubric, SamplingConfig, candidate_id_of, prompt_id_of
from tests.annotation.server import Server

SECRET = "SECRET-EXPECTED-ANSWER"
RUBRIC = Rubric("rubric", "rubric@1", "Which is better?", ("clarity",), ("wrong_result",))


def _prompt(number: int) -> Prompt:
    messages = (Message("user", f"Question {number}"),)
    return Prompt(
        prompt_id=prompt_id_of(messages),
        messages=messages,
        source="a-source",
        licence="MIT",
        usage_basis="open",
        split_group="group",
        pii="none",
        pii_detector="patterns@1",
        reference=Reference("arithmetic", "1", SECRET),
    )


def _candidate(prompt: Prompt, seed: int) -> Candidate:
    body = {
        "prompt_id": prompt.prompt_id,
        "policy_checkpoint": digest("model", "a policy"),
        "tokenizer_version": digest("tokenizer", "t"),
        "chat_template": digest("chat-template", "c"),
        "sampling_config": SamplingConfig(0.7, 0.95, 64),
        "random_seed": seed,
        "response_text": f"answer of seed {seed}",
        "finish_reason": "eos",
        "safety_filter_version": "none@1",
    }
    draft = Candidate(candidate_id="", **body)  # type: ignore[arg-type]
    return dataclasses.replace(draft, candidate_id=candidate_id_of(draft.to_json()))


def _comparison(number: int, gold: Gold | None = None) -> Comparison:
    prompt = _prompt(number)
    return Comparison(prompt, _candidate(prompt, 1), _candidate(prompt, 2), gold)


def _request(count: int = 3, human: int = 0, **more: Any) -> BatchRequest:
    return BatchRequest("train", RUBRIC, [_comparison(number) for number in range(count)], human, **more)


@pytest.fixture(scope="module")
def tokens(server: Server) -> dict[str, str]:
    return {role: server.add(f"{role}-{uuid.uuid4().hex[:8]}", role) for role in ("pipeline", "annotator", "verifier")}


@pytest.fixture
def pipeline(server: Server, tokens: dict[str, str]) -> Iterator[AnnotationClient]:
    with AnnotationClient(server.url, tokens["pipeline"]) as client:
        yield client


@pytest.fixture
def verifier(server: Server, tokens: dict[str, str]) -> Iterator[AnnotationClient]:
    with AnnotationClient(server.url, tokens["verifier"]) as client:
        yield client


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex


def test_a_batch_is_labelled_from_end_to_end(pipeline: AnnotationClient, verifier: AnnotationClient, key: str) -> None:
    receipt = pipeline.create_batch(key, _request(3))
    assert (receipt.tasks, receipt.human, receipt.verifier) == (3, 0, 3)
    while task := verifier.next_task(receipt.batch_id):
        better = "left" if task.left.text == "answer of seed 1" else "right"
        verifier.submit(task.task_id, Judgement(better, ("wrong_result",), {"clarity": 4}))
    assert pipeline.progress(receipt.batch_id)["complete"] is True
    snapshot = pipeline.snapshot(receipt.batch_id)
    assert (snapshot.mark, snapshot.purpose, len(snapshot.labels)) == (3, "train", 3)
    comparisons = {c.prompt.prompt_id: c for c in _request(3).tasks}
    for label in snapshot.labels:
        assert label.chosen_candidate_id == comparisons[label.prompt_id].candidate_a.candidate_id
        assert (label.annotator_kind, label.dimension_scores) == ("verifier", {"clarity": 4})


def test_a_verifier_finds_its_reference_by_the_prompt_it_sees(pipeline: AnnotationClient, verifier: AnnotationClient, key: str) -> None:
    receipt = pipeline.create_batch(key, _request(1))
    task = verifier.next_task(receipt.batch_id)
    assert task is not None
    assert task.prompt_id == _prompt(0).prompt_id
    verifier.submit(task.task_id, Judgement("cannot_judge"))


def test_nothing_that_must_stay_unknown_is_sent(server: Server, pipeline: AnnotationClient, key: str) -> None:
    pipeline.create_batch(key, _request(1, gold_items=[_comparison(50, Gold("A", ("ada",)))]))
    connection = sqlite3.connect(server.folder / "annotation.sqlite")
    stored = "\n".join(connection.iterdump())
    connection.close()
    assert "Question 50" in stored
    assert not [secret for secret in (SECRET, "a-source", digest("model", "a policy"), "safety_filter") if secret in stored]


def test_a_frozen_snapshot_is_found_again_by_its_mark(pipeline: AnnotationClient, verifier: AnnotationClient, key: str) -> None:
    batch_id = pipeline.create_batch(key, _request(3)).batch_id
    told = []
    for _ in range(2):
        task = verifier.next_task(batch_id)
        assert task is not None
        told.append(verifier.submit(task.task_id, Judgement("left")))
    frozen = pipeline.snapshot(batch_id)
    verifier.submit(told[0]["task_id"], Judgement("right", supersedes=told[0]["label_id"]))
    pipeline.withdraw(told[1]["label_id"], "a test")
    assert pipeline.snapshot(batch_id, up_to=frozen.mark) == frozen
    assert [label.supersedes for label in pipeline.snapshot(batch_id).labels] == [told[0]["label_id"]]


def test_labels_that_are_not_what_their_digest_says_are_refused(
    server: Server, pipeline: AnnotationClient, verifier: AnnotationClient, key: str
) -> None:
    batch_id = pipeline.create_batch(key, _request(1)).batch_id
    task = verifier.next_task(batch_id)
    assert task is not None
    label = verifier.submit(task.task_id, Judgement("tie"))
    connection = sqlite3.connect(server.folder / "annotation.sqlite")
    connection.execute("DROP TRIGGER labels_no_update")
    connection.execute("UPDATE labels SET record = replace(record, '\"tie\"', '\"both_bad\"') WHERE label_id = ?", (label["label_id"],))
    connection.commit()
    connection.close()
    with pytest.raises(IntegrityError, match="its labels give"):
        pipeline.snapshot(batch_id)


def test_one_key_is_one_batch(pipeline: AnnotationClient, key: str) -> None:
    assert pipeline.create_batch(key, _request(2)) == pipeline.create_batch(key, _request(2))
    with pytest.raises(AnnotationConflict) as caught:
        pipeline.create_batch(key, _request(3))
    assert caught.value.code == "idempotency_conflict"


def test_a_closed_batch_hands_out_nothing(pipeline: AnnotationClient, verifier: AnnotationClient, key: str) -> None:
    batch_id = pipeline.create_batch(key, _request(1)).batch_id
    pipeline.close_batch(batch_id)
    assert verifier.next_task(batch_id) is None
    assert [row["closed_at"] is not None for row in pipeline.batches() if row["batch_id"] == batch_id] == [True]


def test_errors_have_their_types(server: Server, pipeline: AnnotationClient, verifier: AnnotationClient) -> None:
    with pytest.raises(AnnotationNotFound):
        pipeline.progress("nothing")
    with pytest.raises(AnnotationDenied):
        verifier.batches()
    with pytest.raises(AnnotationDenied), AnnotationClient(server.url, "wrong") as stranger:
        stranger.batches()
    masked_not = dataclasses.replace(_prompt(1), pii="unknown")
    comparison = Comparison(masked_not, _candidate(masked_not, 1), _candidate(masked_not, 2))
    with pytest.raises(AnnotationRefused, match="personal data"):
        pipeline.create_batch("key", BatchRequest("train", RUBRIC, [comparison], 0))


def test_nobody_there_is_told_after_the_last_attempt() -> None:
    waits: list[float] = []
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with (
            AnnotationClient(url, "token", attempts=3, sleep=waits.append) as client,
            pytest.raises(AnnotationUnreachable, match="3 attempts"),
        ):
            client.batches()
    assert waits == [0.2, 0.4]


class LossyWire:
    """A wire to the service that swallows the next `lose` answers: the request arrives, the answer does not."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.lose = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._port))
            threading.Thread(target=self._pass_on, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(far, near, True), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        try:
            while data := source.recv(65536):
                if answers and self.lose:
                    self.lose -= 1
                    break
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def wire(server: Server) -> Iterator[LossyWire]:
    made = LossyWire(server.port)
    yield made
    made.close()


def test_lost_answers_double_neither_batch_nor_label(wire: LossyWire, tokens: dict[str, str], pipeline: AnnotationClient, key: str) -> None:
    before = len(pipeline.batches())
    with AnnotationClient(wire.url, tokens["pipeline"], timeout_s=5) as lossy:
        wire.lose = 2
        batch_id = lossy.create_batch(key, _request(2)).batch_id
        assert wire.lose == 0
    assert len(pipeline.batches()) == before + 1
    with AnnotationClient(wire.url, tokens["verifier"], timeout_s=5) as lossy:
        wire.lose = 1
        task = lossy.next_task(batch_id)
        assert task is not None
        wire.lose = 2
        lossy.submit(task.task_id, Judgement("left"))
        assert wire.lose == 0
    assert pipeline.progress(batch_id)["mark"] == 1
