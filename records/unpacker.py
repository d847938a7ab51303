"""Decompresses large batches of producers beside the thread that reads their records.

``cramjam`` decompresses a frame only as a whole. So it writes into a pipe on another thread, and
stops when the reader has seen enough. Neither thread keeps more than a piece.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from concurrent.futures import Executor, Future
from typing import Final

from regent.records.compression import unpack_to_file

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
        written: Future[str | None] | None = None
        try:
            written = self._executor.submit(_write, codec, data, writing)
            written.add_done_callback(lambda _: os.close(writing))  # also if it never runs
            while piece := os.read(reading, _PIECE_BYTES):
                yield piece
        finally:
            os.close(reading)  # this ends the writer, too, if it has not finished
            if written is None:
                os.close(writing)
            problem = None if written is None else written.result()
        if problem is not None:
            raise ValueError(problem)


def _write(codec: int, data: memoryview, writing: int) -> str | None:
    """Write the content to a pipe; return what is wrong with the frames.

    Not as an exception: it would refer to the frame that waits for it, and that to all pieces.
    """
    try:
        unpack_to_file(codec, data, f"/dev/fd/{writing}")
    except ValueError as error:
        return str(error)
    return None
