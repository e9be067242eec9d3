"""The job's own output, as far as it has come, for the task's log: by byte offset, whole characters only, bounded."""

from __future__ import annotations

from airflow_slurm.client import SlurmClient
from airflow_slurm.transport import ChunkDecoder

#: Bytes taken at one look, so that a chatty job can't fill a triggerer.
CHUNK = 64 * 1024


class LogTail:
    """Follows one remote file that only grows, or is started anew by a requeued job.

    :param path: of the file on the cluster.
    """

    def __init__(self, path: str, chunk: int = CHUNK) -> None:
        self.path = path
        self._chunk = chunk
        self._offset = 0
        self._decoder = ChunkDecoder()
        self._rest = ""

    async def read(self, client: SlurmClient) -> list[str]:
        """The lines that were completed since the last call.

        A call that is more than one chunk behind goes on one chunk before the end, and says what it left out.

        :raises SshUnreachable: if the file can't be read; nothing is lost by it.
        """
        size = await client.size_of(self.path)
        if size is None or size == self._offset:
            return []
        lines: list[str] = []
        if size < self._offset:
            self._restart(0)
        if (skipped := size - self._offset - self._chunk) > 0:
            lines.append(f"[{skipped} bytes of output left out here; all of it is in {self.path}]")
            self._restart(self._offset + skipped)
        data = await client.read_from(self.path, self._offset, self._chunk)
        self._offset += len(data)
        return lines + self._complete(self._decoder.feed(data))

    def close(self) -> list[str]:
        """What is left when the file won't grow any more: a last line without its end."""
        text = self._rest + self._decoder.feed(b"", final=True)
        self._rest = ""
        return [text] if text else []

    def _restart(self, offset: int) -> None:
        self._offset = offset
        self._decoder = ChunkDecoder()
        self._rest = ""

    def _complete(self, text: str) -> list[str]:
        *whole, self._rest = (self._rest + text).split("\n")
        if len(self._rest) > self._chunk:
            whole.append(self._rest)
            self._rest = ""
        return [line.rstrip("\r") for line in whole]
