"""One broker process of v1 or v2: sessions, threads, timers, mail, and its answers.

``python -m regent.designs.design_process DESIGN ID ZOOKEEPER SESSION_TIMEOUT_MS KEEP_IN_SYNC_MS
DEATH_PIPE`` prints ``ready: ENDPOINT``, and ends with SIGTERM, or with the process at the other end
of the pipe.
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Final

from pykka import ActorDeadError, ActorRef

from regent.actors.scheduler import Scheduler, monotonic_ms
from regent.cluster.child_process import when_parent_ends
from regent.cluster.guardian import Guardian
from regent.config.threads import named_executor
from regent.core.errors import SessionExpiredError
from regent.core.model import BrokerId
from regent.designs.commit_thread import InSyncLimits
from regent.designs.design_replica import PeerRestarted, ProduceRecords, ReplicaRole, Surroundings
from regent.designs.leader_lock import NameLock, SequentialLock
from regent.designs.mail import (
    AppendRecords,
    DeliverMail,
    DescribeReplicas,
    Description,
    PostOffice,
    ReplicaMail,
    Request,
    RequestServer,
)
from regent.designs.v1 import BrokerV1
from regent.designs.v2 import BrokerV2
from regent.designs.watched_zookeeper import WatchedZooKeeper
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
_COMMIT_TIMEOUT_S: Final = 60.0
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class _Timers:
    """The clock and the timers of a process."""

    def __init__(self) -> None:
        self._scheduler = Scheduler("timers", limit=1_000_000)
        self.later = self._scheduler.schedule
        self.close = self._scheduler.shutdown

    def now_ms(self) -> int:
        return monotonic_ms()


class DesignProcess:
    """A broker that other processes reach at ``endpoint``; ``zookeeper`` is ``host:port``."""

    def __init__(
        self,
        design: str,
        broker_id: BrokerId,
        zookeeper: str,
        session_timeout_ms: int,
        limits: InSyncLimits,
    ) -> None:
        self._address = zookeeper
        self._session_timeout_ms = session_timeout_ms
        self._incarnation = time.time_ns()
        self._client: ZooKeeperClient | None = None
        self._is_closing = False
        self._guardian = Guardian(zookeeper)
        self._guardian.start()
        pool = named_executor(THREADS, "actors")
        self._timers = _Timers()
        self._server = RequestServer(self._answer)
        self._post_office = PostOffice(
            broker_id,
            address_of=self._address_of,
            deliver=lambda message: self._around.deliver(message),
            on_restarted=self._on_restarted,
        )
        self._zookeeper = WatchedZooKeeper(pool, self._connect)
        self._around = Surroundings(
            broker_id, self._zookeeper, self._post_office, self._timers, pool, limits
        )
        self._server.start()
        self.endpoint = self._server.endpoint
        self._broker = DESIGNS[design](self._around, self.endpoint.encode())

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
                self._address, self._session_timeout_ms, on_watch=on_watch, on_state=on_state
            )
            try:
                client.start(_CONNECT_TIMEOUT_S)
            except ConnectionLossError as error:
                logger.warning("%s: %s", self._address, error)
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

    def _answer(self, request: Request) -> object:
        match request:
            case DeliverMail(fetches, fetched):
                messages: list[ReplicaMail] = [*fetches, *fetched]
                for message in messages:
                    self._around.deliver(message)
                return self._incarnation
            case DescribeReplicas(dead):
                return self._describe(dead)
            case AppendRecords():
                return self._append(request)

    def _describe(self, dead: tuple[BrokerId, ...]) -> Description:
        beliefs = dict(self._around.beliefs)
        leads = [p for p, belief in beliefs.items() if belief.role is ReplicaRole.LEADER]
        return Description(
            len(beliefs),
            sum(belief.leader is None or belief.leader in dead for belief in beliefs.values()),
            tuple(topic_partition.partition for topic_partition in leads),
            max((beliefs[topic_partition].since_ms for topic_partition in leads), default=0),
            max((belief.since_ms for belief in beliefs.values()), default=0),
            self._zookeeper.counts.writes,
            self._zookeeper.counts.listeners_called,
        )

    def _append(self, request: AppendRecords) -> bool:
        """Append records, and wait until they are committed or refused."""
        outcome: Future[bool] = Future()
        replica = self._around.replicas.get(request.topic_partition)
        if replica is None:
            return False
        with suppress(ActorDeadError):
            replica.tell(ProduceRecords(request.records, outcome.set_result))
            return outcome.result(_COMMIT_TIMEOUT_S)
        return False


def main(
    design: str, broker_id: str, zookeeper: str, timeout_ms: str, keep_in_sync_ms: str, pipe: str
) -> None:
    """Run a broker."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("pykka").setLevel(logging.WARNING)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.set_threshold(50_000, 20, 100)
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    when_parent_ends(int(pipe), partial(os.kill, os.getpid(), signal.SIGTERM))
    limits = InSyncLimits(int(keep_in_sync_ms))
    process = DesignProcess(design, int(broker_id), zookeeper, int(timeout_ms), limits)
    sys.stdout.write(f"ready: {process.endpoint}\n")
    sys.stdout.flush()
    signal.sigwait(_STOP_SIGNALS)
    process.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
