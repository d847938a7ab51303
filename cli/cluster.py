"""``cluster``: ZooKeeper, brokers and the placement service on this machine, in the foreground."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import select
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from regent.admin.wording import counted
from regent.cluster.cluster_file import listed_processes
from regent.cluster.cluster_plan import HOST, PORT_SPACING, ClusterPlan
from regent.cluster.cluster_supervisor import ClusterSupervisor
from regent.config.cluster_location import DATA_DIR
from regent.config.command_line import COMMAND, JOBS, pip_install
from regent.config.settings import SETTING_OPTIONS, Settings
from regent.config.settings_file import load_settings
from regent.core.errors import RegentError
from regent.core.model import BrokerId
from regent.zk.client.operations import ConnectionLossError
from regent.zk.client.zookeeper_client import ZooKeeperClient
from regent.zk.embedded.embedded_zookeeper import HEAP_MB, MIN_HEAP_MB, server_classpath

LOCK_FILE = ".cluster.lock"
MAX_BROKERS = 100
_MAX_BASE_PORT = 65_535 - 3 * PORT_SPACING - MAX_BROKERS
_CONNECT_TIMEOUT_S = 10.0
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
    "ports are 1,000, 2,000 and 3,000 higher. 0: free ports, for ZooKeeper too.",
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
    help="Run the service that places new topics with Spark; by default if Spark is installed.",
)
@click.option("--restart", is_flag=True, help="Restart processes that die.")
@click.option(
    "--session-timeout-ms",
    type=click.IntRange(500, 60_000),
    show_default="6000",
    help="ZooKeeper session timeout of the brokers.",
)
def cluster(
    broker_count: int,
    data_dir: Path,
    zookeeper: str | None,
    zookeeper_nodes: str,
    base_port: int,
    config: Path | None,
    session_timeout_ms: int | None,
    **options: Any,
) -> None:
    """Run a whole cluster on this machine, in the foreground.

    Prints a line that begins with "ready:" when it serves, and writes cluster.json to the data
    directory, where the other commands find it. Ctrl-C shuts the brokers down one by one and leaves
    nothing running; the data stays.
    """
    settings = _load(config, session_timeout_ms)
    asked: bool | None = options["placement_service"]
    with_placement_service = _with_placement_service(asked)
    if zookeeper is None:
        server_classpath()  # raises an error if the embedded server is not installed
    if asked is None and not with_placement_service:
        install = pip_install(JOBS)
        _say(f"without Spark the brokers place new topics themselves; to add it: {install}")
    plan = ClusterPlan(
        program=COMMAND,
        data_dir=data_dir,
        broker_count=broker_count,
        base_port=base_port,
        zookeeper=zookeeper,
        zookeeper_nodes=int(zookeeper_nodes),
        session_timeout_ms=settings.zookeeper.session_timeout_ms,
        config=config,
        placement_service=with_placement_service,
        restart=options["restart"],
        zookeeper_heap_mb=options["zookeeper_heap_mb"],
        defaults=_defaults(settings, broker_count),
        broker_settings=_by_broker(options["broker_settings"], options["racks"], broker_count),
    )
    if not os.access(data_dir / LOCK_FILE, os.F_OK):
        _check(plan)  # a cluster that is refused leaves no directory behind
    with _locked(data_dir):
        _await_predecessor(data_dir)
        _check(plan)
        sys.exit(ClusterSupervisor(plan, announce=_announce, say=_say).run())


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


def _with_placement_service(asked: bool | None) -> bool:
    """Return whether to start the service; raises ``ClusterOptionsError`` if it cannot run."""
    is_installed = importlib.util.find_spec("pyspark") is not None
    if is_installed or asked is False:
        return asked is not False
    if asked:
        raise ClusterOptionsError(
            f"the placement service needs Spark, which is not installed: run {pip_install(JOBS)}"
        )
    return False


def _load(config: Path | None, session_timeout_ms: int | None) -> Settings:
    given = {} if session_timeout_ms is None else {"session_timeout_ms": session_timeout_ms}
    return load_settings(config, {"zookeeper": given})


def _defaults(settings: Settings, broker_count: int) -> Mapping[str, int]:
    """Return the settings that suit a cluster on one machine, except those in the file."""
    suitable = {
        ("broker", "controlled_shutdown_retry_backoff_ms"): 200,
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
        descriptor = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
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
        _check_connection(plan.zookeeper)
        return
    existing = len(list(plan.data_dir.glob("zookeeper-*")))
    if existing not in (0, plan.zookeeper_nodes):
        # A majority of new members without the data would make the old member drop its data.
        raise ClusterOptionsError(
            f"{plan.data_dir} holds the data of a ZooKeeper with --zookeeper-nodes {existing}: "
            "use that, or another --data-dir"
        )


def _check_connection(hosts: str) -> None:
    try:
        client = ZooKeeperClient(hosts, 6_000, on_watch=lambda _: None)
        client.start(_CONNECT_TIMEOUT_S)
    except ValueError as error:
        raise ClusterOptionsError(str(error)) from None
    except ConnectionLossError as error:
        raise ClusterOptionsError(f"{error}: start it, or correct --zookeeper") from None
    client.close()


def _check_ports(plan: ClusterPlan) -> None:
    """Check that every port is free now. Metrics ports may be in use: another one is taken."""
    if not plan.base_port:
        return
    brokers = [plan.broker_ports(broker_id) for broker_id in range(plan.broker_count)]
    wanted = plan.zookeeper_ports() + [port for ports in brokers for port in ports]
    port, uses = Counter(wanted).most_common(1)[0]
    if uses > 1:
        raise ClusterOptionsError(
            f"--base-port {plan.base_port} needs port {port} twice: choose another --base-port"
        )
    metrics_ports = {ports.metrics_port for ports in brokers}
    for port in wanted:
        if port in metrics_ports:
            continue
        try:
            socket.create_server((HOST, port)).close()
        except OSError as error:
            other = "another --base-port, or 0 for free ports"
            if port in plan.zookeeper_ports():
                other = (
                    f"--zookeeper {HOST}:{port}/NAME for a cluster of its own on the ZooKeeper"
                    " there, or --base-port 0 for free ports"
                )
            raise ClusterOptionsError(
                f"port {port} on {HOST} cannot be used ({os.strerror(error.errno or 0)}): "
                f"stop what listens there, or choose {other}"
            ) from None


def _announce(line: str) -> None:
    click.echo(line)
    sys.stdout.flush()


def _say(line: str) -> None:
    with suppress(OSError):  # the terminal is closed, but the brokers still run
        click.echo(f"cluster: {line}", err=True)
