"""Fixtures of the tests of what tools share."""

from __future__ import annotations

from tests.transport.control.conftest import context, serve
from tests.transport.kafka.conftest import listen

__all__ = ["context", "listen", "serve"]
