"""What all components of one controller share."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from regent.core.controller.context import ControllerContext, ControllerLog
from regent.core.controller.effects import Outbox, ScheduleEvent
from regent.core.controller.events import ControllerEvent
from regent.core.controller.request_batch import MAX_REQUEST_BYTES, ControlRequestBatch
from regent.core.log_config import LogConfig
from regent.core.model import BrokerId, TopicPartition
from regent.core.ports import ControllerStore, TopicIds
from regent.core.repeated_lines import RepeatedLines


@dataclass
class ControllerSettings:
    """The settings that the controller reads; times in milliseconds.

    ``unclean_leader_election_enable`` and ``min_insync_replicas`` are defaults for topics; the
    first may change while running. After ``tell_again_ms`` a request that a broker could not handle
    is sent again, and unreadable znodes are read again. After ``controlled_shutdown_abandoned_ms``
    a broker that asked to stop, and did not, is used again. After ``changes_at_once`` elections, or
    removals of a replica from ISRs, their requests are sent, before the next ones are decided.
    For ``log_segment_delete_delay_ms`` deleted topics can come back.
    ``delegation_tokens_are_on``: expired delegation tokens are deleted. A registration is renewed
    ``registration_renewal_ms`` after the last renewal at the earliest, and each time twice as late.
    """

    unclean_leader_election_enable: bool = False
    min_insync_replicas: int = LogConfig.min_insync_replicas
    delete_topic_enable: bool = True
    topic_deletion_retry_ms: int = 10_000
    registration_retry_ms: int = 500
    registration_renewal_ms: int = 30_000
    election_retry_ms: int = 1000
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_per_broker_percentage: int = 10
    leader_imbalance_check_interval_seconds: int = 300
    first_leader_imbalance_check_ms: int = 5_000
    controlled_shutdown_ack_timeout_ms: int = 5_000
    tell_again_ms: int = 10_000
    controlled_shutdown_abandoned_ms: int = 300_000
    isr_changes_through_zookeeper: bool = False
    broker_answer_timeout_ms: int = 0  # off
    max_request_bytes: int = MAX_REQUEST_BYTES
    changes_at_once: int = 2_000
    delegation_tokens_are_on: bool = False
    log_segment_delete_delay_ms: int = LogConfig.file_delete_delay_ms
    delegation_token_expiry_check_interval_ms: int = 3_600_000


@dataclass(frozen=True, slots=True)
class ControllerServices:
    """One broker's controller: its memory, its store, its settings, and its outbox for effects.

    Every component follows four steps: decide, write conditionally, apply what was accepted,
    announce what was accepted.
    """

    broker_id: BrokerId
    store: ControllerStore
    topic_ids: TopicIds
    settings: ControllerSettings = field(default_factory=ControllerSettings)
    context: ControllerContext = field(default_factory=ControllerContext)
    outbox: Outbox = field(default_factory=Outbox)
    lines: RepeatedLines = field(default_factory=RepeatedLines)

    def is_line_due(self, condition: Hashable) -> bool:
        """Whether to log a line about a condition that lasts now; see ``RepeatedLines``."""
        return self.lines.is_due(condition, self.context.now_ms)

    def log(self, name: str) -> ControllerLog:
        """Return the logger of this name, with the prefix of this controller."""
        return ControllerLog(name, self.broker_id, self.context)

    def new_batch(self) -> ControlRequestBatch:
        """Return an empty batch of control requests."""
        return ControlRequestBatch(self.broker_id, self.context, self.settings.max_request_bytes)

    def announce(self, batch: ControlRequestBatch) -> None:
        """Hand a batch to the outbox."""
        self.outbox.extend(batch.effects())

    def announce_metadata(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Send the live brokers and the state of ``partitions`` to every broker."""
        batch = self.new_batch()
        batch.add_update_metadata(partitions)
        self.announce(batch)

    def schedule(self, after_ms: int, event: ControllerEvent) -> None:
        """Put ``event`` into the queue after ``after_ms``, unless the term ends before."""
        self.outbox.add(ScheduleEvent(after_ms, event))
