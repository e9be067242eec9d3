"""Who may do what, with a token and with a cookie."""

import json
from typing import Any

import pytest

from tests.annotation.support import ROLES, World, batch

PERMISSIONS: list[tuple[str, str, Any, set[str]]] = [
    ("POST", "/v1/annotation-batches", {}, {"pipeline"}),
    ("GET", "/v1/annotation-batches", None, {"pipeline", "admin"}),
    ("GET", "/v1/annotation-batches/B", None, {"pipeline", "admin"}),
    ("GET", "/v1/annotation-batches/B/labels", None, {"pipeline"}),
    ("POST", "/v1/annotation-batches/B/close", None, {"pipeline"}),
    ("GET", "/v1/labels?since=2026-01-01T00:00:00Z&until=2026-01-08T00:00:00Z", None, {"pipeline"}),
    ("POST", "/v1/labels/L/withdraw", {"reason": "a reason"}, {"pipeline", "admin"}),
    ("POST", "/v1/annotators/ann_x/withdraw", {"reason": "a reason"}, {"pipeline", "admin"}),
    ("POST", "/v1/erasures", {"prompt_ids": ["sha256:" + "0" * 64]}, {"pipeline"}),
    ("GET", "/v1/withdrawals", None, {"pipeline", "admin"}),
    ("GET", "/v1/annotation-tasks/next", None, {"annotator", "verifier"}),
    ("GET", "/v1/annotation-tasks/previous", None, {"annotator", "verifier"}),
    ("GET", "/v1/annotation-tasks/T", None, {"annotator", "verifier"}),
    ("POST", "/v1/annotation-tasks/T/labels", {"verdict": "left"}, {"annotator", "verifier"}),
    ("GET", "/v1/annotators/ann_x", None, {"admin"}),
]


@pytest.mark.parametrize("role", list(ROLES))
@pytest.mark.parametrize(("method", "path", "body", "allowed"), PERMISSIONS, ids=[f"{p[0]} {p[1]}" for p in PERMISSIONS])
def test_each_role_is_let_in_where_it_belongs_and_nowhere_else(
    world: World, role: str, method: str, path: str, body: Any, allowed: set[str]
) -> None:
    response = world.ask(role, method, path, json=body)
    if role in allowed:
        assert response.status_code not in (401, 403), response.text
    else:
        assert (response.status_code, response.json()["error"]["code"]) == (403, "role")


def test_the_matrix_names_every_route_of_the_api(world: World) -> None:
    spec = world.http.get("/openapi.json").json()["paths"]
    known = {(method.upper(), path) for path, methods in spec.items() for method in methods if path.startswith("/v1")}
    assert len(known) == len(PERMISSIONS)


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer nonsense"}, {"Authorization": "Basic YTpi"}])
def test_without_a_known_token_nothing_is_told(world: World, headers: dict[str, str]) -> None:
    for method, path, body, _allowed in PERMISSIONS:
        response = world.http.request(method, path, json=body, headers=headers)
        assert response.status_code == 401, path
        assert response.headers["www-authenticate"] == "Bearer"


def test_tokens_are_stored_hashed(world: World) -> None:
    stored = (world.folder / "tokens.json").read_text("utf-8")
    assert all(token not in stored for token in world.tokens.values())
    assert len({row["token_sha256"] for row in json.loads(stored)}) == 4


def test_a_tokens_file_that_others_may_read_is_not_used(world: World) -> None:
    (world.folder / "tokens.json").chmod(0o640)
    response = world.ask("annotator", "GET", "/v1/annotation-tasks/next")
    assert response.status_code == 503
    assert str(world.folder) not in response.text


def test_an_account_added_while_the_service_runs_is_known(world: World) -> None:
    world.add("newcomer", "annotator")
    assert world.next("newcomer")["reason"] == "none_left"


def test_only_the_administrator_learns_who_is_behind_a_pseudonym(world: World) -> None:
    batch_id = world.made(batch(1))
    world.work()
    (annotator_id,) = world.progress(batch_id)["annotators"]
    identity = world.ask("admin", "GET", f"/v1/annotators/{annotator_id}").json()
    assert (identity["account"], identity["display_name"], identity["kind"]) == ("annotator", "The annotator", "human")
    labels = (world.folder / "annotation.sqlite").read_bytes() + (world.folder / "annotation.sqlite-wal").read_bytes()
    assert annotator_id.encode() in labels
    assert b"The annotator" not in labels


