"""Starts programs as processes of their own that have the heavy libraries already: python forker.py, requests on stdin.

Importing torch, transformers and DeepSpeed takes seconds, a fork takes none. A request is a JSON line {"argv", "env",
"stderr"}; the answer is the process id; when the process has ended its status is written to the path "<stderr>.status".
Nothing of ours is imported before the fork, so every program still imports its own code.
"""

import json
import os
import runpy
import select
import sys
from typing import Any

HEAVY = (
    "torch",
    "deepspeed",
    "datasets",
    "pyarrow.parquet",
    "safetensors.torch",
    "transformers.models.llama.modeling_llama",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
)


def _become(request: dict[str, Any]) -> None:
    """The child: takes on arguments, environment and streams, and runs the module or script."""
    os.environ.clear()
    os.environ.update(request["env"])
    for path, number, flags in (
        (os.devnull, 0, os.O_RDONLY),
        (os.devnull, 1, os.O_WRONLY),
        (request["stderr"], 2, os.O_WRONLY | os.O_CREAT),
    ):
        descriptor = os.open(path, flags, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    argv = request["argv"]
    try:
        if argv[0] == "-m":
            sys.argv = argv[1:]
            runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = argv
            runpy.run_path(argv[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does at its top
        sys.excepthook(*sys.exc_info())
        status = 1
    sys.stderr.flush()
    os._exit(status)


def _reap(running: dict[int, str]) -> None:
    for pid in list(running):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            path = f"{running.pop(pid)}.status"
            with open(f"{path}.tmp", "w", encoding="utf-8") as stream:
                stream.write(str(os.waitstatus_to_exitcode(status)))
            os.replace(f"{path}.tmp", path)


def main() -> None:
    for name in HEAVY:
        __import__(name)
    running: dict[int, str] = {}
    while True:
        ready, _, _ = select.select([sys.stdin], [], [], 0.02)
        if ready:
            line = sys.stdin.readline()
            if not line:
                return
            request = json.loads(line)
            pid = os.fork()
            if pid == 0:
                _become(request)
            running[pid] = request["stderr"]
            print(pid, flush=True)
        _reap(running)


if __name__ == "__main__":
    main()
