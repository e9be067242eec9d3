"""What did this come from: a tree from a deployment, model or dataset back to data, code, configuration and rubric."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from include.domain.canonical import digest
from include.domain.layout import RunDir
from include.stores.catalog.database import Database, Row, insert_new, insert_once
from include.stores.catalog.facts import describe, marks
from include.stores.catalog.graph import Edge, descendants, runs_reading, select_edges
from include.stores.catalog.impact import Impact, impact_of, impact_of_labels
from include.stores.catalog.ledger import ALIASES, read_entries
from include.stores.catalog.tables_evidence import deployments, label_events, ledger
from include.stores.catalog.tables_work import artifacts, dataset_versions, edges, memberships, stage_runs
from include.stores.errors import NotFound

_RUN_PREFIX = "runs/"
COLLECTED = ("label:", "batch:", "rubric:")
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

    def edges(self, child: str, parents: Iterable[tuple[str, str]], writer: str) -> None:
        """As `edge`, for each (parent, role), all or none."""
        with self._db.write("lineage") as connection:
            row = {"child": child, "writer": writer, "created_at": self._db.now()}
            insert_once(connection, edges, [{**row, "parent": parent, "role": role} for parent, role in parents])

    def trace(self, ref: str) -> Node:
        """The tree behind `ref`: a digest, ``dataset:ID@3``, ``deployment:DIGEST``, or ``champion:NAME`` (candidate, canary).

        Raises:
            NotFound: nothing of this name is in the catalog.
        """
        with self._db.read() as connection:
            start = resolve(connection, ref)
            return _Tracer(connection).node(start)

    def impact(self, ref: str) -> Impact:
        """Everything that came from `ref`: what `trace` takes, and ``label:ID``, ``batch:ID`` and ``rubric:VERSION``.

        Raises:
            NotFound: nothing of this name is in the catalog.
        """
        with self._db.read() as connection:
            return impact_of(connection, ref, _node_of(connection, ref))

    def impact_of_labels(self, title: str, label_ids: Iterable[str]) -> Impact:
        """Everything that came from any of these labels; `title` stands for all of them."""
        with self._db.read() as connection:
            return impact_of_labels(connection, title, set(label_ids))

    def spread(self, refs: Iterable[str], through: Callable[[str], bool]) -> set[str]:
        """`refs` and what came from them by way of nothing but what `through` holds for."""
        with self._db.read() as connection:
            return descendants(connection, refs, through)

    def readers(self, refs: Iterable[str]) -> set[str]:
        """Keys of the stage runs, running ones too, that read one of `refs`."""
        with self._db.read() as connection:
            return runs_reading(connection, refs)

    def node_of(self, ref: str) -> str:
        """What a taint is set on: the digest that `ref` means, or ``label:ID``, ``batch:ID`` or ``rubric:VERSION`` as it is. Raises NotFound."""
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
        f"{ref} is not in the catalog; give a digest, dataset:ID@3, deployment:DIGEST, champion:NAME (or candidate, canary), label:ID, batch:ID or rubric:VERSION"
    )


def _node_of(connection: sa.Connection, ref: str) -> str:
    return _collected(connection, ref) if ref.startswith(COLLECTED) else resolve(connection, ref)


def _collected(connection: sa.Connection, ref: str) -> str:
    """A label, batch or rubric that the catalog has heard of: by an event, as a dataset's member, or as a node of the graph."""
    kind, _, name = ref.partition(":")
    column = {"label": "label_id", "batch": "batch_id", "rubric": "rubric_version"}[kind]
    known = [(label_events.c[column], name), (edges.c.parent, ref), (edges.c.child, ref)]
    if kind != "rubric":
        known.append((memberships.c[column], name))
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
        facts |= marks(self._connection, ref)
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


def _run_of(connection: sa.Connection, writer: str) -> Row | None:
    if not writer.startswith(_RUN_PREFIX):
        return None
    key = f"sha256:{writer.removeprefix(_RUN_PREFIX).partition('/')[0]}"
    if RunDir(key).root != writer.partition("/attempts/")[0]:
        return None
    return connection.execute(sa.select(stage_runs).where(stage_runs.c.key == key)).mappings().first()
