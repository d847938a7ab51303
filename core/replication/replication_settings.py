"""The settings of followers and of leaders that serve them."""

from __future__ import annotations

from dataclasses import dataclass

from regent.core.model import BrokerId
from regent.core.protocol.broker import FetchRequest


@dataclass(frozen=True)
class ReplicationSettings:
    """Kafka's settings of the same names."""

    replica_lag_time_max_ms: int = 30_000
    replica_fetch_wait_max_ms: int = 500
    replica_fetch_backoff_ms: int = 1_000
    replica_fetch_min_bytes: int = 1
    replica_fetch_max_bytes: int = 1024 * 1024  # of one partition
    replica_fetch_response_max_bytes: int = 10 * 1024 * 1024
    transaction_max_timeout_ms: int = 900_000
    inter_broker_listener_name: str = ""  # other brokers are found at the listener of this name,
    inter_broker_security_protocol: str = "PLAINTEXT"  # those of Kafka else at one with this

    @property
    def idle_fetch_wait_ms(self) -> int:
        """The wait of a follower's fetch after one that brought nothing.

        It is longer, so that idle brokers wake up less often. Records end the wait, and so do new
        partitions. A follower must not seem to lag before it fetches again.
        """
        wait_ms = self.replica_fetch_wait_max_ms
        return max(wait_ms, min(2 * wait_ms, self.replica_lag_time_max_ms // 2))

    def fetch_request(self, broker_id: BrokerId) -> FetchRequest:
        """Return the fields that all fetches of a follower share."""
        return FetchRequest(
            broker_id,
            max_wait_ms=self.replica_fetch_wait_max_ms,
            min_bytes=self.replica_fetch_min_bytes,
            max_bytes=self.replica_fetch_response_max_bytes,
        )


DEFAULT_REPLICATION_SETTINGS = ReplicationSettings()
