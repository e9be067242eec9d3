"""The policy as it is handed on: a plain folder; trained with LoRA, base and adapter merged, and the adapter beside it."""

from collections.abc import Mapping
from typing import Any

from include.runtime.job import Job
from include.training.lora import LoraSettings, merge_adapters, save_adapter
from include.training.model_io import probe_ids, save_model


def export_policy(job: Job, model: Any, lora: LoraSettings | None, base: str, told: Mapping[str, str] | None = None) -> dict[str, float]:
    """Writes the output `policy`, which is what is evaluated and released, and with LoRA the output `adapter`.

    Args:
        base: the input that the training began from; the adapter's manifest names its digest.
        told: more for the policy's manifest.
    """
    figures = {}
    if lora is not None:
        edge = {"stage": job.stage, "key": job.spec.key, "base": job.input_digest(base)}
        with job.output("adapter", "adapter", edge) as folder:
            save_adapter(model, lora, job.input_digest(base), folder)
        figures["adapter_merge_difference"] = merge_adapters(model, probe_ids(model))
    with job.output("policy", "model", {"stage": job.stage, "key": job.spec.key, **(told or {})}) as folder:
        save_model(model, job.input(base), folder)
    return figures
