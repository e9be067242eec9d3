"""Lineage and impact as text that a person reads in a terminal, and that a model card holds."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from include.stores.catalog.impact import Impact
from include.stores.catalog.lineage import Node, Production

_SHORT = 19  # "sha256:" and twelve digits


def short(value: str) -> str:
    """A digest cut for reading; anything else as it is."""
    return value[:_SHORT] if value.startswith("sha256:") else value


def render_node(node: Node, *, every_writing: bool = False) -> str:
    """The tree, one thing a line, what it was made of indented below it; writings alike are one line with their count, unless all are asked for."""
    return "\n".join(_node(node, "", "", every_writing))


def _node(node: Node, indent: str, role: str, every_writing: bool) -> Iterator[str]:
    names = ", ".join(node.names)
    title = f"{role + ': ' if role else ''}{node.kind} {names if names != node.ref else ''}".rstrip()
    yield f"{indent}{title}  {short(node.ref)}{'  (shown above)' if node.repeated else ''}"
    if node.repeated:
        return
    for line in _facts(node.facts):
        yield f"{indent}  {line}"
    for production, writings in ((p, 1) for p in node.made) if every_writing else alike(node.made):
        yield from _production(production, writings, f"{indent}  ", every_writing)


def alike(made: Iterable[Production]) -> Iterator[tuple[Production, int]]:
    """The first of each group of writings that differ in nothing but the writer, with the number of writings in the group."""
    groups: dict[object, list[Production]] = {}
    for production in made:
        same = (production.stage, production.key, production.committed, tuple((role, node.ref) for role, node in production.inputs))
        groups.setdefault(same, []).append(production)
    return ((group[0], len(group)) for group in groups.values())


def _production(production: Production, writings: int, indent: str, every_writing: bool) -> Iterator[str]:
    state = "" if production.stage is None else f" ({production.stage}, {'committed' if production.committed else 'not committed'})"
    more = f", written {writings} times from the same" if writings > 1 else ""
    yield f"{indent}made by {production.writer}{state}{more}"
    if production.stage is not None:
        pins = production.pins
        yield f"{indent}  code revision {pins['code_revision']}, environment {short(str(pins['environment']))}, seed {pins['seed']}"
        yield f"{indent}  configuration {production.config_digest}: {_flat(production.config)}"
        if production.note:
            yield f"{indent}  noted: {_flat(production.note)}"
    for role, node in production.inputs:
        yield from _node(node, f"{indent}  ", role, every_writing)


def _facts(facts: Mapping[str, Any]) -> Iterator[str]:
    for name, value in facts.items():
        if name.endswith("_share"):
            yield f"{name.replace('_', ' ')} {value:.1%}"
        elif isinstance(value, Mapping):
            yield f"{name}: {_flat(value)}"
        else:
            yield f"{name.replace('_', ' ')}: {short(str(value))}"


def _flat(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{short(name)}={short(str(value))}" for name, value in sorted(values.items()))


def render_impact(impact: Impact) -> str:
    """What came from a thing, by kind."""
    lines = [f"Impact of {impact.ref}"]
    if impact.empty:
        return f"{lines[0]}: nothing in the catalog came from it"
    for title, items in _sections(impact):
        if items:
            lines += [f"{title} ({len(items)})", *(f"  {item}" for item in items)]
    return "\n".join([*lines, "what to do, if it is bad", *(f"  {step}" for step in _plan(impact))])


def _plan(impact: Impact) -> Iterator[str]:
    yield f"mark it, so that nothing that came from it is released: align taint {impact.ref} --why …"
    for name, target in impact.rollbacks:
        if target is None:
            yield f"{name}: no earlier champion is free of it; train anew, and take the present one out of service"
        else:
            yield f"{name}: roll back to {target} (DAG rollback_release)"
    if running := [key for key, _, state in impact.runs if state == "not committed"]:
        yield f"{len(running)} stage runs that read it are not done; mark their tasks as failed, which ends their jobs"
    if impact.datasets or impact.labels:
        yield "leave it out of the data, then run the recipe again: stages that never read it keep their keys and are reused"


def _sections(impact: Impact) -> Iterator[tuple[str, list[str]]]:
    yield "labels", list(impact.labels)
    yield "datasets", list(impact.datasets)
    yield "artifacts", [f"{kind} {digest}" for digest, kind in impact.artifacts]
    yield "stage runs", [f"{stage} {key} ({state})" for key, stage, state in impact.runs]
    yield "deployments", [f"{name} {digest}" for digest, name in impact.deployments]
    yield "measurements", list(impact.measurements)
    yield "gate reports", list(impact.gate_reports)
    yield "dossiers", list(impact.dossiers)
    yield "ledger rows", [str(seq) for seq in impact.ledger_rows]
    yield "champion now", list(impact.champions)
    yield "other", list(impact.other)
