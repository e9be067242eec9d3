"""Rollouts of PPO as files: one shard an iteration, all of them together at the end, counted at every turn.

A shard lies in the attempt that wrote it and is named, with its sha256, in the next checkpoint. What a dead attempt
wrote past its last checkpoint is named nowhere, and so it is void.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from include.domain.canonical import canonical_bytes, digest, sha256_file
from include.domain.errors import IntegrityError
from include.domain.records import Rollout
from include.runtime.files import sync_file, sync_folder

FOLDER = "rollouts"
ROLLOUTS = "rollouts.parquet"
SUMMARY = "rollouts.json"
SCHEMA = pa.schema(
    [
        ("rollout_id", pa.string()),
        ("prompt_id", pa.string()),
        ("actor_checkpoint", pa.string()),
        ("reference_checkpoint", pa.string()),
        ("reward_model_checkpoint", pa.list_(pa.string())),
        ("tokens", pa.list_(pa.int64())),
        ("token_log_probs", pa.list_(pa.float64())),
        ("reward_components", pa.string()),
        ("created_at", pa.string()),
        ("iteration", pa.int64()),
        ("finish_reason", pa.string()),
        ("response_text", pa.string()),
    ]
)
"""The fields of a Rollout (mappings as canonical JSON), and three more for whoever reads them."""


@dataclass(frozen=True)
class Written:
    """A rollout with its readable text. `missing_reward`: no finite reward, so that nothing was learnt from it."""

    rollout: Rollout
    finish_reason: str
    response_text: str
    missing_reward: bool


@dataclass(frozen=True)
class Shard:
    """One iteration's rollouts: where they lie (attempt, file), their bytes, and how many there should be and are."""

    iteration: int
    attempt: str
    file: str
    sha256: str
    expected: int
    count: int
    missing_rewards: int
    published_version: int


def with_id(rollout: Rollout, iteration: int, index: int) -> Rollout:
    """`rollout` named by its content and its place in the iteration; the time it was made is no part of its name."""
    body = {key: value for key, value in rollout.to_json().items() if key not in ("rollout_id", "created_at")}
    return replace(rollout, rollout_id=digest("rollout", {"rollout": body, "iteration": iteration, "index": index}))


class RolloutLog:
    """The shards of this run so far; `state` goes into the checkpoint."""

    def __init__(self, attempts: Path, attempt: str) -> None:
        self._attempts = attempts
        self._attempt = attempt
        self.shards: list[Shard] = []

    def write(self, iteration: int, version: int, batch: Sequence[Written], expected: int) -> Shard:
        """Writes one iteration's batch, durable before it is named.

        Raises:
            IntegrityError: the batch is not complete: it is not released to the optimiser.
        """
        if len(batch) != expected:
            raise IntegrityError(f"iteration {iteration} has {len(batch)} rollouts, expected are {expected}: the batch is not complete")
        folder = self._attempts / self._attempt / FOLDER
        folder.mkdir(exist_ok=True)
        path = folder / f"iteration-{iteration:05d}.parquet"
        pq.write_table(pa.Table.from_pylist([_row(iteration, item) for item in batch], schema=SCHEMA), path)
        sync_file(path)
        sync_folder(folder)
        missing = sum(item.missing_reward for item in batch)
        shard = Shard(iteration, self._attempt, path.name, sha256_file(path), expected, len(batch), missing, version)
        self.shards.append(shard)
        return shard

    def assemble(self, folder: Path) -> dict[str, Any]:
        """Writes all iterations as one table with its summary; gives the summary.

        Raises:
            IntegrityError: a shard is missing, of other bytes or of another count, or an iteration is missing or twice there.
        """
        iterations = [shard.iteration for shard in self.shards]
        if iterations != list(range(1, len(iterations) + 1)):
            raise IntegrityError(f"rollouts of iterations {iterations}: one is missing or stands twice")
        with pq.ParquetWriter(folder / ROLLOUTS, SCHEMA) as writer:
            for shard in self.shards:
                writer.write_table(self._read(shard))
        summary = {
            "schema": "align/rollouts/v1",
            "expected": sum(shard.expected for shard in self.shards),
            "count": sum(shard.count for shard in self.shards),
            "missing_rewards": sum(shard.missing_rewards for shard in self.shards),
            "iterations": [asdict(shard) for shard in self.shards],
        }
        (folder / SUMMARY).write_text(json.dumps(summary, indent=1, sort_keys=True) + "\n", "utf-8")
        return summary

    def _read(self, shard: Shard) -> pa.Table:
        path = self._attempts / shard.attempt / FOLDER / shard.file
        if not path.is_file():
            raise IntegrityError(f"rollouts of iteration {shard.iteration} are gone: {path}")
        if (seen := sha256_file(path)) != shard.sha256:
            raise IntegrityError(f"{path} is corrupt: its bytes give {seen}, the checkpoint names {shard.sha256}")
        table = pq.read_table(path, schema=SCHEMA)
        if table.num_rows != shard.count:
            raise IntegrityError(f"{path} has {table.num_rows} rollouts, {shard.count} were written")
        return table

    def state(self) -> list[dict[str, Any]]:
        return [asdict(shard) for shard in self.shards]

    def load_state(self, state: Iterable[Mapping[str, Any]]) -> None:
        self.shards = [Shard(**entry) for entry in state]


def read_rollouts(folder: Path) -> list[Rollout]:
    """Every rollout of an artifact, in the order of writing."""
    rows = pq.read_table(folder / ROLLOUTS, schema=SCHEMA).to_pylist()
    return [Rollout.from_json({key: _parsed(key, row[key]) for key in Rollout.__dataclass_fields__}) for row in rows]


def _row(iteration: int, item: Written) -> dict[str, Any]:
    body = item.rollout.to_json()
    for name in ("actor_checkpoint", "reward_components"):
        body[name] = canonical_bytes(body[name]).decode()
    return {**body, "iteration": iteration, "finish_reason": item.finish_reason, "response_text": item.response_text}


def _parsed(name: str, value: Any) -> Any:
    return json.loads(value) if name in ("actor_checkpoint", "reward_components") else value
