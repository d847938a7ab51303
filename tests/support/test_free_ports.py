"""No two workers of pytest-xdist give away the same port, and nobody else takes one of theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from regent.cluster.embedded_zookeeper import ANY_PORTS
from tests.support.free_ports import free_ports, ports_of_this_worker


def test_workers_share_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "4")
    taken: set[int] = set()
    for number in range(4):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{number}")
        ports = set(ports_of_this_worker())
        assert len(ports) > 1_000
        assert not ports & taken
        taken |= ports
        assert set(free_ports(50)) <= ports
    assert not taken & set(ANY_PORTS)


def test_nobody_who_asks_for_any_port_gets_one_of_them() -> None:
    file = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first, last = map(int, file.read_text().split())
    if first < 32_768:
        pytest.skip("this machine gives away all ports")
    assert not {*ports_of_this_worker(), *ANY_PORTS} & set(range(first, last + 1))
