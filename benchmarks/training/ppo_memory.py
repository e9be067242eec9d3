"""Peak memory of one PPO process, of its own and mapped from files, for a place of the frozen models and an offload.

    PYTHONPATH=.:plugins .local/store/env/*/bin/python -m benchmarks.training.ppo_memory --frozen host --zero-stage 3

Policy, reference and three reward models of random weights (hidden × layers below), bf16 by autocast, six iterations on one process. On a CPU the process's memory is
the device's: what is its own (RssAnon) stands for a GPU's, mapped pages of the models' files (RssFile) for what the processes of a node share.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.training.workload import Workload

MEASURED = ("RssAnon", "RssFile")


def _now() -> dict[str, int]:
    """KiB of this process, by kind."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return {name: int(line.split()[1]) for line in lines for name in MEASURED if line.startswith(f"{name}:")}


def _run(arguments: Sequence[str], said: Path) -> int:
    """The program in this process, with its peaks written to `said`."""
    from include.training import ppo

    before, peaks, done = _now(), dict.fromkeys(MEASURED, 0), threading.Event()

    def watch() -> None:
        while not done.is_set():
            for name, value in _now().items():
                peaks[name] = max(peaks[name], value)
            time.sleep(0.005)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    code = ppo.main(list(arguments))
    done.set()
    watcher.join()
    said.write_text(json.dumps({name: (peaks[name] - before[name]) / 1024 for name in MEASURED}), "utf-8")
    return code


def _prepared(root: Path, load: Workload, settings: Mapping[str, str], zero_stage: int) -> tuple[list[str], float]:
    """Arguments of the program, and MB of a model in float32."""
    from benchmarks.training.ours import config
    from benchmarks.training.rows import made_store

    store = made_store(root, load)
    names = ["reward_model", "reward_model_2", "reward_model_3"]
    inputs = {"policy": "base", "reference": "base", "prompts": "data", **dict.fromkeys(names, "reward_model")}
    spec = store.spec("ppo", inputs, {**config(load), "zero_stage": zero_stage})
    weights = Path(store.places["base"].path) / "model.safetensors"
    return store.prepare(spec, micro_batch=2, generation_batch=8, **settings), weights.stat().st_size / 2**20


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["run"]:
        return _run(arguments[2:], Path(arguments[1]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frozen", choices=("device", "host"), default="device")
    parser.add_argument("--offload", choices=("none", "optimizer", "parameters"), default="none")
    parser.add_argument("--zero-stage", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=4000)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "peaks.json"
        settings = {"frozen": given.frozen, "offload": given.offload}
        load = Workload(
            "ppo", batch=8, steps=6, length=16, new_tokens=16, epochs=1, precision="bf16",
            hidden=given.hidden, layers=given.layers, heads=8, vocabulary=given.vocabulary, threads=1,
        )  # fmt: skip
        command, size = _prepared(Path(folder), load, settings, given.zero_stage)
        done = subprocess.run([sys.executable, "-m", "benchmarks.training.ppo_memory", "run", str(said), *command], check=False)
        if done.returncode:
            return done.returncode
        peaks = json.loads(said.read_text("utf-8"))
    told = f"frozen {given.frozen}, offload {given.offload}, ZeRO {given.zero_stage}: a model is {size:.0f} MB in float32"
    print(f"{told}; peak of its own {peaks['RssAnon']:.0f} MB, mapped {peaks['RssFile']:.0f} MB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
