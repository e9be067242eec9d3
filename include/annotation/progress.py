"""How far a batch is: counts, shares, agreement, gold, and what is still missing."""

import itertools
import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, func, select

from include.annotation.batches import HUMAN, VERIFIER, find_batch
from include.annotation.database import Database
from include.annotation.snapshot import standing
from include.annotation.tables import batches, displays, labels, tasks, withdrawals
from include.domain.agreement import cohen_kappa, falls_short, krippendorff_alpha, one_sided, wilson
from include.domain.records import VERDICTS

Labels = Sequence[Mapping[str, Any]]
Asked = Sequence[Any]  # rows of task_id, pool, wanted
DECIDED = ("A", "B")


def progress(database: Database, batch_id: str) -> dict[str, Any]:
    with database.read() as connection:
        return _progress(connection, find_batch(connection, batch_id))


def all_progress(database: Database) -> list[dict[str, Any]]:
    """Every batch that was asked for (mixed-in gold is shown within its batch), newest first."""
    query = select(batches).where(batches.c.batch_id == batches.c.root_id).order_by(batches.c.created_at.desc(), batches.c.batch_id)
    with database.read() as connection:
        return [_progress(connection, row) for row in connection.execute(query).all()]


def _progress(connection: Connection, batch: Row[Any]) -> dict[str, Any]:
    rows = standing(connection, batch.batch_id, batch.mark)
    gold = _gold(connection, batch)
    asked = connection.execute(select(tasks.c.task_id, tasks.c.pool, tasks.c.wanted).where(tasks.c.batch_id == batch.batch_id)).all()
    missing = _missing(asked, rows)
    times = sorted(row["created_at"] for row in rows)
    return {
        "batch_id": batch.batch_id,
        "purpose": batch.purpose,
        "created_at": batch.created_at,
        "closed_at": batch.closed_at,
        "rubric_id": batch.rubric_id,
        "rubric_version": batch.rubric_version,
        "mark": batch.mark,
        "tasks": _tasks(asked),
        "labels": _labels(connection, batch, asked, rows),
        **shares(rows),
        **_sides(connection, batch.batch_id, rows),
        "agreement": agreement(rows),
        "missing": missing,
        "complete": missing["total"] == 0,
        "freshest_label_at": times[-1] if times else None,
        "oldest_label_at": times[0] if times else None,
        "annotators": _annotators(rows),
        "gold": gold,
        "review": _review(batch, gold),
    }


def _tasks(asked: Asked) -> dict[str, int]:
    pools = Counter(task.pool for task in asked)
    overlapping = sum((task.wanted or 0) > 1 for task in asked)
    return {"total": len(asked), "human": pools[HUMAN], "verifier": pools[VERIFIER], "overlapping": overlapping}


