"""What follows a commit: the base's link in the store, the run in MLflow, the registration of models. Each is safe to do again."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from include.domain.canonical import canonical_bytes
from include.domain.spec import RunSpec
from include.flows import services
from include.settings.catalogue import recipe

if TYPE_CHECKING:
    from include.stores.catalog.runs import Committed
    from include.stores.registry import StageLog

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
    from include.stores.registry import AttemptLog, StageLog

    store = services.store()
    names = [str(name) for name in store.attempts(spec.key)]
    attempts = [AttemptLog(name, store.report(spec.key, name), store.metrics(spec.key, name)) for name in names]
    report = canonical_bytes(done.report.to_json())
    return StageLog(spec, done, attempts=attempts, config=dict(spec.config), artifacts={"report.json": report})


def _register(spec: RunSpec, done: "Committed", run: Mapping[str, Any], run_id: str) -> None:
    from include.stores.registry import ModelEntry

    output, suffix = REGISTERED[spec.stage]
    out = done.outputs[output]
    name = f"{recipe(run['recipe']).release.registered_name}-{suffix}"
    entry = ModelEntry(
        deployment=out.digest,
        weights=out.digest,
        weights_uri=f"{services.store().uri}/{out.path}",
        run_id=run_id,
        card=f"# {name}\n\n{spec.stage} of key `{spec.key}`, artifact `{out.digest}`. Not released: it serves later stages.\n",
        manifest={"kind": out.kind, "digest": out.digest},
        config=dict(spec.config),
        gates={},
        tags={"stage": spec.stage, "stage_key": spec.key},
    )
    services.registry().register(name, entry)
