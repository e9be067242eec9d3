"""Release, canary, rollback and taint: ledger rows that are written only when their conditions hold.

The ledger comes first and the registry's aliases after it. Every step here is repeatable: the same call finds the row it
wrote before, so a crash between ledger and alias is mended by calling again and repairing the aliases.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from include.stores.catalog.database import insert_new
from include.stores.catalog.dossiers import (
    APPROVED,
    Decision,
    Dossier,
    Dossiers,
    deployment_digest,
    latest_round,
    load_dossier,
    same_person,
)
from include.stores.catalog.graph import ancestors, labels_held, labels_in
from include.stores.catalog.ledger import Entry, NewEntry, append_entry, champion_of, champions, read_entries, verify_chain
from include.stores.catalog.standing import standing_of
from include.stores.catalog.tables_evidence import ledger, taint
from include.stores.errors import (
    CanaryMissing,
    ChampionMoved,
    EvidenceChanged,
    NoRollbackTarget,
    NotApproved,
    NotFound,
    ReleaseRefused,
    Tainted,
)

__all__ = ["Dossier", "Releases", "deployment_digest", "tainted_by"]

CANARY_STATES = ("canary_started", "canary_passed", "canary_aborted")


class Releases(Dossiers):
    """From the dossier to the champion, and back."""

    def propose(self, dossier: str, actor: str) -> Entry:
        """Makes the dossier's deployment the candidate of its name; once while it is the newest one."""
        with self._db.write("ledger") as connection:
            found = load_dossier(connection, dossier)
            earlier = read_entries(connection, ledger.c.name == found.name, ledger.c.kind == "candidate")
            if earlier and earlier[-1].payload["deployment"] == found.deployment:
                return earlier[-1]
            payload = {"deployment": found.deployment}
            return append_entry(connection, self._db.now(), NewEntry("candidate", payload, actor, name=found.name, subject=dossier))

    def canary_started(self, dossier: str, actor: str) -> Entry:
        """Begins the canary of an approved dossier; one at a time, and again after an abort."""
        with self._db.write("ledger") as connection:
            found = load_dossier(connection, dossier)
            _demand_approval(connection, found)
            last = _last_canary(connection, dossier)
            if last is not None and last.kind != "canary_aborted":
                return last
            payload = {"deployment": found.deployment, "plan": dict(found.body["canary"])}
            return append_entry(connection, self._db.now(), NewEntry("canary_started", payload, actor, name=found.name, subject=dossier))

    def canary_passed(self, dossier: str, actor: str, observed: Mapping[str, Any]) -> Entry:
        return self._end_canary("canary_passed", dossier, actor, observed)

    def canary_aborted(self, dossier: str, actor: str, observed: Mapping[str, Any]) -> Entry:
        """Ends it without a release: a limit was broken, it expired, or nothing was observed."""
        return self._end_canary("canary_aborted", dossier, actor, observed)

    def _end_canary(self, kind: str, dossier: str, actor: str, observed: Mapping[str, Any]) -> Entry:
        with self._db.write("ledger") as connection:
            found, last = load_dossier(connection, dossier), _last_canary(connection, dossier)
            if last is None:
                raise CanaryMissing(f"dossier {dossier}: no canary was started")
            if last.kind == kind:
                return last
            if last.kind != "canary_started":
                raise ReleaseRefused(f"dossier {dossier}: its canary already ended as {last.kind} (ledger row {last.seq})")
            payload = {"deployment": found.deployment, "observed": dict(observed)}
            return append_entry(connection, self._db.now(), NewEntry(kind, payload, actor, name=found.name, subject=dossier))

    def release(self, dossier: str, evidence: Mapping[str, Any], actor: str) -> Entry:
        """Makes the dossier's deployment the champion: one ledger row, written once while it stands.

        After a rollback from it, or once another is champion, the same dossier needs new approvals and a new canary.

        Args:
            evidence: the dossier's body, rebuilt from what is there now; it must be the approved one.

        Raises:
            NotApproved, EvidenceChanged, ChampionMoved, CanaryMissing, Tainted: what is missing, by name.
            LedgerBroken: the ledger itself does not hold.
        """
        with self._db.write("ledger") as connection:
            found = load_dossier(connection, dossier)
            standing = standing_of(connection, dossier)
            if standing.released is not None and standing.champion:
                return standing.released
            verify_chain(read_entries(connection))
            _demand_same(found, evidence)
            decision = _demand_approval(connection, found)
            history = read_entries(connection, ledger.c.name == found.name)
            _demand_champion(found, history)
            _demand_one_kind_of_name(found, history)
            _demand_canary(connection, found)
            _demand_untainted(connection, found.deployment)
            payload = {
                "deployment": found.deployment,
                "dossier": dossier,
                "previous": found.champion,
                "demonstration": found.demonstration,
                "approved_by": list(decision.approved_by),
                "asked_by": list(decision.asked_by),
            }
            return append_entry(connection, self._db.now(), NewEntry("released", payload, actor, name=found.name, subject=dossier))

    def already_released(self, name: str, deployment: str) -> Entry | None:
        """The ledger row that made `deployment` the present champion of `name`, or None when it is not champion."""
        with self._db.read() as connection:
            stack = champions(read_entries(connection, ledger.c.name == name))
        return stack[-1] if stack and stack[-1].payload["deployment"] == deployment else None

    def rollback(self, name: str, request_id: str, actor: str, why: str, verify: Callable[[str], bool]) -> Entry:
        """Makes the newest untainted earlier deployment whose bytes verify the champion again; once for a `request_id`.

        Args:
            verify: whether the bytes of a deployment are still whole.

        Raises:
            NoRollbackTarget: naming each earlier deployment and why it does not serve.
        """
        if not why.strip():
            raise ReleaseRefused(f"rollback of {name}: say why")
        with self._db.read() as connection:
            if done := _rolled_back(connection, name, request_id):
                return done
            stack = champions(read_entries(connection, ledger.c.name == name))
            target = _rollback_target(connection, name, stack, verify)
        with self._db.write("ledger") as connection:
            if done := _rolled_back(connection, name, request_id):
                return done
            now_champion = champion_of(read_entries(connection, ledger.c.name == name))
            if now_champion != stack[-1].payload["deployment"]:
                raise ChampionMoved(f"rollback of {name}: {now_champion} became champion meanwhile; look again and repeat")
            if reason := tainted_by(connection, target):
                raise Tainted(f"rollback of {name}: {target} was tainted meanwhile: {reason}")
            payload = {"deployment": target, "previous": now_champion, "request": request_id, "why": why}
            return append_entry(connection, self._db.now(), NewEntry("rolled_back", payload, actor, name=name, subject=target))

    def taint(self, ref: str, reason: str, actor: str) -> bool:
        """Marks `ref` (artifact, dataset, deployment, ``label:ID``, ``batch:ID``, ``rubric:VERSION``) and so all that came from it; for ever. False if it was before."""
        if not reason.strip():
            raise ReleaseRefused(f"taint of {ref}: say why")
        with self._db.write("ledger") as connection:
            if connection.execute(sa.select(taint.c.ref).where(taint.c.ref == ref)).first():
                return False
            entry = append_entry(connection, self._db.now(), NewEntry("tainted", {"ref": ref, "reason": reason}, actor, subject=ref))
            row = {"ref": ref, "reason": reason, "actor": actor, "created_at": entry.at, "ledger_seq": entry.seq}
            insert_new(connection, taint, row)
            return True

    def tainted(self, ref: str) -> str | None:
        """Why `ref`, or something it came from, is tainted; None when nothing is."""
        with self._db.read() as connection:
            return tainted_by(connection, ref)


