"""``node``: several brokers of one machine as one unit, in the foreground."""

from __future__ import annotations

import http.client
import os
import re
import ssl
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import click

from regent.broker.metrics.metrics_server import MetricsServer
from regent.cli.cluster import (
    MAX_BROKERS,
    MAX_NODE_PORT,
    ClusterOptionsError,
    check_settings,
    run,
    stop_at_once,
)
from regent.cluster.child_process import when_parent_ends
from regent.cluster.cluster_file import BrokerEntry, ClusterFile
from regent.cluster.cluster_plan import PORT_SPACING, ClusterPlan
from regent.config.addresses import listening_socket
from regent.config.cluster_location import CLUSTER_FILE, DATA_DIR, numbered_folders
from regent.config.command_line import COMMAND, program
from regent.config.private_files import keep_files_private
from regent.config.settings import Settings
from regent.config.settings_file import load_settings
from regent.core.errors import RegentError
from regent.core.model import MAX_BROKER_ID, BrokerId

_AUTO: Final = "auto"
_CORES_OF_A_BROKER: Final = 2
_CPU_MAX: Final = Path("/sys/fs/cgroup/cpu.max")
_STOP_TIMEOUT_S: Final = 120.0
_PROBE_LIMIT_S: Final = 2.0
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_PORT: Final = re.compile(r":([1-9][0-9]*)(?=\s*(?:,|$))")
_LISTS: Final = ("listeners", "advertised_listeners")
_PORTS: Final = ("advertised_port", "advertised_control_port", "advertised_replication_port")


@click.command()
@click.option("--zookeeper", required=True, metavar="HOST:PORT[,…][/CHROOT]", help="ZooKeeper.")
@click.option(
    "--first-id",
    type=click.IntRange(0, MAX_BROKER_ID),
    required=True,
    help="Id of the first broker; the others have the next ids. For example 0, 100, 200 on three"
    " machines.",
)
@click.option(
    "--brokers",
    metavar=f"{_AUTO}|NUMBER",
    default=_AUTO,
    show_default=True,
    help=f"Number of brokers. {_AUTO}: one for each pair of cores at the first start, later as many"
    " as there are data folders.",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=DATA_DIR,
    show_default=True,
    envvar="REGENT_DATA_DIR",
    help="The folder of this node; broker N has the folder broker-N in it.",
)
@click.option("--config", type=click.Path(path_type=Path), help="TOML file of all these brokers.")
@click.option("--host", envvar="REGENT_HOST", help="Address to listen on, as the setting host.")
@click.option(
    "--base-port",
    type=click.IntRange(0, MAX_NODE_PORT),
    default=9092,
    show_default=True,
    help="Kafka port of the first broker; the others have the next ports. Control, replication and"
    " metrics ports are 1,000, 2,000 and 3,000 higher, and that of the health checks of the node"
    " 4,000. 0: free ports. Ports that --config has in listeners and advertised_* are those of the"
    " first broker.",
)
@click.option(
    "--node-host",
    envvar="REGENT_NODE_HOST",
    help="Name of this machine.  [default: what the brokers advertise as their host]",
)
@click.option(
    "--restart/--no-restart",
    default=True,
    show_default=True,
    help="Restart brokers that die.",
)
@click.option("--death-pipe-fd", type=int, hidden=True)
def node(
    brokers: str,
    data_dir: Path,
    config: Path | None,
    host: str | None,
    base_port: int,
    death_pipe_fd: int | None,
    **options: Any,
) -> None:
    """Run the brokers of one machine as one unit, in the foreground.

    Prints a line that begins with "ready:" when all of them serve; with --restart those that cannot
    start are tried again, and the others serve meanwhile. Two replicas of a partition are
    never placed on one machine. Ctrl-C or SIGTERM shuts the brokers down one after the other, and
    each hands its leaderships over first.

    /health and /ready of the port for health checks are about all brokers of the node.
    """
    if death_pipe_fd is not None:
        when_parent_ends(death_pipe_fd, stop_at_once)
    _refuse_ports_of_environment()
    keep_files_private()
    settings = load_settings(config, {"broker": {"host": host}} if host else {})
    count = _count(brokers, data_dir, options["first_id"])
    plan = ClusterPlan(
        program=COMMAND,
        data_dir=data_dir,
        broker_count=count,
        host=settings.broker.host,
        base_port=base_port,
        zookeeper_nodes=0,
        session_timeout_ms=settings.zookeeper.session_timeout_ms,
        connection_timeout_ms=settings.zookeeper.connection_timeout_ms,
        config=config,
        names_listeners=bool(settings.broker.listeners),
        placement_service=False,
        broker_stop_timeout_s=_STOP_TIMEOUT_S,
        **{name: options[name] for name in ("zookeeper", "first_id", "restart")},
    )
    of_all = {
        "node_host": options["node_host"] or settings.broker.node_host or _advertised_host(settings)
    }
    of_each = {b: of_all | _moved_ports(settings, b - plan.first_id) for b in plan.broker_ids}
    plan = replace(plan, broker_settings=of_each)
    check_settings(plan)
    run(plan, _served_health(plan, settings))


def _refuse_ports_of_environment() -> None:
    """Raise ``ClusterOptionsError`` for what every broker would take as its own port."""
    for name in (*_LISTS, *_PORTS):
        variable = f"REGENT_{name.upper()}"
        if os.environ.get(variable):
            raise ClusterOptionsError(
                f"{variable} would give all brokers of the node the same ports: set {name} in the"
                " file of --config, whose ports are those of the first broker"
            )


