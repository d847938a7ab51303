"""ISR proposals to the controller, or to ZooKeeper: AlterIsrManagerTest."""

from __future__ import annotations

from collections.abc import Sequence

from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.controller import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionRow,
)
from regent.core.replication.leader_partitions import AlterPartitionManager
from regent.zk.stores.isr_store import ZkIsrStore
from tests.conformance.fields import Case, Fields, UnknownInCaseError, one_of, partition
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.world import World

T0 = TopicPartition("t", 0)

# Kafka's client library turns it into an authentication error; here the request has no answer.
_REFUSALS: dict[str, Errors | None] = {error.name: error for error in Errors} | {
    "AUTHENTICATION_FAILURE": None
}


def proposal(
    topic_partition: TopicPartition, isr: Sequence[BrokerId] = (0, 1), partition_epoch: int = 0
) -> AlterPartitionRow:
    """Return a proposal of leader epoch 0."""
    epochs = (-1,) * len(isr)
    return AlterPartitionRow(*topic_partition, None, 0, tuple(isr), epochs, 0, partition_epoch)


class Manager:
    """The sender of proposals, its requests, and the answers to its leaders."""

    def __init__(self) -> None:
        self._manager = AlterPartitionManager()
        self.requests: list[AlterPartitionRequest] = []
        self.answered: dict[TopicPartition, Errors] = {}

    def submit(self, topic_partition: TopicPartition, isr: Sequence[BrokerId] = (0, 1)) -> bool:
        """Propose an ISR, and send what can be sent."""
        accepted = self._manager.submit(proposal(topic_partition, isr))
        self.send()
        return accepted

    def send(self) -> bool:
        """Send the pending proposals unless a request is in flight."""
        request = self._manager.next_request(broker_id=0, broker_epoch=1)
        if request is not None:
            self.requests.append(request)
        return request is not None

    def answer(
        self, error: Errors, topic_partitions: Sequence[TopicPartition] | None = None
    ) -> None:
        """Answer the last request for these partitions (None: all of them)."""
        request = self.requests[-1]
        asked = [row.topic_partition for row in request.partitions]
        rows = [
            AlteredPartition(*topic_partition, error)
            for topic_partition in (asked if topic_partitions is None else topic_partitions)
        ]
        self._take(request, AlterPartitionResponse(Errors.NONE, tuple(rows)))

    def refuse(self, error: Errors | None) -> None:
        """Refuse the last request as a whole, or do not answer it."""
        response = None if error is None else AlterPartitionResponse(error)
        self._take(self.requests[-1], response)

    def _take(
        self, request: AlterPartitionRequest, response: AlterPartitionResponse | None
    ) -> None:
        for row, answer in self._manager.on_response(request, response):
            self.answered[row.topic_partition] = answer.error_code


def alter_isr_client(case: Case) -> None:
    with case.nested("in") as given, case.nested("expect") as expect:
        if "expected_version" in given:
            _write_to_zookeeper(given, expect)
        elif "level" in given:
            levels = {"request": _refuse_request, "partition": _refuse_partition}
            one_of(given.take("level"), levels, "the level")(given, expect)
        elif "sent" in given:
            _answer_some(given, expect)
        elif "submits" in given:
            _submit_twice(given, expect)
        else:
            _submit_in_batches(given, expect)


def _refuse_request(given: Fields, expect: Fields) -> None:
    manager = Manager()
    manager.submit(T0)
    manager.refuse(one_of(given.take("error"), _REFUSALS, "the error"))
    assert manager.answered == {}
    for is_kept in expect.expected("item_kept_pending"):
        assert manager._manager.submit(proposal(T0, (0,))) is not is_kept
    for is_sent_again in expect.expected("retried_after_backoff"):
        assert manager.send() is is_sent_again
        assert manager.requests[-1].partitions == manager.requests[0].partitions
    for is_cleared in expect.expected("item_cleared_after_success"):
        manager.send()
        manager.answer(Errors.NONE)
        assert manager.submit(T0) is is_cleared


