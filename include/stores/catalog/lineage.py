"""What did this come from: a tree from a deployment, model or dataset back to data, code, configuration and rubric."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from include.domain.canonical import digest
from include.domain.layout import RunDir
from include.stores.catalog.database import Database, Row, insert_new
from include.stores.catalog.graph import Edge, select_edges
from include.stores.catalog.impact import Impact, impact_of
from include.stores.catalog.ledger import ALIASES, Entry, read_entries
from include.stores.catalog.releases import tainted_by
from include.stores.catalog.tables_evidence import deployments, gate_reports, label_events, ledger, taint
from include.stores.catalog.tables_work import artifacts, dataset_versions, edges, memberships, run_outputs, stage_runs
from include.stores.errors import NotFound

_RUN_PREFIX = "runs/"
PINS = ("code_revision", "environment", "seed", "tokenizer", "chat_template", "rerun_salt")


@dataclass(frozen=True)
class Production:
    """One writing of a thing: by whom, under which pins, from what. The same content may have been written twice."""

    writer: str
    stage: str | None
    key: str | None
    committed: bool
    pins: Mapping[str, Any]
    config: Mapping[str, Any]
    config_digest: str | None
    note: Mapping[str, Any]
    inputs: tuple[tuple[str, "Node"], ...]

    def to_json(self) -> dict[str, Any]:
        plain = {k: v for k, v in vars(self).items() if k != "inputs"}
        return {**plain, "inputs": [{"role": role, **node.to_json()} for role, node in self.inputs]}


@dataclass(frozen=True)
class Node:
    """A thing in a lineage. `facts`: dataset name, shares by origin, licences, rubrics, label counts, or a deployment's body.

    repeated: its inputs are shown where it stands first in the tree.
    """

    ref: str
    kind: str
    names: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    made: tuple[Production, ...] = ()
    repeated: bool = False

    def to_json(self) -> dict[str, Any]:
        plain = {"ref": self.ref, "kind": self.kind, "names": list(self.names), "facts": dict(self.facts), "repeated": self.repeated}
        return {**plain, "made": [production.to_json() for production in self.made]}

    def walk(self) -> "list[Node]":
        """This node and all below it, each one once."""
        found = {} if self.repeated else {self.ref: self}
        for production in self.made:
            for _, node in production.inputs:
                for item in node.walk():
                    found.setdefault(item.ref, item)
        return list(found.values())


class Lineage:
    """Traces back, and forward."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def edge(self, child: str, parent: str, role: str, writer: str) -> None:
        """Binds `child` to what it was made of and to the attempt that wrote it, at the moment it is written."""
        with self._db.write("lineage") as connection:
            row = {"child": child, "parent": parent, "role": role, "writer": writer, "created_at": self._db.now()}
            insert_new(connection, edges, row)

    def trace(self, ref: str) -> Node:
        """The tree behind `ref`: a digest, ``dataset:ID@3``, ``deployment:DIGEST``, or ``champion:NAME`` (candidate, canary).

        Raises:
            NotFound: nothing of this name is in the catalog.
        """
        with self._db.read() as connection:
            start = resolve(connection, ref)
            return _Tracer(connection).node(start)

    def impact(self, ref: str) -> Impact:
        """Everything that came from `ref`: what `trace` takes, and ``label:ID`` and ``batch:ID``.

        Raises:
            NotFound: nothing of this name is in the catalog.
        """
        with self._db.read() as connection:
            return impact_of(connection, ref, _node_of(connection, ref))

    def node_of(self, ref: str) -> str:
        """What a taint is set on: the digest that `ref` means, or ``label:ID`` or ``batch:ID`` as it is. Raises NotFound."""
        with self._db.read() as connection:
            return _node_of(connection, ref)

    def resolve(self, ref: str) -> str:
        """The digest (or named node) that `ref` means."""
        with self._db.read() as connection:
            return resolve(connection, ref)


def resolve(connection: sa.Connection, ref: str) -> str:
    """The node that `ref` means; raises NotFound when the catalog knows nothing of that name."""
    kind, _, rest = ref.partition(":")
    if kind in ALIASES:
        named = ALIASES[kind](read_entries(connection, ledger.c.name == rest))
        if named is None:
            raise NotFound(f"{rest} has no {kind} in the ledger")
        return named
    if kind == "deployment":
        if not connection.execute(sa.select(deployments.c.digest).where(deployments.c.digest == rest)).first():
            raise NotFound(f"deployment {rest} is not in the catalog")
        return rest
    if kind == "dataset":
        return _dataset(connection, rest)
    known = (artifacts.c.digest, deployments.c.digest, dataset_versions.c.content_hash, edges.c.child, edges.c.parent)
    for column in known:
        if connection.execute(sa.select(column).where(column == ref).limit(1)).first():
            return ref
    raise NotFound(
        f"{ref} is not in the catalog; give a digest, dataset:ID@3, deployment:DIGEST, champion:NAME (or candidate, canary), label:ID or batch:ID"
    )


