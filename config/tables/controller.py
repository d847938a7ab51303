"""The table ``[controller]``: how the controller decides."""

from __future__ import annotations

from dataclasses import dataclass

from regent.config.tables.ranges import TIMEOUT_MS
from regent.core.controller.services import ControllerSettings
from regent.core.setting import LONG_MAX, ConfigType, Scope, setting


@dataclass(frozen=True)
class ControllerConfig:
    """The table ``[controller]``: the same for all brokers, because each may be elected."""

    unclean_leader_election_enable: bool = setting(
        ControllerSettings.unclean_leader_election_enable,
        "Whether a replica that is not in sync may lead when no other can. Then the partition is"
        " available again, but acknowledged records may be lost. A topic may have its own value.",
        scope=Scope.CLUSTER_WIDE,
    )
    delete_topic_enable: bool = setting(
        ControllerSettings.delete_topic_enable,
        "Whether topics can be deleted. If not, requests to delete one are refused; a deletion that"
        " was accepted before goes on. A topic may be protected alone:"
        " regent.deletion.protection.",
        scope=Scope.CLUSTER_WIDE,
    )
    auto_leader_rebalance_enable: bool = setting(
        ControllerSettings.auto_leader_rebalance_enable,
        "Whether leaderships return to the preferred replicas by themselves.",
    )
    leader_imbalance_per_broker_percentage: int = setting(
        ControllerSettings.leader_imbalance_per_broker_percentage,
        "Leaderships return when a broker lacks more than this percentage of those it should have.",
        limits=(0, 100),
    )
    leader_imbalance_check_interval_seconds: int = setting(
        ControllerSettings.leader_imbalance_check_interval_seconds,
        "How often the controller checks whether leaderships must return, in seconds.",
        limits=(1, LONG_MAX),
        type=ConfigType.LONG,
    )
    request_timeout_ms: int = setting(
        30_000,
        "How long a broker may take to answer a control request (Kafka's"
        " controller.socket.timeout.ms).",
        limits=TIMEOUT_MS,
        ours=True,
        prefix="controller.",
    )
    retry_backoff_ms: int = setting(
        100, "The pause before a control request is sent again.", ours=True, prefix="controller."
    )
    broker_answer_timeout_ms: int = setting(
        ControllerSettings.broker_answer_timeout_ms,
        "A registered broker that answers no control request for this time loses its leaderships"
        " until it answers. 0: never, as in Kafka. Use more than the longest request takes: the"
        " first one after a start lists all replicas.",
        ours=True,
        prefix="controller.",
    )
