"""Proposals to the controller on their way: one a partition, one request at a time.

Mirrors ``kafka.server.DefaultAlterPartitionManager``. An item stays until its answer was read, so
that nothing is lost when a request or an answer is; a copy of a request is harmless (KAFKA-14144).
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
"""A request must not be larger than the controller's broker takes."""


class AlterPartitionManager:
    """What leaders of this broker propose. Not thread-safe."""

    def __init__(self) -> None:
        self._items: dict[TopicPartition, AlterPartitionRow] = {}
        self._in_flight: AlterPartitionRequest | None = None

    def __len__(self) -> int:
        return len(self._items)

    def submit(self, row: AlterPartitionRow) -> bool:
        """Queue a proposal; False, and nothing is done, while another of its partition waits."""
        return self._items.setdefault(row.topic_partition, row) is row

    def withdraw(self, topic_partition: TopicPartition) -> None:
        """Forget the proposal of a leadership that is over.

        If it is in flight already, its answer finds nothing to answer (KAFKA-12686).
        """
        self._items.pop(topic_partition, None)

    def next_request(self, broker_id: BrokerId, broker_epoch: int) -> AlterPartitionRequest | None:
        """Put what waits in flight; None when nothing waits, or a request is in flight."""
        if self._in_flight is not None or not self._items:
            return None
        rows = tuple(islice(self._items.values(), MAX_PROPOSALS_AT_ONCE))
        self._in_flight = AlterPartitionRequest(broker_id, broker_epoch, rows)
        return self._in_flight

    def on_response(
        self, request: AlterPartitionRequest, response: AlterPartitionResponse | None
    ) -> list[tuple[AlterPartitionRow, AlteredPartition]]:
        """Remove and return the proposals that were answered; all others wait again.

        None: no answer came. An answer to anything but the request in flight is a late copy.
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
                # Before it is acted on: a retry must find the place free (KAFKA-14010).
                del self._items[row.topic_partition]
                answered.append((row, answer))
        return answered
