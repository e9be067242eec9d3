"""Deployments, the dossiers that people approve, and their answers. Every answer is a row of the ledger too."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from include.domain.canonical import check_digest, digest
from include.domain.errors import RecordError
from include.stores.catalog.database import Database, insert_new, insert_once
from include.stores.catalog.ledger import Entry, NewEntry, append_entry
from include.stores.catalog.standing import standing_of
from include.stores.catalog.tables_evidence import approvals, askers, decisions, deployments, dossiers
from include.stores.catalog.tables_work import edges
from include.stores.errors import ApproverRefused, Conflict, NotFound

DEPLOYMENT_FIELDS = ("weights", "quantisation", "engine", "tokenizer", "chat_template", "system_prompt", "generation")
CANARIES = ("shadow", "none")
ACCOUNTS = ("person", "demonstration")
OPEN, APPROVED, REJECTED, NO_ANSWER, ROLLED_BACK = "open", "approved", "rejected", "no_answer", "rolled_back"


def deployment_digest(body: Mapping[str, Any]) -> str:
    """The digest that gates, approval, canary and rollback bind to: weights, engine, templates and defaults together."""
    if missing := [name for name in DEPLOYMENT_FIELDS if name not in body]:
        raise RecordError(f"deployment: {', '.join(missing)} missing; it needs {', '.join(DEPLOYMENT_FIELDS)}")
    check_digest(body["weights"], "deployment.weights")
    return digest("deployment", dict(body))


@dataclass(frozen=True)
class Dossier:
    """What is approved. A change in any field is another digest, and voids the approval.

    body: the evidence: gates and policies by digest, datasets with imported share and licences, known risks, recipe, and the
        plan ``canary: {"kind": "shadow" | "none", …}``.
    champion: digest of the champion's deployment that it was compared with, None for a first release.
    demonstration: the recipe is a demonstration, so demonstration accounts may approve.
    """

    name: str
    deployment: str
    body: Mapping[str, Any]
    champion: str | None
    approvals_needed: int
    demonstration: bool

    def __post_init__(self) -> None:
        check_digest(self.deployment, "dossier.deployment")
        if self.approvals_needed < 1:
            raise RecordError("dossier.approvals_needed must be 1 or more: nothing is released unasked")
        if self.canary not in CANARIES:
            raise RecordError(f"dossier.body.canary.kind {self.canary!r} is none of {', '.join(CANARIES)}")

    @property
    def canary(self) -> str | None:
        """The kind of canary that is planned."""
        plan = self.body.get("canary")
        return plan.get("kind") if isinstance(plan, Mapping) else None

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "body": dict(self.body)}

    @property
    def digest(self) -> str:
        return digest("dossier", self.to_json())


@dataclass(frozen=True)
class Decision:
    """One round of asking about a dossier. `state` is open, approved, rejected, no_answer, or rolled_back: approved, released and undone."""

    dossier: str
    round: int
    state: str
    decided_by: str | None
    why: str | None
    asked_by: tuple[str, ...]
    approved_by: tuple[str, ...]


def same_person(one: str, other: str) -> bool:
    """Names are compared without case and surrounding space, so that nobody counts twice by spelling."""
    return one.strip().casefold() == other.strip().casefold()


class Dossiers:
    """The tables deployments, dossiers, decisions, askers and approvals."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def register_deployment(self, name: str, body: Mapping[str, Any]) -> str:
        """Makes a deployment known, with edges to its weights (and adapter, base), and gives its digest."""
        made = deployment_digest(body)
        with self._db.write("lineage") as connection:
            now = self._db.now()
            insert_new(connection, deployments, {"digest": made, "name": name, "body": dict(body), "created_at": now})
            parts = {role: body[role] for role in ("weights", "adapter", "base") if body.get(role)}
            edge = {"child": made, "writer": f"deployment:{name}", "created_at": now}
            insert_once(connection, edges, [{**edge, "parent": parent, "role": role} for role, parent in parts.items()])
        return made

    def deployment(self, digest_: str) -> dict[str, Any]:
        """The body of a deployment."""
        with self._db.read() as connection:
            body = connection.execute(sa.select(deployments.c.body).where(deployments.c.digest == digest_)).scalar()
        if body is None:
            raise NotFound(f"deployment {digest_} is not in the catalog")
        return dict(body)

    def file_dossier(self, dossier: Dossier) -> str:
        """Keeps the dossier and gives its digest."""
        with self._db.write("ledger") as connection:
            row = {
                **{f: getattr(dossier, f) for f in ("digest", "name", "deployment", "champion", "approvals_needed", "demonstration")},
                "body": dossier.to_json(),
                "created_at": self._db.now(),
            }
            insert_new(connection, dossiers, row)
        return dossier.digest

    def dossiers_of(self, deployment: str) -> list[Dossier]:
        """Every dossier about a deployment, oldest first."""
        with self._db.read() as connection:
            query = sa.select(dossiers.c.digest).where(dossiers.c.deployment == deployment).order_by("created_at", "digest")
            return [load_dossier(connection, found) for found in connection.execute(query).scalars()]

    def dossier(self, dossier: str) -> Dossier:
        with self._db.read() as connection:
            return load_dossier(connection, dossier)

    def ask(self, dossier: str, run_id: str, asked_by: str, *, also: Sequence[str] = (), anew: bool = False) -> Decision:
        """Puts a dossier before people, for one run.

        The same run asks once. An open round, or an approval, serves a second run too; a rejection stands until a run
        asks anew, and so does a rollback; after silence another run opens a new round. Nobody who asked can have
        approved: then a new round opens. `also`: others who asked for what this run goes on with; they cannot approve either.
        """
        if not asked_by.strip():
            raise ApproverRefused(f"dossier {dossier}: name who asks for the release, so that this person cannot approve it")
        with self._db.write("ledger") as connection:
            load_dossier(connection, dossier)
            last = latest_round(connection, dossier)
            now = self._db.now()
            if last is None or self._needs_new_round(connection, last, run_id, (asked_by, *also), anew):
                number = 1 if last is None else last.round + 1
                row = {"dossier": dossier, "round": number, "state": OPEN, "created_at": now}
                connection.execute(sa.insert(decisions).values(**row))
            else:
                number = last.round
            if last is None or last.round != number or last.state in (OPEN, APPROVED):
                for run, person in ((run_id, asked_by), *((f"{run_id} for {other}", other) for other in also)):
                    asker = {"dossier": dossier, "round": number, "run_id": run, "asked_by": person, "created_at": now}
                    insert_new(connection, askers, asker)
            return _must(latest_round(connection, dossier), dossier)

    def _needs_new_round(self, connection: sa.Connection, last: Decision, run_id: str, asking: Sequence[str], anew: bool) -> bool:
        mine = sa.and_(askers.c.dossier == last.dossier, askers.c.round == last.round, askers.c.run_id == run_id)
        if connection.execute(sa.select(askers.c.run_id).where(mine)).first():
            return False
        if last.state in (REJECTED, ROLLED_BACK):
            return anew
        return last.state == NO_ANSWER or any(same_person(asker, person) for asker in asking for person in last.approved_by)

    def decision(self, dossier: str, run_id: str | None = None) -> Decision | None:
        """The newest round (in which `run_id` asked, where it is given), or None when nobody was asked yet."""
        with self._db.read() as connection:
            return latest_round(connection, dossier, run_id)

    def asked_in(self, run_id: str) -> str | None:
        """The dossier that a run put before people last, or None."""
        with self._db.read() as connection:
            query = sa.select(askers.c.dossier).where(askers.c.run_id == run_id).order_by(askers.c.created_at.desc()).limit(1)
            found = connection.execute(query).scalar()
        return None if found is None else str(found)

    def waiting(self) -> list[Decision]:
        """Every open round whose dossier still waits for people."""
        with self._db.read() as connection:
            names = connection.execute(sa.select(decisions.c.dossier).where(decisions.c.state == OPEN).distinct()).scalars().all()
            rounds = [latest_round(connection, name) for name in sorted(names)]
        return [r for r in rounds if r is not None and r.state == OPEN]

    def approve(self, dossier: str, person: str, comment: str, account: str = "person") -> Decision:
        """One person's yes. The round is approved when enough distinct persons said it.

        Raises:
            ApproverRefused: the person asked for it, gave no comment, is a demonstration account where none counts, or
                the round is already rejected or over.
        """
        with self._db.write("ledger") as connection:
            found, current = load_dossier(connection, dossier), _must(latest_round(connection, dossier), dossier)
            _refuse_answer(found, current, person, comment, account)
            if current.state not in (OPEN, APPROVED):
                raise ApproverRefused(f"dossier {dossier}: round {current.round} is {current.state}; a run has to ask anew")
            if any(same_person(person, other) for other in current.approved_by):
                return current
            payload = _payload(found, current, person, comment, account)
            entry = append_entry(connection, self._db.now(), NewEntry("approved", payload, person, name=found.name, subject=dossier))
            row = {"dossier": dossier, "round": current.round, "person": person, "account": account, "comment": comment}
            connection.execute(sa.insert(approvals).values(**row, ledger_seq=entry.seq, created_at=entry.at))
            if len(current.approved_by) + 1 >= found.approvals_needed:
                _decide(connection, current, APPROVED, person, comment, entry.at)
            return _must(latest_round(connection, dossier), dossier)

    def reject(self, dossier: str, person: str, comment: str, account: str = "person") -> Decision:
        """One person's no: it ends the round, and stands until a run asks anew."""
        with self._db.write("ledger") as connection:
            found, current = load_dossier(connection, dossier), _must(latest_round(connection, dossier), dossier)
            if current.state == REJECTED:
                return current
            if not comment.strip():
                raise ApproverRefused(f"dossier {dossier}: a comment is required")
            payload = _payload(found, current, person, comment, account)
            entry = append_entry(connection, self._db.now(), NewEntry("rejected", payload, person, name=found.name, subject=dossier))
            _decide(connection, current, REJECTED, person, comment, entry.at)
            return _must(latest_round(connection, dossier), dossier)

    def no_answer(self, dossier: str, actor: str) -> Decision:
        """Nobody answered in time. An answer that came first stands."""
        with self._db.write("ledger") as connection:
            found, current = load_dossier(connection, dossier), _must(latest_round(connection, dossier), dossier)
            if current.state != OPEN:
                return current
            payload = {"deployment": found.deployment, "round": current.round, "asked_by": list(current.asked_by)}
            entry = append_entry(connection, self._db.now(), NewEntry("no_answer", payload, actor, name=found.name, subject=dossier))
            _decide(connection, current, NO_ANSWER, actor, "nobody answered in time", entry.at)
            return _must(latest_round(connection, dossier), dossier)


