"""The job's own output, as far as it has come, for the task's log: by byte offset, whole characters only, bounded."""

from __future__ import annotations

from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.remote.text import ChunkDecoder

#: Bytes taken at one look, so that a chatty job can't fill a triggerer.
CHUNK = 64 * 1024
#: Bytes of one job's output that a task's log takes in all, but for its end.
LIMIT = 8 * 1024 * 1024
#: Bytes before the offset that are read again: if they have changed, it is another file.
MARK = 64


class LogTail:
    """Follows one remote file that only grows, or is started anew by a requeued job.

    :param path: of the file on the cluster. :param chunk: bytes taken at one look. :param limit: bytes taken in all; of
        what comes after them only the end is shown, when the job has ended. :param offset: bytes at its beginning that were read before.
    :ivar told: bytes whose lines have been given; what an unfinished line holds is not among them.
    """

    def __init__(self, path: str, chunk: int = CHUNK, limit: int = LIMIT, offset: int = 0) -> None:
        self.path = path
        self._chunk = chunk
        self._limit = limit
        self._taken = 0
        self._capped = False
        self._offset = self.told = offset
        self._decoder = ChunkDecoder()
        self._rest = ""
        self._mark = b""

    async def read(self, client: SlurmClient, *, final: bool = False) -> list[str]:
        """The lines that were completed since the last call.

        A call that is more than one chunk behind goes on one chunk before the end. What is left out is said.

        :param final: the file won't grow any more: its end is shown whatever was taken before.
        :raises SshUnreachable: if the file can't be read; nothing is lost by it.
        """
        size = await client.size_of(self.path)
        if size is None or size == self._offset:
            return []
        if size < self._offset:
            return [self._anew(), *await self._forward(client, size, final)]
        return await self._forward(client, size, final)

    def close(self) -> list[str]:
        """What is left when the file won't grow any more: a last line without its end."""
        text = self._rest + self._decoder.feed(b"", final=True)
        self._rest, self.told = "", self._offset
        return [text] if text else []

    async def _forward(self, client: SlurmClient, size: int, final: bool) -> list[str]:
        room = self._chunk if final else min(self._chunk, self._limit - self._taken)
        if room <= 0:
            return self._cap()
        lines: list[str] = []
        skipped = size - self._offset - self._chunk
        if skipped > 0:
            mark = self._mark
            if mark and await client.read_from(self.path, self._offset - len(mark), len(mark)) != mark:
                return [self._anew(), *await self._forward(client, size, final)]
            lines += self.close()
            self._restart(self._offset + skipped)
        mark = self._mark
        data = await client.read_from(self.path, self._offset - len(mark), room + len(mark))
        if not data.startswith(mark):
            return [self._anew(), *await self._forward(client, size, final)]
        data = data[len(mark) :]
        self._mark = (mark + data)[-MARK:]
        self._offset += len(data)
        self._taken += len(data)
        if skipped > 0:
            whole = data.lstrip(_CONTINUATIONS) if len(data) > _LONGEST_TAIL else data
            skipped, data = skipped + len(data) - len(whole), whole
            lines.append(f"[{skipped} bytes of output left out here; all of it is in {self.path}]")
        return lines + self._complete(
            self._decoder.feed(data), self._offset - len(data) + data.rfind(b"\n") + 1 if b"\n" in data else self.told
        )

    def _anew(self) -> str:
        self._restart(0)
        return f"[{self.path} was started anew; reading it from its beginning]"

    def _cap(self) -> list[str]:
        if self._capped:
            return []
        self._capped = True
        rest = self.close()
        return [
            *rest,
            f"[{self._taken} bytes of output are in this log; of what follows only the end will be. All of it is in {self.path}]",
        ]

    def _restart(self, offset: int) -> None:
        self._offset = self.told = offset
        self._decoder = ChunkDecoder()
        self._rest = ""
        self._mark = b""

    def _complete(self, text: str, told: int) -> list[str]:
        *whole, self._rest = (self._rest + text).split("\n")
        self.told = told
        if len(self._rest) > self._chunk:
            whole.append(self._rest)
            self._rest, self.told = "", self._offset
        return [line.rstrip("\r") for line in whole]


#: What a character of UTF-8 goes on with after its first byte; at most three of them.
_CONTINUATIONS = bytes(range(0x80, 0xC0))
_LONGEST_TAIL = 3
