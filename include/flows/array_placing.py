"""An array on a cluster: one job whose tasks are the runs of a stage's parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_slurm.spec import JobSpec
from airflow_slurm.truth.arrays import expression
from include.domain.layout import array_dir
from include.flows.placing import BOOTSTRAP, Placed
from include.settings.catalogue import project_root

if TYPE_CHECKING:
    from include.stores.artifacts import ArtifactStore

Held = Mapping[int, tuple[str, int]]
"""Task number → (key, number of its own submission) of what one submission of the array holds."""


@dataclass(frozen=True)
class PlacedArray:
    """All parts of a stage, by task number, placed on one cluster with equal wishes."""

    key: str
    parts: Sequence[Placed]

    def job(self, n: int, held: Held) -> JobSpec:
        """What Slurm is asked for: what one part would ask for, for as many tasks as this submission holds."""
        first = self.parts[0]
        folder = f"{first.root}/{array_dir(self.key, n)}"
        return replace(
            first.job(n),
            command=(first.command(n)[0], f"{folder}/bootstrap.py", "--array", f"{folder}/tasks.json"),
            output=f"{folder}/slurm-%A_%a.log",
            array=expression(held, first.plan.job.max_parallel),
            comment=f"align {first.plan.spec.stage}, {len(held)} of {len(self.parts)} parts",
        )

    def stage_in(self, store: "ArtifactStore", n: int, held: Held) -> None:
        """Puts what each task needs beside its own run, and beside the array which task is which; the same again changes nothing."""
        for task, (_, own_n) in held.items():
            self.parts[task].stage_in(store)(own_n)
        tasks = {str(task): {"key": key, "arguments": list(self.parts[task].command(own_n)[2:])} for task, (key, own_n) in held.items()}
        store.put_bytes(f"{array_dir(self.key, n)}/bootstrap.py", (project_root() / BOOTSTRAP).read_bytes())
        store.put_json(f"{array_dir(self.key, n)}/tasks.json", {"schema": "align/array/v1", "array": self.key, "n": n, "tasks": tasks})
