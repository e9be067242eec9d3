"""What a site makes of *may be preempted*."""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_slurm.spec import JobSpec


@dataclass(frozen=True)
class Preemptible:
    """What a site does with jobs that may be preempted: where they go, and whether Slurm itself puts them back.

    A field that a job names itself stays as the job has it.
    """

    partition: str | None = None
    qos: str | None = None
    requeue: bool = False

    def apply(self, spec: JobSpec) -> JobSpec:
        """The job with its intent resolved. ``preemptible=False`` asks for nothing: it is what every other job is."""
        if not spec.preemptible:
            return spec
        return replace(
            spec,
            partition=spec.partition or self.partition,
            qos=spec.qos or self.qos,
            requeue=spec.requeue or self.requeue,
            preemptible=False,
        )
