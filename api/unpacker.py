"""Decompresses large batches of producers beside the thread that reads their records.

``cramjam`` decompresses a frame only as a whole. So it writes into a pipe on another thread, and
stops when the reader has seen enough. Neither thread keeps more than a piece.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Final

from regent.core.compression import unpack_to_file

_PIECE_BYTES: Final = 256 * 1024


class Unpacker:
    """The thread of ``executor``, which must not be the reader's. One reader at a time."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def unpack(self, codec: int, data: memoryview) -> Generator[bytes]:
        """Yield the content of frames of lz4 or zstd in pieces.

        Raises ``ValueError``, and ``OSError`` if there is no descriptor left.
        """
        reading, writing = os.pipe()
        written: Future[None] | None = None
        try:
            try:
                written = self._executor.submit(_write, codec, data, writing)
            except BaseException:
                os.close(writing)
                raise
            with os.fdopen(reading, "rb", buffering=_PIECE_BYTES) as pipe:
                while piece := pipe.read(_PIECE_BYTES):
                    yield piece
            written.result()
        finally:
            if written is None:
                os.close(reading)
            else:
                with suppress(ValueError):  # the reader has stopped before the end
                    written.result()


def _write(codec: int, data: memoryview, writing: int) -> None:
    try:
        unpack_to_file(codec, data, f"/dev/fd/{writing}")
    finally:
        os.close(writing)
