"""Whether a run is a success, and what it gave. Success = Slurm COMPLETED *and* a complete report *and* manifests that verify *and*
the last step that was asked for, or a stop reason that the recipe allows. Without the first only where Slurm can't say how a job ended."""

from collections.abc import Mapping
from typing import Any

from include.domain.errors import AlignmentError
from include.domain.manifest import Manifest
from include.domain.outcomes import Outcome, StopReason
from include.domain.spec import Report, RunSpec
from include.stages.errors import Interrupted, NotComplete, RunFailed
from include.stages.refs import StageResult

EARLY_STOP_ALLOWED = {"reward_model": True, "sft": False}
"""Stages whose early stop is part of their method: always, or where the recipe asks for one."""


def read_report(value: Mapping[str, Any], spec: RunSpec, attempt: str) -> Report:
    """`value` as the report of this run and attempt.

    Raises:
        Interrupted: the program saved and wants to go on.
        RunFailed: the program says it failed, with its own message.
        NotComplete: the report is another run's, or stops short of what was asked.
    """
    report = Report.from_json(value)
    if report.key != spec.key or report.attempt != attempt:
        raise NotComplete(f"report.json of {attempt} speaks of key {report.key}, attempt {report.attempt}; expected {spec.key}")
    if report.outcome == Outcome.INTERRUPTED:
        raise Interrupted(f"{spec.stage} stopped at step {report.last_step} of {report.asked_steps} ({report.stop_reason})")
    if report.outcome != Outcome.COMPLETE:
        raise RunFailed(f"{spec.stage} failed at step {report.last_step} of {report.asked_steps} ({report.stop_reason}): {report.message}")
    allowed = EARLY_STOP_ALLOWED.get(spec.stage, False) or (spec.stage in EARLY_STOP_ALLOWED and bool(spec.config.get("early_stop")))
    early = report.stop_reason == StopReason.EARLY_STOP and allowed
    if report.last_step != report.asked_steps and not early:
        raise NotComplete(f"{spec.stage} ended at step {report.last_step}, {report.asked_steps} were asked for ({report.stop_reason})")
    if report.last_step < 1:
        raise NotComplete(f"{spec.stage} exited 0 but advanced nothing")
    return report


def read_outputs(value: Mapping[str, Any], report: Report) -> dict[str, Manifest]:
    """output/manifest.json as manifests by name, checked against the digests that the report states."""
    if value.get("schema") != "align/outputs/v1":
        raise NotComplete(f"output/manifest.json has schema {value.get('schema')!r}, expected 'align/outputs/v1'")
    try:
        manifests = {name: Manifest.from_json(item) for name, item in value["artifacts"].items()}
    except (KeyError, AttributeError, AlignmentError) as error:
        raise NotComplete(f"output/manifest.json: {error}") from error
    stated, found = dict(report.outputs), {name: m.digest for name, m in manifests.items()}
    if stated != found:
        raise NotComplete(f"the report names outputs {stated}, the manifest has {found}")
    if not manifests:
        raise NotComplete("the run gave no output")
    return manifests


def result(spec: RunSpec, attempt: str, report: Report, outputs: Mapping[str, Mapping[str, Any]], *, reused: bool) -> StageResult:
    """The references for whoever comes next. A base import brings tokenizer and template; everything else keeps its own."""
    summary = dict(report.summary)
    return StageResult(
        stage=spec.stage,
        key=spec.key,
        attempt=attempt,
        reused=reused,
        outputs={name: {"kind": m["kind"], "digest": m["digest"]} for name, m in outputs.items()},
        metrics=dict(report.metrics),
        summary=summary,
        tokenizer=spec.tokenizer or summary.get("tokenizer"),
        chat_template=spec.chat_template or summary.get("chat_template"),
    )
