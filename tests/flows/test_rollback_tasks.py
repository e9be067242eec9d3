"""Who may roll back, to what, and that every byte of it is read before."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.flows import services
from include.flows.errors import Rejected
from include.flows.ledger_heads import check_whole_ledger
from include.flows.rollback_tasks import may_roll_back, rollback
from include.stores.errors import LedgerBroken, NoRollbackTarget, RegistryError
from tests.flows.conftest import Plane
from tests.flows.releasing import Candidate
from tests.stores.test_ledger import tamper

NAME = "demo-tiny"


@pytest.fixture
def two(plane: Plane) -> tuple[Candidate, Candidate]:
    made = Candidate(plane.run(run_id="a"), "a"), Candidate(plane.run(run_id="b"), "b")
    for one in made:
        one.release()
    return made


def weights_of(plane: Plane, made: Candidate) -> Path:
    (found,) = (plane.store_root / "runs").glob(f"{made.policy.key.removeprefix('sha256:')}/attempts/*/output/policy/model.safetensors")
    return found


def test_one_step_of_an_approver_puts_the_earlier_one_back(two: tuple[Candidate, Candidate], capsys: pytest.CaptureFixture[str]) -> None:
    first, _ = two
    assert rollback(NAME, "users complain", "approver", "back")["champion"] == first.deployment
    assert rollback(NAME, "users complain", "approver", "back")["champion"] == first.deployment
    assert services.catalog().ledger.champion(NAME) == first.deployment
    assert "verifying 1 files" in capsys.readouterr().out


@pytest.mark.parametrize("who", ["", "unknown", "requester", "admin"])
def test_nobody_else_rolls_back_and_nobody_unknown(two: tuple[Candidate, Candidate], who: str) -> None:
    with pytest.raises(Rejected, match="may not roll demo-tiny back; approver, demo-approver may"):
        rollback(NAME, "users complain", who, "back")
    assert services.catalog().ledger.champion(NAME) == two[1].deployment


def test_a_recipe_may_name_others_who_roll_back(plane: Plane) -> None:
    assert may_roll_back(NAME) == ["approver", "demo-approver"]
    plane.change_recipe("tiny", release={"registered_name": NAME, "rollback_by": ["on-call"]})
    assert may_roll_back(NAME) == ["on-call"]
    assert may_roll_back("unheard-of") == []


def test_another_recipes_mistake_is_not_in_the_way(plane: Plane, capsys: pytest.CaptureFixture[str]) -> None:
    (plane.configs / "recipes/broken.yaml").write_text("name: 7")
    assert may_roll_back(NAME) == ["approver", "demo-approver"]
    assert "recipe broken does not read, and is passed over" in capsys.readouterr().out


def test_one_changed_byte_of_the_same_size_is_no_way_back(plane: Plane, two: tuple[Candidate, Candidate]) -> None:
    file = weights_of(plane, two[0])
    data = file.read_bytes()
    file.chmod(0o600)
    file.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(NoRollbackTarget, match="its bytes do not verify"):
        rollback(NAME, "users complain", "approver", "back")
    assert services.catalog().ledger.champion(NAME) == two[1].deployment


def test_a_store_that_is_not_reached_is_no_verdict_on_the_bytes(two: tuple[Candidate, Candidate], monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*args: object) -> None:
        raise ConnectionResetError("the store is away")

    monkeypatch.setattr(services.store(), "verify", away)
    with pytest.raises(ConnectionResetError):
        rollback(NAME, "users complain", "approver", "back")
    assert services.catalog().ledger.champion(NAME) == two[1].deployment


def test_a_ledger_whose_end_was_cut_off_moves_no_champion(plane: Plane, two: tuple[Candidate, Candidate]) -> None:
    assert check_whole_ledger()["exported"] > 0
    last = services.catalog().ledger.head()["seq"]
    tamper(services.catalog(), "DELETE FROM ledger WHERE seq = :seq", seq=last)
    with pytest.raises(LedgerBroken, match="the end of the ledger was cut off"):
        rollback(NAME, "users complain", "approver", "back")
    with pytest.raises(LedgerBroken, match="cut off"):
        check_whole_ledger()
    with pytest.raises(LedgerBroken, match="the ledger was rewritten"):  # a row was written where the missing one had been
        Candidate(plane.run(run_id="c"), "c").release()


def test_where_the_store_lost_its_heads_the_versions_still_carry_theirs(plane: Plane, two: tuple[Candidate, Candidate]) -> None:
    for path in (plane.store_root / "reports/ledger").iterdir():
        path.unlink()
    tamper(services.catalog(), "DELETE FROM ledger WHERE seq = :seq", seq=services.catalog().ledger.head()["seq"])
    with pytest.raises(LedgerBroken, match="cut off"):
        check_whole_ledger()


def test_while_mlflow_is_away_the_heads_in_the_store_are_held_against_the_ledger(
    plane: Plane, two: tuple[Candidate, Candidate], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away(name: str) -> None:
        raise RegistryError("MLflow does not answer")

    monkeypatch.setattr(plane.registry, "heads", away)
    assert check_whole_ledger()["exported"] == services.catalog().ledger.head()["seq"]
    assert "The heads on demo-tiny's versions were not looked at: MLflow does not answer" in capsys.readouterr().out


def test_where_nothing_was_ever_released_nobody_is_asked(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "registry", lambda: pytest.fail("there is no name to ask about"))
    assert check_whole_ledger() == {"rows": 0, "exported": 0}
