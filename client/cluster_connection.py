"""How commands and jobs find their cluster: by a ZooKeeper address, or by a local cluster's folder.

Commands that ask brokers only may have the addresses of some (``--bootstrap-server``) instead.

The command line has precedence over the environment, and a ZooKeeper address over a folder. The
folder's ``cluster.json`` also lists the brokers that should run, and the endpoint of the placement
service. With a ZooKeeper address the file is used if it has the same address, or if the command
line names the folder too.
"""

from __future__ import annotations

import functools
import os
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, NamedTuple, ParamSpec, TypeAlias, TypeVar

import click
from click.core import ParameterSource

from regent.client.command_config import SECURITY_OF_COMMAND, CommandConfig
from regent.client.profiles import NAMES_A_CLUSTER, PROFILE_VARIABLE, Profiles, profile_values
from regent.cluster.cluster_file import ClusterFile
from regent.config.addresses import bracketed
from regent.config.cluster_location import (
    BOOTSTRAP_SERVER_VARIABLE,
    CLUSTER_FILE,
    COMMAND_CONFIG_VARIABLE,
    DATA_DIR,
    DATA_DIR_VARIABLE,
    KEYS_OF_COMMAND,
    KEYS_VARIABLE,
    ZOOKEEPER_VARIABLE,
)
from regent.config.command_line import program
from regent.core.errors import BadDataError, RegentError, SessionExpiredError
from regent.core.model import EndPoint
from regent.zk.client.login import SECRET_VARIABLE, log_in, log_in_of, read_login

if TYPE_CHECKING:  # a command that asks brokers only does not load the client of ZooKeeper
    from regent.zk.client.zookeeper import ZooKeeper
    from regent.zk.stores.admin_store import ZkAdminStore

CONNECT_TIMEOUT_S = 5.0

_SESSION_TIMEOUT_MS = 6_000
_PROFILE: Final = "regent.profile"

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., object])

OpenZooKeeper: TypeAlias = Callable[[str, float | None], "AbstractContextManager[ZooKeeper]"]
"""Opens a session at an address; it ends after that many seconds, None: when it is closed."""


class ClusterNotFoundError(RegentError):
    """There is no cluster at the address or in the folder."""


class ClusterLocation(NamedTuple):
    """The address of a cluster; ``data_dir`` only if its ``cluster.json`` has the same cluster."""

    zookeeper_address: str
    data_dir: Path | None


class Cluster:
    """The cluster of a command, located when it is first needed.

    ``bootstrap`` has the brokers that the command line or the environment names.
    """

    def __init__(
        self,
        locate: Callable[[], ClusterLocation],
        open_zookeeper: OpenZooKeeper,
        bootstrap: Sequence[EndPoint] = (),
    ) -> None:
        self._locate = locate
        self._open_zookeeper = open_zookeeper
        self.bootstrap = bootstrap

    @functools.cached_property
    def _location(self) -> ClusterLocation:
        return self._locate()

    @property
    def zookeeper_address(self) -> str:
        """The connect string of its ZooKeeper. Raises ``ClusterNotFoundError``."""
        return self._location.zookeeper_address

    @property
    def data_dir(self) -> Path | None:
        """Its folder on this machine; None when the command does not know one."""
        return self._location.data_dir

    @property
    def file(self) -> ClusterFile | None:
        """The current ``cluster.json``; None when the command does not know the folder."""
        data_dir = self._location.data_dir
        return None if data_dir is None else ClusterFile.read(data_dir / CLUSTER_FILE)

    def brokers(self) -> Sequence[EndPoint]:
        """Return where some brokers, or all, listen for Kafka's clients.

        They are those that the command names, or those of ``cluster.json``, or all that are
        registered in ZooKeeper. Raises ``ClusterNotFoundError``.
        """
        if self.bootstrap:
            return self.bootstrap
        listed = () if self.file is None else self.file.brokers.values()
        if not listed:
            return self.registered_brokers()
        found = (broker.endpoint_for(SECURITY_OF_COMMAND.protocol) for broker in listed)
        brokers = [endpoint for endpoint in found if endpoint is not None]
        if not brokers:
            raise ClusterNotFoundError(SECURITY_OF_COMMAND.not_listening())
        return brokers

    def registered_brokers(self) -> Sequence[EndPoint]:
        """Return where all brokers listen, by ZooKeeper; none if the command names its brokers.

        Raises ``ClusterNotFoundError``.
        """
        if self.bootstrap:
            return ()
        with self.admin() as admin:
            return registered_brokers(admin)

    @contextmanager
    def admin(self, *, limit_s: float | None = None) -> Iterator[ZkAdminStore]:
        """Open a ZooKeeper session for the block; see ``cluster_admin``."""
        with cluster_admin(self.zookeeper_address, limit_s, self._open_zookeeper) as admin:
            yield admin


