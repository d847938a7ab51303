"""``cluster``: ZooKeeper, brokers and the placement service on this machine, in the foreground."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn

import click
from click.types import convert_type

from regent.cli.console import PORT, is_installed
from regent.cli.output import announce
from regent.client.wording import counted
from regent.cluster.child_process import when_parent_ends
from regent.cluster.cluster_file import listed_processes
from regent.cluster.cluster_plan import HOST, PLACEMENT_IDLE_MS, PORT_SPACING, ClusterPlan
from regent.cluster.cluster_supervisor import ClusterSupervisor
from regent.cluster.embedded_zookeeper import HEAP_MB, MIN_HEAP_MB, server_classpath
from regent.config.addresses import listening_socket
from regent.config.cluster_location import DATA_DIR, LOCK_FILE, numbered_folders
from regent.config.command_line import COMMAND, JOBS, SAME_SIGNAL_S, pip_install
from regent.config.private_files import close_directory, keep_files_private
from regent.config.settings import SETTING_OPTIONS, Settings
from regent.config.settings_file import load_settings
from regent.core.errors import RegentError
from regent.core.model import BrokerId
from regent.zk.client.operations import ConnectionLossError
from regent.zk.client.zookeeper_client import ZooKeeperClient

MAX_BROKERS = 100
MAX_NODE_PORT = 65_535 - 4 * PORT_SPACING - MAX_BROKERS
_MAX_BASE_PORT = 65_535 - 3 * PORT_SPACING - MAX_BROKERS
_GIVEN = (  # fields of the plan that are options
    *("placement_at_once", "placement_idle_ms", "restart", "zookeeper_login", "zookeeper_heap_mb"),
    "console_write",
)
_OWN_ZOOKEEPER_TIMEOUT_MS = 120_000
_CHECK_SESSION_MS = 6_000
_PREDECESSOR_TIMEOUT_S = 5.0


class ClusterOptionsError(RegentError):
    """The cluster cannot be started with these options; the message names the remedy."""


@click.command()
@click.option(
    "--brokers",
    "broker_count",
    type=click.IntRange(1, MAX_BROKERS),
    default=3,
    show_default=True,
    help="Number of brokers; their ids are 0, 1, 2, …",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=DATA_DIR,
    show_default=True,
    envvar="REGENT_DATA_DIR",
    help="The folder of all data, kept from one run to the next.",
)
@click.option(
    "--zookeeper",
    metavar="HOST:PORT[,…][/CHROOT]",
    help="Use this ZooKeeper instead of starting one.",
)
@click.option(
    "--zookeeper-nodes",
    type=click.Choice(["1", "3"]),
    default="1",
    show_default=True,
    help="Number of ZooKeeper servers to start.",
)
@click.option(
    "--zookeeper-heap-mb",
    type=click.IntRange(MIN_HEAP_MB),
    default=HEAP_MB,
    show_default=True,
    help="Maximum heap of a ZooKeeper server to start, in MiB; a partition takes 1.8 KB of it.",
)
@click.option(
    "--base-port",
    type=click.IntRange(0, _MAX_BASE_PORT),
    default=9092,
    show_default=True,
    help="Kafka port of broker 0; broker N has this port plus N. Control, replication and metrics "
    "ports are 1,000, 2,000 and 3,000 higher, ZooKeeper's is 6,911 lower (below port 1,024: 4,000 "
    "higher). 0: free ports.",
)
@click.option(
    "--config", type=click.Path(path_type=Path), help="TOML file with the brokers' settings."
)
@click.option(
    "--broker-setting",
    "broker_settings",
    metavar="ID:NAME=VALUE",
    multiple=True,
    help="A setting of one broker, for example 1:rack=b; the option can be repeated.",
)
@click.option(
    "--racks",
    metavar="RACK,…",
    default="",
    help="The racks of the brokers in turn: with a,b brokers 0 and 2 are in a, broker 1 in b.",
)
@click.option(
    "--placement-service/--no-placement-service",
    default=None,
    help="Let a Spark service place new topics; by default if Spark is installed.",
)
@click.option(
    "--placement-at-once",
    is_flag=True,
    help="Start this service with the cluster, and not when the first topic is created.",
)
@click.option(
    "--placement-idle-ms",
    type=click.IntRange(10_000),  # who asks for it must find it when it has started
    default=PLACEMENT_IDLE_MS,
    show_default=True,
    help="Time without new topics after which this service ends, until the next one.",
)
@click.option(
    "--zookeeper-login/--no-zookeeper-login",
    default=True,
    show_default=True,
    help="Protect the ZooKeeper that this command starts with a secret in the data directory.",
)
@click.option(
    "--internal-topics/--no-internal-topics",
    default=True,
    show_default=True,
    help="Create the topics of groups and transactions right after the start, in the background.",
)
@click.option(
    "--console/--no-console",
    default=True,
    show_default=True,
    help="Serve a web page of the cluster on 127.0.0.1, if the extra `console` is installed.",
)
@click.option(
    "--console-port",
    type=click.IntRange(0, 65_535),
    show_default=f"{PORT}, or a free port with --base-port 0",
    help="Port of this page; another one is taken if it is in use.",
)
@click.option("--console-write", is_flag=True, help="Let this page change the cluster.")
@click.option("--restart", is_flag=True, help="Restart processes that die.")
@click.option(
    "--session-timeout-ms",
    type=click.IntRange(500, 60_000),
    show_default="6000",
    help="ZooKeeper session timeout of the brokers.",
)
@click.option("--connection-timeout-ms", type=click.IntRange(100, 86_400_000), hidden=True)
@click.option("--death-pipe-fd", type=int, hidden=True)
def cluster(
    broker_count: int,
    data_dir: Path,
    zookeeper: str | None,
    zookeeper_nodes: str,
    base_port: int,
    config: Path | None,
    session_timeout_ms: int | None,
    connection_timeout_ms: int | None,
    death_pipe_fd: int | None,
    **options: Any,
) -> None:
    """Run a whole cluster on this machine, in the foreground.

    Prints a line that begins with "ready:" when it serves, and writes cluster.json to the data
    directory, where the other commands find it. Ctrl-C shuts the brokers down one by one and leaves
    nothing running; the data stays.
    """
    if death_pipe_fd is not None:
        when_parent_ends(death_pipe_fd, stop_at_once)
    keep_files_private()
    settings = _load(config, session_timeout_ms, connection_timeout_ms)
    with_placement_service = _with_placement_service(options["placement_service"], zookeeper)
    plan = ClusterPlan(
        program=COMMAND,
        data_dir=data_dir,
        broker_count=broker_count,
        base_port=base_port,
        zookeeper=zookeeper,
        zookeeper_nodes=int(zookeeper_nodes),
        session_timeout_ms=settings.zookeeper.session_timeout_ms,
        connection_timeout_ms=_connection_timeout_ms(settings, zookeeper),
        config=config,
        local_users=settings.broker.local_users,
        names_listeners=bool(settings.broker.listeners),
        placement_service=with_placement_service,
        console_port=_console_port(options, base_port),
        **{name: options[name] for name in _GIVEN},
        defaults=_defaults(settings, broker_count, internal_topics=options["internal_topics"]),
        broker_settings=_by_broker(options["broker_settings"], options["racks"], broker_count),
    )
    check_settings(plan)
    run(plan)


def run(plan: ClusterPlan, beside: AbstractContextManager[object] | None = None) -> NoReturn:
    """Run a plan in the foreground, with ``beside`` entered; end this process with its status.

    Raises ``ClusterOptionsError`` before anything is started or written.
    """
    if not os.access(plan.data_dir / LOCK_FILE, os.F_OK):
        _check(plan)  # a cluster that is refused leaves no directory behind
    with _locked(plan.data_dir):
        _await_predecessor(plan.data_dir)
        _check(plan)
        with beside or nullcontext():
            status = ClusterSupervisor(plan, announce=announce, say=_say).run()
        sys.exit(status)


def _console_port(options: Mapping[str, Any], base_port: int) -> int | None:
    """Return the port of the console; None: there is none."""
    if not options["console"] or not is_installed():
        return None
    asked: int | None = options["console_port"]
    return asked if asked is not None else PORT if base_port else 0


def _by_broker(
    texts: Sequence[str], racks: str, broker_count: int
) -> Mapping[BrokerId, Mapping[str, str]]:
    """Parse ``ID:NAME=VALUE`` and racks, by broker; raises ``click.UsageError``."""
    settings: dict[BrokerId, dict[str, str]] = {}
    if racks:
        names = racks.split(",")
        if "" in names or len(names) > broker_count:
            raise click.UsageError(
                f"--racks {racks!r} is not a list of 1 to {counted(broker_count, 'rack')}, one for"
                " each broker at most"
            )
        settings = {b: {"rack": names[b % len(names)]} for b in range(broker_count)}
    for text in texts:
        broker, colon, setting = text.partition(":")
        name, equals, value = setting.partition("=")
        if not (colon and equals and broker.isdecimal() and int(broker) < broker_count):
            raise click.UsageError(
                f"--broker-setting {text!r} is not ID:NAME=VALUE, with a broker id from 0 to"
                f" {broker_count - 1}"
            )
        if name not in SETTING_OPTIONS:
            raise click.UsageError(
                f"--broker-setting {text!r}: {name!r} is not a setting; see docs/configuration.md"
            )
        settings.setdefault(int(broker), {})[name] = value
    return settings


def check_settings(plan: ClusterPlan) -> None:
    """Check the settings of the brokers as these will; raises ``ClusterOptionsError``."""
    for broker_id in plan.broker_ids:
        settings = plan.broker_settings.get(broker_id, {})
        tables: dict[str, dict[str, Any]] = {}
        try:
            for name, text in settings.items():
                table, row = SETTING_OPTIONS[name]
                value = convert_type(type(row.default)).convert(text, None, None)
                tables.setdefault(table, {})[row.name] = value
            load_settings(plan.config, tables)
        except click.BadParameter as error:
            raise ClusterOptionsError(
                f"--broker-setting {broker_id}:{name}={text}: {error.message}"
            ) from None
        except RegentError as error:
            raise ClusterOptionsError(f"broker {broker_id}: {error}") from None


def _with_placement_service(asked: bool | None, zookeeper: str | None) -> bool:
    """Return whether to start the service.

    Raises ``ClusterOptionsError`` if it cannot run, and ``ZooKeeperStartError`` if the embedded
    server, which Spark brings, is needed and not installed.
    """
    is_installed = importlib.util.find_spec("pyspark") is not None
    if asked and not is_installed:
        raise ClusterOptionsError(
            f"the placement service needs Spark, which is not installed: run {pip_install(JOBS)}"
        )
    if zookeeper is None:
        server_classpath()
    if asked is None and not is_installed:
        install = pip_install(JOBS)
        _say(f"without Spark the brokers place new topics themselves; to add it: {install}")
    return is_installed and asked is not False


def _load(
    config: Path | None, session_timeout_ms: int | None, connection_timeout_ms: int | None
) -> Settings:
    options = {
        "session_timeout_ms": session_timeout_ms,
        "connection_timeout_ms": connection_timeout_ms,
    }
    given = {name: value for name, value in options.items() if value is not None}
    return load_settings(config, {"zookeeper": given}, are_complete=False)


def _connection_timeout_ms(settings: Settings, zookeeper: str | None) -> int:
    """Return how long brokers try to reach ZooKeeper; one that this cluster started does answer."""
    if zookeeper is None and "zookeeper.connection_timeout_ms" not in settings.given:
        return _OWN_ZOOKEEPER_TIMEOUT_MS
    return settings.zookeeper.connection_timeout_ms


def stop_at_once() -> None:
    """Act as if Ctrl-C was pressed twice, because the parent process has ended."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(2 * SAME_SIGNAL_S)
    os.kill(os.getpid(), signal.SIGTERM)


