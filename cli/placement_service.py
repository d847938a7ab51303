"""``placement-service``: the resident placement service, as ``cluster`` starts it."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click

from regent.jobs.service import serve


@click.command("placement-service", hidden=True)
@click.option("--work-dir", type=click.Path(path_type=Path), help="The folder for Spark's files.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=0, help="Port to listen on; 0: a free one."
)
@click.option("--death-pipe-fd", type=int)
def placement_service(work_dir: Path | None, port: int, death_pipe_fd: int | None) -> None:
    """Keep a Spark session and place topics with it, until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for chatty in ("pykka", "py4j"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    sys.exit(
        serve(
            f"tcp://127.0.0.1:{port}",
            work_directory=work_dir,
            death_pipe=death_pipe_fd,
            announce=_announce,
        )
    )


def _announce(endpoint: str) -> None:
    click.echo(f"ready: {endpoint}")
    sys.stdout.flush()
