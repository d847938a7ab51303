"""What a broker logs about the control requests that it receives, as Kafka's ``StateChangeLogger``.

One line for a request, and at DEBUG one for each of its partitions, where Kafka has them at TRACE.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.control import (
    ControlHeader,
    ControlRequest,
    LeaderAndIsrRequest,
    PartitionError,
    StopReplicaRequest,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
)
from regent.core.replication.partition import Partition

log = logging.getLogger("state.change")


class ControlRequestLog(NamedTuple):
    """Logs one request. All lines name the broker and the event that caused the request."""

    broker_id: BrokerId
    broker_epoch: int
    header: ControlHeader

    @property
    def _prefix(self) -> str:
        event = f"event {self.header.cause}"
        return f"[Broker id={self.broker_id} epoch={self.broker_epoch}] {event}"

    def received(self, request: ControlRequest) -> None:
        """Log what is requested for each replica."""
        if not isinstance(request, UpdateMetadataRequest) and log.isEnabledFor(logging.DEBUG):
            for topic_partition, row in request.partitions():
                log.debug(
                    "%s: Received %s request %s from controller %d for partition %s",
                    self._prefix,
                    _kind(request),
                    row,
                    self.header.controller_id,
                    topic_partition,
                )

    def ignored(self, request: ControlRequest, error: Errors) -> None:
        """Log a request that is refused as a whole."""
        log.warning(
            "%s: Ignoring %s of controller %d: %s",
            self._prefix,
            type(request).__name__,
            self.header.controller_id,
            error.name,
        )

    def completed(
        self,
        request: LeaderAndIsrRequest | StopReplicaRequest,
        errors: Sequence[PartitionError],
        partition: Callable[[TopicPartition], Partition | None],
    ) -> None:
        """Log the outcome, and what each partition is now."""
        if log.isEnabledFor(logging.DEBUG):
            for error in errors:
                log.debug(
                    "%s: Completed %s request for partition %s with %s: it is %s",
                    self._prefix,
                    _kind(request),
                    error.topic_partition,
                    error.error_code.name,
                    _present_role(partition(error.topic_partition)),
                )
        refused = [error for error in errors if error.error_code is not Errors.NONE]
        first = refused[0] if refused else None
        log.info(
            "%s: %s %d of %d partitions%s",
            self._prefix,
            _done(request),
            len(errors) - len(refused),
            len(errors),
            f", not {first.topic_partition}: {first.error_code.name}" if first else "",
        )

    def cached(
        self,
        request: UpdateMetadataRequest,
        before: Mapping[TopicPartition, UpdateMetadataPartition],
        after: Mapping[TopicPartition, UpdateMetadataPartition],
    ) -> None:
        """Log what the metadata cache took over from a request, and what it dropped."""
        log.info(
            "%s: UpdateMetadata: %d partitions, %d live brokers",
            self._prefix,
            sum(len(topic.partition_states) for topic in request.topic_states),
            len(request.live_brokers),
        )
        if not log.isEnabledFor(logging.DEBUG):
            return
        for topic_partition, row in request.partitions():
            if topic_partition in after:
                verb = "Cached" if after[topic_partition] == row else "Ignored outdated"
                log.debug(
                    "%s: %s leader info %s for partition %s",
                    self._prefix,
                    verb,
                    row,
                    topic_partition,
                )
        for topic_partition in sorted(before.keys() - after.keys()):
            log.debug("%s: Deleted partition %s from metadata cache", self._prefix, topic_partition)


def _kind(request: ControlRequest) -> str:
    return type(request).__name__.removesuffix("Request")


def _done(request: LeaderAndIsrRequest | StopReplicaRequest) -> str:
    if isinstance(request, LeaderAndIsrRequest):
        return f"LeaderAndIsr {request.type.name}: made leader or follower of"
    return "StopReplica: stopped"


def _present_role(partition: Partition | None) -> str:
    if partition is None:
        return "not hosted"
    role = f"{partition.role.value} in leader epoch {partition.leader_epoch}"
    return role if partition.log is None else f"{role} from offset {partition.log.log_end_offset}"
