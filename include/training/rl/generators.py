"""PPO's generators as a group of processes beside the trainer's ranks, on the first rank's machine: started, watched, ended."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch

from include.runtime.job import Job
from include.runtime.signals import STOP_SIGNALS, kept_from_children
from include.training.rl import generator as ppo_generator
from include.training.rl.exchange import Exchange

GENERATOR = ppo_generator.__name__
POLL_S = 0.02
START_S = 300.0
"""So long a generator may take to load its model."""
END_S = 10.0


class Generators:
    """`count` processes that draw for one attempt, portion by portion in turn. Used by the first rank alone."""

    def __init__(self, job: Job, exchange: Exchange, count: int, beside: int) -> None:
        """`beside`: ranks on this machine, each with a GPU where there are GPUs."""
        self.job = job
        self.exchange = exchange
        self.count = count
        self._beside = beside
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, number: int) -> None:
        """Starts one of them; the plan lies in the exchange."""
        self.exchange.not_ready(number)
        with (self.job.out / "generator.log").open("ab") as log, kept_from_children(*STOP_SIGNALS):
            self._processes[number] = subprocess.Popen(
                [sys.executable, "-m", GENERATOR, str(self.exchange.folder), str(number), str(self.count), str(os.getpid())],
                stdout=log,
                stderr=log,
                env=generator_environment(self.job, number, self.count, self._beside),
            )

    def start_all(self) -> None:
        for number in range(self.count):
            self.start(number)

    @property
    def all_ready(self) -> bool:
        """Whether each has loaded its model."""
        return all(self.exchange.is_ready(number) for number in range(self.count))

    def ended(self) -> dict[int, int]:
        """Those that are gone, with their exit codes."""
        return {number: code for number, process in self._processes.items() if (code := process.poll()) is not None}

    def kill(self, number: int) -> None:
        process = self._processes[number]
        process.kill()
        process.wait()

    def end(self) -> None:
        """Asks all to end, and ends those that do not; nothing of the exchange stays."""
        self.exchange.stop()
        until = time.monotonic() + END_S
        for number, process in self._processes.items():
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.kill(number)
        shutil.rmtree(self.exchange.folder, ignore_errors=True)


def generator_environment(job: Job, number: int, count: int, beside: int) -> dict[str, str]:
    """This program's modules and, where there are GPUs, one for this generator: of those that no rank has, from the last one down and
    over again where they are fewer than generators; without any, the first rank's own."""
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
    devices = torch.cuda.device_count()
    if not devices:
        return given
    visible = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(str(i) for i in range(devices))).split(",")
    free = devices - beside
    if free > 0:
        at = devices - 1 - number % free
    else:
        at = int(os.environ.get("LOCAL_RANK", "0")) % devices
        job.warn(
            f"the generator shares a GPU with the first rank: {beside} ranks use all {devices} of this machine. "
            "Ask for more GPUs than tasks on a node, or set generation: in_process"
        )
    if 0 < free < count and number == 0:
        job.warn(f"{count} generators share {free} GPUs: {beside} ranks use the others of this machine's {devices}")
    return {**given, "CUDA_VISIBLE_DEVICES": visible[at]}
