"""The logs and the free space of all brokers, and how far brokers are that catch up."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from regent.client.broker_request import NoAnswerError, NotConnectedError, ask_broker
from regent.client.command_config import SECURITY_OF_COMMAND
from regent.client.partitions import DescribedPartition
from regent.client.wording import counted
from regent.core.errors import Errors, RegentError
from regent.core.model import BrokerId, BrokerRegistration, TopicPartition
from regent.core.protocol.messages.log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from regent.core.quantities import bytes_text, span_text
from regent.transport.kafka.api import KafkaApiKey

_VERSIONS: Final = (4, 1)  # the second one has no sizes of file systems; before Kafka 3.3
_AT_ONCE: Final = 32
ANSWER_S: Final = 5.0
SAMPLE_S: Final = 1.0
"""Between two looks, for a rate."""


class LogSize(NamedTuple):
    """A log on a disk, in bytes; ``is_future``: a copy on its way to another directory."""

    topic: str
    partition: int
    size: int
    is_future: bool

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


class LogDirectorySize(NamedTuple):
    """A log directory of a broker, and its file system in bytes, -1: unknown."""

    broker_id: BrokerId
    log_dir: str
    is_offline: bool
    total_bytes: int
    free_bytes: int
    logs: Sequence[LogSize]

    @property
    def size(self) -> int:
        """The bytes of all its logs."""
        return sum(log.size for log in self.logs)


class CatchingUp(NamedTuple):
    """What a broker has to fetch until it is in all its ISRs; about, because producers go on.

    ``bytes_per_s`` None: it has not been measured.
    """

    broker_id: BrokerId
    partitions: int
    bytes_left: int
    bytes_per_s: float | None = None

    @property
    def seconds_left(self) -> float | None:
        """How long it takes at this rate; None: unknown."""
        if not self.bytes_left:
            return 0.0
        return self.bytes_left / self.bytes_per_s if self.bytes_per_s else None

    def sentence(self) -> str:
        """Return what is left, and how long it takes."""
        text = f"broker {self.broker_id} catches up: {self.short()}"
        if self.bytes_per_s is not None and not self.bytes_per_s and self.bytes_left:
            text += "; it does not get on, or producers write as fast"
        return text

    def short(self) -> str:
        """Return the same as the cell of a table."""
        return f"{counted(self.partitions, 'partition')}, {self.rest()}"

    def rest(self) -> str:
        """Return the same without the number of partitions."""
        parts = [f"{bytes_text(self.bytes_left)} left"]
        if self.bytes_per_s:
            parts.append(f"{bytes_text(self.bytes_per_s)}/s")
            seconds = self.seconds_left or 0.0
            parts.append("less than a second" if seconds < 1 else span_text(seconds))
        return ", ".join(parts)


def read_log_dirs(
    brokers: Mapping[BrokerId, BrokerRegistration],
    partitions: Collection[TopicPartition] | None = None,
) -> dict[BrokerId, list[LogDirectorySize]]:
    """Ask brokers for their log directories, all at once; those that do not tell are left out.

    ``partitions`` None: all.
    """
    topics = None
    if partitions is not None:
        numbers: dict[str, list[int]] = defaultdict(list)
        for topic, number in partitions:
            numbers[topic].append(number)
        topics = tuple(
            DescribableLogDirTopic(topic=topic, partitions=tuple(found))
            for topic, found in numbers.items()
        )
    request = DescribeLogDirsRequest(topics=topics)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        answers = threads.map(lambda b: _directories(b, request), brokers.values())
        found = zip(brokers, answers, strict=True)
        return {broker_id: answer for broker_id, answer in found if answer is not None}


def _directories(
    broker: BrokerRegistration, request: DescribeLogDirsRequest
) -> list[LogDirectorySize] | None:
    endpoint = SECURITY_OF_COMMAND.endpoint_of(broker.info)
    if endpoint is None:
        return None
    answer = None
    for version in _VERSIONS:
        api = (KafkaApiKey.DESCRIBE_LOG_DIRS, version)
        try:
            answer = ask_broker(endpoint, api, request, DescribeLogDirsResponse, ANSWER_S)
            break
        except (NotConnectedError, RegentError):
            return None
        except NoAnswerError:
            continue
    if answer is None or answer.error_code != Errors.NONE:  # such as without the permission
        return None
    return [
        LogDirectorySize(
            broker.info.broker_id,
            row.log_dir,
            row.error_code != Errors.NONE,
            row.total_bytes,
            row.usable_bytes,
            [
                LogSize(topic.name, log.partition_index, log.partition_size, log.is_future_key)
                for topic in row.topics
                for log in topic.partitions
            ],
        )
        for row in answer.results
    ]


def behind(
    partitions: Sequence[DescribedPartition], live: Collection[BrokerId]
) -> Mapping[BrokerId, Sequence[DescribedPartition]]:
    """Return the partitions whose ISRs lack a live broker, by that broker."""
    found: dict[BrokerId, list[DescribedPartition]] = defaultdict(list)
    for partition in partitions:
        isr = partition.state.leader_and_isr.isr
        for broker_id in partition.assignment.replicas:
            if broker_id in live and broker_id not in isr and partition.leader in live:
                found[broker_id].append(partition)
    return found


def catching_up(
    partitions: Sequence[DescribedPartition],
    live: Mapping[BrokerId, BrokerRegistration],
    sleep: Callable[[float], None] = time.sleep,
) -> list[CatchingUp]:
    """Return how far each live broker is that some ISR lacks; it takes a second if there is one."""
    lacking = behind(partitions, live.keys())
    if not lacking:
        return []
    names = {p.topic_partition for rows in lacking.values() for p in rows}
    asked = {b: live[b] for b in live if b in lacking or _leads(lacking.values(), b)}
    began, first = time.monotonic(), dict(_left(lacking, read_log_dirs(asked, names)))
    sleep(SAMPLE_S)
    spent_s = max(time.monotonic() - began, SAMPLE_S)
    return [
        CatchingUp(
            broker_id,
            len(lacking[broker_id]),
            left,
            max((first[broker_id] - left) / spent_s, 0.0) if broker_id in first else None,
        )
        for broker_id, left in _left(lacking, read_log_dirs(asked, names))
    ]


def _leads(groups: Collection[Sequence[DescribedPartition]], broker_id: BrokerId) -> bool:
    return any(p.leader == broker_id for rows in groups for p in rows)


def _left(
    lacking: Mapping[BrokerId, Sequence[DescribedPartition]],
    found: Mapping[BrokerId, Sequence[LogDirectorySize]],
) -> Iterator[tuple[BrokerId, int]]:
    sizes = {
        (broker_id, log.topic_partition): log.size
        for broker_id, directories in found.items()
        for directory in directories
        for log in directory.logs
        if not log.is_future
    }
    for broker_id, partitions in sorted(lacking.items()):
        if broker_id in found and all(p.leader in found for p in partitions):
            yield (
                broker_id,
                sum(
                    max(
                        sizes.get((p.leader, p.topic_partition), 0)
                        - sizes.get((broker_id, p.topic_partition), 0),
                        0,
                    )
                    for p in partitions
                ),
            )