def _refuse_answer(dossier: Dossier, current: Decision, person: str, comment: str, account: str) -> None:
    where = f"dossier {dossier.digest}"
    if not comment.strip():
        raise ApproverRefused(f"{where}: a comment is required")
    if account not in ACCOUNTS:
        raise ApproverRefused(f"{where}: account {account!r} is none of {', '.join(ACCOUNTS)}")
    if account == "demonstration" and not dossier.demonstration:
        raise ApproverRefused(f"{where}: {person} is a demonstration account, and {dossier.name} is no demonstration")
    if any(same_person(person, asker) for asker in current.asked_by):
        raise ApproverRefused(f"{where}: {person} asked for this release and cannot approve it")


def _payload(dossier: Dossier, current: Decision, person: str, comment: str, account: str) -> dict[str, Any]:
    body = {"deployment": dossier.deployment, "round": current.round, "person": person, "comment": comment, "account": account}
    return {**body, "asked_by": list(current.asked_by)}


def _decide(connection: sa.Connection, current: Decision, state: str, person: str, why: str, at: str) -> None:
    mine = sa.and_(decisions.c.dossier == current.dossier, decisions.c.round == current.round)
    connection.execute(sa.update(decisions).where(mine).values(state=state, decided_by=person, why=why, decided_at=at))


