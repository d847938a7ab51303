"""The running cluster that a job reads: by a ZooKeeper address, or by the folder it runs in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from regent.config.cluster_location import CLUSTER_FILE, DATA_DIR_VARIABLE, ZOOKEEPER_VARIABLE
from regent.core.errors import SessionExpiredError
from regent.jobs.command import InputError
from regent.zk.client.operations import ConnectionLossError
from regent.zk.client.zookeeper_client import ZooKeeperClient
from regent.zk.codecs.json_fields import decode_object
from regent.zk.stores.admin_store import ZkAdminStore
from regent.zk.stores.topic_store import NoClusterError

F = TypeVar("F", bound=Callable[..., Any])

_SESSION_TIMEOUT_MS: Final = 30_000
_CONNECT_TIMEOUT_S: Final = 5.0


def data_dir_option(command: F) -> F:
    """Add ``--data-dir``."""
    return click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("data"),
        show_default=True,
        envvar=DATA_DIR_VARIABLE,
        help="Folder of a cluster on this machine.",
    )(command)


def cluster_options(command: F) -> F:
    """Add ``--zookeeper`` and ``--data-dir``."""
    zookeeper = click.option(
        "--zookeeper",
        metavar="HOST:PORT[/chroot]",
        envvar=ZOOKEEPER_VARIABLE,
        help="ZooKeeper of the cluster; several servers separated by commas.",
    )
    return zookeeper(data_dir_option(command))


def zookeeper_address(zookeeper: str | None, data_dir: Path) -> str:
    """Return the address that is given, or the one in the folder's ``cluster.json``.

    Raises ``InputError`` when there is neither, and ``BadDataError`` for a bad file.
    """
    if zookeeper:
        return zookeeper
    path = data_dir / CLUSTER_FILE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"no cluster in {data_dir} ({CLUSTER_FILE}: {error.strerror}): name one with"
            " --data-dir or --zookeeper"
        ) from None
    return decode_object(content, str(path)).string("zookeeper")


@contextmanager
def cluster_admin(address: str) -> Iterator[ZkAdminStore]:
    """Open a ZooKeeper session for the block. Raises ``InputError`` when there is no cluster."""
    try:
        client = ZooKeeperClient(address, _SESSION_TIMEOUT_MS, on_watch=lambda _: None)
    except ValueError as error:
        raise InputError(str(error)) from None
    try:
        client.start(_CONNECT_TIMEOUT_S, create_chroot=False)
        yield ZkAdminStore(client)
    except (ConnectionLossError, SessionExpiredError):
        raise InputError(f"no ZooKeeper answers at {address}: is the cluster running?") from None
    except NoClusterError as error:
        raise InputError(f"no cluster at {address}: {error}") from None
    finally:
        client.close(timeout_s=1.0)
