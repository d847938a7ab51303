"""The mail between brokers, over real sockets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from regent.core.model import BrokerId, TopicPartition
from regent.designs.mail import (
    DeliverMail,
    FetchRecords,
    PostOffice,
    RecordsFetched,
    ReplicaMail,
    Request,
    RequestServer,
)
from regent.testing.waits import scaled

TIMEOUT_S = scaled(20.0)
T0 = TopicPartition("payments", 0)
FETCH = FetchRecords(T0, 0, 7, 100, 90)
FETCHED = RecordsFetched(T0, 7, is_leader=True, high_watermark=90, records=("a", "b"))


class Receiver:
    """Broker 1: it keeps the mail, and answers when it may."""

    def __init__(self) -> None:
        self.incarnation = 1
        self.mail: SimpleQueue[DeliverMail] = SimpleQueue()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.server = RequestServer(self._receive)
        self.server.start()

    def _receive(self, request: Request) -> int:
        assert isinstance(request, DeliverMail)
        incarnation = self.incarnation
        self.mail.put(request)
        self.may_answer.wait(TIMEOUT_S)
        return incarnation


class Sender:
    """Broker 0, and what its post office tells it."""

    def __init__(self, receiver: Receiver) -> None:
        self.address: str | None = receiver.server.endpoint
        self.returned: SimpleQueue[ReplicaMail] = SimpleQueue()
        self.restarted: SimpleQueue[BrokerId] = SimpleQueue()
        self.post_office = PostOffice(
            0,
            address_of=lambda _: self.address,
            deliver=self.returned.put,
            on_restarted=self.restarted.put,
        )


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.stop()


@pytest.fixture
def sender(receiver: Receiver) -> Iterator[Sender]:
    sender = Sender(receiver)
    yield sender
    sender.post_office.close()


def test_fetches_and_answers_arrive_as_they_were_sent(sender: Sender, receiver: Receiver):
    sender.post_office.send(1, FETCH)
    assert receiver.mail.get(timeout=TIMEOUT_S) == DeliverMail((FETCH,))
    sender.post_office.send(1, FETCHED)
    assert receiver.mail.get(timeout=TIMEOUT_S) == DeliverMail((), (FETCHED,))


def test_waiting_messages_go_in_one_request(sender: Sender, receiver: Receiver):
    receiver.may_answer.clear()
    sender.post_office.send(1, FETCH)
    receiver.mail.get(timeout=TIMEOUT_S)
    fetches = [FETCH._replace(offset=offset) for offset in range(1000)]
    for fetch in fetches:
        sender.post_office.send(1, fetch)
    receiver.may_answer.set()
    assert receiver.mail.get(timeout=TIMEOUT_S) == DeliverMail(tuple(fetches))


def test_a_fetch_for_a_broker_that_is_not_registered_is_refused(sender: Sender):
    sender.address = None
    sender.post_office.send(1, FETCH)
    refused = RecordsFetched(T0, 7, is_leader=False)
    assert sender.returned.get(timeout=TIMEOUT_S) == refused
    assert sender.restarted.empty()


def test_the_restart_of_a_broker_is_reported(sender: Sender, receiver: Receiver):
    sender.post_office.send(1, FETCH)
    receiver.mail.get(timeout=TIMEOUT_S)
    receiver.incarnation = 2
    sender.post_office.send(1, FETCH)
    assert sender.restarted.get(timeout=TIMEOUT_S) == 1


def test_the_end_of_a_broker_is_reported_once(sender: Sender, receiver: Receiver):
    sender.post_office.send(1, FETCH)
    receiver.mail.get(timeout=TIMEOUT_S)
    sender.post_office.send(1, FETCHED)  # the answer to the first has arrived before this one
    receiver.mail.get(timeout=TIMEOUT_S)
    receiver.server.stop()
    sender.address = None
    refused = RecordsFetched(T0, 7, is_leader=False)
    for _ in range(3):
        sender.post_office.send(1, FETCH)
        assert sender.returned.get(timeout=TIMEOUT_S) == refused
    assert sender.restarted.get(timeout=TIMEOUT_S) == 1
    assert sender.restarted.empty()
