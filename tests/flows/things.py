"""What the tests of the flows are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
D = ["sha256:" + f"{i:064x}" for i in range(40)]
BASE, TOKENIZER, TEMPLATE, POLICY, REWARD = D[1], D[2], D[3], D[4], D[5]


def result(stage: str, output: str, digest: str, kind: str = "model") -> dict[str, Any]:
    """What a stage's task returns."""
    return {
        "stage": stage,
        "key": D[20],
        "attempt": "1-7.0",
        "reused": False,
        "outputs": {output: {"kind": kind, "digest": digest}},
        "metrics": {},
        "summary": {},
        "tokenizer": TOKENIZER,
        "chat_template": TEMPLATE,
    }


def dataset(name: str, number: int = 10) -> dict[str, Any]:
    return {"dataset_id": f"tiny-{name}", "version": 1, "content_hash": D[number], "artifact": D[number + 1], "counts": {}}


SFT_GIVEN: dict[str, Any] = {
    "base": result("base_import", "base", BASE, "base"),
    "datasets": {"demonstrations": dataset("demonstrations"), "preference_prompts": dataset("preference_prompts", 12)},
}