def _refuse_partition(given: Fields, expect: Fields) -> None:
    manager = Manager()
    manager.submit(T0)
    manager.answer(one_of(given.take("error"), Errors.__members__, "the error"))
    for error in expect.expected("callback_error"):
        assert manager.answered[T0].name == error
    for is_cleared in expect.expected("item_cleared"):
        assert manager.send() is not is_cleared
    for is_accepted in expect.expected("new_submit_accepted"):
        assert manager.submit(T0) is is_accepted


def _answer_some(given: Fields, expect: Fields) -> None:
    manager = Manager()
    for name in given.take("sent"):  # or the first submit would be sent alone
        manager._manager.submit(proposal(partition(name)))
    manager.send()
    manager.answer(Errors.NONE, [partition(name) for name in given.take("in_response")])
    for names in expect.expected("callbacks_run"):
        assert set(manager.answered) == set(map(partition, names))
    for names in expect.expected("still_pending"):
        for name in names:
            assert not manager._manager.submit(proposal(partition(name), (0,)))
    for names in expect.expected("resent"):
        assert manager.send() is bool(names)
        resent = {row.topic_partition for row in manager.requests[-1].partitions}
        assert not names or resent == set(map(partition, names))


def _submit_twice(given: Fields, expect: Fields) -> None:
    """Submit proposals one after the other: ISRs of one partition, or partitions."""
    manager = Manager()
    submits = given.take("submits")
    if isinstance(submits, int):
        submits = [[0, 1]] * submits
    accepted = []
    for submitted in submits:
        if isinstance(submitted, str):
            accepted.append(manager.submit(partition(submitted)))
        elif isinstance(submitted, dict):
            with Fields(submitted, "submits") as fields:
                topic_partition = partition(fields.take("tp", str(T0)))
                accepted.append(manager.submit(topic_partition, fields.take("isr")))
        elif all(isinstance(broker_id, int) for broker_id in submitted):
            accepted.append(manager.submit(T0, submitted))
        else:
            raise UnknownInCaseError(f"submits {submitted!r}")
    for expected in expect.expected("accepted"):
        assert accepted == expected if isinstance(expected, list) else sum(accepted) == expected
    for isr in expect.expected("sent_isr"):
        assert list(manager.requests[0].partitions[0].new_isr) == isr
    for count in expect.expected("requests"):
        assert len(manager.requests) == count


def _submit_in_batches(given: Fields, expect: Fields) -> None:
    manager = Manager()
    first = given.take("submit_first", 1)
    topic_partitions = [
        TopicPartition("t", i) for i in range(first + given.take("submit_while_in_flight", 0))
    ]
    for topic_partition in topic_partitions[:first]:
        manager._manager.submit(proposal(topic_partition))
    manager.send()
    for topic_partition in topic_partitions[first:]:
        manager.submit(topic_partition)
    for count in expect.expected("requests_before_response"):
        assert len(manager.requests) == count
    before = len(manager.requests)
    match given.take("first_response", "answers all"):
        case "omits partition 0":
            manager.answer(Errors.NONE, [])
        case "answers all":
            manager.answer(Errors.NONE)
        case unknown:
            raise UnknownInCaseError(f"the first response {unknown!r}")
    manager.send()
    for count in expect.expected("requests"):
        assert len(manager.requests) == count
    for count in expect.expected("requests_after_response"):
        assert count in (len(manager.requests), len(manager.requests) - before)
    for count in expect.expected("second_request_partitions"):
        assert len(manager.requests[1].partitions) == count


def _write_to_zookeeper(given: Fields, expect: Fields) -> None:
    """The older protocol: the leader writes the state itself."""
    version, is_written = given.take("expected_version"), given.take("write_ok")
    world = World()
    for _ in range(1 + (version if is_written else version + 1)):
        world.put_state(T0, 0, (0,))
    assert given.take("new_version", version + 1) == version + 1
    row = proposal(T0, (0, 1), version)
    store = ZkIsrStore(FakeZooKeeper(world.zookeeper))
    response = store.alter_partitions(AlterPartitionRequest(0, 1, (row,)), {T0: 1})
    (answer,) = response.partitions
    for zk_version in expect.expected("zk_version"):
        assert (answer.error_code, answer.partition_epoch) == (Errors.NONE, zk_version)
    for error in expect.expected("error"):
        assert answer.error_code.name == error