def _node_of(connection: sa.Connection, ref: str) -> str:
    return _collected(connection, ref) if ref.startswith(("label:", "batch:")) else resolve(connection, ref)


def _collected(connection: sa.Connection, ref: str) -> str:
    """A label or batch that the catalog has heard of: by an event, as a dataset's member, or as a node of the graph."""
    kind, _, name = ref.partition(":")
    column = "label_id" if kind == "label" else "batch_id"
    known = ((label_events.c[column], name), (memberships.c[column], name), (edges.c.parent, ref), (edges.c.child, ref))
    if any(connection.execute(sa.select(place).where(place == value).limit(1)).first() for place, value in known):
        return ref
    raise NotFound(f"{kind} {name} is not in the catalog")


def _dataset(connection: sa.Connection, name: str) -> str:
    dataset_id, _, version = name.partition("@")
    query = sa.select(dataset_versions.c.content_hash).where(dataset_versions.c.dataset_id == dataset_id)
    digits = version.removeprefix("v")
    if digits.isdigit():
        query = query.where(dataset_versions.c.version == int(digits))
    found = connection.execute(query.order_by(dataset_versions.c.version.desc())).scalar()
    if found is None or (version and not digits.isdigit()):
        raise NotFound(f"dataset {name} is not in the catalog")
    return str(found)


