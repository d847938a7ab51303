"""The states of groups, asked of brokers that answer and of others."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from regent.client.group_states import assigned_partitions, group_states
from regent.core.errors import Errors
from regent.core.model import EndPoint, TopicPartition
from regent.core.protocol.messages.groups import ListedGroup, ListGroupsResponse
from regent.testing.waits import scaled
from regent.transport.kafka.message_codec import encoded

TIMEOUT_S = 10.0


def answer(*states: str, error: Errors = Errors.NONE) -> bytes:
    groups = tuple(
        ListedGroup(group_id=f"g{number}", protocol_type="consumer", group_state=state)
        for number, state in enumerate(states)
    )
    body = encoded(ListGroupsResponse(error_code=error, groups=groups), 4, is_flexible=True)
    return struct.pack(">iib", len(body) + 5, 1, 0) + body


@contextmanager
def broker(sent: bytes) -> Iterator[EndPoint]:
    """A broker that answers one request with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(sent)

        thread = threading.Thread(target=serve)
        thread.start()
        yield EndPoint("PLAINTEXT", "127.0.0.1", server.getsockname()[1])
        thread.join(scaled(10))


def test_the_groups_of_all_brokers_are_counted() -> None:
    first = answer("Stable", "Empty", "Stable", "Dead")
    second = answer("PreparingRebalance", "CompletingRebalance", "Empty")
    with broker(first) as one, broker(second) as two:
        counts = group_states([one, two], TIMEOUT_S)
    assert counts == {"stable": 2, "empty": 2, "rebalancing": 2}


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        answer("Stable")[:-4],
        answer(error=Errors.COORDINATOR_LOAD_IN_PROGRESS),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", -1),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">i", 8) + b"\xff" * 8,
    ],
)
def test_without_the_whole_answer_of_every_broker_nothing_is_known(sent: bytes) -> None:
    with broker(answer("Stable")) as one, broker(sent) as two:
        assert group_states([one, two], TIMEOUT_S) is None


def test_a_broker_that_does_not_answer_is_not_awaited_for_long() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = EndPoint("PLAINTEXT", "127.0.0.1", silent.getsockname()[1])
        assert group_states([endpoint], 0.05) is None
    assert group_states([endpoint], TIMEOUT_S) is None  # refused at once


def test_without_brokers_there_are_no_groups() -> None:
    assert group_states([], TIMEOUT_S) == {"stable": 0, "empty": 0, "rebalancing": 0}


def test_an_assignment_is_decoded_and_a_damaged_one_has_no_partitions() -> None:
    assignment = b"\0\0\0\0\0\1\0\1t\0\0\0\2\0\0\0\0\0\0\0\1\xff\xff\xff\xff"
    assert assigned_partitions(assignment) == [TopicPartition("t", 0), TopicPartition("t", 1)]
    assert [assigned_partitions(assignment[:n]) for n in (0, 5, 9, 15)] == [[]] * 4
