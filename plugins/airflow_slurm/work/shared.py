"""One connection for everything that one process ends on a cluster at a time, however many tasks are over at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from airflow_slurm.hook import SlurmHook
from airflow_slurm.remote.client import SlurmClient


@dataclass
class _Shared:
    client: SlurmClient | None = None
    users: int = 0
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    closing: AsyncExitStack = field(default_factory=AsyncExitStack)


#: By event loop and connection; what nobody uses any more is gone.
_SHARED: dict[tuple[int, str], _Shared] = {}


@asynccontextmanager
async def shared_client(slurm_conn_id: str) -> AsyncIterator[SlurmClient]:
    """The client that all in this event loop use who are here at the same time; the last one to leave closes it.

    Whoever looks over it looks together with the others: see :mod:`.looking`. Its commands wait for one of the connection's few channels.
    """
    name = (id(asyncio.get_running_loop()), slurm_conn_id)
    shared = _SHARED.setdefault(name, _Shared())
    shared.users += 1
    try:
        async with shared.opening:
            if shared.client is None:
                shared.client = await shared.closing.enter_async_context(SlurmHook(slurm_conn_id).get_client())
        yield shared.client
    finally:
        shared.users -= 1
        if not shared.users:
            del _SHARED[name]
            await shared.closing.aclose()
