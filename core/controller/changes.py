"""The changes of an event that the journal has: small records, and their sentences for people."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from regent.core.model import (
    BrokerId,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    LeaderRecoveryState,
    TopicPartition,
)


class PartitionCreated(NamedTuple):
    """A partition has its first leader and ISR."""

    topic_partition: TopicPartition
    now: LeaderAndIsr

    def __str__(self) -> str:
        leader, isr = self.now.leader, list(self.now.isr)
        return f"{self.topic_partition}: created, leader {leader}, isr {isr}"


class PartitionChanged(NamedTuple):
    """The leader, the ISR or the leader epoch of a partition changed; None: not known before."""

    topic_partition: TopicPartition
    before: LeaderIsrAndControllerEpoch | None
    now: LeaderAndIsr

    def __str__(self) -> str:
        now = self.now
        then = self.before.leader_and_isr if self.before else None
        if then is not None and then.leader == now.leader:
            text = f"leader {now.leader}, isr {list(then.isr)} → {list(now.isr)}"
        else:
            text = f"leader {then.leader if then else '?'} → {now.leader}, isr {list(now.isr)}"
        if then is None or then.leader_epoch != now.leader_epoch:
            text += f", leader epoch {now.leader_epoch}"
        if now.leader_recovery_state is LeaderRecoveryState.RECOVERING:
            text += ", recovering"
        return f"{self.topic_partition}: {text}"


class BrokersStarted(NamedTuple):
    """Brokers have registered."""

    broker_ids: tuple[BrokerId, ...]

    def __str__(self) -> str:
        return f"brokers {list(self.broker_ids)}: started"


class BrokersFailed(NamedTuple):
    """The registrations of brokers are gone."""

    broker_ids: tuple[BrokerId, ...]

    def __str__(self) -> str:
        return f"brokers {list(self.broker_ids)}: failed"


class ControllerElected(NamedTuple):
    """This broker became the active controller."""

    broker_id: BrokerId
    controller_epoch: int

    def __str__(self) -> str:
        return f"broker {self.broker_id}: controller epoch {self.controller_epoch}"


class ControllerResigned(NamedTuple):
    """This broker is no longer the active controller."""

    broker_id: BrokerId
    controller_epoch: int

    def __str__(self) -> str:
        return f"broker {self.broker_id}: resigned"


Change: TypeAlias = (
    PartitionCreated
    | PartitionChanged
    | BrokersStarted
    | BrokersFailed
    | ControllerElected
    | ControllerResigned
    | str
)
"""A change; a ``str`` is one that has only a sentence."""
