"""Nothing that reaches an annotator tells which policy wrote what, which answer is expected, or which one is A."""

import math
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from include.annotation.assignment import Annotator, Desk, next_task, shown_task
from include.annotation.labels import Submission, submit
from include.annotation.requests import LabelIn
from tests.annotation.support import World, batch, gold, good_side

TASK_KEYS = {
    "task_id": None,
    "prompt": {"messages": {"role", "content", "tool_calls", "name"}, "tools": None},
    "left": {"text", "tool_calls"},
    "right": {"text", "tool_calls"},
    "rubric": {"rubric_id", "version", "text", "dimensions", "reason_codes"},
    "label": None,
}


def _everything_told(world: World) -> list[str]:
    """All that an annotator's browser or token is answered in a working session, headers included."""
    told: list[Any] = []
    for _ in range(4):
        answer = world.ask("annotator", "GET", "/v1/annotation-tasks/next")
        task_id = answer.json()["task"]["task_id"]
        label = world.label("annotator", task_id, "left")
        paths = (f"/v1/annotation-tasks/{task_id}", "/v1/annotation-tasks/previous", "/v1/annotation-tasks/next")
        told += [answer, label, *(world.ask("annotator", "GET", path) for path in paths)]
    world.http.get("/login")
    world.http.post("/login", data={"secret": world.http.cookies["annotation_login"], "token": world.tokens["annotator"]})
    told += [world.http.get(path) for path in ("/annotate", "/static/annotate.js", "/static/view.js", "/static/server.js")]
    return ["\n".join([*response.headers.values(), response.text]) for response in told]


def _forbidden(world: World) -> set[str]:
    """Ids and orders as they are stored, and the names of fields that would give something away."""
    connection = sqlite3.connect(world.folder / "annotation.sqlite")
    values = {str(v) for row in connection.execute("SELECT a_id, b_id, prompt_id FROM tasks") for v in row}
    values |= {str(v) for row in connection.execute("SELECT batch_id FROM batches") for v in row}
    values |= {str(v) for row in connection.execute("SELECT DISTINCT annotator_id FROM displays") for v in row}
    connection.close()
    words = (
        "candidate policy seed swap display_order expected reference gold confirmed_by purpose shuffle pool annotator_kind chosen_candidate"
    )
    return values | set(words.split())


def test_no_answer_and_no_page_holds_what_must_not_be_known(world: World) -> None:
    world.made(batch(3, gold_items=[gold(100, verdict="both_bad")]))
    told = _everything_told(world)
    forbidden = _forbidden(world)
    assert len(forbidden) > 20
    for text in told:
        found = {value for value in forbidden if value in text}
        assert not found


def test_the_search_for_forbidden_values_finds_them_where_they_may_be(world: World) -> None:
    """The control: the same search over the pipeline's export does find ids, order and swaps."""
    batch_id = world.made(batch(1))
    world.work()
    exported = world.ask("pipeline", "GET", f"/v1/annotation-batches/{batch_id}/labels").text
    found = {value for value in _forbidden(world) if value in exported}
    assert {"candidate-0-a", "candidate-0-b", "swap", "display_order", batch_id} <= found


def test_a_task_has_exactly_the_fields_that_may_be_seen(world: World) -> None:
    world.made(batch(1))
    shown = world.next()["task"]
    assert set(shown) == set(TASK_KEYS)
    assert set(shown["prompt"]) == set(TASK_KEYS["prompt"] or {})
    assert set(shown["prompt"]["messages"][0]) == {"role", "content", "tool_calls", "name"}
    for part in ("left", "right", "rubric"):
        assert set(shown[part]) == set(TASK_KEYS[part] or {})


def test_a_gold_item_looks_like_any_other_task(world: World) -> None:
    world.made(batch(1, gold_items=[gold(100)]))
    first = world.next()
    world.label("annotator", first["task"]["task_id"])
    second = world.next()

    def shape(value: Any) -> Any:
        return {key: shape(item) for key, item in value.items()} if isinstance(value, dict) else type(value).__name__

    assert shape(first) == shape(second)
    assert first["task"]["rubric"] == second["task"]["rubric"]


def test_a_label_is_told_back_in_terms_of_sides(world: World) -> None:
    world.made(batch(6))
    verdicts = {"left": 0, "right": 0}
    for told in world.work(verdict="right"):
        verdicts[told["verdict"]] += 1
    assert verdicts == {"left": 0, "right": 6}


def test_the_order_is_committed_before_it_is_answered(world: World) -> None:
    """Looks into the database file, through another connection, at the moment the answer is about to leave."""
    seen: list[int] = []
    inner = world.http.app

    async def watching(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        async def watched(message: Any) -> None:
            if message["type"] == "http.response.start" and scope["path"].endswith("/next"):
                connection = sqlite3.connect(world.folder / "annotation.sqlite")
                seen.append(connection.execute("SELECT count(*) FROM displays").fetchone()[0])
                connection.close()
            await send(message)

        await inner(scope, receive, watched)

    world.made(batch(2))
    http = TestClient(watching)
    headers = {"Authorization": f"Bearer {world.tokens['annotator']}"}
    shown = http.get("/v1/annotation-tasks/next", headers=headers).json()["task"]
    assert seen == [1]
    with world.service.database.read() as connection:
        recorded = shown_task(connection, Annotator(_pseudonym(connection), "human", "human"), shown["task_id"])
    assert recorded.left_side == ("A" if good_side(shown) == "left" else "B")


def _pseudonym(connection: Any) -> str:
    return str(connection.exec_driver_sql("SELECT annotator_id FROM displays").scalar_one())


def _share_of_a_on_the_left(world: World, batch_id: str, annotator: Annotator) -> int:
    database, left = world.service.database, 0
    while shown := next_task(database, Desk(annotator, world.clock(), 1800.0), batch_id).shown:
        left += good_side(shown.blind()) == "left"
        submit(database, Submission(annotator, shown.task.task_id, LabelIn(verdict="tie"), world.clock()))
    return left


@pytest.mark.timeout(300)
def test_over_a_thousand_tasks_the_left_share_of_the_first_answer_is_a_coins(world: World) -> None:
    """Within the binomial 99 % band. A fair coin leaves it one time in a hundred, so two of three draws may not."""
    tasks, half_width = 1000, 2.5758 * math.sqrt(1000 / 4)
    outside = 0
    for draw in range(3):
        batch_id = world.made(batch(tasks), key=f"draw-{draw}")
        left = _share_of_a_on_the_left(world, batch_id, Annotator("ann_thousand", "human", "human"))
        stored = world.snapshot(batch_id)["labels"]
        assert left == sum(not label["swap_flag"] for label in stored)
        assert len(stored) == tasks
        if abs(left - tasks / 2) <= half_width:
            break
        outside += 1
    assert outside < 2


def test_the_order_is_drawn_anew_for_each_annotator(world: World) -> None:
    world.made(batch(60, overlap={"share": 1.0, "annotators": 2}))
    world.add("second", "annotator")
    sides: dict[str, set[str]] = {}
    for name in ("annotator", "second"):
        while shown := world.next(name)["task"]:
            sides.setdefault(shown["task_id"], set()).add(good_side(shown))
            world.label(name, shown["task_id"], "tie")
    different = sum(len(seen) == 2 for seen in sides.values())
    assert 10 < different < 50  # fails by chance less than once in ten million