def _defaults(settings: Settings, broker_count: int, *, internal_topics: bool) -> Mapping[str, int]:
    """Return the settings that suit a cluster on one machine, except those in the file."""
    suitable = {
        ("broker", "controlled_shutdown_retry_backoff_ms"): 200,
        ("broker", "internal_topics_at_start"): internal_topics,
        ("groups", "offsets_topic_replication_factor"): min(
            settings.groups.offsets_topic_replication_factor, broker_count
        ),
        ("transactions", "transaction_state_log_replication_factor"): min(
            settings.transactions.transaction_state_log_replication_factor, broker_count
        ),
        ("transactions", "transaction_state_log_min_isr"): min(
            settings.transactions.transaction_state_log_min_isr, broker_count
        ),
    }
    return {
        name: value
        for (table, name), value in suitable.items()
        if f"{table}.{name}" not in settings.given
    }


@contextmanager
def _locked(data_dir: Path) -> Iterator[None]:
    """Lock the data directory, and create it if it is missing. The lock ends with this process."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        close_directory(data_dir)
        descriptor = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ClusterOptionsError(
            f"{data_dir} cannot be used ({error.strerror}): choose another --data-dir"
        ) from None
    with os.fdopen(descriptor, "r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ClusterOptionsError(
                f"another cluster (process {lock.read().strip() or 'unknown'}) runs on {data_dir}: "
                "stop it or choose another --data-dir"
            ) from None
        lock.truncate()
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def _await_predecessor(data_dir: Path) -> None:
    """Wait for the children of a ``cluster`` that was killed: they end by themselves.

    If a process does not end in time, either its process id was reused by another program, or it
    still holds a port, which the check of the ports reports.
    """
    deadline = time.monotonic() + _PREDECESSOR_TIMEOUT_S
    for pid in listed_processes(data_dir):
        with suppress(OSError):
            pidfd = os.pidfd_open(pid)
            try:
                select.select([pidfd], [], [], max(deadline - time.monotonic(), 0.0))
            finally:
                os.close(pidfd)


def _check(plan: ClusterPlan) -> None:
    """Check that everything can be started; raises ``ClusterOptionsError``. Changes nothing."""
    _check_zookeeper(plan)
    _check_ports(plan)


def _check_zookeeper(plan: ClusterPlan) -> None:
    """Check that ZooKeeper answers, or that it can be started on the existing data."""
    if plan.zookeeper is not None:
        _check_connection(plan.zookeeper, plan.connection_timeout_ms / 1000)
        return
    existing = len(numbered_folders(plan.data_dir, "zookeeper"))
    if existing not in (0, plan.zookeeper_nodes):
        # A majority of new members without the data would make the old member drop its data.
        raise ClusterOptionsError(
            f"{plan.data_dir} holds the data of a ZooKeeper with --zookeeper-nodes {existing}: "
            "use that, or another --data-dir"
        )


def _check_connection(hosts: str, timeout_s: float) -> None:
    try:
        client = ZooKeeperClient(hosts, _CHECK_SESSION_MS, on_watch=lambda _: None)
        client.start(timeout_s)
    except ValueError as error:
        raise ClusterOptionsError(str(error)) from None
    except ConnectionLossError as error:
        raise ClusterOptionsError(f"{error}: start it, or correct --zookeeper") from None
    client.close()


def _check_ports(plan: ClusterPlan) -> None:
    """Check that every port is free now. Metrics ports may be in use: another one is taken."""
    brokers = [(plan.broker_host(id_), plan.broker_ports(id_)) for id_ in plan.broker_ids]
    zookeeper_ports = plan.zookeeper_ports()
    wanted = [(HOST, port) for port in zookeeper_ports]
    wanted += [(host, port) for host, ports in brokers for port in ports]
    wanted = [(host, port) for host, port in wanted if port]
    for (host, port), uses in Counter(wanted).items():
        if uses > 1:
            raise ClusterOptionsError(
                f"port {port} on {host} is needed twice: choose another --base-port or"
                " --broker-setting"
            )
    metrics_ports = {(host, ports.metrics_port) for host, ports in brokers}
    for host, port in wanted:
        if (host, port) in metrics_ports:
            continue
        try:
            listening_socket(host, port).close()
        except OSError as error:
            other = "another --base-port, or 0 for free ports"
            if port in zookeeper_ports:
                other = (
                    f"--zookeeper {HOST}:{port}/NAME for a cluster of its own on the ZooKeeper"
                    f" there, or {other}"
                )
            raise ClusterOptionsError(
                f"port {port} on {host} cannot be used ({error.strerror}): "
                f"stop what listens there, or choose {other}"
            ) from None


def _say(line: str) -> None:
    with suppress(OSError):  # the terminal is closed, but the brokers still run
        click.echo(f"cluster: {line}", err=True)
