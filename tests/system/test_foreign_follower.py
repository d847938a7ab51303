"""A follower that knows only Kafka's protocol follows a broker: sessions, epochs, truncation.

It sends Fetch version 17 as a broker of Kafka 3.9 does, under the name of a registered broker that
is stopped. Nothing of this project's own encoding is used here.
"""

from __future__ import annotations

import base64
import json
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from confluent_kafka import Producer

from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually, scaled

pytestmark = [pytest.mark.nightly, pytest.mark.system, pytest.mark.zookeeper]

TOPIC = "followed"
FETCH, API_VERSIONS = 1, 18
STALE_BROKER_EPOCH, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH = 77, 74, 75
SESSION_ID_NOT_FOUND, INVALID_SESSION_EPOCH, UNKNOWN_TOPIC_ID = 70, 71, 100
OFFSET_OUT_OF_RANGE = 1
LONG_MS = 10_000
CONFIG = """
[broker]
replica_lag_time_max_ms = 1500
"""


class Row(NamedTuple):
    """A partition in a response."""

    partition: int
    error: int
    high_watermark: int
    start: int
    records: bytes
    diverging: tuple[int, int] | None


class Answer(NamedTuple):
    """A response; ``topics`` are UUIDs."""

    error: int
    session_id: int
    rows: list[tuple[UUID, Row]]

    @property
    def only(self) -> Row:
        ((_, row),) = self.rows
        return row


