"""``broker``: one broker in the foreground; ``guardian``: the small process beside it."""

from __future__ import annotations

import gc
import json
import logging
import logging.handlers
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import click

from regent.broker.broker_process import BrokerOptions, BrokerProcess
from regent.cli.local_brokers import bring_back, print_started
from regent.cli.output import note
from regent.cluster.guardian import watch_over
from regent.cluster.supervisor_socket import start_command
from regent.config.cluster_location import CLUSTER_FILE
from regent.config.settings import LoggingConfig, Settings
from regent.config.settings_file import load_settings
from regent.core.errors import RegentError

logger = logging.getLogger(__name__)

_LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s (%(name)s)"
_LOG_BYTES = 32 * 1024 * 1024
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SAME_REQUEST_S = 0.25  # timeout(1) and some terminals send a signal twice
EXIT_INTERRUPTED = 130


def _settings_options(command: Any) -> Any:
    """Add an option for each setting that is often given on the command line."""
    options = [
        click.option("--host", help="Address to listen on; 0.0.0.0 or :: for all."),
        click.option("--advertised-host", help="Name or address that others find it at."),
        click.option("--advertised-port", type=int, help="Kafka port that clients are told."),
        click.option("--port", type=int, help="Kafka port; 0 for a free one."),
        click.option("--control-port", type=int, help="Port of the control server."),
        click.option("--replication-port", type=int, help="Port followers fetch from."),
        click.option("--metrics-port", type=int, help="Port of the metrics endpoint."),
        click.option("--rack", help="Rack of this broker."),
        click.option("--placement-service", help="Endpoint of the placement service, if any."),
        click.option("--controlled-shutdown-retry-backoff-ms", type=int, hidden=True),
        click.option("--session-timeout-ms", type=int, help="ZooKeeper session timeout."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.option("--id", "broker_id", type=click.IntRange(0), required=True, help="Broker id.")
@click.option("--zookeeper", help="HOST:PORT[,HOST:PORT…][/chroot].")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    required=True,
    help="Its own folder; without --zookeeper, that of a cluster that runs on this machine.",
)
@click.option("--config", type=click.Path(path_type=Path), help="TOML file with settings.")
@click.option("--death-pipe-fd", type=int, hidden=True)
@_settings_options
def broker(
    broker_id: int,
    zookeeper: str | None,
    data_dir: Path,
    config: Path | None,
    death_pipe_fd: int | None,
    session_timeout_ms: int | None,
    **broker_settings: Any,
) -> None:
    """Run one broker in the foreground, for clusters over several machines.

    Ctrl-C or SIGTERM shuts it down in a controlled way; a second one ends it at once.

    Without --zookeeper the cluster that runs on --data-dir starts the broker, as it was and as its
    own child (see `brokers start`).
    """
    given = {key: value for key, value in broker_settings.items() if value is not None}
    if zookeeper is None:
        if given or config is not None or session_timeout_ms is not None:
            raise click.UsageError("settings go with --zookeeper: without it they are as they were")
        print_started(bring_back(data_dir, [broker_id]))
        return
    overrides: dict[str, dict[str, Any]] = {"broker": given}
    if session_timeout_ms is not None:
        overrides["zookeeper"] = {"session_timeout_ms": session_timeout_ms}
    settings = load_settings(config, overrides)
    _log_to(data_dir, settings.logging)
    options = BrokerOptions(broker_id, zookeeper, data_dir)
    sys.exit(_run(options, settings, death_pipe_fd))


@click.command(hidden=True)
@click.option("--zookeeper", required=True)
@click.option("--pid", type=int, required=True)
def guardian(zookeeper: str, pid: int) -> None:
    """Close the ZooKeeper session of a broker process once it is dead."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)  # inherited from the broker
    watch_over(pid, zookeeper, sys.stdin.buffer)


def _prepare_process() -> None:
    """Allow as many open files as we may, and collect garbage seldom.

    Every channel takes a few descriptors. A controller builds and keeps objects by the hundred
    thousand, and looking through them again and again would double the time of a failover.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _run(options: BrokerOptions, settings: Settings, death_pipe_fd: int | None) -> int:
    _prepare_process()
    process = BrokerProcess(options, settings)

    # Blocked in every thread from here on, and taken by one that waits for them: a handler would
    # interrupt the main thread anywhere, in the middle of the lock it needs itself too.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    threading.Thread(target=_await_signals, args=(process,), name="signals", daemon=True).start()
    if death_pipe_fd is not None:
        threading.Thread(
            target=_await_death, args=(death_pipe_fd, process), name="death-pipe", daemon=True
        ).start()
    try:
        address = process.start()
        logger.info("broker %d serves on %s:%d", address["id"], address["host"], address["port"])
        click.echo(f"ready: {json.dumps({**address, 'pid': os.getpid()})}")
        sys.stdout.flush()
        if death_pipe_fd is None:
            _note_cluster_of(options)
        process.wait()
        logger.info("broker %d shuts down", options.broker_id)
        remaining = process.shut_down()
    except RegentError as error:
        logger.error("broker %d ends: %s", options.broker_id, error)
        raise
    logger.info("broker %d has shut down", options.broker_id)
    if remaining:
        click.echo(
            f"broker {options.broker_id}: {len(remaining)} partitions had nobody to take over:"
            f" {', '.join(map(str, remaining[:10]))}",
            err=True,
        )
    return 0


def _note_cluster_of(options: BrokerOptions) -> None:
    """Say how a broker of a local cluster starts as a child of it, which this process is not."""
    cluster_dir = options.data_dir.parent
    if (cluster_dir / CLUSTER_FILE).exists():
        note(
            f"{options.data_dir} belongs to the cluster that runs on {cluster_dir}, which does not"
            f" know this process; as its child: {start_command(cluster_dir, options.broker_id)}"
        )


def _await_signals(process: BrokerProcess) -> None:
    """Stop at the first signal; at the next one end at once, and leave the rest to the guardian."""
    signal.sigwait(_STOP_SIGNALS)
    first = time.monotonic()
    process.request_stop()
    while True:
        signal.sigwait(_STOP_SIGNALS)
        if time.monotonic() - first > _SAME_REQUEST_S:
            os._exit(EXIT_INTERRUPTED)


def _await_death(pipe: int, process: BrokerProcess) -> None:
    """Stop when the process that started us is gone, and with it whoever would take over."""
    while os.read(pipe, 4096):
        pass
    process.request_stop(hurry=True)


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
