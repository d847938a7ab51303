"""A whole cluster on this machine: ZooKeeper, brokers and the placement service as child processes.

The placement service is started when a topic needs it. The brokers are stopped first, one by one,
so that each can move its leaderships to the others. ``cluster.json`` in the data directory lists
the running processes.
"""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace

from regent.cluster.child_process import Child, ChildProcess, DeathPipe, describe_exit
from regent.cluster.cluster_file import (
    BrokerEntry,
    ClusterFile,
    PlacementEntry,
    ZooKeeperEntry,
)
from regent.cluster.cluster_plan import BrokerPorts, ClusterPlan
from regent.cluster.console_child import ConsoleChild
from regent.cluster.embedded_zookeeper import HEAP_MB, EmbeddedZooKeeper, start_ensemble
from regent.cluster.placement_child import PlacementChild
from regent.cluster.process_supervisor import (
    Backoff,
    ProcessSupervisor,
    Restart,
    SupervisionListener,
)
from regent.cluster.running_cluster import known_brokers, read_controller_id
from regent.cluster.supervisor_socket import (
    StartRequest,
    SupervisorError,
    SupervisorSocket,
    start_command,
)
from regent.cluster.zookeeper_node import ZooKeeperNode
from regent.config.cluster_location import CLUSTER_FILE, KEYS_OF_COMMAND
from regent.config.command_line import EXIT_INTERRUPTED, program
from regent.core.errors import BadDataError, RegentError, StorageError
from regent.core.model import BrokerId
from regent.transport.control.key_files import KeysDirectory
from regent.transport.local_users import local_users
from regent.zk.client.login import SECRET_VARIABLE, Login, log_in, make_login
from regent.zk.stores.tree_acls import open_tree, secure_tree

EXIT_UNCLEAN = 1

_START_TIMEOUT_S = 600.0  # a broker may have to recover its logs first
_START_TIMEOUT_PER_BROKER_S = 2.0
_STOP_TIMEOUT_S = 10.0
_FAST_STOP_TIMEOUT_S = 3.0
_METADATA_TIMEOUT_S = 60.0
_METADATA_POLL_S = 0.02


class ClusterStartError(RegentError):
    """The cluster did not start; the message is one line with the reason."""