@contextmanager
def open_session(
    address: str, limit_s: float | None, session_timeout_ms: int = _SESSION_TIMEOUT_MS
) -> Iterator[ZooKeeper]:
    """Open a session with a real ZooKeeper; see ``OpenZooKeeper``."""
    from regent.zk.client.zookeeper_client import ZooKeeperClient

    try:
        client = ZooKeeperClient(address, session_timeout_ms, on_watch=lambda _: None)
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


@contextmanager
def cluster_admin(
    address: str, limit_s: float | None = None, open_zookeeper: OpenZooKeeper = open_session
) -> Iterator[ZkAdminStore]:
    """Open a ZooKeeper session for the block.

    Raises ``ClusterNotFoundError`` when there is no cluster, when no server answers or stops
    answering, or when connecting and the block together take longer than ``limit_s``.
    """
    from regent.zk.client.operations import ConnectionLossError
    from regent.zk.stores.admin_store import ZkAdminStore
    from regent.zk.stores.znode_store import NoClusterError

    try:
        with open_zookeeper(address, limit_s) as zookeeper:
            yield ZkAdminStore(zookeeper)
    except (ConnectionLossError, SessionExpiredError):
        raise ClusterNotFoundError(
            f"no ZooKeeper answers at {address}: is the cluster running?"
        ) from None
    except NoClusterError as error:
        raise ClusterNotFoundError(f"no cluster at {address}: {error}") from None


def registered_brokers(admin: ZkAdminStore) -> Sequence[EndPoint]:
    """Return where the registered brokers listen.

    Raises ``ClusterNotFoundError`` if there is none, and ``NoClusterError``.
    """
    admin.topics.check_cluster()
    infos = [r.info for r in admin.read_brokers().values() if not isinstance(r, BadDataError)]
    found = [SECURITY_OF_COMMAND.endpoint_of(info) for info in infos]
    brokers = [endpoint for endpoint in found if endpoint is not None]
    if not brokers:
        raise ClusterNotFoundError(
            SECURITY_OF_COMMAND.not_listening()
            if infos
            else "no broker is registered: is the cluster running?"
        )
    return brokers


def _registered(cluster: Cluster) -> Sequence[EndPoint]:
    with cluster.admin() as admin:
        registrations = admin.read_brokers().values()
    infos = [r.info for r in registrations if not isinstance(r, BadDataError)]
    found = map(SECURITY_OF_COMMAND.endpoint_of, infos)
    endpoints = [endpoint for endpoint in found if endpoint is not None]
    if not endpoints:
        why = SECURITY_OF_COMMAND.not_listening()
        raise ClusterNotFoundError(why if infos else "no broker is registered")
    return endpoints


