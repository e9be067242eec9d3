"""Text of the bytes that a cluster sends: whole characters, and never an error."""

from __future__ import annotations

import codecs


def decode(data: bytes | str | None) -> str:
    """Text of bytes; what is not UTF-8 becomes U+FFFD and is never an error."""
    if isinstance(data, str):
        return data
    return codecs.decode(data or b"", "utf-8", "replace")


class ChunkDecoder:
    """Text of bytes that come in pieces: a character that is split between two pieces is kept until it is whole."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes, final: bool = False) -> str:
        """The text that is complete after this piece."""
        return self._decoder.decode(data, final)
