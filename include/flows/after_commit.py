"""What follows a commit: the base's link in the store, the run in MLflow, the registration of models; and what follows a failure: the run
in MLflow with its reason. Each is safe to do again."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from include.domain.canonical import canonical_bytes, digest
from include.domain.members import members_among
from include.domain.spec import RunSpec
from include.flows import services
from include.settings.catalogue import recipe

if TYPE_CHECKING:
    from include.stores.catalog.runs import Committed
    from include.stores.registry import AttemptLog, ModelEntry, StageLog

log = logging.getLogger(__name__)
REGISTERED = {"sft": ("policy", "sft"), "reward_model": ("reward_model", "reward-model")}
"""Stage → (output, suffix of the registered name): SFT and reward models are registered too, not only policies."""


def after_commit(spec: RunSpec, done: "Committed", run: Mapping[str, Any]) -> None:
    """Brings store and MLflow in line with a committed attempt."""
    store = services.store()
    if spec.stage == "base_import":
        base = done.outputs["base"]
        store.publish_base(base.digest, base.path)
    run_id = str(services.registry().log_run(stage_log(spec, done)))
    if spec.stage in REGISTERED:
        _register(spec, done, run, run_id)


def stage_log(spec: RunSpec, done: "Committed") -> "StageLog":
    """What MLflow is told of a committed run: the config whole, every attempt with its report and metrics."""
    from include.stores.registry import StageLog

    report = canonical_bytes(done.report.to_json())
    return StageLog(spec, done, attempts=_attempts(spec), config=dict(spec.config), artifacts={"report.json": report})


def after_failure(spec: RunSpec, attempt: str, report: Mapping[str, Any] | None, cause: str = "", message: str = "") -> None:
    """Shows a run that failed, or that a guard stopped, in MLflow with its reason and its figures so far.

    `report`: the attempt's own word; None where it left none, `cause` and `message` are what is known of its end then.
    The task's own end is the failure: a tracker that cannot be reached is said and changes nothing. The next end of the run tells all
    its attempts anew.
    """
    from include.stores.registry import StageLog, Stopped

    said = report or {"stop_reason": cause, "message": message}
    told = Stopped(
        attempt=attempt,
        stop_reason=str(said["stop_reason"]),
        message=str(said.get("message") or "none"),
        at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        guard=str(said.get("summary", {}).get("guard") or ""),
    )
    try:
        artifacts = {} if report is None else {"report.json": canonical_bytes(dict(report))}
        log_of = StageLog(spec, None, attempts=_attempts(spec), config=dict(spec.config), artifacts=artifacts, stopped=told)
        services.registry().log_run(log_of)
    except Exception as error:  # noqa: BLE001 - whatever the tracker's client raises, the run's own failure is what must be told
        log.warning("%s %s failed, and MLflow does not show it: %s", spec.stage, spec.key, error)


def _attempts(spec: RunSpec) -> "list[AttemptLog]":
    """Every attempt of the key that there has been."""
    from include.stores.registry import AttemptLog

    store = services.store()
    names = [str(name) for name in store.attempts(spec.key)]
    return [AttemptLog(name, store.report(spec.key, name), store.metrics(spec.key, name)) for name in names]


@dataclass(frozen=True)
class Member:
    """One model of a run: of a reward ensemble there are several, else it is the only one."""

    output: str
    kind: str
    digest: str
    uri: str
    seed: int | None


def members_of(spec: RunSpec, done: "Committed", output: str) -> list[Member]:
    """`output`, and the further ones that bear its name with a number: reward_model_2, reward_model_3 …"""
    seeds = {item["name"]: int(item["seed"]) for item in done.report.summary.get("members", ())}
    uri = services.store().uri
    found = [(name, done.outputs[name]) for name in members_among(done.outputs, output)]
    return [Member(name, out.kind, out.digest, f"{uri}/{out.path}", seeds.get(name, spec.seed)) for name, out in found]


def _register(spec: RunSpec, done: "Committed", run: Mapping[str, Any], run_id: str) -> None:
    """A version for each model: weights have one place and one digest each, and every version's papers name all members."""
    output, suffix = REGISTERED[spec.stage]
    name = f"{recipe(run['recipe']).release.registered_name}-{suffix}"
    members = members_of(spec, done, output)
    for place, _ in enumerate(members, 1):
        services.registry().register(name, _entry(name, spec, run_id, members, place))


def _entry(name: str, spec: RunSpec, run_id: str, members: Sequence[Member], place: int) -> "ModelEntry":
    from include.stores.registry import ModelEntry

    own = members[place - 1]
    card = f"# {name}\n\n{spec.stage} of key `{spec.key}`, artifact `{own.digest}`. Not released: it serves later stages.\n"
    manifest: dict[str, Any] = {"kind": own.kind, "digest": own.digest}
    tags = {"stage": spec.stage, "stage_key": spec.key}
    if len(members) > 1:
        listed = "".join(f"- {m.output}: `{m.digest}`, seed {m.seed}\n" for m in members)
        card += f"\nMember {place} of {len(members)} of an ensemble, which is used as one:\n\n{listed}"
        manifest["ensemble"] = [asdict(member) for member in members]
        tags |= {"ensemble": digest("ensemble", [m.digest for m in members]), "member": f"{place} of {len(members)}"}
    return ModelEntry(
        deployment=own.digest,
        weights=own.digest,
        weights_uri=own.uri,
        run_id=run_id,
        card=card,
        manifest=manifest,
        config=dict(spec.config),
        gates={},
        tags=tags,
    )
