"""Holds the deleted logs of a topic that an operator brings back."""

from __future__ import annotations

from regent.core.errors import Errors, StorageError
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.broker import HoldDeletedLogsRequest, HoldDeletedLogsResponse
from regent.core.replica_logs import ReplicaLogs
from regent.core.topic_validation import topic_name_problem


def hold_deleted_logs(
    broker_id: BrokerId, broker_epoch: int, logs: ReplicaLogs, request: HoldDeletedLogsRequest
) -> HoldDeletedLogsResponse:
    """Hold the logs of the partitions that are named; return which are held now."""
    if topic_name_problem(request.topic) is not None:
        return HoldDeletedLogsResponse(Errors.INVALID_TOPIC_EXCEPTION, broker_id, broker_epoch)
    held: list[int] = []
    outcome = Errors.NONE
    for number in request.partitions:
        try:
            if logs.deleted.hold(TopicPartition(request.topic, number), request.topic_id):
                held.append(number)
        except StorageError:  # the other directories may have the other logs
            outcome = Errors.KAFKA_STORAGE_ERROR
    return HoldDeletedLogsResponse(outcome, broker_id, broker_epoch, tuple(held))
