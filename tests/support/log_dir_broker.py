"""A broker that answers AlterReplicaLogDirs and DescribeLogDirs on a port, without logs."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Sequence

from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.messages.log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from regent.testing.waits import scaled
from regent.transport.kafka.api import KafkaApiKey
from regent.transport.kafka.message_codec import decoded, encoded


class LogDirBroker:
    """Replicas in directories. A move begins at once and ends by ``finish``."""

    def __init__(self, *log_dirs: str) -> None:
        self.log_dirs = log_dirs
        self.offline: set[str] = set()
        self.current: dict[TopicPartition, str] = {}
        self.future: dict[TopicPartition, str] = {}
        self.preferred: dict[TopicPartition, str] = {}
        self.altered: list[dict[TopicPartition, str]] = []
        """What each AlterReplicaLogDirs asked for."""
        self.growth = 0
        """How many bytes each log has more at each look."""
        self.size = 1
        self.moves_at_once = False
        """Whether a move is over when the next request comes."""
        self._server = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Its port."""
        port: int = self._server.getsockname()[1]
        return port

    def create(self, *partitions: TopicPartition) -> None:
        """Create replicas, in their preferred directories."""
        for partition in partitions:
            self.current[partition] = self.preferred.get(partition, self.log_dirs[0])

    def finish(self) -> None:
        """End all moves."""
        self.current |= self.future
        self.future.clear()

    def close(self) -> None:
        """Stop it."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(scaled(10))

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                (size,) = struct.unpack(">i", _receive(connection, 4))
                frame = _receive(connection, size)
                key, version, correlation_id, length = struct.unpack_from(">hhih", frame)
                body = memoryview(frame)[10 + length + 1 :]  # after the client id and the tags
                answer = encoded(self._answer(key, version, body), version, is_flexible=True)
                head = struct.pack(">iib", len(answer) + 5, correlation_id, 0)
                connection.sendall(head + answer)

    def _answer(self, key: int, version: int, body: memoryview) -> object:
        if self.moves_at_once:
            self.finish()
        if key == KafkaApiKey.DESCRIBE_LOG_DIRS:
            return self._describe(decoded(DescribeLogDirsRequest, body, version, is_flexible=True))
        asked = decoded(AlterReplicaLogDirsRequest, body, version, is_flexible=True)
        paths = {
            TopicPartition(topic.name, partition): row.path
            for row in asked.dirs
            for topic in row.topics
            for partition in topic.partitions
        }
        self.altered.append(paths)
        rows = [
            AlterReplicaLogDirTopicResult(
                topic_name=partition.topic,
                partitions=(
                    AlterReplicaLogDirPartitionResult(
                        partition_index=partition.partition, error_code=self._alter(partition, path)
                    ),
                ),
            )
            for partition, path in paths.items()
        ]
        return AlterReplicaLogDirsResponse(results=tuple(rows))

    def _alter(self, partition: TopicPartition, path: str) -> Errors:
        if path not in self.log_dirs:
            return Errors.LOG_DIR_NOT_FOUND
        if partition not in self.current:
            self.preferred[partition] = path
            return Errors.REPLICA_NOT_AVAILABLE
        self.future.pop(partition, None)
        if self.current[partition] != path:
            self.future[partition] = path
        return Errors.NONE

    def _describe(self, asked: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
        self.size += self.growth
        wanted = {TopicPartition(t.topic, p) for t in asked.topics or () for p in t.partitions}
        results = []
        for path in self.log_dirs:
            is_offline = path in self.offline
            logs = [] if is_offline else [*self._logs(path, wanted)]
            error = Errors.KAFKA_STORAGE_ERROR if is_offline else Errors.NONE
            results.append(
                DescribeLogDirsResult(error_code=error, log_dir=path, topics=tuple(logs))
            )
        return DescribeLogDirsResponse(error_code=Errors.NONE, results=tuple(results))

    def _logs(self, path: str, wanted: set[TopicPartition]) -> Sequence[DescribeLogDirsTopic]:
        return [
            DescribeLogDirsTopic(
                name=partition.topic,
                partitions=(
                    DescribeLogDirsPartition(
                        partition_index=partition.partition,
                        partition_size=self.size,
                        offset_lag=0,
                        is_future_key=is_future,
                    ),
                ),
            )
            for is_future, places in ((False, self.current), (True, self.future))
            for partition, place in places.items()
            if place == path and partition in wanted
        ]


def _receive(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        some = connection.recv(count - len(received))
        if not some:
            raise ConnectionError("closed in the middle of a request")
        received += some
    return received