def test_both_databases_are_readable_for_their_owner_alone(world: World) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in world.folder.iterdir() if "sqlite" in path.name or path.name == "key"}
    assert {"annotation.sqlite", "identities.sqlite", "key"} <= set(modes)
    assert set(modes.values()) == {0o600}


def _log_in(world: World, name: str = "annotator") -> Any:
    world.http.get("/login")
    return world.http.post("/login", data={"secret": world.http.cookies["annotation_login"], "token": world.tokens[name]})


def _csrf(world: World) -> str:
    return world.http.get("/annotate").text.split('name="csrf-token" content="')[1].split('"')[0]


def test_a_login_sets_a_cookie_that_scripts_can_not_read(world: World) -> None:
    response = _log_in(world)
    assert (response.status_code, response.headers["location"]) == (303, "/annotate")
    (cookie,) = [c for c in response.headers.get_list("set-cookie") if c.startswith("annotation_session=")]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert world.tokens["annotator"] not in cookie


def test_a_wrong_token_is_told_and_not_logged_in(world: World) -> None:
    world.http.get("/login")
    response = world.http.post("/login", data={"secret": world.http.cookies["annotation_login"], "token": "wrong"})
    assert response.status_code == 401
    assert "annotation_session" not in world.http.cookies


def test_another_site_can_not_log_somebody_in(world: World) -> None:
    response = world.http.post("/login", data={"secret": "guessed", "token": world.tokens["annotator"]})
    assert response.status_code == 403
    assert "annotation_session" not in world.http.cookies


def test_a_program_does_not_log_in(world: World) -> None:
    assert _log_in(world, "verifier").status_code == 401


def test_a_change_by_cookie_needs_the_pages_secret(world: World) -> None:
    batch_id = world.made(batch(1))
    _log_in(world)
    shown = world.http.get("/v1/annotation-tasks/next").json()["task"]
    path = f"/v1/annotation-tasks/{shown['task_id']}/labels"
    for guess in (b"", b"guessed", "ü".encode("latin-1")):
        refused = world.http.post(path, json={"verdict": "left"}, headers={b"X-CSRF-Token": guess})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "csrf")
    assert world.progress(batch_id)["mark"] == 0
    assert world.http.post(path, json={"verdict": "left"}, headers={"X-CSRF-Token": _csrf(world)}).status_code == 201


def test_logging_out_ends_the_session_on_the_server(world: World) -> None:
    _log_in(world)
    secret = world.http.cookies["annotation_session"]
    assert world.http.post("/logout", data={"csrf": "guessed"}).status_code == 403
    world.http.post("/logout", data={"csrf": _csrf(world)})
    world.http.cookies.set("annotation_session", secret)
    assert world.http.get("/v1/annotation-tasks/next").status_code == 401


def test_a_session_ends_after_a_working_day(world: World) -> None:
    _log_in(world)
    world.clock.forward(12 * 3600 + 1)
    assert world.http.get("/v1/annotation-tasks/next").status_code == 401


def test_a_session_ends_with_its_token(world: World) -> None:
    _log_in(world)
    path = world.folder / "tokens.json"
    path.write_text(json.dumps([row for row in json.loads(path.read_text("utf-8")) if row["account"] != "annotator"]), "utf-8")
    assert world.http.get("/v1/annotation-tasks/next").status_code == 401
    assert world.http.get("/annotate").headers["location"] == "/login"


@pytest.mark.parametrize(
    ("name", "path", "goes_to"),
    [(None, "/", "/login"), (None, "/annotate", "/login"), ("annotator", "/", "/annotate"), ("admin", "/annotate", "/")],
)
def test_everybody_ends_up_at_their_own_page(world: World, name: str | None, path: str, goes_to: str) -> None:
    if name:
        _log_in(world, name)
    assert world.http.get(path).headers["location"] == goes_to


def test_every_answer_has_the_protecting_headers(world: World) -> None:
    for path in ("/login", "/healthz", "/static/annotate.js", "/v1/annotation-batches", "/nowhere"):
        headers = world.http.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';"), path
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
