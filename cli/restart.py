"""``restart --rolling``: restarts the brokers one after the other, while the cluster serves."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import click

from regent import __version__
from regent.cli.brokers import await_shutdown
from regent.cli.output import examples, note
from regent.cli.waiting import Waiting
from regent.cli.watching import complete_brokers
from regent.client.cluster_connection import Cluster, pass_cluster
from regent.client.live_brokers import not_registered, read_live_brokers
from regent.client.partitions import read_partitions
from regent.client.pauses import pauses
from regent.client.wording import listed
from regent.cluster.supervisor_socket import start_brokers
from regent.config.command_line import program
from regent.core.errors import RegentError
from regent.core.model import BrokerId, BrokerRegistration
from regent.zk.stores.admin_store import ZkAdminStore

_NAMED: Final = 3
_LONGEST_PAUSE_S: Final = 2.0  # a look reads the states of all partitions
_START_AGAIN_S: Final = 30.0
_TIME: Final = "%Y-%m-%dT%H:%M:%S.%fZ"


class MixedVersionsError(RegentError):
    """The brokers speak another control version than those that would be started."""


class RestartError(RegentError):
    """The restart has stopped; the message says at which broker, why, and how to go on."""


@click.command(
    epilog=examples(
        "restart --rolling",
        "restart --rolling --zookeeper zk1:2181"
        " --start 'ssh broker-{id} systemctl start regent-broker'",
        "restart --rolling --after 2026-05-04T03:02:01.000Z",
    )
)
@click.argument(
    "broker_ids",
    metavar="[ID]...",
    type=click.IntRange(min=0),
    nargs=-1,
    shell_complete=complete_brokers,
)
@click.option("--rolling", is_flag=True, help="One broker after the other, the controller last.")
@click.option(
    "--start",
    "start_command",
    metavar="COMMAND",
    help="Starts one broker; {id} is its id. It is run again every 30 seconds until the broker has"
    " registered. A cluster on this machine needs none. `--start :` if something else starts a"
    " broker that has ended.",
)
@click.option(
    "--after",
    type=click.DateTime([_TIME]),
    metavar="TIME",
    help="Go on: brokers that do not run are started, and those whose processes say that they have"
    " started later are done. The error of the command that stopped names it.",
)
@click.option(
    "--timeout-ms",
    type=click.IntRange(min=1),
    default=600_000,
    show_default=True,
    help="Time for each step of a broker: to stop, to start, and to be in all ISRs.",
)
@pass_cluster
def restart(
    cluster: Cluster,
    /,
    broker_ids: tuple[BrokerId, ...],
    rolling: bool,
    start_command: str | None,
    after: datetime | None,
    timeout_ms: int,
) -> None:
    """Restart all brokers, or some, one after the other, while the cluster serves.

    A broker is stopped only while all brokers are registered and all replicas are in sync. It hands
    its leaderships over first. The brokers of one machine (`node`) come one after the other. The
    command stops at the first trouble, and says how to go on. It does not begin if brokers of this
    release and those that run would refuse each other's control requests.
    """
    if not rolling:
        raise click.UsageError("brokers are restarted one after the other only: give --rolling")
    with Waiting() as waiting, cluster.admin() as admin:
        live = read_live_brokers(admin)
        newest_ms = max((r.info.timestamp_ms for r in live.values()), default=0)
        if after is not None:
            newest_ms = round(after.replace(tzinfo=UTC).timestamp() * 1000)
        roll = _Roll(cluster, admin, waiting, start_command, timeout_ms / 1000)
        with _resumable(newest_ms):
            done = roll.run(broker_ids, newest_ms, is_resumed=after is not None)
    click.echo(f"Restarted {listed(done)}." if done else "No broker was left to restart.")


@contextmanager
def _resumable(newest_ms: int) -> Iterator[None]:
    newest = datetime.fromtimestamp(newest_ms / 1000, UTC).strftime(_TIME)
    how = f"to go on, repeat the command with --after {newest}"
    try:
        yield
    except KeyboardInterrupt:
        note(how)
        raise
    except MixedVersionsError:
        raise
    except RegentError as error:
        raise RestartError(f"{error}; {how}") from None


def _started_after(time_ms: int, brokers: Mapping[BrokerId, BrokerRegistration]) -> set[BrokerId]:
    return {id_ for id_, broker in brokers.items() if broker.info.timestamp_ms > time_ms}


def _check_versions(live: Mapping[BrokerId, BrokerRegistration]) -> None:
    """Refuse to mix brokers that could not tell each other who leads: none would be in sync."""
    from regent.transport.control.codec import CONTROL_VERSION

    others = {
        broker_id: broker.info.release or "0.3.0 or earlier"
        for broker_id, broker in sorted(live.items())
        if not broker.info.is_of_kafka and broker.info.control_version != CONTROL_VERSION
    }
    if others:
        raise MixedVersionsError(
            f"broker {listed(others)} of release {listed(sorted(set(others.values())))} takes no"
            f" control requests from brokers of release {__version__}, which is installed here:"
            f" to upgrade, stop all brokers, and start all with {__version__}; to restart them as"
            " they are, use the command of their release"
        )


@dataclass
class _Roll:
    """One rolling restart; ``timeout_s`` is for each step of a broker."""

    cluster: Cluster
    admin: ZkAdminStore
    waiting: Waiting
    start_command: str | None
    timeout_s: float
    expected: set[BrokerId] = field(default_factory=set)
    """The brokers that must be registered."""

    def run(
        self, broker_ids: Collection[BrokerId], newest_ms: int, *, is_resumed: bool
    ) -> list[BrokerId]:
        """Restart the brokers whose processes started at this time or before; return their ids.

        Each process says by its own clock when it has started. The clock of one that was restarted
        may be behind the newest of the former ones: then it is restarted once more.
        """
        live = self._live()
        file = self.cluster.file
        self.expected = {*live, *self._assigned(), *(() if file is None else file.brokers)}
        if unknown := set(broker_ids) - self.expected:
            raise RestartError(not_registered(min(unknown), live))
        todo = set(broker_ids) or set(self.expected)
        todo -= _started_after(newest_ms, live)
        _check_versions(live)
        self._check_can_start(todo)
        done: list[BrokerId] = []
        missing = sorted(self.expected - live.keys())
        if missing and not is_resumed:
            raise RestartError(f"broker {listed(missing)} is not registered: start it first")
        for broker_id in missing:
            self._start(broker_id)
        if missing:  # all of them: replicas of one may wait for another
            self._await_sync(f"after broker {listed(missing)} has started")
            done += sorted(_started_after(newest_ms, self._live()) & set(missing))
        todo -= set(done)
        while todo:
            broker_id = self._next(todo)
            self._restart(broker_id)
            todo.remove(broker_id)
            done.append(broker_id)
        return done

    def _next(self, todo: Collection[BrokerId]) -> BrokerId:
        """Return the broker that is next: host after host, and the controller is the last."""
        controller = self.admin.read_controller()
        rules = -1 if controller is None else controller.broker_id
        hosts = {b: r.info.node_host or str(b) for b, r in self._live().items()}
        first_on: dict[str, BrokerId] = {}
        for broker_id, host in sorted(hosts.items()):
            first_on.setdefault(host, broker_id)

        def turn(broker_id: BrokerId) -> tuple[bool, BrokerId, bool, BrokerId]:
            host = hosts.get(broker_id, str(broker_id))
            is_last = rules in hosts and hosts[rules] == host
            return is_last, first_on.get(host, broker_id), broker_id == rules, broker_id

        return min(todo, key=turn)

    def _restart(self, broker_id: BrokerId) -> None:
        started = time.monotonic()
        self._await_sync(f"before broker {broker_id} is stopped")
        registration = self._live().get(broker_id)
        if registration is None:
            raise RestartError(f"broker {broker_id} has gone")
        self.waiting.say(f"broker {broker_id} hands its leaderships over and stops")
        deadline = time.monotonic() + self.timeout_s
        left = await_shutdown(self.cluster, self.admin, registration, deadline)
        if left:
            named = listed(sorted(left), _NAMED)
            note(f"without a leader until broker {broker_id} is back: {named}")
        self._start(broker_id, registration)
        self._await_sync(f"after broker {broker_id} has started")
        note(f"broker {broker_id}: restarted in {time.monotonic() - started:.1f} s")

    def _start(self, broker_id: BrokerId, former: BrokerRegistration | None = None) -> None:
        self.waiting.say(f"broker {broker_id} starts")
        deadline = time.monotonic() + self.timeout_s
        data_dir, again_at = self.cluster.data_dir, 0.0
        if self.start_command is None and data_dir is not None:
            start_brokers(data_dir, (broker_id,), self.timeout_s)
        for _ in pauses(deadline):
            if self.start_command is not None and time.monotonic() >= again_at:
                # Again, because the process ends a moment after the broker has left ZooKeeper.
                self._run(self.start_command.replace("{id}", str(broker_id)), broker_id)
                again_at = time.monotonic() + _START_AGAIN_S
            found = self._live().get(broker_id)
            if found is not None and (former is None or not found.is_same_process(former)):
                break
        else:
            raise RestartError(
                f"broker {broker_id} was started, but has not registered within"
                f" {self.timeout_s:.0f} s: see its broker.log"
            )

    def _run(self, command: str, broker_id: BrokerId) -> None:
        environment = {**os.environ, "REGENT_BROKER_ID": str(broker_id)}
        try:
            ended = subprocess.run(
                ["/bin/sh", "-c", command], env=environment, timeout=self.timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise RestartError(
                f"broker {broker_id}: {command!r} has not ended within {self.timeout_s:.0f} s"
            ) from None
        if ended.returncode:
            raise RestartError(
                f"broker {broker_id} has not started: {command!r} ended with {ended.returncode}"
            )

    def _check_can_start(self, todo: Collection[BrokerId]) -> None:
        """Check that each broker can be started again, before one is stopped."""
        live, file = self._live(), self.cluster.file
        if of_kafka := sorted(b for b in todo if b in live and live[b].info.is_of_kafka):
            raise RestartError(
                f"broker {listed(of_kafka)} is one of Kafka: name the others, as in `{program()}"
                " restart --rolling 0 1`"
            )
        local = {} if file is None else file.brokers
        if self.start_command is None and (far := sorted(set(todo) - local.keys())):
            raise RestartError(
                f"broker {listed(far)} does not belong to a cluster on this machine: say with"
                " --start which command starts a broker"
            )

    def _await_sync(self, when: str) -> None:
        """Wait until all brokers are registered and all replicas are in sync."""
        trouble = ""
        for _ in pauses(time.monotonic() + self.timeout_s, _LONGEST_PAUSE_S):
            trouble = self._trouble()
            if not trouble:
                return
            self.waiting.say(f"{when}: {trouble}")
        raise RestartError(f"{when}: {trouble}, for {self.timeout_s:.0f} s")

    def _trouble(self) -> str:
        """Return why no broker may be stopped now; "": one may be."""
        live = self._live()
        if missing := sorted(self.expected - live.keys()):
            return f"broker {listed(missing)} is not registered"
        controller = self.admin.read_controller()
        if controller is None or controller.broker_id not in live:
            return "there is no controller"
        found = read_partitions(self.admin, self._topics())
        if found.unreadable:
            return found.unreadable[0]
        behind = [
            p.topic_partition
            for p in found.partitions
            if p.is_under_replicated or p.is_unavailable(live)
        ]
        return f"not all replicas are in sync: {listed(behind, _NAMED)}" if behind else ""

    def _topics(self) -> list[str]:
        deleted = self.admin.topics.read_topics_being_deleted()
        return [name for name in self.admin.topics.read_topic_names() if name not in deleted]

    def _assigned(self) -> set[BrokerId]:
        found = read_partitions(self.admin, self._topics())
        return {replica for p in found.partitions for replica in p.assignment.replicas}

    def _live(self) -> dict[BrokerId, BrokerRegistration]:
        return read_live_brokers(self.admin)