def _labels(connection: Connection, batch: Row[Any], asked: Asked, rows: Labels) -> dict[str, Any]:
    by_kind: dict[str, dict[str, int]] = {}
    for row in rows:
        by_kind.setdefault(row["annotator_kind"], dict.fromkeys(VERDICTS, 0))[row["verdict"]] += 1
    written, gone = (
        connection.execute(select(func.count()).where(table.c.batch_id == batch.batch_id, table.c.mark <= batch.mark)).scalar_one()
        for table in (labels, withdrawals)
    )
    return {
        "wanted": sum(task.wanted or 0 for task in asked),
        "current": len(rows),
        "superseded": written - len(rows) - gone,
        "withdrawn": gone,
        "by_verdict": {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in VERDICTS},
        "by_kind": by_kind,
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def shares(rows: Labels) -> dict[str, Any]:
    """Shares of verdicts among the labels that stand; None where there is none."""
    count = Counter(row["verdict"] for row in rows)
    kinds = sorted({row["annotator_kind"] for row in rows})
    decided_by_kind = {}
    for kind in kinds:
        of_kind = [row["verdict"] in DECIDED for row in rows if row["annotator_kind"] == kind]
        decided_by_kind[kind] = _share(sum(of_kind), len(of_kind))
    return {
        "decided_share": _share(count["A"] + count["B"], len(rows)),
        "decided_share_by_kind": decided_by_kind,
        **{f"{verdict}_share": _share(count[verdict], len(rows)) for verdict in ("tie", "both_bad", "cannot_judge")},
    }


def _sides(connection: Connection, batch_id: str, rows: Labels) -> dict[str, Any]:
    """How often the left answer won: with random sides, far from a half means a habit, not a judgement."""
    query = select(displays.c.task_id, displays.c.annotator_id, displays.c.left_side)
    query = query.join(tasks, tasks.c.task_id == displays.c.task_id).where(tasks.c.batch_id == batch_id)
    left = {(row.task_id, row.annotator_id): row.left_side for row in connection.execute(query)}
    decided = [row for row in rows if row["verdict"] in DECIDED]
    won = sum(left[row["task_id"], row["annotator_id"]] == row["verdict"] for row in decided)
    interval = wilson(won, len(decided)) if decided else None
    return {
        "left_wins": won,
        "right_wins": len(decided) - won,
        "left_win_share": _share(won, len(decided)),
        "left_win_interval": interval,
        "one_sided": one_sided(interval),
    }


def agreement(rows: Labels) -> dict[str, Any]:
    """How often two annotators of the same task said the same. Of one annotator: not applicable, which is not 1."""
    by_task: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_task.setdefault(row["task_id"], []).append(row)
    several = [group for group in by_task.values() if len(group) > 1]
    pairs = [(x["verdict"], y["verdict"]) for group in several for x, y in itertools.combinations(group, 2)]
    agreeing = sum(x == y for x, y in pairs)
    kappa = _kappa(by_task.values())
    return {
        "applicable": bool(pairs),
        "tasks": len(several),
        "annotators": len({row["annotator_id"] for group in several for row in group}),
        "comparisons": len(pairs),
        "agreeing": agreeing,
        "share": _share(agreeing, len(pairs)),
        "kappa": kappa,
        "alpha": krippendorff_alpha([[row["verdict"] for row in _judged(group)] for group in by_task.values()]),
    }


def _judged(group: Labels) -> list[Mapping[str, Any]]:
    return [row for row in group if row["verdict"] != "cannot_judge"]


def _kappa(groups: Iterable[Labels]) -> float | None:
    """The mean of Cohen's kappa over pairs of annotators, weighted by the tasks they share; `cannot_judge` is no judgement."""
    shared: dict[tuple[str, str], list[tuple[Hashable, Hashable]]] = {}
    for group in groups:
        for one, other in itertools.combinations(sorted(_judged(group), key=lambda row: str(row["annotator_id"])), 2):
            shared.setdefault((one["annotator_id"], other["annotator_id"]), []).append((one["verdict"], other["verdict"]))
    found = [(kappa, len(pairs)) for pairs in shared.values() if (kappa := cohen_kappa(pairs)) is not None]
    weight = sum(count for _, count in found)
    return sum(kappa * count for kappa, count in found) / weight if weight else None


def _missing(asked: Asked, rows: Labels) -> dict[str, int]:
    have = Counter(row["task_id"] for row in rows)
    missing = Counter({HUMAN: 0, VERIFIER: 0})
    for task in asked:
        missing[task.pool] += max(0, (task.wanted or 0) - have[task.task_id])
    return {"total": missing.total(), "human": missing[HUMAN], "verifier": missing[VERIFIER]}


def _annotators(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    out: dict[str, dict[str, Any]] = {}
    for row in rows:
        out.setdefault(row["annotator_id"], {"kind": row["annotator_kind"], "labels": 0})["labels"] += 1
    return dict(sorted(out.items()))


def _gold(connection: Connection, batch: Row[Any]) -> dict[str, Any] | None:
    """Gold items of the batch itself, or those mixed into it: how many labels of them were right, by annotator."""
    query = select(tasks.c.task_id, tasks.c.batch_id, tasks.c.gold).join(batches, batches.c.batch_id == tasks.c.batch_id)
    items = connection.execute(query.where(batches.c.root_id == batch.root_id, tasks.c.gold.is_not(None))).all()
    if not items:
        return None
    right = {item.task_id: json.loads(item.gold)["verdict"] for item in items}
    gold_batch = find_batch(connection, items[0].batch_id)
    by_annotator: dict[str, dict[str, int]] = {}
    for row in standing(connection, gold_batch.batch_id, gold_batch.mark):
        counts = by_annotator.setdefault(row["annotator_id"], {"labels": 0, "right": 0})
        counts["labels"] += 1
        counts["right"] += row["verdict"] == right[row["task_id"]]
    return {
        "batch_id": gold_batch.batch_id,
        "items": len(items),
        "labels": sum(counts["labels"] for counts in by_annotator.values()),
        "right": sum(counts["right"] for counts in by_annotator.values()),
        "by_annotator": dict(sorted(by_annotator.items())),
    }


def _review(batch: Row[Any], gold: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What the batch asks of gold accuracy, and who is below it; None where it asks for nothing."""
    if batch.review is None:
        return None
    asked: dict[str, Any] = json.loads(batch.review)
    counts = gold["by_annotator"] if gold else {}
    below = [
        who
        for who, count in counts.items()
        if falls_short(count["right"], count["labels"], asked["min_gold_accuracy"], asked["min_gold_labels"])
    ]
    return {**asked, "annotators": below}
