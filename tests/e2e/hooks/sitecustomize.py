"""Every Python process of the tests' stack loads this: it kills the worker of a task at a chosen line, once.

A file ``<line>@<run id>`` in the folder ALIGN_TEST_KILLS asks for it. The line is where a worker dies: before the receipt is
stored, before the job is released, before the task defers, when it resumes, before the submission is closed. The product knows
nothing of this: its methods are wrapped from outside when their modules are loaded.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

FOLDER = os.environ.get("ALIGN_TEST_KILLS", "")
current: dict[str, str] = {}


def die_if_asked(line: str) -> None:
    """Kills the executor's worker and the task in it, as an accident would: nobody is told, nothing is cleaned up."""
    asked = os.path.join(FOLDER, f"{line}@{current.get('run')}")
    worker = os.getppid()
    try:
        os.rename(asked, f"{asked}.done")
    except FileNotFoundError:
        return
    with open(f"{asked}.done", "w") as note:
        note.write(f"{worker} {os.getpid()}")
    with open(f"/proc/{worker}/cmdline", "rb") as name:
        if b"worker" in name.read():
            os.kill(worker, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def before(holder: type, name: str, do: Callable[..., None]) -> None:
    """Has `do` run before the method, with the method's own arguments."""
    method = getattr(holder, name)

    @functools.wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        do(*args, **kwargs)
        return method(*args, **kwargs)

    setattr(holder, name, wrapped)


def _remember(_operator: Any, context: Any, *_: Any, **__: Any) -> None:
    current["run"] = context["dag_run"].run_id


def _operators(module: ModuleType) -> None:
    operator = module.SlurmJobOperator
    for name in ("execute", "submit_again", "execute_complete"):
        before(operator, name, _remember)

    def resuming(self: Any, context: Any, *_: Any, **__: Any) -> None:
        _remember(self, context)
        die_if_asked("when-it-resumes")

    before(operator, "execute_complete", resuming)
    before(operator, "defer", lambda *_, **__: die_if_asked("before-it-defers"))


def _client(module: ModuleType) -> None:
    before(module.SlurmClient, "release", lambda *_, **__: die_if_asked("before-the-release"))


def _receipts(module: ModuleType) -> None:
    def recording(_store: Any, _key: str, _n: int, receipt: Any) -> None:
        if receipt.released_at is None:
            die_if_asked("before-the-receipt")

    before(module.CatalogReceipts, "record", recording)
    before(module.CatalogReceipts, "close", lambda *_, **__: die_if_asked("before-the-close"))


WRAPPERS: dict[str, Callable[[ModuleType], None]] = {
    "airflow_slurm.operators": _operators,
    "airflow_slurm.remote.client": _client,
    "include.stores.catalog.receipts": _receipts,
}


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the ordinary finder load a module of WRAPPERS, and wraps it right after."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if name not in WRAPPERS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_wrap(module: ModuleType) -> None:
            load(module)
            WRAPPERS[name](module)

        spec.loader.exec_module = load_and_wrap  # type: ignore[method-assign]
        return spec


if FOLDER:
    sys.meta_path.insert(0, _Finder())
