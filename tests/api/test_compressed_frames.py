"""Brokers take the compressed frames that every client reads, and no others."""

from __future__ import annotations

import pytest

from regent.api.record_validation import InvalidRecordsError, validate
from regent.core.compression import decompressed
from regent.core.errors import Errors
from tests.support.compressed_frames import FRAMES, Frame
from tests.support.record_batches import batch

VALUES = [b"a value that compresses well " * 60, b"b" * 900, b"c" * 64_000]
HEADER_BYTES = 61
RECORDS = batch(*VALUES)[HEADER_BYTES:]


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_frames_are_taken_that_every_client_reads(frame: Frame):
    pass
