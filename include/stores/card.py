"""The model card, made from lineage alone: Markdown, pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class CardFacts:
    """What a card says.

    datasets: {dataset, content_hash, licences {name: rows}, imported_share 0–1, synthetic_share 0–1 (optional)} of each.
    base: {name, revision, licence, weights} of the model that all began with. fallback: who answers uncertain inputs, as a sentence.
    gates_table: the gate report as Markdown. lineage: the tree as text.
    known_risks, waivers: each a sentence. decisions: what people and canaries said, each a sentence, in the ledger's order.
    reward_models: digests of what scored its answers, all members of an ensemble; reward_combined: how several become one.
    """

    name: str
    deployment: str
    weights: str
    recipe: str
    description: str
    demonstration: bool
    datasets: Sequence[Mapping[str, Any]]
    gates_table: str
    known_risks: Sequence[str]
    lineage: str
    waivers: Sequence[str] = ()
    reward_models: Sequence[str] = ()
    reward_combined: str | None = None
    base: Mapping[str, Any] = field(default_factory=dict)
    fallback: str = ""
    decisions: Sequence[str] = ()


def model_card(facts: CardFacts) -> str:
    """The card of a deployment. The same facts give the same text."""
    parts = [
        f"# {facts.name}",
        facts.description.strip() or "No description.",
        _demonstration(facts),
        _identity(facts),
        f"## Base\n\n{_base(facts.base)}",
        f"## Licences\n\n{_bullets(licences(facts.datasets), 'No licence is recorded: do not distribute.')}",
        f"## Data\n\n{_data(facts.datasets)}",
        f"## Reward models\n\n{_rewards(facts)}",
        f"## Gates\n\n{facts.gates_table.strip() or 'No gate report.'}",
        f"## Waivers\n\n{_bullets(facts.waivers, 'None.')}",
        f"## Known risks\n\n{_bullets(facts.known_risks, 'None recorded.')}",
        f"## Fallback\n\n{facts.fallback or 'None is recorded.'}",
        f"## Decisions\n\n{_bullets(facts.decisions, 'None yet.')}",
        f"## Lineage\n\n{_fenced(facts.lineage)}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def licences(datasets: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every licence with its rows over all datasets, most rows first; rows without one are named as such."""
    rows: dict[str, int] = {}
    for dataset in datasets:
        for licence, count in dataset.get("licences", {}).items():
            rows[licence or "no licence stated"] = rows.get(licence or "no licence stated", 0) + count
    return [f"{name}: {count} rows" for name, count in sorted(rows.items(), key=lambda item: (-item[1], item[0]))]


def _demonstration(facts: CardFacts) -> str:
    if not facts.demonstration:
        return ""
    return "> A demonstration: its approval may be a demonstration account's, and it is not meant for use."


def _identity(facts: CardFacts) -> str:
    rows = {"Deployment": facts.deployment, "Weights": facts.weights, "Recipe": facts.recipe}
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | `{_cell(value)}` |" for name, value in rows.items())])


def _base(base: Mapping[str, Any]) -> str:
    if not base:
        return "No base is recorded."
    rows = {"Name": base.get("name"), "Revision": base.get("revision"), "Weights": base.get("weights")}
    licence = base.get("licence")
    said = f"Licence: {licence}." if licence else "Its licence is not stated: do not distribute."
    return "\n".join([said, "", "| | |", "|---|---|", *(f"| {name} | `{_cell(str(value))}` |" for name, value in rows.items() if value)])


def _data(datasets: Sequence[Mapping[str, Any]]) -> str:
    if not datasets:
        return "No dataset is recorded."
    lines = ["| dataset | licences | imported | synthetic | content |", "|---|---|---|---|---|"]
    for dataset in datasets:
        names = ", ".join(sorted(dataset.get("licences", {}))) or "none stated"
        imported, synthetic = dataset.get("imported_share"), dataset.get("synthetic_share")
        cells = (dataset["dataset"], names, _share(imported), _share(synthetic), f"`{dataset['content_hash']}`")
        lines.append(f"| {' | '.join(_cell(str(cell)) for cell in cells)} |")
    return "\n".join(lines)


def _rewards(facts: CardFacts) -> str:
    if not facts.reward_models:
        return "None scored its answers."
    several = f"An ensemble of {len(facts.reward_models)}, taken together by their {facts.reward_combined}:\n\n"
    return (several if len(facts.reward_models) > 1 else "") + "\n".join(f"- `{_cell(digest)}`" for digest in facts.reward_models)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def _bullets(items: Sequence[str], none: str) -> str:
    return "\n".join(f"- {' '.join(item.split())}" for item in items) or none


def _fenced(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text.rstrip()}\n{fence}" if text.strip() else "No lineage is recorded."
