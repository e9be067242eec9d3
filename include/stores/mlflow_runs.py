"""Runs of an MLflow server over REST, as more than one writer needs them: found or made once by their key, and points as they are kept."""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from include.domain.canonical import canonical_bytes, digest, hex_of
from include.domain.spec import RunSpec
from include.stores.series import Row
from include.stores.tracking import MlflowRefused, Tracking, quoted

KEY_TAG, LOGGED_TAG = "align.stage_key", "align.logged"
PARAMETER_LENGTH = 250
"""MLflow cuts a longer value without a word, at 6000 characters; ours are short or not parameters at all."""
POINTS_A_CALL, MOST_PARAMETERS = 900, 90  # the server takes 1000 and 100 in one call
TAG_LENGTH = 4900
_PAGE, _MOST = 20_000, 2**63
_RESERVED = ("step", "time", "tokens")
_NAME = re.compile(r"[\w.\-:/ ]{1,250}\Z")
_UNKNOWN = re.compile(r"[^\w.\-:/ ]")
"""What MLflow takes as the name of a parameter or metric, and what it does not."""

Json = dict[str, Any]


def stage_name(spec: RunSpec) -> str:
    """What a stage's run is called."""
    return f"{spec.stage} {hex_of(spec.key)[:12]}"


def run_of(tracking: Tracking, experiment_id: str, key: str) -> Json | None:
    """The run tagged with `key`, the oldest where there are several; None where there is none."""
    found = tracking.runs(experiment_id, f"tags.`{KEY_TAG}` = '{quoted(key)}'")
    return found[0] if found else None


def one_run(tracking: Tracking, experiment_id: str, key: str, name: str, start_ms: int, tags: Mapping[str, str]) -> Json:
    """The run tagged with `key`, made where there is none: the oldest one stays, a double that came at the same moment is taken away."""
    if (found := run_of(tracking, experiment_id, key)) is not None:
        return found
    listed = [{"key": tag, "value": value} for tag, value in {KEY_TAG: key, **tags}.items()]
    made = str(
        tracking.post("runs/create", experiment_id=experiment_id, start_time=start_ms, run_name=name, tags=listed)["run"]["info"]["run_id"]
    )
    oldest = run_of(tracking, experiment_id, key)
    if oldest is None:
        raise MlflowRefused(f"MLflow at {tracking.uri} made the run {made} and does not find it: look at the server's log", "NOT_FOUND")
    if oldest["info"]["run_id"] != made:
        tracking.post("runs/delete", run_id=made)
    return oldest


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Flat names and canonical values (7 and 7.0 are one spelling)."""
    for name, value in sorted(config.items()):
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            text = value if isinstance(value, str) else canonical_bytes(value).decode()
            yield f"{prefix}{name}", text


def parameters_of(config: Mapping[str, Any]) -> dict[str, str]:
    """What of a configuration is shown as parameters: what is short, and named as MLflow takes it."""
    short = [(name, value) for name, value in flat(config) if len(value) <= PARAMETER_LENGTH and _NAME.match(name) and _is_path(name)]
    return dict(short[:MOST_PARAMETERS])


def tags_of_spec(spec: RunSpec, config: Mapping[str, Any]) -> dict[str, str]:
    """What the tags of a stage's run say from its beginning on."""
    kept = parameters_of(config)
    left_out = [name for name, _ in flat(config) if name not in kept]
    return {
        "align.stage": spec.stage,
        "align.code_revision": spec.code_revision,
        "align.environment": spec.environment,
        "align.config_digest": digest("config", dict(config)),
        "align.seed": str(spec.seed),
        "align.parameters_left_out": ", ".join(left_out) or "none",
        **{f"align.input.{role}": value for role, value in spec.inputs.items()},
        **{f"align.note.{name}": str(value) for name, value in spec.note.items()},
    }


def points_of(rows: Sequence[Row], base_ms: int | None = None) -> list[Json]:
    """MLflow's points of rows: key, value, timestamp (ms), step. Times come from the rows, so that a repetition gives the same points and not
    more of them; `base_ms` stands for a row that has none, which is left out without it. So is what is no number that MLflow takes: it would
    refuse the others with it."""
    points = []
    for row in rows:
        at_ms = _time_ms(row.get("time"), base_ms)
        if at_ms is None or not _number(row.get("step")) or abs(row["step"]) >= _MOST:
            continue
        for name, value in row.items():
            if name not in _RESERVED and _number(value):
                points.append({"key": _key(name), "value": float(value), "timestamp": at_ms, "step": int(row["step"])})
    return points


def _time_ms(time: Any, base_ms: int | None) -> int | None:
    return int(float(time) * 1000) if _number(time) and 0 < time < _MOST / 1000 else base_ms


def _number(value: Any) -> bool:
    """Finite, and no integer that is larger than any float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def _key(name: str) -> str:
    """A metric's name as MLflow takes it: also as a path below a folder."""
    key = _UNKNOWN.sub("_", name)[:250]
    return key if _is_path(key) else "_" + key.replace("/", "_")[:249]


def _is_path(name: str) -> bool:
    return name == posixpath.normpath(name) and name != "." and not name.startswith(("/", ".."))


def log_batch(tracking: Tracking, run_id: str, points: Sequence[Json] = (), tags: Mapping[str, str] | None = None) -> None:
    """Writes points, in calls that the server takes, and with the last one the tags."""
    starts = range(0, max(1, len(points)), POINTS_A_CALL)
    for start in starts:
        last = {"tags": [{"key": key, "value": value[:TAG_LENGTH]} for key, value in (tags or {}).items()]} if start == starts[-1] else {}
        tracking.post("runs/log-batch", run_id=run_id, metrics=list(points[start : start + POINTS_A_CALL]), **last)


def shown(tracking: Tracking, run: Json, names: set[str]) -> set[tuple[str, int]]:
    """(metric, step) of the points that a run has already, of the metrics in `names`."""
    there = {str(metric["key"]) for metric in run["data"].get("metrics", [])} & names
    return {(name, int(point["step"])) for name in there for point in _history(tracking, str(run["info"]["run_id"]), name)}


def _history(tracking: Tracking, run_id: str, name: str) -> Iterator[Json]:
    token = ""
    while True:
        page = tracking.get(
            "metrics/get-history", run_id=run_id, metric_key=name, max_results=_PAGE, **({"page_token": token} if token else {})
        )
        yield from page.get("metrics", [])
        if not (token := page.get("next_page_token", "")):
            return


def last_step(run: Json) -> int | None:
    """The highest step of which a run has any point."""
    return max((int(metric["step"]) for metric in run["data"].get("metrics", [])), default=None)
