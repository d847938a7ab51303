"""Fixtures of the tests of what tools share."""

from __future__ import annotations

from tests.transport.control.conftest import context, serve

__all__ = ["context", "serve"]
