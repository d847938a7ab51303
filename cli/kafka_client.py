"""What the commands that are Kafka clients have in common: an error, and a word about quotas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from regent.cli.output import note
from regent.core.errors import RegentError


class KafkaClientError(RegentError):
    """Records could not be written or read, or a request about groups failed."""


def tell_throttling() -> Callable[[Any], None]:
    """Return a callback for ``throttle_cb``, which says once that a quota slows the client down."""
    is_told = False

    def tell(event: Any) -> None:
        nonlocal is_told
        if event.throttle_time > 0 and not is_told:
            is_told = True
            note(
                f"regent: because of a quota, broker {event.broker_id} lets this client wait for"
                f" {event.throttle_time:.1f} s"
            )

    return tell
