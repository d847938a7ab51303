"""Listeners on free ports, for clients in this process."""

from tests.transport.kafka.conftest import listen

__all__ = ["listen"]
