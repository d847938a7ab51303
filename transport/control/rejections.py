"""Why messages and connections of peers are refused, with counts."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

logger = logging.getLogger(__name__)

_LOG_INTERVAL_S: Final = 10.0


class Rejection(StrEnum):
    """Why a message of a peer, or the answer to it, was dropped."""

    BAD_HANDSHAKE = "no proof of a key"
    UNKNOWN_KEY = "unknown key"
    UNAUTHORIZED = "not allowed to this peer"
    OTHER_USER = "another user of this machine, or gone"
    TOO_LARGE = "too large"
    BAD_ENVELOPE = "bad envelope"
    BAD_HEADER = "bad header"
    BAD_BODY = "bad body"
    UNSUPPORTED_VERSION = "unsupported version"
    UNKNOWN_API = "unknown api"
    UNFENCED = "control request without epochs or receiver"
    UNCONFIRMED = "large, of a controller that is not known yet"
    OVERLOADED = "too many unanswered requests"
    TOO_MUCH_WORK = "more work than one broker may cause"
    TOO_MANY_PEERS = "too many connections"
    DISPATCH_FAILED = "dispatch failed"
    UNROUTABLE_ANSWER = "answer to a peer that is gone"
    UNEXPECTED = "unexpected error"


class RejectedFrames:
    """Counts rejections by reason; logs the first of each and at most one line in ten seconds."""

    def __init__(self) -> None:
        self._counts: Counter[Rejection] = Counter()
        self._next_log_at = 0.0

    @property
    def counts(self) -> Mapping[Rejection, int]:
        """The counts by reason."""
        return dict(self._counts)

    def add(self, reason: Rejection, detail: object) -> None:
        """Count one; for ``UNEXPECTED`` log the exception that is being handled."""
        self._counts[reason] += 1
        now = time.monotonic()
        if now >= self._next_log_at or self._counts[reason] == 1:
            self._next_log_at = now + _LOG_INTERVAL_S
            so_far = ", ".join(f"{count} {reason}" for reason, count in self._counts.items())
            # A client may disconnect while its answer is held back: that is no error.
            level = logging.INFO if reason is Rejection.UNROUTABLE_ANSWER else logging.WARNING
            logger.log(
                level,
                "Rejected, %s: %s (so far: %s)",
                reason,
                detail,
                so_far,
                exc_info=reason is Rejection.UNEXPECTED,
            )
