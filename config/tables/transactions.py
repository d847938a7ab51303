"""The table ``[transactions]``: transactional producers."""

from __future__ import annotations

from dataclasses import dataclass

from regent.config.tables.ranges import INTERVAL_MS
from regent.core.coordinator.transaction.transaction_state_manager import (
    TransactionConfig,
    TransactionLogSettings,
)
from regent.core.setting import INT_MAX, ConfigType, Scope, setting


@dataclass(frozen=True)
class TransactionsConfig:
    """The table ``[transactions]``: transactional producers, and ``__transaction_state``."""

    transaction_max_timeout_ms: int = setting(
        TransactionConfig.transaction_max_timeout_ms,
        "The longest time that a producer may ask for its transactions. After its time an open"
        " transaction is aborted.",
        limits=(1, INT_MAX),
    )
    transactional_id_expiration_ms: int = setting(
        TransactionConfig.transactional_id_expiration_ms,
        "How long a transactional id is remembered after its last use.",
        limits=(1, INT_MAX),
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        10_000, "How often transactions are looked for that took too long.", limits=INTERVAL_MS
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000, "How often transactional ids are looked for that expired.", limits=INTERVAL_MS
    )
    transaction_state_log_num_partitions: int = setting(
        50,
        "The number of partitions of __transaction_state, which is created when the first"
        " transactional producer comes, or before (internal_topics_at_start). Partitions that are"
        " added later are not used.",
        limits=(1, 1_000_000),
    )
    transaction_state_log_replication_factor: int = setting(
        3,
        "The replication factor of __transaction_state. While fewer brokers live, it is not"
        " created, and transactions have no coordinator. `regent cluster` uses the number of its"
        " brokers if there are fewer than 3.",
        limits=(1, 32_767),
        type=ConfigType.SHORT,
    )
    transaction_state_log_min_isr: int = setting(
        2,
        "The min.insync.replicas of __transaction_state. `regent cluster` uses 1 if it has one"
        " broker.",
        limits=(1, 32_767),
    )
    transaction_state_log_segment_bytes: int = setting(
        104_857_600, "The segment size of __transaction_state.", limits=(14, INT_MAX)
    )
    transaction_state_log_load_buffer_size: int = setting(
        TransactionLogSettings.transaction_state_log_load_buffer_size,
        "How many bytes of __transaction_state a broker that becomes coordinator reads at a time.",
        limits=(1, INT_MAX),
    )
    transaction_partition_verification_enable: bool = setting(
        True,
        "Whether a broker asks the coordinator if a partition is part of a transaction before it"
        " accepts the first records or positions of the transaction (KIP-890).",
        scope=Scope.CLUSTER_WIDE,
    )
