"""``python -m regent.designs``: the study of the designs before the controller, in a checkout."""

from __future__ import annotations

import gc
import logging
import resource
import sys

import click

from regent.core.errors import RegentError
from regent.core.model import MAX_BROKER_ID
from regent.designs.commit_thread import InSyncLimits
from regent.designs.compare import compare
from regent.designs.design_process import DESIGNS, DesignOptions, run


@click.group(context_settings={"max_content_width": 100})
def cli() -> None:
    """Run the designs that came before the controller, and measure them beside it."""


@cli.command(hidden=True)
@click.option("--design", type=click.Choice(sorted(DESIGNS)), required=True)
@click.option("--id", "broker_id", type=click.IntRange(0, MAX_BROKER_ID), required=True)
@click.option("--zookeeper", required=True, help="HOST:PORT of ZooKeeper.")
@click.option("--session-timeout-ms", type=click.IntRange(1), default=2_000)
@click.option("--keep-in-sync-ms", type=click.IntRange(1), default=InSyncLimits().keep_in_sync_ms)
@click.option("--max-bytes-lag", type=click.IntRange(0), default=InSyncLimits().max_bytes_lag)
@click.option("--death-pipe-fd", type=int)
def broker(
    design: str,
    broker_id: int,
    zookeeper: str,
    session_timeout_ms: int,
    keep_in_sync_ms: int,
    max_bytes_lag: int,
    death_pipe_fd: int | None,
) -> None:
    """Run one broker of v1 or v2, until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("pykka").setLevel(logging.WARNING)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.set_threshold(50_000, 20, 100)
    limits = InSyncLimits(keep_in_sync_ms, max_bytes_lag)
    options = DesignOptions(design, broker_id, zookeeper, session_timeout_ms, limits)
    run(options, _announce, death_pipe_fd)


def _announce(endpoint: str) -> None:
    click.echo(f"ready: {endpoint}")
    sys.stdout.flush()


cli.add_command(compare)

if __name__ == "__main__":
    try:
        cli(prog_name="python -m regent.designs")
    except RegentError as error:
        sys.exit(f"designs: {error}")
