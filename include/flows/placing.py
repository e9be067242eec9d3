"""A plan on a cluster: placement, the files beside the job, and what is asked of Slurm."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_slurm.containers import Container
from airflow_slurm.site.preemptible import Preemptible
from airflow_slurm.spec import JobSpec
from airflow_slurm.work.stop import StopPolicy
from include.domain.canonical import hex_of
from include.domain.closure import lock_digest
from include.domain.layout import RunDir, environment_dir
from include.domain.spec import InputPlace, Placement
from include.settings.catalogue import lock_file, project_root
from include.settings.clusters import Cluster
from include.stages.plan import Plan

if TYPE_CHECKING:
    from include.stores.artifacts import ArtifactStore
    from include.stores.code import CodeTar

SIGNAL = "USR1"
"""What asks a program to save and end."""
BOOTSTRAP = "include/runtime/bootstrap.py"


@dataclass(frozen=True)
class Placed:
    """A plan with its cluster, store, code and the paths of its inputs (relative to the store's root)."""

    plan: Plan
    cluster: Cluster
    root: str
    code: "CodeTar"
    inputs: dict[str, str]
    estimate: Mapping[str, float] = field(default_factory=dict)
    """What the report sets against what was seen."""

    @property
    def run(self) -> RunDir:
        return RunDir(self.plan.key)

    @property
    def max_wait_s(self) -> float | None:
        """How long the job may wait for its start; None: for ever."""
        hours = self.plan.job.max_wait_h if self.plan.job.max_wait_h is not None else self.cluster.max_wait_h
        return None if hours is None else hours * 3600.0

    def resources(self) -> dict[str, Any]:
        job, site = self.plan.job, self.cluster.defaults
        return {
            "cluster": self.cluster.name,
            "partition": job.partition or (self.cluster.preemptible.partition if job.preemptible else None) or self.cluster.partition,
            "nodes": job.nodes or site.nodes,
            "tasks": job.tasks or site.tasks,
            "cpus": job.cpus or site.cpus,
            "memory_gb": job.memory_gb or site.memory_gb,
            "gpus": site.gpus if job.gpus is None else job.gpus,
            "time_limit_minutes": job.time_limit_minutes,
            "preemptible": job.preemptible,
            "heavy": job.heavy,
            "signal_lead_s": self.cluster.signal_lead_s,
        }

    def placement(self, n: int) -> Placement:
        places = {
            name: InputPlace(f"{self.root}/{path}", self.plan.spec.inputs[name], self.plan.artifacts[name])
            for name, path in self.inputs.items()
        }
        run_dir = f"{self.root}/{self.run.root}"
        estimated = {"estimate": dict(self.estimate)} if self.estimate else {}
        return Placement(self.plan.key, n, run_dir, places, self.plan.settings, {**self.resources(), **estimated})

    def stage_in(self, store: "ArtifactStore") -> Callable[[int], None]:
        """Puts spec, placement, bootstrap and code beside the job; the same again changes nothing."""

        def put(n: int) -> None:
            if not store.exists(self.run.spec):
                store.put_json(self.run.spec, self.plan.spec.to_json())
            store.put_code(self.code)
            folder = self.run.submission(n)
            store.put_bytes(f"{folder}/bootstrap.py", (project_root() / BOOTSTRAP).read_bytes())
            store.put_json(f"{folder}/placement.json", self.placement(n).to_json())

        return put

    def command(self, n: int) -> tuple[str, ...]:
        spec, folder = self.plan.spec, f"{self.root}/{self.run.submission(n)}"
        environment = f"{self.root}/{environment_dir(lock_digest(lock_file()))}"
        return (
            f"{environment}/bin/python",
            f"{folder}/bootstrap.py",
            *("--root", self.root),
            *("--run", self.run.root),
            *("--n", str(n)),
            *("--program", spec.program),
            *("--code", f"code/{hex_of(self.code.sha256)}.tar"),
            *("--code-sha256", hex_of(self.code.sha256)),
            *("--environment", spec.environment),
            *("--lock-file", f"{environment}/{lock_file().name}"),
            *(("--image", self.cluster.container.digest) if self.cluster.container else ()),
            *self._ranks(),
        )

    def _ranks(self) -> tuple[str, ...]:
        """Ranks are started by srun from inside the job; where they run in a container, in whose image there seldom is one, around the container."""
        tasks = self.resources()["tasks"]
        together = ("--together",) if self.cluster.container is not None else ()
        return ("--ranks", str(tasks), *together) if tasks > 1 else ()

    def job(self, n: int) -> JobSpec:
        """What Slurm is asked for."""
        wanted, where = self.resources(), self.cluster
        folder = f"{self.root}/{self.run.submission(n)}"
        gpus = wanted["gpus"]
        job = JobSpec(
            command=self.command(n),
            setup=where.setup,
            modules=where.modules,
            container=self._container(),
            env=self._environment(gpus, in_srun=wanted["tasks"] > 1 and where.container is not None),
            chdir=self.root,
            output=f"{folder}/slurm-%j.log",
            root=self.root,
            partition=wanted["partition"],
            account=where.account,
            qos=None if wanted["preemptible"] and where.preemptible.qos else where.qos,
            reservation=where.reservation,
            constraint=where.constraint,
            exclusive=where.exclusive,
            switches=where.switches if wanted["nodes"] > 1 else None,
            switches_wait_s=where.switches_wait_s if wanted["nodes"] > 1 else None,
            segment=min(where.segment, wanted["nodes"]) if where.segment and wanted["nodes"] > 1 else None,
            preemptible=wanted["preemptible"],
            licenses=f"{where.heavy_licence}:1" if wanted["heavy"] and where.heavy_licence else None,
            gres=f"{where.gpu_gres}:{gpus}" if gpus and not where.gpu_type else None,
            gpus_per_node=gpus if gpus and where.gpu_type else None,
            gpu_type=where.gpu_type if gpus else None,
            comment=f"align {self.plan.spec.stage}",
            nodes=wanted["nodes"],
            ntasks=wanted["tasks"],
            cpus_per_task=wanted["cpus"],
            mem=f"{int(wanted['memory_gb'] * 1024)}M",
            time_limit=wanted["time_limit_minutes"],
            nice=where.nice,
            requeue=False,
            signal=SIGNAL,
            signal_lead_s=where.signal_lead_s,
        )
        # The cluster's word, not the connection's: whoever chooses where recipes run says what becomes of preemptible ones.
        return Preemptible(**where.preemptible.model_dump()).apply(job)

    def _container(self) -> Container | None:
        """The site's image; what the job reads and writes, its scratch folder included, is below the store's root."""
        chosen = self.cluster.container
        if chosen is None:
            return None
        given = chosen.model_dump() | {"mounts": (f"{self.root}:{self.root}", *chosen.mounts), "workdir": self.root}
        return Container(**given)

    def _environment(self, gpus: int, in_srun: bool) -> dict[str, str]:
        threads = str(self.plan.settings.get("threads", 1))
        given = {
            "OMP_NUM_THREADS": threads,
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "TORCH_EXTENSIONS_DIR": f"{self.root}/env/torch-extensions",
        }
        given |= {"SLURM_MPI_TYPE": "none"} if in_srun else {}  # ranks meet by themselves
        return given if gpus else {**given, "DS_ACCELERATOR": "cpu"}


def stop_policy(where: Cluster) -> StopPolicy:
    """How a run is ended that nobody wants any more: it has as long to save as before its time limit."""
    return StopPolicy(signal=SIGNAL, grace_s=float(where.signal_lead_s))


def place(plan: Plan, cluster: Cluster, root: str, locate: Callable[[str], str], estimate: Mapping[str, float] | None = None) -> Placed:
    """`plan` on `cluster`; `locate` gives the path of an artifact digest relative to the store's root."""
    from include.stores.code import code_tar

    inputs = {name: locate(artifact) for name, artifact in plan.artifacts.items()}
    return Placed(plan, cluster, root, code_tar(Path(project_root()), plan.spec.program), inputs, estimate or {})
