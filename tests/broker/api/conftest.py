"""The listeners of the tests of ``transport.kafka``, with real handlers."""

from __future__ import annotations

from tests.transport.kafka.conftest import listen

__all__ = ["listen"]
