"""A network that breaks: a TCP relay in front of sshd that cuts, swallows or delays, at once or at a given byte."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

#: From the client to sshd, and back.
UP, DOWN = "up", "down"
#: How long what is delayed at a byte stands still, in seconds.
DELAY_S = 1.5


@dataclass
class Budget:
    """How many bytes still pass in one direction, and what happens at the next one: ``cut``, ``swallow`` or ``delay``."""

    direction: str
    bytes_left: int
    then: str = "cut"


@dataclass(eq=False)
class Link:
    """One connection through the relay."""

    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    silent: bool = False
    held_until: float = 0.0
    budget: Budget | None = None

    def cut(self) -> None:
        """End it without a word to either side."""
        for writer in self.writers:
            writer.transport.abort()


class Proxy:
    """See the module. ``connections`` counts those that were made through it."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._links: list[Link] = []
        self._server: asyncio.Server | None = None
        self._plan: Budget | None = None
        self.connections = 0
        self.port = 0

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        assert self._server is not None
        self._server.close()

    def cut(self) -> None:
        """Break every connection, without a word to either side."""
        for link in self._links:
            link.cut()
        self._links.clear()

    def swallow(self) -> None:
        """Let nothing more through on the connections of now, and close none of them."""
        for link in self._links:
            link.silent = True

    def delay(self, seconds: float) -> None:
        """Hold back everything for some time, then let it through."""
        for link in self._links:
            link.held_until = time.monotonic() + seconds

    def end_after(self, budget: Budget) -> None:
        """Cut, swallow or delay the connections of now at a byte to come."""
        for link in self._links:
            link.budget = Budget(budget.direction, budget.bytes_left, budget.then)

    def plan(self, budget: Budget) -> None:
        """Cut, swallow or delay the next connection at a byte of it."""
        self._plan = budget

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        link = Link([writer], budget=self._plan)
        self._plan = None
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            link.cut()
            return
        link.writers.append(far_writer)
        self._links.append(link)
        await asyncio.gather(_relay(link, UP, reader, far_writer), _relay(link, DOWN, far_reader, writer))
        if link in self._links:
            self._links.remove(link)


async def _relay(link: Link, direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            if (wait_s := link.held_until - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            if link.silent:
                continue
            budget = link.budget
            if budget is not None and budget.direction == direction:
                data, rest = data[: budget.bytes_left], data[budget.bytes_left :]
                budget.bytes_left -= len(data)
                writer.write(data)
                await writer.drain()
                if not rest:
                    continue
                link.budget = None
                if budget.then != "delay":
                    link.silent = True
                    if budget.then == "cut":
                        link.cut()
                    continue
                link.held_until = time.monotonic() + DELAY_S
                await asyncio.sleep(DELAY_S)
                data = rest
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        if not link.silent:
            writer.transport.abort()
