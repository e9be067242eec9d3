"""The log-probability of each token of each candidate, beside the candidates: an artifact of its own.

They are the policy's own: log softmax(logits)[token], natural, at temperature 1, before top_k and top_p, whatever the answer was drawn
with; of the tokens in `token_ids` of the candidate's record (its end token included), given the prompt as the chat template has it. In
float32 they equal a fresh forward pass of prompt and answer to 1e-5. Their last bits may depend on how many answers were written side by
side, the texts do not: so they are no part of the candidate's record or id, and the candidate set is the same bytes whatever the batch.
"""

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from include.training.errors import TrainingError

KIND = "report"
FILE = "log_probs.parquet"
TEMPERATURE = 1.0


def log_probs_table(rows: Sequence[Mapping[str, Any]], log_probs: Mapping[str, Sequence[float]]) -> bytes:
    """Parquet with columns id, tokens, log_prob (their sum), token_log_probs; sorted as the candidates are, by prompt and then by id."""
    ids = [row["candidate_id"] for row in sorted(rows, key=lambda row: (row["prompt_id"], row["candidate_id"]))]
    columns = {
        "id": pa.array(ids, pa.string()),
        "tokens": pa.array([len(log_probs[id_]) for id_ in ids], pa.int64()),
        "log_prob": pa.array([math.fsum(log_probs[id_]) for id_ in ids], pa.float64()),
        "token_log_probs": pa.array([list(log_probs[id_]) for id_ in ids], pa.list_(pa.float64())),
    }
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, compression="zstd")
    return buffer.getvalue()


def read_log_probs(folder: Path) -> dict[str, list[float]]:
    """candidate_id → log-probability of each of its tokens."""
    table = pq.read_table(folder / FILE, columns=["id", "token_log_probs"])
    return dict(zip(table["id"].to_pylist(), table["token_log_probs"].to_pylist(), strict=True))


def check_lengths(part: str, rows: Sequence[Mapping[str, Any]], log_probs: Mapping[str, Sequence[float]]) -> None:
    """Whether a part's log-probabilities are those of its answers, one for each token.

    Raises:
        TrainingError: naming the answer of which they are not.
    """
    for row in rows:
        found, tokens = log_probs.get(row["candidate_id"]), len(row["token_ids"])
        if found is None or len(found) != tokens:
            have = "none" if found is None else f"{len(found)}"
            raise TrainingError(f"part {part}: candidate {row['candidate_id']} has {tokens} tokens and {have} log-probabilities")
    if len(log_probs) != len(rows):
        raise TrainingError(f"part {part}: {len(rows)} answers, log-probabilities of {len(log_probs)}")


def per_token(log_probs: Iterable[Sequence[float]]) -> float:
    """The mean over all tokens of all answers, in nats; exp(-it) is the perplexity under which the policy wrote them."""
    kept = list(log_probs)
    return math.fsum(value for answer in kept for value in answer) / sum(len(answer) for answer in kept)
