"""How a command finds its cluster: by a ZooKeeper address, or by the folder ``cluster`` runs in.

What is given on the command line counts before the environment, and a ZooKeeper address before a
folder. The folder's ``cluster.json`` also tells which brokers should be there and where the
placement service is; beside a ZooKeeper address it counts if it is about the same one, or if the
folder was named on the command line as well.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar

import click
from click.core import ParameterSource

from regent.cluster.cluster_file import ClusterFile
from regent.config.cluster_location import (
    CLUSTER_FILE,
    DATA_DIR,
    DATA_DIR_VARIABLE,
    ZOOKEEPER_VARIABLE,
)
from regent.config.command_line import program
from regent.core.errors import RegentError, SessionExpiredError
from regent.zk.client.operations import ConnectionLossError, ZooKeeper
from regent.zk.stores.admin_store import ZkAdminStore
from regent.zk.stores.topic_store import NoClusterError

CONNECT_TIMEOUT_S = 5.0

_SESSION_TIMEOUT_MS = 6_000

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., object])

OpenZooKeeper: TypeAlias = Callable[[str, float | None], AbstractContextManager[ZooKeeper]]
"""Opens a session at an address, which ends after so many seconds if any are given."""


class ClusterNotFoundError(RegentError):
    """There is no cluster where the command looked for one."""


class ClusterLocation(NamedTuple):
    """Where a cluster is; ``data_dir`` only if its ``cluster.json`` is about this cluster."""

    zookeeper_address: str
    data_dir: Path | None


class Cluster:
    """The cluster a command is about, looked for when it is first needed."""

    def __init__(
        self, locate: Callable[[], ClusterLocation], open_zookeeper: OpenZooKeeper
    ) -> None:
        self._locate = locate
        self._open_zookeeper = open_zookeeper

    @functools.cached_property
    def _location(self) -> ClusterLocation:
        return self._locate()

    @property
    def zookeeper_address(self) -> str:
        """Where its ZooKeeper is. Raises ``ClusterNotFoundError``."""
        return self._location.zookeeper_address

    @property
    def data_dir(self) -> Path | None:
        """Its folder on this machine; None when it is not known by one."""
        return self._location.data_dir

    @property
    def file(self) -> ClusterFile | None:
        """``cluster.json`` as it is now; None when the cluster is not known by one."""
        data_dir = self._location.data_dir
        return None if data_dir is None else ClusterFile.read(data_dir / CLUSTER_FILE)

    @contextmanager
    def admin(self, *, limit_s: float | None = None) -> Iterator[ZkAdminStore]:
        """Open a ZooKeeper session for the block.

        Raises ``ClusterNotFoundError`` when no server answers, stops answering, or (with
        ``limit_s``) when connecting and the block together take longer than that.
        """
        address = self.zookeeper_address
        try:
            with self._open_zookeeper(address, limit_s) as zookeeper:
                yield ZkAdminStore(zookeeper)
        except (ConnectionLossError, SessionExpiredError):
            raise ClusterNotFoundError(
                f"no ZooKeeper answers at {address}: is the cluster running?"
            ) from None
        except NoClusterError as error:
            raise ClusterNotFoundError(f"no cluster at {address}: {error}") from None


@contextmanager
def open_session(address: str, limit_s: float | None) -> Iterator[ZooKeeper]:
    """Open a session with a real ZooKeeper; see ``OpenZooKeeper``."""
    from regent.zk.client.zookeeper_client import ZooKeeperClient

    try:
        client = ZooKeeperClient(address, _SESSION_TIMEOUT_MS, on_watch=lambda _: None)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    limit = threading.Timer(limit_s or 0.0, client.abandon)
    limit.daemon = True
    try:
        if limit_s is not None:
            limit.start()
        client.start(CONNECT_TIMEOUT_S, create_chroot=False)
        yield client
    finally:
        limit.cancel()
        client.close(timeout_s=1.0)


def data_dir_option(command: F) -> F:
    """Add ``--data-dir``."""
    return click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False),
        default=DATA_DIR,
        show_default=True,
        envvar=DATA_DIR_VARIABLE,
        show_envvar=True,
        help="Folder of a cluster on this machine.",
    )(command)


def pass_cluster(
    command: Callable[Concatenate[Cluster, P], R],
) -> Callable[P, R]:
    """Add the options that say which cluster, and hand it over as the first argument.

    The object of the context, if there is one, is an ``OpenZooKeeper`` to use instead of
    ``open_session``.
    """

    @click.option(
        "--zookeeper",
        metavar="HOST:PORT[/chroot]",
        envvar=ZOOKEEPER_VARIABLE,
        show_envvar=True,
        help="ZooKeeper of the cluster; several servers separated by commas.",
    )
    @data_dir_option
    @functools.wraps(command)
    def with_cluster(*args: P.args, **kwargs: P.kwargs) -> R:
        context = click.get_current_context()
        zookeeper, data_dir = kwargs.pop("zookeeper"), kwargs.pop("data_dir")
        assert isinstance(zookeeper, str | None)
        assert isinstance(data_dir, Path)
        locate = functools.partial(find_cluster, context, zookeeper, data_dir)
        return command(Cluster(locate, context.obj or open_session), *args, **kwargs)

    return with_cluster


def find_cluster(context: click.Context, zookeeper: str | None, data_dir: Path) -> ClusterLocation:
    """Return where the cluster is that the two options of ``context`` mean.

    Raises ``ClusterNotFoundError``.
    """
    names_zookeeper, names_data_dir = (
        context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        for name in ("zookeeper", "data_dir")
    )
    if zookeeper and (names_zookeeper or not names_data_dir):
        try:
            file = ClusterFile.read(data_dir / CLUSTER_FILE)
        except RegentError:
            if names_data_dir:
                raise
            file = None
        is_same = file is not None and (names_data_dir or file.zookeeper == zookeeper)
        return ClusterLocation(zookeeper, data_dir if is_same else None)
    return ClusterLocation(known_cluster(data_dir).zookeeper, data_dir)


def known_cluster(data_dir: Path) -> ClusterFile:
    """Return what the ``cluster.json`` of a folder says; raises ``ClusterNotFoundError``."""
    file = ClusterFile.read(data_dir / CLUSTER_FILE)
    if file is None:
        raise ClusterNotFoundError(
            f"no cluster in {data_dir}: there is no {CLUSTER_FILE}; start one with `{program()}"
            f" cluster --data-dir {data_dir}`, or name one with --data-dir or --zookeeper"
        )
    return file
