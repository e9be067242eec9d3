"""The graph of what came from what: one breadth-first walk, up or down, over edges, runs, datasets and deployments.

Nodes are digests (artifact, dataset content, deployment) or named refs such as ``label:ID`` and ``rubric:NAME``.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from include.stores.catalog.tables_evidence import label_events
from include.stores.catalog.tables_work import dataset_versions, edges, memberships, run_inputs

_CHUNK = 500


@dataclass(frozen=True)
class Edge:
    """`child` was made of `parent`, as `role`, by the attempt `writer`."""

    child: str
    parent: str
    role: str
    writer: str


def chunks(values: Iterable[str]) -> Iterable[Sequence[str]]:
    """Sorted, in pieces that a database takes as parameters."""
    ordered = sorted(set(values))
    for start in range(0, len(ordered), _CHUNK):
        yield ordered[start : start + _CHUNK]


def select_edges(connection: sa.Connection, column: sa.Column[str], values: Iterable[str]) -> list[Edge]:
    """The edges whose child, or parent, is one of `values`."""
    found: list[Edge] = []
    for piece in chunks(values):
        query = sa.select(edges.c.child, edges.c.parent, edges.c.role, edges.c.writer).where(column.in_(piece))
        found += [Edge(*row) for row in connection.execute(query)]
    return sorted(found, key=lambda e: (e.child, e.role, e.parent, e.writer))


def aliases_of(connection: sa.Connection, refs: Iterable[str]) -> set[str]:
    """The other digest of each dataset among `refs`: its content hash, or its artifact digest."""
    found: set[str] = set()
    table = dataset_versions.c
    for piece in chunks(refs):
        query = sa.select(table.content_hash, table.artifact).where(sa.or_(table.content_hash.in_(piece), table.artifact.in_(piece)))
        for content_hash, artifact in connection.execute(query):
            found |= {content_hash, artifact}
    return found


def descendants(connection: sa.Connection, start: Iterable[str], through: Callable[[str], bool] | None = None) -> set[str]:
    """Everything that came from `start`, itself included; with `through`, only what it holds for, and what came from that."""
    return _walk(connection, start, edges.c.parent, through)


def ancestors(connection: sa.Connection, start: Iterable[str]) -> set[str]:
    """Everything that `start` came from, itself included."""
    return _walk(connection, start, edges.c.child)


def _walk(
    connection: sa.Connection, start: Iterable[str], column: sa.Column[str], through: Callable[[str], bool] | None = None
) -> set[str]:
    seen: set[str] = set()
    waiting = set(start)
    while waiting:
        waiting |= aliases_of(connection, waiting)
        seen |= waiting
        step = select_edges(connection, column, waiting)
        next_ones = {e.child if column is edges.c.parent else e.parent for e in step} - seen
        waiting = {ref for ref in next_ones if through is None or through(ref)}
    return seen


def labels_in(connection: sa.Connection, ref: str) -> set[str]:
    """The labels that ``label:ID``, ``batch:ID`` or ``rubric:VERSION`` means; none for other refs.

    Of a batch by their events, or by the datasets that hold them; of a rubric those that were made under this version.
    """
    kind, _, name = ref.partition(":")
    if kind == "label":
        return {name}
    if kind == "rubric":
        return set(connection.execute(sa.select(label_events.c.label_id).where(label_events.c.rubric_version == name)).scalars())
    return _labels_of_batch(connection, name) if kind == "batch" else set()


def _labels_of_batch(connection: sa.Connection, batch_id: str) -> set[str]:
    by_event = sa.select(label_events.c.label_id).where(label_events.c.batch_id == batch_id)
    by_member = sa.select(memberships.c.label_id).where(memberships.c.batch_id == batch_id)
    return set(connection.execute(sa.union(by_event, by_member)).scalars())


def datasets_with(connection: sa.Connection, label_ids: Iterable[str]) -> set[str]:
    """Content hashes of the datasets that hold one of these labels."""
    found: set[str] = set()
    for piece in chunks(label_ids):
        found |= set(connection.execute(sa.select(memberships.c.content_hash).where(memberships.c.label_id.in_(piece))).scalars())
    return found


def labels_held(connection: sa.Connection, refs: Iterable[str]) -> set[str]:
    """The labels of the datasets among `refs` (content hashes)."""
    found: set[str] = set()
    for piece in chunks(refs):
        found |= set(connection.execute(sa.select(memberships.c.label_id).where(memberships.c.content_hash.in_(piece))).scalars())
    return found


def runs_reading(connection: sa.Connection, refs: Iterable[str]) -> set[str]:
    """Keys of the stage runs, running ones too, that read one of `refs`."""
    found: set[str] = set()
    for piece in chunks(refs):
        found |= set(connection.execute(sa.select(run_inputs.c.key).where(run_inputs.c.parent.in_(piece))).scalars())
    return found
