"""``broker``: one broker in the foreground."""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click

from regent.broker.broker_process import BrokerOptions, BrokerProcess
from regent.broker.broker_registration import open_listeners
from regent.broker.garbage_collection import limit_pauses
from regent.broker.machine_settings import log_directories
from regent.cli.local_brokers import bring_back, print_started
from regent.cli.output import announce, note
from regent.cli.setting_options import PREFIX, given_settings, setting_options
from regent.cluster.child_process import ENDED, when_parent_ends
from regent.cluster.supervisor_socket import start_command
from regent.config.cluster_location import CLUSTER_FILE, VARIABLES_OF_COMMANDS
from regent.config.command_line import EXIT_INTERRUPTED, SAME_SIGNAL_S
from regent.config.kafka_properties import read_kafka_properties
from regent.config.private_files import check_not_root_in, keep_files_private
from regent.config.settings import SETTING_OPTIONS, Settings
from regent.config.settings_file import SettingsError, load_settings
from regent.config.tables.logging import LoggingConfig
from regent.config.threads import NamedThread, thread_names_begin_with, write_stacks_when_asked
from regent.core.errors import RegentError
from regent.core.model import MAX_BROKER_ID
from regent.transport.control.server import PortInUseError
from regent.zk.client.login import SECRET_VARIABLE, log_in, read_login
from regent.zk.client.zookeeper_client import check_address

logger = logging.getLogger(__name__)

_LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s (%(name)s)"
_LOG_BYTES = 32 * 1024 * 1024
_SIMILAR = 0.85
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SIGNALS = (*_STOP_SIGNALS, signal.SIGHUP)
_SECOND_BROKER = (
    "a second broker on a machine needs another --port, --control-port, --replication-port and"
    " --metrics-port"
)


_SHOWN = {
    *("host", "port", "control_port", "replication_port", "metrics_port"),
    *("advertised_host", "advertised_port", "rack", "placement_service", "session_timeout_ms"),
    *("log_level", "no_replicas"),
}
"""The options for settings that the help text lists. Each other setting has an option too."""


