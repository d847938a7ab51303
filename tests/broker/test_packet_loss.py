"""Lost packets are said by the broker whose machine sends them again."""

from __future__ import annotations

from pathlib import Path

import pytest

from regent.broker.packet_loss import PacketLoss

LOOKS_OF_A_MINUTE = 7


class Machine:
    """Its counters, as Linux writes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sent, self.again, self.syn = 1_000_000, 50_000, 20_000
        self.loss = PacketLoss(folder)
        self.sends()

    def sends(self, once: int = 0, again: int = 0, syn: int = 0) -> None:
        self.sent, self.again, self.syn = self.sent + once, self.again + again, self.syn + syn
        self.folder.joinpath("snmp").write_text(
            "Ip: Forwarding OutSegs\nIp: 1 64\nTcp: RtoAlgorithm MaxConn OutSegs RetransSegs\n"
            f"Tcp: 1 -1 {self.sent} {self.again + self.syn}\n"
        )
        self.folder.joinpath("netstat").write_text(
            f"TcpExt: SyncookiesSent TCPSynRetrans\nTcpExt: 0 {self.syn}\n"
            "IpExt: InOctets\nIpExt: 7\n"
        )
        self.loss.look()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_machine_that_sends_one_segment_in_ten_again_is_named(machine: Machine):
    machine.sends(once=900, again=100)
    (line,) = machine.loss.warnings()
    assert line.startswith("packets get lost: its machine sent 10% of its TCP segments again")


@pytest.mark.parametrize(
    ("once", "again", "syn"),
    [(0, 0, 0), (5_000, 50, 0), (20, 5, 0), (500, 0, 400)],
    ids=["nothing is sent", "few of many", "too few to tell", "a receiver is down"],
)
def test_a_machine_that_loses_nothing_says_nothing(
    machine: Machine, once: int, again: int, syn: int
):
    machine.sends(once, again, syn)
    assert machine.loss.warnings() == ()


def test_a_loss_that_is_over_is_forgotten_after_a_minute(machine: Machine):
    machine.sends(once=900, again=100)
    for _ in range(LOOKS_OF_A_MINUTE):
        machine.sends(once=100)
    assert machine.loss.warnings() == ()


@pytest.mark.parametrize("text", [None, "", "Tcp: OutSegs\n", "Tcp: OutSegs\nTcp: many\n"])
def test_without_counters_nothing_is_known(tmp_path: Path, text: str | None):
    loss = PacketLoss(tmp_path)
    if text is not None:
        tmp_path.joinpath("snmp").write_text(text)
    loss.look()
    assert loss.warnings() == ()


def test_the_counters_of_this_machine_are_read():
    loss = PacketLoss()
    loss.look()
    assert loss._looks if Path("/proc/self/net/netstat").exists() else not loss._looks
