"""A process that dies at a line, a command that takes its time, and waiting for what nobody announces."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any


class Killed(BaseException):
    """Stands for SIGKILL: nothing that catches errors catches it."""


class DiesAt:
    """Lets everything through to what it wraps, until one method was called (or is about to be)."""

    def __init__(self, wrapped: Any, method: str, *, before: bool) -> None:
        self._wrapped, self._method, self._before = wrapped, method, before
        self.died = False

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._wrapped, name)
        if name != self._method or self.died:
            return attribute
        self.died = True
        if asyncio.iscoroutinefunction(attribute):

            async def dies(*args: Any, **kwargs: Any) -> Any:
                if not self._before:
                    await attribute(*args, **kwargs)
                raise Killed(name)

            return dies

        def dies_too(*args: Any, **kwargs: Any) -> Any:
            if not self._before:
                attribute(*args, **kwargs)
            raise Killed(name)

        return dies_too


def slow_command(folder: Path, name: str, *, before_s: float = 0.0, after_s: float = 0.0) -> Path:
    """A folder for ``slurm_bin`` whose ``name`` waits before or after the real one has done its work."""
    folder.mkdir(exist_ok=True)
    script = folder / name
    script.write_text(
        f'#!/bin/sh\nsleep {before_s}\nPATH="${{PATH#*:}}"\nout=$({name} "$@")\nrc=$?\ntouch {folder}/done\nsleep {after_s}\necho "$out"\nexit $rc\n'
    )
    script.chmod(0o755)
    return folder


async def until(what: Callable[[], Awaitable[bool]], timeout_s: float = 30.0) -> None:
    """Wait for something that nobody announces."""
    async with asyncio.timeout(timeout_s):
        while not await what():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def appears(path: Path, timeout_s: float = 20.0) -> None:
    """Wait for a file."""

    async def there() -> bool:
        return await asyncio.to_thread(path.exists)

    await until(there, timeout_s)