def _misnamed(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each variable that seems to be meant as a setting, and is none."""
    known = sorted(f"{PREFIX}{name.upper()}" for name in SETTING_OPTIONS)
    for variable in sorted(environ.keys() - {*known, *VARIABLES_OF_COMMANDS}):
        if not variable.startswith(PREFIX):
            continue
        end = variable.removeprefix(PREFIX.rstrip("_"))
        similar = sorted((name for name in known if name.endswith(end)), key=len)
        similar += get_close_matches(variable, known, n=1, cutoff=_SIMILAR)
        if similar:
            yield f"{variable} in the environment is no setting: did you mean {similar[0]}?"


@click.command()
@click.option(
    "--id",
    "broker_id",
    type=click.IntRange(0, MAX_BROKER_ID),
    help="Broker id; with --kafka-properties its broker.id.",
)
@click.option("--zookeeper", help="Address of ZooKeeper: HOST:PORT[,HOST:PORT…][/chroot].")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="The broker's folder; without --zookeeper, the folder of a cluster on this machine. With"
    " --kafka-properties: regent-ID beside its first log directory.",
)
@click.option("--config", type=click.Path(path_type=Path), help="TOML file with settings.")
@click.option(
    "--kafka-properties",
    type=click.Path(path_type=Path),
    help="The server.properties of a broker of Kafka, whose place this broker takes"
    " (docs/kafka-properties.md).",
)
@click.option("--death-pipe-fd", type=int, hidden=True)
@partial(setting_options, shown=_SHOWN)
def broker(
    broker_id: int | None,
    zookeeper: str | None,
    data_dir: Path | None,
    config: Path | None,
    kafka_properties: Path | None,
    death_pipe_fd: int | None,
    **options: Any,
) -> None:
    """Run one broker in the foreground, for clusters over several machines.

    Ctrl-C or SIGTERM shuts it down in a controlled way; a second one ends it at once.

    Without --zookeeper the cluster that runs on --data-dir starts the broker as its child, with its
    former ports and settings (see `brokers start`).

    Each setting of docs/configuration.md has an option of the same name, with dashes. This page
    lists the common ones. Options override the file. A variable of the environment, REGENT_ and the
    name of a setting in capital letters, is an option that the command line does not have.
    """
    given = given_settings(options)
    if kafka_properties is not None:
        keep_files_private()
        of_kafka = read_kafka_properties(
            *(kafka_properties, given), broker_id=broker_id, zookeeper=zookeeper, data_dir=data_dir
        )
        settings = load_settings(
            config, given, kafka_properties=(kafka_properties, of_kafka.tables)
        )
        started = BrokerOptions(of_kafka.broker_id, of_kafka.zookeeper, of_kafka.data_dir)
        _check_owners(started, settings)
        of_kafka.write_secrets()
        _start(started, settings, death_pipe_fd, tuple(of_kafka.notes()))
    if broker_id is None or data_dir is None:
        missing = "--id" if broker_id is None else "--data-dir"
        raise click.UsageError(f"{missing} is missing: only --kafka-properties can say it instead")
    if zookeeper is None:
        if given or config is not None:
            raise click.UsageError(
                "settings need --zookeeper: without it the broker starts with its former settings"
            )
        print_started(bring_back(data_dir, [broker_id]))
        return
    keep_files_private()
    settings = load_settings(config, given)
    started = BrokerOptions(broker_id, zookeeper, data_dir)
    _check_owners(started, settings)
    _start(started, settings, death_pipe_fd)


def _check_owners(options: BrokerOptions, settings: Settings) -> None:
    """Check that this process may write the broker's folders, before it makes the first file."""
    for directory in (options.data_dir, *log_directories(settings, options.data_dir)):
        check_not_root_in(directory)


def _start(
    options: BrokerOptions,
    settings: Settings,
    death_pipe_fd: int | None,
    notes: Sequence[str] = (),
) -> NoReturn:
    """Run the broker until it ends, and end this process. ``notes`` are printed and logged."""
    try:
        check_address(options.zookeeper)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    if not settings.zookeeper.secret_file:
        named = os.environ.get(SECRET_VARIABLE, "")
        settings = replace(settings, zookeeper=replace(settings.zookeeper, secret_file=named))
    if settings.zookeeper.secret_file:
        log_in(options.zookeeper, read_login(Path(settings.zookeeper.secret_file)))
    _log_to(options.data_dir, settings.logging)
    for line in (*notes, *_misnamed(os.environ)):
        logger.warning("%s", line)
        note(line)
    with thread_names_begin_with(settings.broker.thread_name_prefix):
        sys.exit(_run(options, settings, death_pipe_fd))


def _prepare_process() -> None:
    """Raise the limit of open files, and limit the pauses of the garbage collector.

    Every channel takes a few descriptors.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit_pauses()


def _run(options: BrokerOptions, settings: Settings, death_pipe_fd: int | None) -> int:
    _prepare_process()
    try:
        write_stacks_when_asked(options.data_dir)
    except OSError as error:
        logger.warning("%s: %s, so SIGUSR1 writes no stacks", options.data_dir, error.strerror)
    process = BrokerProcess(options, settings)

    # Signals are blocked in every thread, and one thread waits for them. A handler would run on the
    # main thread at any point, even while that thread holds a lock that the handler needs.
    ends_with_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _has_terminal()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also under nohup(1), which ignores it
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    supervisor = None if death_pipe_fd is None else os.getppid()
    NamedThread(_await_signals, "signals", (process, ends_with_terminal, supervisor)).start()
    if death_pipe_fd is not None:
        when_parent_ends(death_pipe_fd, partial(_stop_at_once, process))
    try:
        address = process.start()
        logger.info("broker %d serves on %s:%d", address["id"], address["host"], address["port"])
        announce(f"ready: {json.dumps({**address, 'pid': os.getpid()})}")
        for line in open_listeners(settings):
            note(line)
        if settings.broker.metrics_port not in (0, address["metrics_port"]):
            note(
                f"port {settings.broker.metrics_port} is in use, so metrics are on port"
                f" {address['metrics_port']} until the next start; --metrics-port names another"
            )
        if death_pipe_fd is None:
            _note_cluster_of(options)
        process.wait()
        logger.info("broker %d shuts down", options.broker_id)
        remaining = process.shut_down()
    except RegentError as error:
        if isinstance(error, PortInUseError) and death_pipe_fd is None:
            error = RegentError(f"{error}; {_SECOND_BROKER}")
        logger.error("broker %d ends: %s", options.broker_id, error)
        if death_pipe_fd is not None:
            _tell_parent(error)
        raise error from None
    logger.info("broker %d has shut down", options.broker_id)
    if remaining:
        note(
            f"broker {options.broker_id}: {len(remaining)} partitions have no other leader:"
            f" {', '.join(map(str, remaining[:10]))}"
        )
    return 0


def _tell_parent(error: RegentError) -> None:
    """Print why the broker ends into the pipe to its parent: files may be on a full disk."""
    with suppress(OSError):
        click.echo(f"{ENDED.decode()}{' '.join(str(error).split())}")
        sys.stdout.flush()


def _note_cluster_of(options: BrokerOptions) -> None:
    """Print how to start a broker of a local cluster as a child of the cluster."""
    cluster_dir = options.data_dir.parent
    if (cluster_dir / CLUSTER_FILE).exists():
        note(
            f"{options.data_dir} belongs to the cluster that runs on {cluster_dir}, which does not"
            f" supervise this process; to start the broker as its child:"
            f" {start_command(cluster_dir, options.broker_id)}"
        )


def _has_terminal() -> bool:
    """Whether this process would end with a terminal, which sends SIGHUP when it is closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _await_signals(
    process: BrokerProcess, ends_with_terminal: bool, supervisor: int | None
) -> None:
    """Stop at the first signal. At the second one end at once; the guardian closes the session.

    One of the process ``supervisor`` is no second one: systemd may have told both of us to stop,
    and the supervisor asks each broker in its turn. Who shall end at once gets SIGKILL from it.
    SIGHUP stops only if the terminal has been closed. Else it asks for a look at the keys.
    """
    while signal.sigwait(_SIGNALS) is signal.SIGHUP:
        if ends_with_terminal and not _has_terminal():
            break
        if process.is_serving:
            logger.info("SIGHUP: the files of the keys of TLS are read if they have changed")
            try:
                process.read_keys_again()
            except Exception:  # this thread must live to take SIGTERM
                logger.exception("SIGHUP: the keys of TLS stay as they are")
    first = time.monotonic()
    process.request_stop()
    while True:
        sender = signal.sigwaitinfo(_STOP_SIGNALS).si_pid
        if sender != supervisor and time.monotonic() - first > SAME_SIGNAL_S:
            os._exit(EXIT_INTERRUPTED)


def _stop_at_once(process: BrokerProcess) -> None:
    """Stop without a controlled shutdown, because the parent process has ended.

    A start may wait long for ZooKeeper, which has often ended with the parent. So it is ended as it
    is; the guardian closes its session.
    """
    if not process.is_serving:
        logger.warning("the parent process has ended before this broker served")
        os._exit(EXIT_INTERRUPTED)
    process.request_stop(at_once=True)


def _log_to(data_dir: Path, config: LoggingConfig) -> None:
    """Log to ``broker.log`` in the broker's folder; raises ``RegentError`` when it cannot."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        handler = logging.handlers.RotatingFileHandler(
            data_dir / "broker.log", maxBytes=_LOG_BYTES, backupCount=3, encoding="utf-8"
        )
    except OSError as error:
        raise RegentError(f"{data_dir}: {error.strerror}") from None
    handler.setFormatter(logging.Formatter(_LOG_FORMAT))
    root = logging.getLogger()
    root.setLevel(config.level)
    root.addHandler(handler)
    for name, level in config.levels.items():
        logging.getLogger(name).setLevel(level)