def load_dossier(connection: sa.Connection, dossier: str) -> Dossier:
    """The dossier, refused when its row no longer gives its digest."""
    body = connection.execute(sa.select(dossiers.c.body).where(dossiers.c.digest == dossier)).scalar()
    if body is None:
        raise NotFound(f"dossier {dossier} is not in the catalog: file it first")
    found = Dossier(**body)
    if found.digest != dossier:
        raise Conflict(f"dossier {dossier} was changed in the database: its content gives {found.digest}")
    return found


def latest_round(connection: sa.Connection, dossier: str, run_id: str | None = None) -> Decision | None:
    """The newest round (of a run, where one is given) with who asked and who approved. An approval whose release was rolled back is
    spent: state rolled_back."""
    of_run = sa.select(askers.c.round).where(askers.c.dossier == dossier, askers.c.run_id == run_id)
    query = sa.select(decisions).where(decisions.c.dossier == dossier, sa.true() if run_id is None else decisions.c.round.in_(of_run))
    row = connection.execute(query.order_by(decisions.c.round.desc()).limit(1)).mappings().first()
    if row is None:
        return None
    people = (
        sa.select(askers.c.asked_by).where(askers.c.dossier == dossier, askers.c.round == row["round"]).order_by("created_at", "run_id")
    )
    said_yes = sa.select(approvals.c.person).where(approvals.c.dossier == dossier, approvals.c.round == row["round"]).order_by("ledger_seq")
    asked, approved = (tuple(dict.fromkeys(connection.execute(q).scalars())) for q in (people, said_yes))
    state, by, why = row["state"], row["decided_by"], row["why"]
    if state == APPROVED and (undone := _undone(connection, dossier, row["round"])) is not None:
        state, by, why = ROLLED_BACK, undone.actor, f"rolled back, ledger row {undone.seq}: {undone.payload['why']}"
    return Decision(dossier, row["round"], state, by, why, asked, approved)


def _undone(connection: sa.Connection, dossier: str, number: int) -> Entry | None:
    """The rollback that undid the release which the approvals of this round let through, or None."""
    standing = standing_of(connection, dossier)
    if standing.released is None or standing.undone is None:
        return None
    mine = sa.and_(approvals.c.dossier == dossier, approvals.c.round == number)
    last_yes = connection.execute(sa.select(sa.func.max(approvals.c.ledger_seq)).where(mine)).scalar()
    return standing.undone if last_yes is not None and last_yes < standing.released.seq else None


def _must(found: Decision | None, dossier: str) -> Decision:
    if found is None:
        raise NotFound(f"nobody was asked about dossier {dossier} yet: ask first")
    return found
