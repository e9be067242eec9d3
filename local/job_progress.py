"""How far the job is that writes right now, from the store that this stack's jobs write in."""

from __future__ import annotations

import json
from pathlib import Path

from local.run_view import duration

FRESH_S = 90.0
"""A progress file that nobody wrote for so long is of a job that has ended, or says nothing of now."""


def said(store: Path, now: float) -> str:
    """``step 12 of 36, 2:10 min to go`` of the job that wrote last before `now` (seconds since the epoch), or nothing."""
    found = []
    for file in store.glob("runs/*/attempts/*/progress.json"):
        try:
            if now - file.stat().st_mtime < FRESH_S:
                found.append((file.stat().st_mtime, json.loads(file.read_text())))
        except (OSError, ValueError):  # renamed under our eyes, or half of it
            continue
    if not found:
        return ""
    newest = max(found, key=lambda one: one[0])[1]
    try:
        step, asked, eta_s = int(newest["step"]), int(newest["asked_steps"]), newest.get("eta_s")
        return f"step {step} of {asked}" + (f", {duration(float(eta_s))} to go" if eta_s and step < asked else "")
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return ""
