"""Throttled replication: limits the bytes per second that reassignments replicate (KIP-73).

Mirrors ``kafka.server.ReplicationQuotaManager``. ``{leader,follower}.replication.throttled.rate``
of the broker are the limits, ``….throttled.replicas`` of topics select the replicas. Replicas in
sync are never throttled, because they would leave the ISR. Replicas that move between the log
directories of a broker have a limit of their own (KIP-113).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from regent.core.model import BrokerId, TopicPartition
from regent.core.setting import LONG_MAX, SettingValues

SAMPLE_MS = 1_000
SAMPLES = 11
WINDOW_MS = SAMPLE_MS * SAMPLES
ALL_REPLICAS = "*"
THROTTLED_RATES: Final = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
)
THROTTLED_REPLICAS: Final = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)
ALTER_LOG_DIRS_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"


class ReplicationQuota:
    """The quota of one direction. ``now_ms`` is monotonic. Not thread-safe."""

    def __init__(self, broker_id: BrokerId) -> None:
        self._broker_id = broker_id
        self._bytes_per_second: int | None = None
        self._throttled: dict[str, frozenset[int] | None] = {}  # None: all of the topic's
        self._samples: deque[tuple[int, int]] = deque()  # begin, bytes

    def limit(self, bytes_per_second: int | None) -> None:
        """Set the rate; None: there is no limit."""
        self._bytes_per_second = bytes_per_second

    def throttle(self, topic: str, replicas: str) -> None:
        """Set which replicas of a topic are throttled: ``*``, or ``partition:broker,…``."""
        entries = [entry.strip() for entry in replicas.split(",")]
        if ALL_REPLICAS in entries:
            self._throttled[topic] = None
            return
        pairs = (entry.partition(":") for entry in entries)
        own = frozenset(
            int(partition)
            for partition, _, broker in pairs
            if partition.isdecimal() and broker == str(self._broker_id)
        )
        if own:
            self._throttled[topic] = own
        else:
            self._throttled.pop(topic, None)

    def is_throttled(self, topic_partition: TopicPartition) -> bool:
        """Whether the bytes of a partition count and are limited."""
        if not self._bytes_per_second or topic_partition.topic not in self._throttled:
            return False
        partitions = self._throttled[topic_partition.topic]
        return partitions is None or topic_partition.partition in partitions

    def record(self, size: int, now_ms: int) -> None:
        """Count the bytes of a throttled partition."""
        if self._samples and now_ms - self._samples[-1][0] < SAMPLE_MS:
            begin, counted = self._samples.pop()
            self._samples.append((begin, counted + size))
        else:
            self._samples.append((now_ms, size))

    def pause_ms(self, now_ms: int) -> int:
        """Return how long throttled partitions must wait until the rate is below the limit."""
        while self._samples and now_ms - self._samples[0][0] >= WINDOW_MS:
            self._samples.popleft()
        if not self._bytes_per_second or not self._samples:
            return 0
        since_ms = self._samples[0][0]
        counted = sum(size for _, size in self._samples)
        # Divide by at least one second, so that a burst may use the bytes of a whole second.
        takes_ms = max(counted * 1_000 // self._bytes_per_second, SAMPLE_MS)
        is_over = counted * 1_000 > self._bytes_per_second * max(now_ms - since_ms, SAMPLE_MS)
        return since_ms + min(takes_ms, WINDOW_MS) - now_ms if is_over else 0


class ReplicationQuotas:
    """The quotas of a broker as leader, as follower, and between its log directories.

    Changes of settings take ``lock``; the user of a quota has it too.
    """

    reconfigurable_configs: Final = (*THROTTLED_RATES, ALTER_LOG_DIRS_RATE)

    def __init__(
        self, broker_id: BrokerId, lock: AbstractContextManager[object] | None = None
    ) -> None:
        self.leader = ReplicationQuota(broker_id)
        self.follower = ReplicationQuota(broker_id)
        self.alter_log_dirs = ReplicationQuota(broker_id)
        self._lock = nullcontext() if lock is None else lock

    def reconfigure(self, old: SettingValues, new: SettingValues) -> None:
        """Apply the broker's settings: the rates."""
        del old
        quotas = self.leader, self.follower, self.alter_log_dirs
        with self._lock:
            for quota, name in zip(quotas, self.reconfigurable_configs, strict=True):
                quota.limit(None if new[name] == LONG_MAX else new[name])

    def on_topic_config(self, topic: str, overrides: Mapping[str, str]) -> None:
        """Apply a topic's overrides: which of its replicas are throttled."""
        with self._lock:
            for quota, name in zip((self.leader, self.follower), THROTTLED_REPLICAS, strict=True):
                quota.throttle(topic, overrides.get(name, ""))