def tainted_by(connection: sa.Connection, ref: str) -> str | None:
    """The first taint on `ref` or on anything it came from, down to single labels, as a sentence; or None."""
    marks = connection.execute(sa.select(taint.c.ref, taint.c.reason).order_by("ledger_seq")).all()
    if not marks:
        return None
    lineage = ancestors(connection, [ref])
    held = labels_held(connection, lineage)
    for marked, reason in marks:
        if marked in lineage or held & labels_in(connection, marked):
            return f"{marked}: {reason}"
    return None


def _last_canary(connection: sa.Connection, dossier: str) -> Entry | None:
    """The newest row of the dossier's canary that no earlier release has used up."""
    found = read_entries(connection, ledger.c.subject == dossier, ledger.c.kind.in_(CANARY_STATES))
    return found[-1] if found and found[-1].seq > standing_of(connection, dossier).spent else None


def _demand_same(found: Dossier, evidence: Mapping[str, Any]) -> None:
    if replace(found, body=evidence).digest != found.digest:
        changed = sorted(name for name in {*found.body, *evidence} if found.body.get(name) != evidence.get(name))
        raise EvidenceChanged(f"dossier {found.digest}: the approval is void, changed since then: {', '.join(changed)}")


def _demand_approval(connection: sa.Connection, dossier: Dossier) -> Decision:
    """The approved round, judged from the ledger's own rows; task states and other tables don't count."""
    where = f"dossier {dossier.digest}"
    decision = latest_round(connection, dossier.digest)
    if decision is None:
        raise NotApproved(f"{where}: nobody was asked")
    if decision.state not in (APPROVED, "open"):
        raise NotApproved(f"{where}: round {decision.round} is {decision.state} (by {decision.decided_by}: {decision.why})")
    unspent = ledger.c.seq > standing_of(connection, dossier.digest).spent
    rows = read_entries(connection, ledger.c.subject == dossier.digest, ledger.c.kind == "approved", unspent)
    people: set[str] = set()
    for row in rows:
        said = row.payload
        right_round = said["round"] == decision.round and said["deployment"] == dossier.deployment
        counts = said["account"] == "person" or dossier.demonstration
        asked = any(same_person(said["person"], asker) for asker in decision.asked_by)
        if right_round and counts and not asked and row.hash == row.expected_hash():
            people.add(said["person"].strip().casefold())
    if len(people) < dossier.approvals_needed:
        raise NotApproved(f"{where}: {len(people)} of {dossier.approvals_needed} approvals in the ledger, round {decision.round}")
    return decision