class _Tracer:
    """Builds the tree; a node met before is named again without its inputs."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._seen: set[str] = set()

    def node(self, ref: str) -> Node:
        kind, names, facts = describe(self._connection, ref)
        if marked := _marked(self._connection, ref):
            facts["tainted"] = marked
        if ref in self._seen:
            return Node(ref, kind, names, facts, repeated=True)
        self._seen.add(ref)
        by_writer: dict[str, list[Edge]] = {}
        for edge in select_edges(self._connection, edges.c.child, [ref]):
            by_writer.setdefault(edge.writer, []).append(edge)
        return Node(ref, kind, names, facts, tuple(self._production(w, found) for w, found in by_writer.items()))

    def _production(self, writer: str, found: list[Edge]) -> Production:
        inputs = tuple((edge.role, self.node(edge.parent)) for edge in found)
        run = _run_of(self._connection, writer)
        if run is None:
            return Production(writer, None, None, True, {}, {}, None, {}, inputs)
        spec = run["spec"]
        pins = {name: spec[name] for name in PINS}
        committed = run["committed_attempt"] == writer.rpartition("/")[2]
        config = spec["config"]
        return Production(writer, run["stage"], run["key"], committed, pins, config, digest("config", config), spec["note"], inputs)


def _marked(connection: sa.Connection, ref: str) -> str | None:
    """Why this node is tainted; of a deployment also why something is that it came from."""
    if connection.execute(sa.select(deployments.c.digest).where(deployments.c.digest == ref)).first():
        return tainted_by(connection, ref)
    row = connection.execute(sa.select(taint.c.reason, taint.c.actor, taint.c.created_at).where(taint.c.ref == ref)).first()
    return f"{row.reason} (by {row.actor} at {row.created_at})" if row else None


def _run_of(connection: sa.Connection, writer: str) -> Row | None:
    if not writer.startswith(_RUN_PREFIX):
        return None
    key = f"sha256:{writer.removeprefix(_RUN_PREFIX).partition('/')[0]}"
    if RunDir(key).root != writer.partition("/attempts/")[0]:
        return None
    return connection.execute(sa.select(stage_runs).where(stage_runs.c.key == key)).mappings().first()


def describe(connection: sa.Connection, ref: str) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    """(kind, names, facts) of a node."""
    versions = connection.execute(
        sa.select(dataset_versions).where(sa.or_(dataset_versions.c.content_hash == ref, dataset_versions.c.artifact == ref))
    ).mappings().all()  # fmt: skip
    if versions:
        names = tuple(f"{v['dataset_id']}@{v['version']}" for v in versions)
        return "dataset", names, _dataset_facts(connection, versions[0])
    row = connection.execute(sa.select(deployments.c.name, deployments.c.body).where(deployments.c.digest == ref)).first()
    if row is not None:
        return "deployment", (row.name,), {**row.body, **_judged(connection, ref)}
    kind = connection.execute(sa.select(artifacts.c.kind).where(artifacts.c.digest == ref)).scalar()
    if kind is not None:
        query = sa.select(stage_runs.c.stage, run_outputs.c.name).join(run_outputs, run_outputs.c.key == stage_runs.c.key)
        found = connection.execute(query.where(run_outputs.c.digest == ref).order_by(stage_runs.c.stage)).all()
        facts = _ensemble_facts(connection, ref) if kind == "reward_model" else {}
        return kind, tuple(dict.fromkeys(f"{stage}/{name}" for stage, name in found)), facts
    head, colon, rest = ref.partition(":")
    return (head if colon and head != "sha256" else "source"), (rest or ref,), {}


def _ensemble_facts(connection: sa.Connection, member: str) -> dict[str, Any]:
    """Of a reward model: the members of its ensemble, where it has others, and the gate that judged them together."""
    mine = sa.select(run_outputs.c.key).where(run_outputs.c.digest == member).order_by(run_outputs.c.key).limit(1).scalar_subquery()
    query = sa.select(run_outputs.c.name, run_outputs.c.digest).join(artifacts, artifacts.c.digest == run_outputs.c.digest)
    rows = connection.execute(query.where(run_outputs.c.key == mine, artifacts.c.kind == "reward_model")).all()
    members = {row.name: row.digest for row in rows}
    reports = _reports(connection, list(members.values()))
    return {name: value for name, value in (("ensemble", members if len(members) > 1 else {}), ("gate_reports", reports)) if value}


def _reports(connection: sa.Connection, judged: Sequence[str]) -> dict[str, str]:
    query = sa.select(gate_reports).where(gate_reports.c.deployment.in_(judged)).order_by("created_at", "digest")
    return {row["digest"]: f"{row['verdict']} ({row['purpose']}, {row['gate_code']})" for row in connection.execute(query).mappings()}


def _judged(connection: sa.Connection, deployment: str) -> dict[str, Any]:
    """Gate reports with their verdicts, and the ledger rows that approved and released a deployment."""
    reports = _reports(connection, [deployment])
    rows = read_entries(connection, ledger.c.kind.in_(("approved", "released", "rolled_back")))
    told = {f"row {e.seq}": f"{e.kind} by {e.actor}{_account(e)} at {e.at}" for e in rows if e.payload["deployment"] == deployment}
    return {name: value for name, value in (("gate_reports", reports), ("ledger", told)) if value}


def _account(entry: Entry) -> str:
    return " (demonstration account)" if entry.payload.get("account") == "demonstration" else ""


def _dataset_facts(connection: sa.Connection, version: Row) -> dict[str, Any]:
    info = version["info"]
    facts: dict[str, Any] = {k: info[k] for k in ("rows", "counts", "licences", "origins") if k in info}
    facts["filter_policy_version"] = version["filter_policy_version"]
    facts |= shares(info.get("origins") or {})
    held = memberships.c.content_hash == version["content_hash"]
    labels = connection.execute(sa.select(sa.func.count()).select_from(memberships).where(held)).scalar() or 0
    if labels:
        facts["labels"] = labels
        facts["rubrics"] = _count(connection, label_events.c.rubric_version, held)
        facts["annotators"] = _count(connection, label_events.c.annotator_kind, held)
        facts |= _taken_back(connection, held)
    return facts


def _taken_back(connection: sa.Connection, held: sa.ColumnElement[bool]) -> dict[str, int]:
    """How many of a dataset's labels were withdrawn, where any was."""
    both = memberships.join(label_events, label_events.c.label_id == memberships.c.label_id)
    query = sa.select(sa.func.count(sa.distinct(memberships.c.label_id))).select_from(both)
    withdrawn = connection.execute(query.where(held, label_events.c.kind == "withdrawn")).scalar() or 0
    return {"withdrawn_labels": withdrawn} if withdrawn else {}


def _count(connection: sa.Connection, column: sa.Column[str], held: sa.ColumnElement[bool]) -> dict[str, int]:
    """Labels of a dataset by a column of the event with which they were collected."""
    joined = sa.and_(
        label_events.c.label_id == memberships.c.label_id,
        label_events.c.label_digest == memberships.c.label_digest,
        label_events.c.kind == "collected",
    )
    query = sa.select(column, sa.func.count(sa.distinct(memberships.c.label_id))).select_from(memberships.join(label_events, joined))
    return {str(value): n for value, n in connection.execute(query.where(held).group_by(column).order_by(column))}


def shares(origins: Mapping[str, int]) -> dict[str, float]:
    """Imported and synthetic share of rows, from counts by origin (``external:…``, ``synthetic:…``, anything else is ours)."""
    total = sum(origins.values())
    if not total:
        return {}
    part = {kind: sum(n for origin, n in origins.items() if origin.startswith(kind)) / total for kind in ("external", "synthetic")}
    return {"imported_share": part["external"], "synthetic_share": part["synthetic"]}
