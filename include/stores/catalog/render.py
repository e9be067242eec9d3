"""Lineage and impact as text that a person reads in a terminal, and that a model card holds."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from include.stores.catalog.impact import Impact
    from include.stores.catalog.lineage import Node, Production

_SHORT = 19  # "sha256:" and twelve digits


def short(value: str) -> str:
    """A digest cut for reading; anything else as it is."""
    return value[:_SHORT] if value.startswith("sha256:") else value


def render_node(node: "Node") -> str:
    """The tree, one thing a line, what it was made of indented below it."""
    return "\n".join(_node(node, "", ""))


def _node(node: "Node", indent: str, role: str) -> Iterator[str]:
    names = ", ".join(node.names)
    title = f"{role + ': ' if role else ''}{node.kind} {names if names != node.ref else ''}".rstrip()
    yield f"{indent}{title}  {short(node.ref)}{'  (shown above)' if node.repeated else ''}"
    if node.repeated:
        return
    for line in _facts(node.facts):
        yield f"{indent}  {line}"
    for production in node.made:
        yield from _production(production, f"{indent}  ")


def _production(production: "Production", indent: str) -> Iterator[str]:
    state = "" if production.stage is None else f" ({production.stage}, {'committed' if production.committed else 'not committed'})"
    yield f"{indent}made by {production.writer}{state}"
    if production.stage is not None:
        pins = production.pins
        yield f"{indent}  code revision {pins['code_revision']}, environment {short(str(pins['environment']))}, seed {pins['seed']}"
        yield f"{indent}  configuration {production.config_digest}: {_flat(production.config)}"
        if production.note:
            yield f"{indent}  noted: {_flat(production.note)}"
    for role, node in production.inputs:
        yield from _node(node, f"{indent}  ", role)


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


def render_impact(impact: "Impact") -> str:
    """What came from a thing, by kind."""
    lines = [f"Impact of {impact.ref}"]
    if impact.empty:
        return f"{lines[0]}: nothing in the catalog came from it"
    for title, items in _sections(impact):
        if items:
            lines += [f"{title} ({len(items)})", *(f"  {item}" for item in items)]
    return "\n".join(lines)


def _sections(impact: "Impact") -> Iterator[tuple[str, list[str]]]:
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
