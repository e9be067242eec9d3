"""Training speed of SFT or DPO beside TRL 1.16: the same model, rows, batch, precision and threads, taking turns; see docs/benchmarks.md.

Every turn is a process of its own: our program in the cluster's environment, TRL's trainer in `.local/venv-peers`. Measured
is the time between the end of the third update and the end of the last, with all that happens in between. Both train all
weights with AdamW on the same token ids, one pass; neither recomputes activations; DPO's reference is computed before.
The losses of the last updates are printed beside the times: they show that both did the same work.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.training.workload import PROJECT, WARM_UP, Workload

OURS = PROJECT / ".local" / "venv-cluster" / "bin" / "python"
PEERS = PROJECT / ".local" / "venv-peers" / "bin" / "python"


def turn(side: str, folder: Path, load: Workload, number: int) -> dict[str, Any]:
    """One run of one side; gives its times and losses."""
    python, module = (OURS, "benchmarks.training.ours") if side == "ours" else (PEERS, "benchmarks.training.trl_side")
    threads = str(load.threads)
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment |= {"DS_ACCELERATOR": "cpu", "PYTHONPATH": f"{PROJECT}:{PROJECT / 'plugins'}", "CUDA_VISIBLE_DEVICES": ""}
    out = folder / f"{side}-{number}.json"
    argv = [str(python), "-W", "ignore", "-m", module, str(folder), str(out), str(number)]
    done = subprocess.run(argv, env=environment, cwd=PROJECT, text=True, capture_output=True, check=False)
    if done.returncode or not out.exists():
        raise SystemExit(f"{side} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(out.read_text("utf-8"))
    return found


def compare(load: Workload, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "workload.json").write_text(load.to_json(), "utf-8")
        prepare = [str(OURS), "-W", "ignore", "-m", "benchmarks.training.ours", str(folder)]
        environment = {**os.environ, "PYTHONPATH": f"{PROJECT}:{PROJECT / 'plugins'}", "DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1"}
        subprocess.run(prepare, env=environment, cwd=PROJECT, check=True, capture_output=True)
        told = json.loads((folder / "rows.json").read_text("utf-8"))
        per_step = told["tokens"] / load.steps
        print(
            f"{load.program}: {told['parameters']} parameters, {load.batch} examples and {per_step:.0f} tokens an update, {load.steps} updates"
        )
        print(f"{load.precision}, {load.threads} threads, {rounds} rounds, turns alternate; tokens/s after {WARM_UP} updates")
        speeds: dict[str, list[float]] = {"ours": [], "trl": []}
        for number in range(rounds):
            for side in ("ours", "trl") if number % 2 == 0 else ("trl", "ours"):
                found = turn(side, folder, load, number)
                speeds[side].append(per_step * (load.steps - WARM_UP) / found["seconds"])
                print(f"  {side:5} {speeds[side][-1]:9.0f} tokens/s   loss of the last updates {found['loss']:.4f}", flush=True)
    ours, theirs = (statistics.median(speeds[side]) for side in ("ours", "trl"))
    print(f"median: ours {ours:.0f}, TRL {theirs:.0f} tokens/s; ratio {ours / theirs:.2f}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=("sft", "dpo"))
    parser.add_argument("--rounds", type=int, default=3)
    for field, kind in Workload.numbers():
        parser.add_argument(f"--{field}", type=kind, default=getattr(Workload, field))
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--packing", action="store_true", help="SFT: ours packs rows (TRL pads: its packing needs flash attention)")
    given = vars(parser.parse_args(argv))
    rounds = given.pop("rounds")
    compare(Workload(**given), rounds)


if __name__ == "__main__":
    main()