def client_settings(
    cluster: Cluster, client_id: str = "regent-cli"
) -> dict[str, str | int | float | bool]:
    """Return the settings of a client of librdkafka.

    It begins with the brokers that the command names, or with all that are registered.

    It logs nothing, because its users report errors themselves. Raises ``ClusterNotFoundError``.
    """
    endpoints = cluster.bootstrap or _registered(cluster)
    return {
        "bootstrap.servers": ",".join(f"{bracketed(e.host)}:{e.port}" for e in endpoints),
        "client.id": client_id,
        "log_level": 0,
        **SECURITY_OF_COMMAND.for_librdkafka(),
    }


def open_client(kind: Callable[[dict[str, Any]], R], settings: Mapping[str, Any]) -> R:
    """Return a client of librdkafka; raises ``ClusterNotFoundError`` for a setting it refuses.

    What a command chooses itself is right: the setting is one of ``--command-config``.
    """
    from confluent_kafka import KafkaException

    try:
        return kind(dict(settings))
    except KafkaException as error:
        config = SECURITY_OF_COMMAND.config
        where = "" if config is None else f"--command-config {config.path}: "
        raise ClusterNotFoundError(f"{where}{error.args[0].str()}") from None


def _use_keys(_context: click.Context, _option: click.Parameter, keys: Path | None) -> None:
    KEYS_OF_COMMAND.given = keys


def _use_command_config(
    _context: click.Context, _option: click.Parameter, path: Path | None
) -> None:
    SECURITY_OF_COMMAND.use(None if path is None else CommandConfig.read(path))


def _use_keys_of(_context: click.Context, _option: click.Parameter, data_dir: Path) -> Path:
    KEYS_OF_COMMAND.data_dir = data_dir
    return data_dir


