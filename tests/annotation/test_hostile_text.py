"""Text of models and strangers goes through unchanged and is never read as anything but text."""

from typing import Any

import pytest

from include.annotation.protection import MAX_BODY_BYTES
from tests.annotation.support import World, batch, prompt, task

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "\u202eright to left\u202c \u2066isolated\u2069",
    "שלום עולם, مرحبا بالعالم",
    "line\u2028separator\u2029paragraph\u0085next\r\nCRLF\ttab",
    "nul \x00 and escape \x1b[31m",
    "emoji 👩‍👩‍👧‍👦 and combining e\u0301",
    "'; DROP TABLE labels; --",
    "",
    "x" * 100_000,
    "<b>" * 40_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_text_comes_through_byte_for_byte(world: World, text: str) -> None:
    answers = {
        "candidate_a": {"candidate_id": "candidate-a", "response_text": text},
        "candidate_b": {"candidate_id": "candidate-b", "response_text": f"other {text}"},
    }
    messages: list[dict[str, Any]] = [{"role": "system", "content": text}, {"role": "user", "content": text}]
    world.made(batch(tasks=[task(1, prompt=prompt(messages), **answers)]))
    response = world.ask("annotator", "GET", "/v1/annotation-tasks/next")
    assert response.headers["content-type"] == "application/json"
    shown = response.json()["task"]
    assert {shown["left"]["text"], shown["right"]["text"]} == {text, f"other {text}"}
    assert [message["content"] for message in shown["prompt"]["messages"]] == [text, text]
    assert world.label("annotator", shown["task_id"], "tie").status_code == 201


def test_a_hostile_name_is_escaped_on_the_pages(world: World) -> None:
    world.made(batch(1, rubric={**batch()["rubric"], "version": "<script>alert(1)</script>"}))
    world.http.get("/login")
    world.http.post("/login", data={"secret": world.http.cookies["annotation_login"], "token": world.tokens["pipeline"]})
    page = world.http.get("/").text
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_the_page_loads_nothing_from_elsewhere(world: World) -> None:
    world.http.get("/login")
    world.http.post("/login", data={"secret": world.http.cookies["annotation_login"], "token": world.tokens["annotator"]})
    sources = [world.http.get(path).text for path in ("/annotate", "/static/style.css", "/static/annotate.js", "/static/view.js")]
    assert all(len(source) > 500 for source in sources)
    assert not any(word in source for source in sources for word in ("http:", "https:", "innerHTML", "eval(", "onclick="))


def test_conversations_of_several_turns_with_tools_are_kept(world: World) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Use the tool."},
        {"role": "user", "content": "1 + 2?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3", "name": "add"},
    ]
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    answers = {
        "candidate_a": {"candidate_id": "a", "response_text": "3"},
        "candidate_b": {"candidate_id": "b", "response_text": "", "tool_calls": [call]},
    }
    world.made(batch(tasks=[task(1, prompt=prompt(messages, tools), **answers)]))
    shown = world.next()["task"]
    assert [message["role"] for message in shown["prompt"]["messages"]] == ["system", "user", "assistant", "tool"]
    assert shown["prompt"]["messages"][2]["tool_calls"] == [call]
    assert shown["prompt"]["tools"] == tools
    sides = {shown[side]["text"]: shown[side]["tool_calls"] for side in ("left", "right")}
    assert sides == {"3": None, "": [call]}


def test_a_body_that_is_too_large_is_refused(world: World) -> None:
    chunk = b"x" * (1 << 20)
    response = world.ask(
        "pipeline",
        "POST",
        "/v1/annotation-batches",
        content=(chunk for _ in range((MAX_BODY_BYTES >> 20) + 1)),
        headers={"Idempotency-Key": "large", "Content-Type": "application/json"},
    )
    assert (response.status_code, response.json()["error"]["code"]) == (413, "too_large")
