"""``placement-service``: the resident placement service, as ``cluster`` starts it."""

from __future__ import annotations

import logging
import os
import signal
import sys
from functools import partial
from pathlib import Path

import click

from regent.cluster.child_process import when_parent_ends
from regent.config.private_files import keep_files_private
from regent.jobs.service import serve


@click.command("placement-service", hidden=True)
@click.option("--work-dir", type=click.Path(path_type=Path), help="The folder for Spark's files.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=0, help="Port to listen on; 0: a free one."
)
@click.option(
    "--keys-dir", type=click.Path(path_type=Path), required=True, help="The directory of keys."
)
@click.option(
    "--idle-ms",
    type=click.IntRange(-1),
    default=-1,
    help="End after this time without topics to place; -1: never.",
)
@click.option("--death-pipe-fd", type=int)
def placement_service(
    work_dir: Path | None, port: int, keys_dir: Path, idle_ms: int, death_pipe_fd: int | None
) -> None:
    """Keep a Spark session and place topics with it, until SIGTERM."""
    keep_files_private()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    if death_pipe_fd is not None:
        when_parent_ends(death_pipe_fd, partial(os.kill, os.getpid(), signal.SIGTERM))
    idle_s = None if idle_ms < 0 else idle_ms / 1000
    serve(f"tcp://127.0.0.1:{port}", work_dir, keys_dir, _announce, idle_s=idle_s)


def _announce(endpoint: str) -> None:
    click.echo(f"ready: {endpoint}")
    sys.stdout.flush()