class Wire:
    """Reads values of a response."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return values

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def bytes_(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def tagged(self) -> dict[int, bytes]:
        return {self.varint(): self.bytes_(self.varint()) for _ in range(self.varint())}


class Follower:
    """A replica of partition 0 in memory, and its connection to the leader."""

    def __init__(self, port: int, topic_id: UUID, broker: int, epoch: int) -> None:
        self.topic_id, self.broker, self.broker_epoch = topic_id, broker, epoch
        self.leader_epoch = 0
        self.log = b""
        self._correlation_id = 0
        self._socket = socket.socket()
        self.connect(port)

    def connect(self, port: int) -> None:
        """Connect to the leader; there is no session yet."""
        self._socket.close()
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=scaled(30))
        self.session_id, self.session_epoch = 0, 0

    def close(self) -> None:
        """Disconnect."""
        self._socket.close()

    # --- the log ---

    @property
    def last_epoch(self) -> int:
        return self._last_batch()[1]

    @property
    def end(self) -> int:
        return self._last_batch()[0]

    def _last_batch(self) -> tuple[int, int]:
        end, epoch, at = 0, -1, 0
        while at < len(self.log):
            base, size, epoch = struct.unpack_from(">qii", self.log, at)
            (last,) = struct.unpack_from(">i", self.log, at + 23)
            assert base == end, "the batches follow each other"
            end, at = base + last + 1, at + 12 + size
        return end, epoch

    # --- requests ---

    def call(self, key: int, version: int, body: bytes, *, is_flexible: bool) -> Wire:
        self.send(key, version, body, is_flexible=is_flexible)
        return self.receive(is_flexible=is_flexible)

    def send(self, key: int, version: int, body: bytes, *, is_flexible: bool) -> None:
        self._correlation_id += 1
        header = struct.pack(">hhih", key, version, self._correlation_id, 3) + b"raw"
        data = header + (b"\0" if is_flexible else b"") + body
        self._socket.sendall(struct.pack(">i", len(data)) + data)

    def receive(self, *, is_flexible: bool) -> Wire:
        (size,) = struct.unpack(">i", self._exactly(4))
        wire = Wire(self._exactly(size))
        assert wire.take(">i") == (self._correlation_id,)
        if is_flexible:
            wire.tagged()
        return wire

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            assert piece, "the broker closed the connection"
            data += piece
        return data

    def fetch(self, **more: Any) -> Answer:
        """Fetch, and continue the session; see ``ask``."""
        self.ask(**more)
        return self.answer()

    def ask(
        self,
        *,
        max_wait_ms: int = 0,
        offset: int | None = None,
        last_epoch: int | None = None,
        leader_epoch: int | None = None,
        broker_epoch: int | None = None,
        session_epoch: int | None = None,
        session_id: int | None = None,
        topic_id: UUID | None = None,
        lists: bool = True,
    ) -> None:
        """Send a fetch of version 17 that lists partition 0, or no partition of the session."""

        def given(value: int | None, usual: int) -> int:
            return usual if value is None else value

        limits = max_wait_ms, 1, 10_485_760, 0
        session = given(session_id, self.session_id), given(session_epoch, self.session_epoch)
        row = struct.pack(
            ">iiqiqib",
            0,
            given(leader_epoch, self.leader_epoch),
            given(offset, self.end),
            given(last_epoch, self.last_epoch),
            0,
            1_048_576,
            0,
        )
        state = struct.pack(">iqb", self.broker, given(broker_epoch, self.broker_epoch), 0)
        body = struct.pack(">iiibii", *limits, *session)
        topic = (topic_id or self.topic_id).bytes + b"\2" + row + b"\0"
        body += b"\2" + topic if lists else b"\1"
        body += b"\1\1"  # none forgotten, no rack
        body += b"\1\1" + bytes((len(state),)) + state  # one tagged field: ReplicaState
        self.send(FETCH, 17, body, is_flexible=True)

    def answer(self) -> Answer:
        """Return the response to a fetch."""
        wire = self.receive(is_flexible=True)
        _, error, session_id = wire.take(">ihi")
        rows = []
        for _ in range(wire.varint() - 1):
            topic = UUID(bytes=wire.bytes_(16))
            rows += [(topic, self._row(wire)) for _ in range(wire.varint() - 1)]
            wire.tagged()
        wire.tagged()
        assert wire.at == len(wire.data)
        if error == 0:
            self.session_id, self.session_epoch = session_id, self.session_epoch + 1
        return Answer(error, session_id, rows)

    def _row(self, wire: Wire) -> Row:
        index, error, high_watermark, _, start = wire.take(">ihqqq")
        assert wire.varint() == 0, "no aborted transactions: null"
        assert wire.take(">i") == (-1,), "no preferred replica"
        records = wire.bytes_(wire.varint() - 1)
        field = wire.tagged().get(0)
        diverging = None
        if field is not None:
            epoch, end, _ = struct.unpack(">iqb", field)
            diverging = epoch, end
        return Row(index, error, high_watermark, start, records, diverging)

    def follow_to(self, end: int) -> None:
        """Fetch until the log has so many records."""
        while self.end < end:
            for _, row in self.fetch(max_wait_ms=500).rows:
                assert row.error == 0
                self.log += row.records


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegentCluster]:
    folder = tmp_path_factory.mktemp("foreign")
    config = folder / "cluster.toml"
    config.write_text(CONFIG)
    options = ["--brokers", "2", "--config", str(config), "--session-timeout-ms", "60000"]
    with RegentCluster(folder / "data", "--no-placement-service", *options) as cluster:
        yield cluster


def test_a_follower_from_the_protocol_alone_follows_and_joins_the_isr(cluster: RegentCluster):
    leader = cluster.await_controller()
    other = 1 - leader
    cluster.create_topic_on(TOPIC, [(leader, other)])
    cluster.await_isr(TOPIC, {0, 1})
    state = cluster.partition_states(TOPIC)[0].leader_and_isr
    epoch = cluster.broker_epoch(other)
    assert epoch is not None
    address = cluster.description["brokers"][leader]
    written = Producer({"bootstrap.servers": f"127.0.0.1:{address['port']}", "acks": "1"})

    def produce(value: str) -> None:
        written.produce(TOPIC, value, partition=0)
        assert written.flush(scaled(30)) == 0

    cluster.signal(other, signal.SIGSTOP)
    try:
        follower = Follower(address["replication_port"], _topic_id(cluster), other, epoch)
        follower.leader_epoch = state.leader_epoch
        with closing(follower):
            _check_versions(follower)
            for number in range(5):
                produce(f"record {number}")
            _check_session(follower, produce)
            _check_refusals(follower)
            _check_divergence(cluster, follower, produce)
            _join(cluster, follower)
    finally:
        cluster.signal(other, signal.SIGCONT)
    log = next(cluster.data_dir.glob(f"broker-{leader}/**/{TOPIC}-0/{0:020d}.log"))
    assert follower.log == Path(log).read_bytes()


def _topic_id(cluster: RegentCluster) -> UUID:
    znode = cluster.zookeeper.get(f"/brokers/topics/{TOPIC}")
    assert znode is not None
    return UUID(bytes=base64.urlsafe_b64decode(json.loads(znode.data)["topic_id"] + "=="))


def _check_versions(follower: Follower) -> None:
    wire = follower.call(API_VERSIONS, 0, b"", is_flexible=False)
    error, count = wire.take(">hi")
    versions = {
        key: (least, most) for key, least, most in (wire.take(">hhh") for _ in range(count))
    }
    assert error == 0
    assert versions[FETCH][1] == 17


def _check_session(follower: Follower, produce: Callable[[str], None]) -> None:
    begun = follower.fetch()
    assert (begun.error, begun.only.error, begun.only.start) == (0, 0, 0)
    assert begun.session_id > 0
    follower.log += begun.only.records
    follower.follow_to(5)
    assert follower.fetch().only.high_watermark == 5
    assert follower.fetch(lists=False).rows == [], "nothing is new"
    follower.ask(max_wait_ms=LONG_MS)
    asked = monotonic()
    produce("awaited")
    answer = follower.answer()
    assert monotonic() - asked < LONG_MS / 1000
    follower.log += answer.only.records
    assert follower.end == 6


def _check_refusals(follower: Follower) -> None:
    at = follower.session_id, follower.session_epoch
    assert follower.fetch(session_epoch=at[1] + 1).error == INVALID_SESSION_EPOCH
    assert follower.fetch(session_id=at[0] ^ 1).error == SESSION_ID_NOT_FOUND
    stale = follower.fetch(session_epoch=-1, broker_epoch=follower.broker_epoch - 1)
    assert (stale.error, stale.rows) == (STALE_BROKER_EPOCH, [])
    for leader_epoch, error in (
        (follower.leader_epoch - 1, FENCED_LEADER_EPOCH),
        (follower.leader_epoch + 1, UNKNOWN_LEADER_EPOCH),
    ):
        if leader_epoch >= 0:
            assert _sessionless(follower, leader_epoch=leader_epoch).only.error == error
    assert _sessionless(follower, topic_id=UUID(int=7)).only.error == UNKNOWN_TOPIC_ID
    assert _sessionless(follower, offset=99, last_epoch=-1).only.error == OFFSET_OUT_OF_RANGE
    follower.session_id, follower.session_epoch = at
    assert follower.fetch().error == 0, "the session is as before"


def _sessionless(follower: Follower, **more: Any) -> Answer:
    return follower.fetch(session_id=0, session_epoch=-1, **more)


def _check_divergence(
    cluster: RegentCluster, follower: Follower, produce: Callable[[str], None]
) -> None:
    """It does not fetch, leaves the ISR, and the leader begins another epoch without it."""
    produce("the last of its epoch")
    former, end = follower.leader_epoch, follower.end + 1
    eventually(lambda: len(cluster.partition_states(TOPIC)[0].leader_and_isr.isr) == 1, "it left")
    cluster.restart(1 - follower.broker)

    def is_led() -> bool:
        state = cluster.partition_states(TOPIC)[0].leader_and_isr
        follower.leader_epoch = state.leader_epoch
        return state.leader >= 0 and state.leader_epoch > former

    eventually(is_led, "there is a leader in another epoch")
    follower.connect(cluster.description["brokers"][1 - follower.broker]["replication_port"])
    eventually(lambda: _sessionless(follower).only.error == 0, "the leader has its new epoch")
    produce("of the new epoch")
    row = _sessionless(follower, offset=end + 1, last_epoch=former).only
    assert (row.error, row.diverging, row.records) == (0, (former, end), b"")
    row = _sessionless(follower).only
    assert (row.error, row.diverging) == (0, None)
    follower.log += row.records
    assert (follower.end, follower.last_epoch) == (end + 1, follower.leader_epoch)


def _join(cluster: RegentCluster, follower: Follower) -> None:
    def is_in_sync() -> bool:
        follower.session_id, follower.session_epoch = 0, 0
        state = cluster.partition_states(TOPIC)[0].leader_and_isr
        follower.leader_epoch = state.leader_epoch
        follower.fetch()
        return set(state.isr) == {0, 1}

    eventually(is_in_sync, "it is in the ISR")
