"""One broker process of v1 or v2: sessions, threads, timers, mail, and its answers."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pykka import ActorDeadError, ActorRef

from regent.actors.scheduler import Scheduler, monotonic_ms
from regent.cluster.child_process import when_parent_ends
from regent.cluster.guardian import Guardian
from regent.config.threads import named_executor
from regent.core.errors import Errors, SessionExpiredError
from regent.core.model import BrokerId, TopicPartition
from regent.designs.commit_thread import InSyncLimits
from regent.designs.design_broker import BrokerV1, BrokerV2
from regent.designs.design_replica import PeerRestarted, ProduceRecords, Surroundings
from regent.designs.leader_lock import NameLock, SequentialLock
from regent.designs.mail import PostOffice
from regent.designs.requests import (
    AppendRecordsRequest,
    AppendRecordsResponse,
    DeliverMailRequest,
    DeliverMailResponse,
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    ReplicaMail,
)
from regent.designs.watched_zookeeper import WatchedZooKeeper
from regent.designs.wire import Incoming, RequestServer
from regent.designs.znodes import broker_path
from regent.zk.client.connection import ConnectionState
from regent.zk.client.operations import ConnectionLossError, WatchEvent
from regent.zk.client.zookeeper_client import ZooKeeperClient

logger = logging.getLogger(__name__)

THREADS: Final = 16
"""The threads that all actors of a process share; as many operations wait for ZooKeeper."""

DESIGNS: Final[dict[str, Callable[[Surroundings, bytes], ActorRef[Any]]]] = {
    "v1-name": lambda around, address: BrokerV1.start(around, address, NameLock),
    "v1-sequential": lambda around, address: BrokerV1.start(around, address, SequentialLock),
    "v2": BrokerV2.start,
}
"""How the broker of each design is started."""

_CONNECT_TIMEOUT_S: Final = 10.0
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class DesignOptions:
    """What a broker process is told; ``zookeeper`` is ``host:port``."""

    design: str
    broker_id: BrokerId
    zookeeper: str
    session_timeout_ms: int
    limits: InSyncLimits


class _Timers:
    """The clock and the timers of a process."""

    def __init__(self) -> None:
        self._scheduler = Scheduler("timers", limit=1_000_000)

    def now_ms(self) -> int:
        return monotonic_ms()

    def later(self, after_ms: int, callback: Callable[[], None]) -> None:
        self._scheduler.schedule(after_ms, callback)

    def close(self) -> None:
        self._scheduler.shutdown()


class DesignProcess:
    """A broker that other processes reach at ``endpoint``."""

    def __init__(self, options: DesignOptions) -> None:
        self._options = options
        self._incarnation = time.time_ns()
        self._client: ZooKeeperClient | None = None
        self._is_closing = False
        self._appends: Counter[bool] = Counter()  # by whether they were committed
        self._guardian = Guardian(options.zookeeper)
        self._guardian.start()
        self._pool = named_executor(THREADS, "actors")
        self._timers = _Timers()
        self._server = RequestServer(self._dispatch)
        self._post_office = PostOffice(
            options.broker_id,
            address_of=self._address_of,
            deliver=lambda message: self._around.deliver(message),
            on_restarted=self._on_restarted,
        )
        self._zookeeper = WatchedZooKeeper(self._pool, self._connect)
        self._around = Surroundings(
            options.broker_id,
            self._zookeeper,
            self._post_office,
            self._timers,
            self._pool,
            options.limits,
        )
        self._server.start()
        self._broker = DESIGNS[options.design](self._around, self.endpoint.encode())

    @property
    def endpoint(self) -> str:
        """Where the broker answers."""
        return self._server.endpoint

    def close(self) -> None:
        """End the session and everything else, in a clean way."""
        self._is_closing = True
        with suppress(ActorDeadError):
            self._broker.stop(block=False)
        if self._client is not None and self._client.close():
            self._guardian.dismiss()
        self._post_office.close()
        self._server.stop()
        self._timers.close()

    # --- ZooKeeper ---

    def _connect(
        self, on_watch: Callable[[WatchEvent], None], on_expired: Callable[[], None]
    ) -> ZooKeeperClient:
        """Begin a session; the guardian ends it when this process dies."""

        def on_state(state: ConnectionState) -> None:
            if state is ConnectionState.LOST:
                on_expired()

        while not self._is_closing:
            client = ZooKeeperClient(
                self._options.zookeeper,
                self._options.session_timeout_ms,
                on_watch=on_watch,
                on_state=on_state,
            )
            try:
                client.start(_CONNECT_TIMEOUT_S)
            except ConnectionLossError as error:
                logger.warning("%s: %s", self._options.zookeeper, error)
                continue
            self._client = client
            self._guardian.watch_session(client.credentials)
            return client
        raise SessionExpiredError("the process is closing")

    def _address_of(self, broker_id: BrokerId) -> str | None:
        znode = self._zookeeper.get(broker_path(broker_id))
        return None if znode is None else znode.data.decode()

    def _on_restarted(self, broker_id: BrokerId) -> None:
        with suppress(ActorDeadError):
            self._broker.tell(PeerRestarted(broker_id))

    # --- requests ---

    def _dispatch(self, incoming: Incoming) -> None:
        match incoming.request:
            case DeliverMailRequest(fetches, fetched):
                incoming.reply(DeliverMailResponse(Errors.NONE, self._incarnation))
                messages: list[ReplicaMail] = [*fetches, *fetched]
                for message in messages:
                    self._around.deliver(message)
            case DescribeReplicasRequest(dead, with_beliefs):
                incoming.reply(self._describe(dead, with_beliefs=with_beliefs))
            case AppendRecordsRequest(topic_partition, records):
                self._append(incoming, topic_partition, records)

    def _describe(
        self, dead: tuple[BrokerId, ...], *, with_beliefs: bool
    ) -> DescribeReplicasResponse:
        counts = self._zookeeper.counts
        beliefs = list(self._around.beliefs.values())
        return DescribeReplicasResponse(
            Errors.NONE,
            len(beliefs),
            sum(belief.leader is None or belief.leader in dead for belief in beliefs),
            tuple(beliefs) if with_beliefs else (),
            tuple(self._around.ended),
            counts.reads,
            counts.writes,
            counts.watches_set,
            counts.watches_fired,
            counts.listeners_called,
            self._post_office.sent,
            self._appends[True],
            self._appends[False],
        )

    def _append(
        self, incoming: Incoming, topic_partition: TopicPartition, records: tuple[str, ...]
    ) -> None:
        def acknowledge(is_committed: bool) -> None:
            self._appends[is_committed] += 1
            error = Errors.NONE if is_committed else Errors.NOT_LEADER_OR_FOLLOWER
            incoming.reply(AppendRecordsResponse(error))

        replica = self._around.replicas.get(topic_partition)
        try:
            if replica is not None:
                replica.tell(ProduceRecords(records, acknowledge))
                return
        except ActorDeadError:
            pass
        acknowledge(False)


def run(
    options: DesignOptions, announce: Callable[[str], None], death_pipe: int | None = None
) -> None:
    """Run a broker until SIGTERM, or until the process at the other end of the pipe has ended."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    if death_pipe is not None:
        when_parent_ends(death_pipe, partial(os.kill, os.getpid(), signal.SIGTERM))
    process = DesignProcess(options)
    announce(process.endpoint)
    signal.sigwait(_STOP_SIGNALS)
    process.close()