def _profile_of(context: click.Context, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the profile of a command says, by option; nothing: there is no profile.

    A profile counts as a whole: it is not used where an option, or without ``--profile`` the
    environment, names a cluster. ``options`` are those of the command line.
    """
    if _PROFILE not in context.meta:
        named = [name for name in NAMES_A_CLUSTER if options.get(name)]
        wanted = options.get("profile")
        if wanted and named:
            option = f"--{named[0].replace('_', '-')}"
            raise click.UsageError(f"--profile and {option} both name a cluster: give one of them")
        elsewhere = (ZOOKEEPER_VARIABLE, BOOTSTRAP_SERVER_VARIABLE, DATA_DIR_VARIABLE)
        values: Mapping[str, Any] = {}
        if wanted or not (named or any(os.environ.get(name) for name in elsewhere)):
            profiles = Profiles.read()
            name = wanted or os.environ.get(PROFILE_VARIABLE) or profiles.used
            values = {**profile_values(profiles.get(name)), "name": name} if name else {}
        context.meta[_PROFILE] = values
    found: Mapping[str, Any] = context.meta[_PROFILE]
    return found


class _ClusterOption(click.Option):
    """An option that a profile may have, too. What the command line says counts before that."""

    def consume_value(
        self, ctx: click.Context, opts: Mapping[str, Any]
    ) -> tuple[Any, ParameterSource]:
        """Return the value, and where it is from."""
        assert self.name is not None
        profile = _profile_of(ctx, opts)
        if opts.get(self.name) is None and profile:
            if self.name in profile:
                return profile[self.name], ParameterSource.DEFAULT_MAP
            if self.name in NAMES_A_CLUSTER:  # the environment may name another cluster
                return self.get_default(ctx), ParameterSource.DEFAULT
        return super().consume_value(ctx, opts)


def data_dir_option(command: F, kind: type[click.Option] = click.Option) -> F:
    """Add ``--data-dir``."""
    return click.option(
        "--data-dir",
        cls=kind,
        type=click.Path(path_type=Path, file_okay=False),
        default=DATA_DIR,
        show_default=True,
        callback=_use_keys_of,
        envvar=DATA_DIR_VARIABLE,
        show_envvar=True,
        help="Folder of a cluster on this machine.",
    )(command)


def cluster_options(command: F) -> F:
    """Add ``--zookeeper``, ``--data-dir``, and how to connect to brokers."""
    profile = click.option(
        "--profile",
        metavar="NAME",
        expose_value=False,
        help=f"Name of the cluster, see `profile add`.  [env var: {PROFILE_VARIABLE}]",
    )
    zookeeper = click.option(
        "--zookeeper",
        cls=_ClusterOption,
        metavar="HOST:PORT[/chroot]",
        envvar=ZOOKEEPER_VARIABLE,
        show_envvar=True,
        help="ZooKeeper of the cluster; several servers separated by commas.",
    )
    keys = click.option(
        "--keys",
        cls=_ClusterOption,
        type=click.Path(path_type=Path, file_okay=False),
        envvar=KEYS_VARIABLE,
        show_envvar=True,
        expose_value=False,
        callback=_use_keys,
        help="Folder with our key, for brokers on other machines; default: keys in --data-dir.",
    )
    command_config = click.option(
        "--command-config",
        cls=_ClusterOption,
        type=click.Path(path_type=Path, dir_okay=False),
        envvar=COMMAND_CONFIG_VARIABLE,
        show_envvar=True,
        expose_value=False,
        callback=_use_command_config,
        help="File of properties with which to connect to brokers, as Kafka's tools have it:"
        " security.protocol, ssl.*, sasl.*.",
    )
    return profile(zookeeper(command_config(keys(data_dir_option(command, _ClusterOption)))))


def pass_cluster(
    command: Callable[Concatenate[Cluster, P], R],
) -> Callable[P, R]:
    """Add the options of the cluster; the command's first argument is the ``Cluster``.

    The object of the context, if it is a function, is an ``OpenZooKeeper`` to use instead of
    ``open_session``; that of a job is its Spark session.
    """

    @cluster_options
    @functools.wraps(command)
    def with_cluster(*args: P.args, **kwargs: P.kwargs) -> R:
        context = click.get_current_context()
        zookeeper, data_dir = kwargs.pop("zookeeper"), kwargs.pop("data_dir")
        assert isinstance(zookeeper, str | None)
        assert isinstance(data_dir, Path)
        locate = functools.partial(find_cluster, context, zookeeper, data_dir)
        bootstrap = _bootstrap(context, kwargs.pop("bootstrap_server", None))
        opened = context.obj if callable(context.obj) else open_session
        return command(Cluster(locate, opened, bootstrap), *args, **kwargs)

    return with_cluster


def bootstrap_option(command: F) -> F:
    """Add ``--bootstrap-server`` to a command with ``pass_cluster``."""
    return click.option(
        "--bootstrap-server",
        cls=_ClusterOption,
        metavar="HOST:PORT[,…]",
        envvar=BOOTSTRAP_SERVER_VARIABLE,
        show_envvar=True,
        help="Brokers to ask, one after the other; then ZooKeeper is not needed.",
    )(command)


def _bootstrap(context: click.Context, text: object) -> list[EndPoint]:
    """Parse ``--bootstrap-server``; another option counts more than the environment."""
    if not isinstance(text, str) or not text:
        return []
    source = {
        name: context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        for name in ("bootstrap_server", "zookeeper", "data_dir")
    }
    if not source.pop("bootstrap_server") and any(source.values()):
        return []
    brokers = []
    for server in text.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
            raise click.UsageError(f"--bootstrap-server must be HOST:PORT[,…], not {text!r}")
        brokers.append(EndPoint("", host.removeprefix("[").removesuffix("]"), int(port)))
    return brokers


def zookeeper_address(zookeeper: str | None, data_dir: Path) -> str:
    """Return the ZooKeeper address for the options of the current command; see ``find_cluster``."""
    return find_cluster(click.get_current_context(), zookeeper, data_dir).zookeeper_address


def find_cluster(context: click.Context, zookeeper: str | None, data_dir: Path) -> ClusterLocation:
    """Locate the cluster that the options ``--zookeeper`` and ``--data-dir`` of ``context`` name.

    This process logs in to its ZooKeeper with the secret that the environment names, or with that
    of the data directory. Raises ``ClusterNotFoundError``, ``BadDataError`` for a bad
    ``cluster.json``, and ``RegentError`` for a bad secret.
    """
    found = _located(context, zookeeper, data_dir)
    profile = context.meta.get(_PROFILE, {})
    if named := profile.get("zookeeper_secret") or os.environ.get(SECRET_VARIABLE):
        log_in(found.zookeeper_address, read_login(Path(named)))
    elif found.data_dir is not None:
        log_in_of(found.data_dir, found.zookeeper_address)
    return found


def named_by_zookeeper(context: click.Context) -> bool:
    """Whether the options of a command name its cluster by ZooKeeper, not by a folder."""
    return bool(context.params["zookeeper"]) and (
        _is_given(context, "zookeeper") or not _is_given(context, "data_dir")
    )


def as_named(cluster: Cluster, *, with_settings: bool = False) -> Cluster:
    """Return a cluster that is read as the options of the current command name it.

    Its brokers are asked where they alone are named; ``with_settings``: also for all settings of
    topics, which is 30 times as much.
    """
    if not named_by_brokers(click.get_current_context(), cluster):
        cluster.bootstrap = ()
        return cluster
    from regent.client.answered_tree import read_from_brokers

    return read_from_brokers(cluster, with_settings=with_settings)


def named_by_brokers(context: click.Context, cluster: Cluster) -> bool:
    """Whether there are brokers only: of a profile that has more, ZooKeeper tells more."""
    if _is_given(context, "bootstrap_server"):
        return bool(cluster.bootstrap)
    has_folder = context.get_parameter_source("data_dir") is not ParameterSource.DEFAULT
    return bool(cluster.bootstrap) and not context.params["zookeeper"] and not has_folder


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _located(context: click.Context, zookeeper: str | None, data_dir: Path) -> ClusterLocation:
    profile = context.meta.get(_PROFILE, {})
    if profile and not zookeeper and "data_dir" not in profile:
        raise ClusterNotFoundError(
            f"the profile {profile['name']} has no ZooKeeper, and this command needs it: remove"
            " the profile, and add it with --zookeeper"
        )
    if not zookeeper and _names_only_brokers(context):
        raise ClusterNotFoundError(
            f"{BOOTSTRAP_SERVER_VARIABLE} has no ZooKeeper, and this command needs it: name the"
            " cluster with --zookeeper or --data-dir"
        )
    names_data_dir = _is_given(context, "data_dir")
    if zookeeper and (_is_given(context, "zookeeper") or not names_data_dir):
        try:
            file = ClusterFile.read(data_dir / CLUSTER_FILE)
        except RegentError:
            if names_data_dir:
                raise
            file = None
        is_same = file is not None and (names_data_dir or file.zookeeper == zookeeper)
        return ClusterLocation(zookeeper, data_dir if is_same else None)
    return ClusterLocation(local_cluster(data_dir).zookeeper, data_dir)


def _names_only_brokers(context: click.Context) -> bool:
    """Whether nothing but brokers in the environment names the cluster of a command."""
    is_default = context.get_parameter_source("data_dir") is ParameterSource.DEFAULT
    asks_brokers = "bootstrap_server" in context.params or bool(context.meta.get(_PROFILE))
    return is_default and not asks_brokers and bool(os.environ.get(BOOTSTRAP_SERVER_VARIABLE))


def local_cluster(data_dir: Path) -> ClusterFile:
    """Return the ``cluster.json`` of a folder; raises ``ClusterNotFoundError`` without one."""
    file = ClusterFile.read(data_dir / CLUSTER_FILE)
    if file is None:
        raise ClusterNotFoundError(
            f"no cluster in {data_dir}: there is no {CLUSTER_FILE}; start one with `{program()}"
            f" cluster --data-dir {shlex.quote(str(data_dir))}`, or name one with --data-dir or"
            " --zookeeper"
        )
    return file