class ClusterSupervisor(SupervisionListener):
    """Runs a cluster in the foreground. Use an instance once, on the main thread.

    ``announce`` gets the one line that says that the cluster is ready. ``say`` gets short lines
    about events. Tests replace ``find_controller`` (default: ``read_controller_id``) and
    ``ask_for_brokers`` (default: ``known_brokers``).
    """

    def __init__(
        self,
        plan: ClusterPlan,
        *,
        announce: Callable[[str], None],
        say: Callable[[str], None],
        find_controller: Callable[[str], BrokerId | None] | None = None,
        ask_for_brokers: Callable[[str], Collection[BrokerId]] | None = None,
    ) -> None:
        self._plan = plan
        self._announce = announce
        self._say = say
        self._find_controller = find_controller or read_controller_id
        self._ask_for_brokers = ask_for_brokers or known_brokers
        self._file = ClusterFile(plan.data_dir / CLUSTER_FILE, plan.zookeeper or "")
        self._death_pipe = DeathPipe()
        self._nodes: list[ZooKeeperNode] = []
        self._former_ports: dict[BrokerId, BrokerPorts] = {}
        self._brokers = {id_: self._broker(id_) for id_ in plan.broker_ids}
        self._placement = PlacementChild(plan, self._death_pipe) if plan.placement_service else None
        if self._placement is not None:
            self._file.placement = self._placement.entry
        self._console: ConsoleChild | None = None
        self._starts: list[_Start] = []
        self._failure: str | None = None  # why the cluster cannot start
        self._not_started: dict[BrokerId, str] = {}  # why; the others serve, and these may later
        self._serving = False
        self._stopping = False

    def run(self) -> int:
        """Start everything, supervise it until asked to stop, stop it; return the exit status.

        0: every process ended normally. 1: a process had to be killed. 130: a second request to
        stop ended everything at once.

        Raises:
            RegentError: the cluster did not start; no process is left running.
        """
        try:
            with ProcessSupervisor(self) as self._processes:
                try:
                    self._start()
                    self._supervise()
                except KeyboardInterrupt:
                    pass
                except Exception:  # an unexpected one too: killed brokers must recover their logs
                    self._stop()
                    raise
                return self._stop()
        finally:
            self._file.remove()
            self._death_pipe.close()

    def _supervise(self) -> None:
        """Run until a stop is requested; start brokers again on request."""
        requests = SupervisorSocket(
            self._plan.data_dir, self._processes, self._start_brokers, self._start_placement
        )
        try:
            requests.open()
        except OSError as error:
            self._say(f"the command to start brokers again is not available: {error}")
        try:
            self._serve()
            self._processes.wait(lambda: self._processes.stop_requests > 0)
        finally:
            requests.close()
            if self._console is not None:
                self._console.close()

    # --- start ---

    def _start(self) -> None:
        keys = KeysDirectory(self._plan.keys_dir)
        keys.make_operator()
        KEYS_OF_COMMAND.given = keys.path
        if self._placement is not None and self._plan.placement_at_once:
            self._start_placement()
        with self._processes.interruptible():
            self._start_zookeeper()
        self._save()
        self._say(f"starting {_count(len(self._brokers), 'broker')}")
        for broker in self._brokers.values():
            self._processes.start(broker, self._restart, self._backoff())
        self._await_brokers()
        self._await_metadata()

    def _serve(self) -> None:
        if not self._processes.stop_requests:
            self._serving = True
            console = self._open_console()
            self._announce(self._ready_line())
            if console is not None:
                self._announce(f"console: {console}")

    def _open_console(self) -> str | None:
        """Open the console's port; return its address. None: there is no console."""
        if self._plan.console_port is None:
            return None
        self._console = ConsoleChild(self._plan, self._processes, self._death_pipe, self._say)
        address = self._console.open()
        self._file.console_port = self._console.port
        self._save()
        return address

    def _start_zookeeper(self) -> None:
        ports = self._plan.zookeeper_ports()
        if not ports:
            return
        self._say(f"starting ZooKeeper ({_count(len(ports), 'server')})")
        data_dirs, heap_mb = self._plan.zookeeper_dirs(), self._plan.zookeeper_heap_mb
        login, users = self._login(), local_users(self._plan.local_users)
        if len(ports) == 1:
            server = EmbeddedZooKeeper(
                data_dirs[0], port=ports[0], heap_mb=heap_mb, login=login, users=users
            )
            servers = [server]
            try:
                servers[0].start()
            except KeyboardInterrupt:
                servers[0].stop()
                raise
        else:
            servers = start_ensemble(data_dirs, ports, heap_mb=heap_mb, login=login, users=users)
        for number, server in enumerate(servers):
            node = ZooKeeperNode(f"zookeeper {number}", server)
            self._nodes.append(node)
            self._processes.adopt(node, self._restart, self._backoff())
        self._file.zookeeper = ",".join(server.address for server in servers)
        if login is not None:
            self._protect_zookeeper(login)

    def _login(self) -> Login | None:
        """Return the login of this start; None: ZooKeeper is open, as it was before."""
        os.environ.pop(SECRET_VARIABLE, None)  # its brokers have no login for another ZooKeeper
        secret_file = self._plan.secret_file
        if self._plan.zookeeper_login or secret_file.exists():
            return make_login(secret_file)
        return None

    def _protect_zookeeper(self, login: Login) -> None:
        """Secure the data of an earlier version; or open them, if that is asked for."""
        log_in(self._file.zookeeper, login)
        if self._plan.zookeeper_login:
            if secure_tree(self._file.zookeeper):
                self._say("ZooKeeper's data can be changed with this cluster's secret only, now")
        else:
            open_tree(self._file.zookeeper)
            self._plan.secret_file.unlink()
            self._say("ZooKeeper's data are open to every user of this machine")

    def _await_brokers(self) -> None:
        """Return when all brokers are ready, or when a stop is requested.

        With restarts one that serves is enough when each of the others has failed once.
        """

        def awaited() -> set[BrokerId]:
            return self._brokers.keys() - self._serving_brokers() - self._not_started.keys()

        timeout_s = _START_TIMEOUT_S + _START_TIMEOUT_PER_BROKER_S * len(self._brokers)
        if not self._processes.wait(
            lambda: bool(self._failure or self._processes.stop_requests or not awaited()), timeout_s
        ):
            late = min(awaited())
            self._fail_start(f"broker {late} is not ready after {timeout_s:.0f} s")
        if not self._processes.stop_requests and not self._serving_brokers():
            self._failure = self._failure or next(iter(self._not_started.values()), None)
        if self._failure:
            raise ClusterStartError(self._failure)

    def _fail_start(self, why: str) -> None:
        """Note why the cluster is not as it should be; with restarts those that serve go on."""
        if self._plan.restart and self._serving_brokers():
            self._say(why)
        else:
            self._failure = self._failure or why

    def _await_metadata(self) -> None:
        """Return when every broker knows all that serve, or when a stop is requested.

        Until then a broker may refuse to create a topic because it knows too few brokers.
        """
        behind = self._serving_brokers()
        deadline = time.monotonic() + _METADATA_TIMEOUT_S
        while behind and not self._processes.stop_requests:
            serving = self._serving_brokers()
            for broker_id in behind & serving:
                peer = self._file.brokers[broker_id].control_peer
                if serving <= set(self._ask_for_brokers(peer)):
                    behind.remove(broker_id)
            behind.intersection_update(serving)
            if behind and time.monotonic() > deadline:
                self._fail_start(
                    f"broker {min(behind)} does not know all brokers after"
                    f" {_METADATA_TIMEOUT_S:.0f} s: see broker.log in"
                    f" {self._plan.broker_dir(min(behind))}"
                )
                behind.clear()
            self._processes.wait(
                lambda: bool(not behind or self._failure or self._processes.stop_requests),
                _METADATA_POLL_S,
            )
            if self._failure:
                raise ClusterStartError(self._failure)

    def _ready_line(self) -> str:
        serving = sorted(self._serving_brokers())
        ports = ",".join(str(self._file.brokers[broker_id].port) for broker_id in serving)
        some = f"{len(serving)} of " if len(serving) < len(self._brokers) else ""
        return (
            f"ready: {some}{_count(len(self._brokers), 'broker')} on {self._plan.host}:{ports}; "
            f"zookeeper {self._file.zookeeper}; data {self._plan.data_dir}"
        )

    # --- the children ---

    @property
    def _restart(self) -> Restart:
        return Restart.ON_FAILURE if self._plan.restart else Restart.NEVER

    def _backoff(self) -> Backoff:
        return Backoff(first_s=self._plan.restart_backoff_s)

    def _broker(self, broker_id: BrokerId) -> ChildProcess:
        def command() -> list[str]:
            ports = self._ports(broker_id)
            return self._plan.broker_command(broker_id, ports, self._file.zookeeper)

        return ChildProcess(
            f"broker {broker_id}",
            command,
            output=self._plan.broker_dir(broker_id) / "broker.out",
            death_pipe=self._death_pipe,
        )

    def _ports(self, broker_id: BrokerId) -> BrokerPorts:
        """Return the ports for a broker: at a restart those it had, because clients know them."""
        return self._former_ports.get(broker_id) or self._plan.broker_ports(broker_id)

    def _ports_it_listens_on(self, broker_id: BrokerId, entry: BrokerEntry) -> BrokerPorts:
        """Return the ports of a broker that is ready; an advertised port may be another's."""
        ports = self._plan.broker_ports(broker_id)
        advertised = self._plan.broker_settings.get(broker_id, {})
        told = {
            name: getattr(entry, name)
            for name in ports._fields
            if f"advertised_{name}" not in advertised
        }
        return ports._replace(**told)

    def _start_placement(self) -> PlacementEntry:
        """Start the placement service if it does not run; return its state."""
        if self._placement is None:
            raise SupervisorError("this cluster was started without a placement service")
        before = self._placement.entry
        if self._placement.start(self._processes) != before:
            self._save_placement()
        return self._placement.entry

    def _save_placement(self) -> None:
        assert self._placement is not None
        self._file.placement = self._placement.entry
        self._save()

    def _is_placement(self, child: Child) -> bool:
        return self._placement is not None and child is self._placement.child

    def _is_console(self, child: Child) -> bool:
        return self._console is not None and child is self._console.child

    def _broker_id(self, child: Child) -> BrokerId | None:
        return next((id_ for id_, broker in self._brokers.items() if broker is child), None)

    # --- brokers started on request ---

    def _start_brokers(self, request: StartRequest) -> None:
        """Start brokers on their old ports; answer when all are ready or one has failed."""
        self._processes.reap()
        ended = [node for node in self._nodes if not self._processes.is_running(node)]
        if 2 * len(ended) > len(self._nodes):
            command = self._start_command(ended[0])
            request.answer({"error": f"{ended[0].name} does not run; to start it again: {command}"})
            return
        missing = [i for i in self._brokers if not self._is_serving(i)]
        wanted = missing if request.broker_ids is None else list(request.broker_ids)
        for broker_id in wanted:
            if broker_id not in self._brokers:
                ids = ", ".join(map(str, self._brokers))
                request.answer({"error": f"there is no broker {broker_id}, only {ids}"})
                return
            if broker_id not in missing:
                pid = self._brokers[broker_id].pid
                running = f"broker {broker_id} is already running, as process {pid}"
                request.answer({"error": running})
                return
        start = _Start(request, set(wanted))
        self._starts.append(start)
        for broker_id in start.broker_ids:
            try:
                if not self._is_running(broker_id):
                    self._processes.start_again(self._brokers[broker_id])
            except RegentError as error:
                self._starts.remove(start)
                request.answer({"error": str(error)})
                return
        self._settle_starts()

    def _is_running(self, broker_id: BrokerId) -> bool:
        return self._processes.is_running(self._brokers[broker_id])

    def _is_serving(self, broker_id: BrokerId) -> bool:
        entry = self._file.brokers.get(broker_id)
        return self._is_running(broker_id) and entry is not None and not entry.ended

    def _serving_brokers(self) -> set[BrokerId]:
        return set(filter(self._is_serving, self._brokers))

    def _settle_starts(self) -> None:
        """Answer each request when all its brokers are ready, or when one of them has ended."""
        for start in list(self._starts):
            ended = sorted(i for i in start.broker_ids if not self._is_running(i))
            if ended:
                child = self._brokers[ended[0]]
                line = child.last_line() or "it printed nothing"
                start.request.answer({"error": f"{child.name} ended while it started: {line}"})
            elif not all(map(self._is_serving, start.broker_ids)):
                continue
            else:
                entries = [asdict(self._file.brokers[i]) for i in sorted(start.broker_ids)]
                start.request.answer({"started": entries})
            self._starts.remove(start)

    # --- events of the children ---

    def on_ready(self, child: Child) -> None:
        """Add a child that is ready to ``cluster.json``."""
        if self._is_console(child):
            return
        assert child.ready is not None
        if self._placement is not None and self._is_placement(child):
            self._placement.is_ready()
            self._save_placement()
            return
        broker_id = self._broker_id(child)
        assert broker_id is not None
        try:
            entry = self._file.brokers[broker_id] = BrokerEntry.decode(child.ready)
        except BadDataError as error:
            self._say(f"{child.name}: {error}")
            child.send_signal(signal.SIGKILL)
            return
        self._warn_of_metrics_port(child.name, broker_id)
        again = " again" if broker_id in self._former_ports else ""
        self._former_ports[broker_id] = self._ports_it_listens_on(broker_id, entry)
        self._save()
        if self._serving and not self._stopping:
            self._say(f"{child.name} is ready{again} as process {child.pid}")
        self._settle_starts()

    def _start_command(self, child: Child) -> str | None:
        """Return the command that starts a child again."""
        broker_id = self._broker_id(child)
        if broker_id is not None:
            return start_command(self._plan.data_dir, broker_id)
        for node, data_dir in zip(self._nodes, self._plan.zookeeper_dirs(), strict=False):
            if node is child:
                where = shlex.quote(str(data_dir))
                command = f"{program()} zookeeper --data-dir {where} --port {node.server.port}"
                heap_mb = self._plan.zookeeper_heap_mb
                return command if heap_mb == HEAP_MB else f"{command} --heap-mb {heap_mb}"
        return None

    def _warn_of_metrics_port(self, name: str, broker_id: BrokerId) -> None:
        wanted = self._ports(broker_id).metrics_port
        port = self._file.brokers[broker_id].metrics_port
        if wanted not in (0, port):
            self._say(f"{name}: port {wanted} for metrics is in use; they are on {port}")

    def on_exit(self, child: Child, status: int, restart_in_s: float | None) -> None:
        """Report that a child has ended; remove it from ``cluster.json`` if it ended normally."""
        broker_id = self._broker_id(child)
        if self._console is not None and self._is_console(child):
            self._console.ended()
        if self._placement is not None and self._is_placement(child):
            self._placement.has_ended(status)
            self._save_placement()
            if status == 0:
                return  # it was idle
        last_line = child.last_line()
        # The last line of a process that was killed by a signal is not the reason.
        why = f": {last_line}" if last_line and status > 0 else ""
        how = f"ended {describe_exit(status)}{why}"
        if broker_id is not None:
            self._note_end(broker_id, how if status != 0 else None)
        self._save()
        what = f"{child.name} (process {child.pid}) {how}"
        if not self._serving and broker_id is not None:
            self._not_started.setdefault(broker_id, what)
        is_needed = broker_id is not None or child in self._nodes
        if not self._serving and is_needed and not self._plan.restart:
            self._failure = self._failure or what
        elif not self._stopping:
            if restart_in_s is not None:
                what += f"; starting it again in {restart_in_s:g} s"
            elif command := self._start_command(child):
                what += f"; to start it again: {command}"
            self._say(what)
        self._settle_starts()

    def _note_end(self, broker_id: BrokerId, how: str | None) -> None:
        """Change a broker's entry of ``cluster.json``; ``how`` None: it ended normally."""
        entry = self._file.brokers.pop(broker_id, None)
        if entry is not None and how is not None:
            ended_ms = time.time_ns() // 1_000_000
            self._file.brokers[broker_id] = replace(entry, ended=how, ended_ms=ended_ms)

    def on_launched_again(self, child: Child) -> None:
        """Add a ZooKeeper server that was started again; other children call ``on_ready``."""
        self._save()
        if child in self._nodes:
            self._say(f"{child.name} was started again as process {child.pid}")

    def on_launch_failed(self, child: Child, error: RegentError, restart_in_s: float) -> None:
        """Report that a child could not be started."""
        broker_id = self._broker_id(child)
        if broker_id is not None:
            self._not_started.setdefault(broker_id, str(error))
        self._say(f"{child.name}: {error}; trying again in {restart_in_s:g} s")

    def _save(self) -> None:
        """Write ``cluster.json``. If that fails, the cluster continues without it."""
        self._file.zookeeper_nodes = [
            ZooKeeperEntry(node.pid, node.server.port) for node in self._nodes
        ]
        try:
            self._file.write()
        except StorageError as error:
            self._say(f"cannot write {error}")

    # --- stop ---

    def _stop(self) -> int:
        processes = self._processes
        requests = processes.first_stop_requests
        processes.stop_restarts()
        self._stopping = True
        self._say("stopping; press Ctrl-C again to stop at once")
        killed = False
        for child, timeout_s in self._stop_order():
            if processes.is_running(child):
                self._say(f"stopping {child.name}")
                has_ended = processes.end(child, timeout_s)
                if processes.stop_requests > requests:
                    return self._stop_at_once()
                if not has_ended:
                    killed = True
                    self._say(
                        f"{child.name} (process {child.pid}) is killed: it did not end in time"
                    )
                    processes.kill(child)
        return EXIT_UNCLEAN if killed else 0

    def _stop_at_once(self) -> int:
        """Kill everything; brokers get a short time to close their ZooKeeper sessions first."""
        requests = self._processes.stop_requests
        self._death_pipe.close_write_end()
        placement = [self._placement.child] if self._placement is not None else []
        children = [*self._brokers.values(), *placement]
        self._processes.wait(
            lambda: (
                self._processes.stop_requests > requests
                or not any(map(self._processes.is_running, children))
            ),
            _FAST_STOP_TIMEOUT_S,
        )
        self._processes.kill_all()
        return EXIT_INTERRUPTED

    def _stop_order(self) -> list[tuple[Child, float]]:
        """Return the active controller after the other brokers: it elects their new leaders."""
        is_running = self._processes.is_running
        running = [broker_id for broker_id, child in self._brokers.items() if is_running(child)]
        last = None
        if len(running) > 1 and (not self._nodes or any(map(is_running, self._nodes))):
            try:
                last = self._find_controller(self._file.zookeeper)
            except Exception as error:  # noqa: BLE001  the brokers must stop in any case
                self._say(f"the controller is not known, so brokers stop in any order: {error}")
        broker_ids = sorted(running, key=lambda broker_id: broker_id == last)
        order: list[tuple[Child, float]] = (
            [] if self._console is None else [(self._console.child, _STOP_TIMEOUT_S)]
        )
        order += [
            (self._brokers[broker_id], self._plan.broker_stop_timeout_s) for broker_id in broker_ids
        ]
        if self._placement is not None:
            order.append((self._placement.child, _STOP_TIMEOUT_S))
        return [*order, *((node, _STOP_TIMEOUT_S) for node in self._nodes)]


@dataclass(frozen=True, slots=True)
class _Start:
    """Brokers that are being started for a client that waits."""

    request: StartRequest
    broker_ids: set[BrokerId]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
