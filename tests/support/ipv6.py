"""Tests that need IPv6 on loopback, which some containers lack."""

from __future__ import annotations

import socket

import pytest


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6 address ::1")
