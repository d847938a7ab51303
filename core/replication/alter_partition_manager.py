"""Pending AlterPartition proposals: one per partition, one request in flight at a time.

Mirrors ``kafka.server.DefaultAlterPartitionManager``. A proposal is kept until its answer arrives,
so a lost request or answer loses no proposal. A repeated request is harmless (KAFKA-14144).
"""

from __future__ import annotations

from itertools import islice

from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.controller import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionRow,
)

MAX_PROPOSALS_AT_ONCE = 10_000
"""Limits the request to what the controller's broker accepts."""


class AlterPartitionManager:
    """The proposals of the leaders on this broker. Not thread-safe."""

    def __init__(self) -> None:
        self._items: dict[TopicPartition, AlterPartitionRow] = {}
        self._in_flight: AlterPartitionRequest | None = None

    def __len__(self) -> int:
        return len(self._items)

    def submit(self, row: AlterPartitionRow) -> bool:
        """Queue a proposal; False: not queued, because the partition has a pending proposal."""
        return self._items.setdefault(row.topic_partition, row) is row

    def withdraw(self, topic_partition: TopicPartition) -> None:
        """Remove the proposal of a leadership that has ended.

        If it is in flight already, its answer is ignored (KAFKA-12686).
        """
        self._items.pop(topic_partition, None)

    def next_request(self, broker_id: BrokerId, broker_epoch: int) -> AlterPartitionRequest | None:
        """Put the queued proposals in flight and return their request.

        None: there are no proposals, or another request is in flight.
        """
        if self._in_flight is not None or not self._items:
            return None
        rows = tuple(islice(self._items.values(), MAX_PROPOSALS_AT_ONCE))
        self._in_flight = AlterPartitionRequest(broker_id, broker_epoch, rows)
        return self._in_flight

    def on_response(
        self, request: AlterPartitionRequest, response: AlterPartitionResponse | None
    ) -> list[tuple[AlterPartitionRow, AlteredPartition]]:
        """Remove and return the answered proposals; queue all others again.

        ``response`` None: no answer came. An answer to another request than the one in flight is
        late; it is ignored.
        """
        if request != self._in_flight:
            return []
        self._in_flight = None
        if response is None or response.error_code is not Errors.NONE:
            return []
        answers = {answer.topic_partition: answer for answer in response.partitions}
        answered: list[tuple[AlterPartitionRow, AlteredPartition]] = []
        for row in request.partitions:
            answer = answers.get(row.topic_partition)
            if answer is not None and self._items.get(row.topic_partition) == row:
                # Remove it before handling the answer, which may submit a retry (KAFKA-14010).
                del self._items[row.topic_partition]
                answered.append((row, answer))
        return answered