def _count(text: str, data_dir: Path, first_id: BrokerId) -> int:
    """Return the number of brokers. Raises ``ClusterOptionsError``, ``click.UsageError``."""
    present = numbered_folders(data_dir, "broker")
    if text == _AUTO:
        count = len(present) or max(1, cores() // _CORES_OF_A_BROKER)
    elif text.isdecimal() and 1 <= int(text) <= MAX_BROKERS:
        count = int(text)
    else:
        raise click.UsageError(
            f"--brokers {text!r} is neither {_AUTO} nor a number from 1 to {MAX_BROKERS}"
        )
    last = first_id + count - 1
    if last > MAX_BROKER_ID:
        raise click.UsageError(f"--first-id {first_id}: the last id, {last}, is too large")
    for broker_id in present:
        if not first_id <= broker_id <= last:
            raise ClusterOptionsError(
                f"{data_dir} has the data of broker {broker_id}, and this node has brokers"
                f" {first_id} to {last}: correct --first-id or --brokers, or move its replicas"
                f" away (`{program()} jobs plan decommission --from {broker_id}`) and remove the"
                " folder"
            )
    return min(count, MAX_BROKERS)


def cores(cpu_max: Path = _CPU_MAX) -> int:
    """Return how many cores this process may use: by its affinity, and by its cgroup's quota."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = cpu_max.read_text().split()
        return min(allowed, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroup, or no quota ("max")
        return allowed


def _advertised_host(settings: Settings) -> str:
    return settings.broker.advertised_host or settings.listeners.advertised[0].host


def _moved_ports(settings: Settings, number: int) -> dict[str, str]:
    """Return the settings that have ports, which count up from the first broker of a node."""
    config = settings.broker
    lists = {name: getattr(config, name) for name in _LISTS}
    moved = {
        name: _PORT.sub(lambda port: f":{int(port[1]) + number}", text)
        for name, text in lists.items()
        if text
    }
    ports = {name: getattr(config, name) for name in _PORTS}
    return moved | {name: str(port + number) for name, port in ports.items() if port}


# --- the health of a node -------------------------------------------------------------------------


class NodeProbes:
    """Asks all brokers of a node; ``regent.broker.metrics.metrics_server.Probes``."""

    def __init__(
        self, file: Path, broker_ids: Sequence[BrokerId], host: str, *, has_tls: bool
    ) -> None:
        self._file = file
        self._broker_ids = broker_ids
        self._host = _LOOPBACK.get(host, host)
        self._has_tls = has_tls

    def why_not_healthy(self) -> str:
        """Return which brokers do not run or do not answer; empty: none."""
        return self._why_not("/health")

    def why_not_ready(self) -> str:
        """Return which brokers clients should not use; empty: none."""
        return self._why_not("/ready")

    def is_controller(self) -> bool:
        """Whether a broker of this node is the active controller."""
        return any(self._ask(broker, "/controller") == "" for broker in self._running().values())

    def _why_not(self, path: str) -> str:
        running = self._running()
        with ThreadPoolExecutor(max(len(running), 1), "node-probe") as threads:
            answers = threads.map(lambda broker: self._ask(broker, path), running.values())
            found = dict(zip(running, answers, strict=True))
        whys = {b: found.get(b, "does not run") for b in self._broker_ids}
        return "; ".join(f"broker {b}: {why}" for b, why in whys.items() if why)

    def _running(self) -> dict[BrokerId, BrokerEntry]:
        try:
            file = ClusterFile.read(self._file)
        except RegentError:
            return {}
        return {b: e for b, e in (file.brokers if file else {}).items() if not e.ended}

    def _ask(self, broker: BrokerEntry, path: str) -> str:
        """Return why a broker denies a question; empty: it does not."""
        try:
            connection = self._connection(broker)
            try:
                connection.request("GET", path)
                answer = connection.getresponse()
                text = answer.read(4096).decode(errors="replace").strip()
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            return f"does not answer ({error})"
        return "" if answer.status == HTTPStatus.OK else text or "no"

    def _connection(self, broker: BrokerEntry) -> http.client.HTTPConnection:
        host, port = self._host, broker.metrics_port
        if not self._has_tls:
            return http.client.HTTPConnection(host, port, timeout=_PROBE_LIMIT_S)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is this machine
        return http.client.HTTPSConnection(host, port, timeout=_PROBE_LIMIT_S, context=context)


@contextmanager
def _served_health(plan: ClusterPlan, settings: Settings) -> Iterator[None]:
    """Serve the health of a node. Raises ``ClusterOptionsError`` if the port is in use."""
    port = plan.base_port and plan.base_port + 4 * PORT_SPACING
    try:
        listening_socket(plan.host, port).close()
    except OSError as error:
        raise ClusterOptionsError(
            f"port {port} on {plan.host} for health checks cannot be used ({error.strerror}): stop"
            " what listens there, or choose another --base-port, or 0 for free ports"
        ) from None
    file, has_tls = plan.data_dir / CLUSTER_FILE, settings.broker.metrics_tls
    probes = NodeProbes(file, plan.broker_ids, plan.host, has_tls=has_tls)
    server = MetricsServer(plan.host, port)
    server.probes, server.why_not_healthy = probes, probes.why_not_healthy
    click.echo(f"node: health checks on {plan.host}:{server.port}", err=True)
    try:
        yield
    finally:
        server.close()