def _demand_champion(dossier: Dossier, history: list[Entry]) -> None:
    now = champion_of(history)
    if now != dossier.champion:
        raise ChampionMoved(f"dossier {dossier.digest}: the champion is now {now}, not {dossier.champion}: the approval is void")


def _demand_one_kind_of_name(dossier: Dossier, history: list[Entry]) -> None:
    for entry in history:
        if entry.kind == "released" and entry.payload["demonstration"] != dossier.demonstration:
            raise ReleaseRefused(
                f"{dossier.name} was released {'as' if entry.payload['demonstration'] else 'not as'} a demonstration (ledger row "
                f"{entry.seq}): demonstrations keep names of their own"
            )


def _demand_canary(connection: sa.Connection, dossier: Dossier) -> None:
    if dossier.canary == "none":
        return
    last = _last_canary(connection, dossier.digest)
    if last is None or last.kind != "canary_passed":
        seen = "none was started" if last is None else f"the last is {last.kind} (ledger row {last.seq})"
        raise CanaryMissing(f"dossier {dossier.digest}: its plan asks for a {dossier.canary} canary that passed; {seen}")


def _demand_untainted(connection: sa.Connection, deployment: str) -> None:
    if reason := tainted_by(connection, deployment):
        raise Tainted(f"deployment {deployment} cannot be released: {reason}")


def _rolled_back(connection: sa.Connection, name: str, request_id: str) -> Entry | None:
    rows = read_entries(connection, ledger.c.name == name, ledger.c.kind == "rolled_back")
    return next((row for row in rows if row.payload["request"] == request_id), None)


def _rollback_target(connection: sa.Connection, name: str, stack: list[Entry], verify: Callable[[str], bool]) -> str:
    if not stack:
        raise NotFound(f"rollback of {name}: there is no champion")
    current, refused = stack[-1].payload["deployment"], {}
    for entry in reversed(stack[:-1]):
        deployment = entry.payload["deployment"]
        if deployment == current or deployment in refused:
            continue
        if reason := tainted_by(connection, deployment):
            refused[deployment] = f"tainted ({reason})"
        elif not verify(deployment):
            refused[deployment] = "its bytes do not verify"
        else:
            return str(deployment)
    why = "; ".join(f"{d} is {r}" if r.startswith("tainted") else f"{d}: {r}" for d, r in refused.items()) or "there is no earlier one"
    raise NoRollbackTarget(f"rollback of {name}: no earlier deployment serves: {why}")
