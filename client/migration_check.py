"""What stands in the way of a move from Kafka's brokers to Regent's, for ``migrate check``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from regent.client.broker_request import NoAnswerError, ask_broker, failed_log_dirs
from regent.client.command_config import SECURITY_OF_COMMAND
from regent.client.partitions import DescribedPartition, Topics, read_partitions
from regent.client.wording import counted, listed
from regent.config.kafka_properties import read_kafka_properties
from regent.config.kafka_treatments import REFUSED, TAKEN
from regent.config.settings import DYNAMIC_LISTENER_SETTINGS, KAFKA_SETTINGS, Settings
from regent.config.settings_file import load_settings
from regent.core.admin.config_descriptions import ConfigSource
from regent.core.admin.config_problems import (
    base_name,
    is_password,
    unusable_in_broker,
    unusable_in_quota,
    unusable_in_topic,
)
from regent.core.errors import BadDataError, Errors, RegentError, StorageError
from regent.core.model import BrokerId, BrokerInfo
from regent.core.protocol.messages.api_versions import ApiVersionsRequest
from regent.core.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from regent.core.security.scram import ScramMechanism, parsed_credential
from regent.core.security.session import USER_TYPE, KafkaPrincipal, SecurityProtocol, Session
from regent.storage.log.log_loader import logs_of_old_formats
from regent.storage.log_directory import LogDirectory
from regent.transport.kafka.api import KafkaApiKey
from regent.transport.kafka.kafka_releases import OLDEST_RELEASE, ApiVersionsAnswer, release_of
from regent.zk.client.zookeeper_client import split_address
from regent.zk.codecs.admin_znodes import DEFAULT_ENTITY_NAME
from regent.zk.stores.admin_store import ZkAdminStore

_ANSWER_S: Final = 5.0
_BROKER: Final = 4  # the resource type of a broker
_NAMED: Final = 5
_FORMAT: Final = "message.format.version"
_MIN_ISR: Final = "min.insync.replicas"


class OptionsOfBroker(NamedTuple):
    """The options with which the brokers of the files will run; they count before the files."""

    broker_id: BrokerId | None
    config: Path | None
    settings: Mapping[str, Mapping[str, Any]]  # by table and name


UsableFiles = Mapping[Path, tuple[BrokerId, Settings]]
"""What the files of Kafka's brokers say that can be used."""


class Obstacles:
    """What is in the way, in the sequence in which it was found: a check, and one line.

    ``notes`` are what could not be examined.
    """

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        self.notes: list[str] = []

    def add(self, check: str, *lines: str) -> None:
        """Add what a check has found."""
        self.found += [(check, line) for line in lines]


def obstacles_of(
    admin: ZkAdminStore, address: str, files: Sequence[Path], options: OptionsOfBroker
) -> Obstacles:
    """Return each obstacle as the name of its check and one line with the remedy.

    ``address`` is that of the ZooKeeper that is examined, ``files`` are those of Kafka's brokers,
    for ``regent broker --kafka-properties``. A check that cannot read its znodes is an obstacle.
    Raises ``NoClusterError``.
    """
    admin.topics.check_cluster()
    found = Obstacles()
    usable = _check_files(files, address, options, found)
    ids = {broker_id for broker_id, _ in usable.values()}
    # Of the in-sync replicas, for topics that do not say it.
    minima = {1, *(settings.log.min_insync_replicas for _, settings in usable.values())}
    checks: Mapping[str, Callable[[], Iterable[str]]] = {
        "kraft": lambda: _of_kraft(admin),
        "brokers": lambda: _of_brokers(admin, ids, minima),
        "broker settings": lambda: _of_broker_configs(admin),
        "topics": lambda: _of_topics(admin),
        "partitions": lambda: _of_partitions(admin, max(minima)),
        "logs": lambda: _of_logs(admin, usable, found),
        "users": lambda: _of_users(admin),
        "tokens": lambda: _of_tokens(admin, usable),
        "zookeeper": lambda: [f"{line}: allow it" for line in admin.read_denied()],
    }
    for name, check in checks.items():
        try:
            found.add(name, *check())
        except BadDataError as error:
            found.add(name, f"{error}: correct it")
    return found


def _check_files(
    files: Sequence[Path], address: str, options: OptionsOfBroker, found: Obstacles
) -> UsableFiles:
    """Check files of Kafka's; return what the usable ones say."""
    usable: dict[Path, tuple[BrokerId, Settings]] = {}
    for path in files:
        try:
            read = read_kafka_properties(path, options.settings, broker_id=options.broker_id)
            settings = load_settings(
                options.config, options.settings, kafka_properties=(path, read.tables)
            )
            found.add("settings", *_of_address(path, read.zookeeper, address, found.notes))
            found.add("settings", *_of_login(path, read.broker_id, settings))
        except RegentError as error:
            found.add("settings", *str(error).splitlines())
            continue
        if any(read.broker_id == broker_id for broker_id, _ in usable.values()):
            found.add(
                "settings",
                f"{path}: broker.id={read.broker_id} is that of another file: each broker needs"
                " its own",
            )
        usable[path] = read.broker_id, settings
    return usable


def _of_address(path: Path, own: str, examined: str, notes: list[str]) -> Iterator[str]:
    """Name a ``zookeeper.connect`` of another cluster than the one that is examined."""
    problem = f"{path}: zookeeper.connect={own} "
    try:
        servers, chroot = split_address(own)
    except ValueError:
        yield f"{problem}is no address: write HOST:PORT[,HOST:PORT…][/chroot]"
        return
    servers_examined, chroot_examined = split_address(examined)
    if chroot != chroot_examined:
        yield (
            f"{problem}names another cluster than the one that is examined ({examined}): the chroot"
            " differs: correct the file, or --zookeeper of this command"
        )
    elif servers.isdisjoint(servers_examined):
        notes.append(
            f"{problem}names no server of {examined}, where the cluster was examined: this is"
            " right only if they are one ensemble"
        )


def _of_login(path: Path, broker_id: BrokerId, settings: Settings) -> Iterator[str]:
    """Name a login of a broker at others that is the name of another broker.

    Raises ``RegentError``.
    """
    from regent.transport.kafka.tls import user_of_broker

    for endpoint in (settings.listeners.inter_broker, settings.listeners.control_plane):
        if endpoint is None:
            continue
        protocol = SecurityProtocol(endpoint.security_protocol)
        own = settings.of_listener(endpoint.listener)
        user = ""
        if protocol.has_sasl:
            user = own.sasl.sasl_inter_broker_user
        elif protocol.has_tls and own.tls.ssl_client_auth != "none":
            user = user_of_broker(own.tls)
        if not Session("", KafkaPrincipal(USER_TYPE, user)).may_act_as(broker_id):
            yield (
                f"{path}: broker {broker_id} connects to others as the user {user}, and a user"
                f" broker-N may be broker N only: give it the user broker-{broker_id} or one with"
                " another kind of name"
            )


def _of_kraft(admin: ZkAdminStore) -> Iterator[str]:
    if admin.has_migration():
        yield (
            "/migration is there: the cluster moves to KRaft, or has begun to: end that first, by"
            " the way back in Kafka's documentation"
        )
    epoch = admin.read_kraft_controller_epoch()
    if epoch is not None:
        yield (
            f"the controller is one of KRaft (epoch {epoch}): go back to a controller with"
            " ZooKeeper first"
        )
    elif admin.read_controller() is None:
        yield "there is no controller: start the brokers, and wait until one is elected"


# --- brokers ---


def _of_brokers(admin: ZkAdminStore, known: set[BrokerId], minima: set[int]) -> Iterator[str]:
    registrations = admin.read_brokers()
    if not registrations:
        yield "no broker is registered, so versions and settings are unknown: start the brokers"
    for registration in registrations.values():
        if isinstance(registration, BadDataError):
            yield f"{registration}: restart the broker"
        elif registration.info.is_of_kafka:
            is_known = registration.info.broker_id in known
            yield from _of_broker(registration.info, minima, is_file_given=is_known)
    known_ones = [r.info for r in registrations.values() if not isinstance(r, BadDataError)]
    yield from _of_listeners(known_ones)


def _of_listeners(brokers: Sequence[BrokerInfo]) -> Iterator[str]:
    """Brokers find each other by the name of a listener, so that all must have one name."""
    names = {info.broker_id: {e.listener for e in info.endpoints} for info in brokers}
    if names and not set.intersection(*names.values()):
        each = [f"broker {b} has {' and '.join(sorted(n)) or 'none'}" for b, n in names.items()]
        yield (
            f"the brokers have no name of a listener in common ({_named(each)}): give all the"
            " listener of the same inter.broker.listener.name first"
        )


def _of_broker(info: BrokerInfo, minima: set[int], *, is_file_given: bool) -> Iterator[str]:
    """Ask a broker of Kafka for its version, and for the settings that it has."""
    name, endpoint = f"broker {info.broker_id}", SECURITY_OF_COMMAND.endpoint_of(info)
    if endpoint is None:
        yield (
            f"{name} has no listener for {SECURITY_OF_COMMAND.protocol.value}: name its protocol"
            " with --command-config"
        )
        return
    try:
        answer = ask_broker(
            *(
                endpoint,
                (KafkaApiKey.API_VERSIONS, 0),
                ApiVersionsRequest(),
                ApiVersionsAnswer,
                _ANSWER_S,
            )
        )
        if not release_of(answer.versions):
            yield (
                f"{name} is older than Kafka {OLDEST_RELEASE}, which the controller cannot rule:"
                " upgrade it first"
            )
            return
        resource = DescribeConfigsResource(
            resource_type=_BROKER, resource_name=str(info.broker_id), configuration_keys=None
        )
        described = ask_broker(
            *(endpoint, (KafkaApiKey.DESCRIBE_CONFIGS, 1)),
            DescribeConfigsRequest(resources=(resource,)),
            *(DescribeConfigsResponse, _ANSWER_S),
        )
    except (NoAnswerError, RegentError) as error:
        yield f"{name} cannot be asked: {error}: start it, or correct --command-config"
        return
    for path in failed_log_dirs(info, _ANSWER_S):
        yield f"{name}: log directory {path} has failed: replace its disk, and restart it first"
    (result,) = described.results
    if result.error_code:
        yield (
            f"{name} does not show its settings ({Errors(result.error_code).name}): use a user in"
            " --command-config that may describe the cluster's configuration"
        )
    yield from _of_rows(name, result, minima, is_file_given=is_file_given)


def _of_rows(
    name: str, result: DescribeConfigsResult, minima: set[int], *, is_file_given: bool
) -> Iterator[str]:
    """Examine the settings that a broker shows, and note its ``min.insync.replicas``."""
    values = {row.name: row.value for row in result.configs if row.value is not None}
    if values.get(_MIN_ISR, "").isdecimal():
        minima.add(int(values[_MIN_ISR]))
    given = {
        row.name: row.value
        for row in result.configs
        if row.value is not None and row.config_source == ConfigSource.STATIC_BROKER
    }
    for problem in () if is_file_given else settings_problems(given):
        yield f"{name}: {problem}"


def settings_problems(given: Mapping[str, str]) -> Iterator[str]:
    """Yield why settings of a broker of Kafka cannot be honoured."""
    for name, value in sorted(given.items()):
        refusal, entry = REFUSED.get(name), TAKEN.get(name)
        if refusal is not None and not refusal.allows(value):
            yield f"{name}={value} cannot be honoured: {refusal.remedy}"
        elif refusal is None and entry is not None:
            problem = entry[1].problem(entry[1].parsed(value))
            if problem is not None and value:
                yield f"{name} {problem}"


def _of_broker_configs(admin: ZkAdminStore) -> Iterator[str]:
    for name, config in admin.configs.read_broker_configs(sorted(admin.read_brokers())).items():
        if isinstance(config, BadDataError):
            yield f"{config}: correct it"
            continue
        of_all = name == DEFAULT_ENTITY_NAME
        whose = "all brokers" if of_all else f"broker {name}"
        problems = unusable_in_broker(config, KAFKA_SETTINGS, of_all=of_all)
        for setting, problem in sorted(problems.items()):
            yield _remove(f"the setting {setting} of {whose} in ZooKeeper {problem}", "brokers")
        for setting, value in sorted(config.items()):
            refusal = REFUSED.get(setting)
            if refusal is not None and setting not in problems and not refusal.allows(value):
                what = f"the setting {setting}={value} of {whose} in ZooKeeper"
                yield _remove(f"{what} cannot be honoured ({refusal.remedy})", "brokers")
            is_followed = base_name(setting).replace(".", "_") in DYNAMIC_LISTENER_SETTINGS
            if setting not in problems and is_password(setting, KAFKA_SETTINGS) and not is_followed:
                what = f"the password {setting} of {whose} in ZooKeeper"
                yield _remove(
                    f"{what} cannot be followed (write it in the broker's file)", "brokers"
                )


def _remove(problem: str, kind: str) -> str:
    return f"{problem}: remove it with kafka-configs.sh --entity-type {kind} --delete-config"


# --- topics ---


def _of_topics(admin: ZkAdminStore) -> Iterator[str]:
    names = admin.topics.read_topic_names()
    for topic, config in admin.configs.read_topic_configs(names).items():
        if isinstance(config, BadDataError):
            yield f"{config}: correct it"
            continue
        for setting, problem in sorted(unusable_in_topic(config).items()):
            yield _remove(f"topic {topic}: the setting {setting} {problem}", "topics")
        if not REFUSED["log.message.format.version"].allows(config.get(_FORMAT, "3.0")):
            yield (
                f"topic {topic} has {_FORMAT}={config[_FORMAT]}: its logs may have messages of"
                " format 0 or 1, which are not used: copy its records to a topic without it"
            )
    deleted = sorted(admin.topics.read_topics_being_deleted())
    if deleted:
        yield f"{counted(len(deleted), 'topic')} being deleted: {_named(deleted)}: wait for the end"


def _of_partitions(admin: ZkAdminStore, min_isr: int) -> Iterator[str]:
    live = {b for b, r in admin.read_brokers().items() if not isinstance(r, BadDataError)}
    deleted = admin.topics.read_topics_being_deleted()
    names = [name for name in admin.topics.read_topic_names() if name not in deleted]
    topics = read_partitions(admin, names)
    yield from (f"{reason}: correct it" for reason in topics.unreadable)
    yield from _of_replicas(topics, live)
    yield from _of_min_isr(admin, topics, min_isr)
    if moves := admin.read_pending_reassignments():
        yield (
            f"{counted(len(moves), 'partition')} in /admin/reassign_partitions:"
            f" {_named(sorted(moves))}: wait for the end of the reassignment"
        )


def _of_replicas(topics: Topics, live: set[BrokerId]) -> Iterator[str]:
    offline = [p for p in topics.partitions if p.is_unavailable(live)]
    behind = [p for p in topics.partitions if p.is_under_replicated and p not in offline]
    for partitions, what, remedy in (
        (offline, "without a leader", "start the brokers that have their replicas"),
        (behind, "under-replicated", "wait until all replicas are in sync"),
        (
            [p for p in topics.partitions if p.assignment.is_being_reassigned],
            "being reassigned",
            "wait for the end of the reassignment, or cancel it",
        ),
        (
            [p for p in topics.partitions if len(p.assignment.target_replicas) == 1],
            "with one replica",
            "add another, or accept that they are unavailable while their broker is replaced",
        ),
    ):
        if partitions:
            named = _named([p.topic_partition for p in _sorted(partitions)])
            yield f"{counted(len(partitions), 'partition')} {what}: {named}: {remedy}"


def _of_min_isr(admin: ZkAdminStore, topics: Topics, default: int) -> Iterator[str]:
    """Name the partitions that take no acks=all records while one of their brokers is away."""
    minima = {}
    for topic, config in admin.configs.read_topic_configs(
        sorted({p.topic_partition.topic for p in topics.partitions})
    ).items():
        text = "" if isinstance(config, BadDataError) else config.get(_MIN_ISR, "")
        minima[topic] = int(text) if text.isdecimal() else default
    stopping = [
        p
        for p in topics.partitions
        if 1 < len(p.assignment.target_replicas) <= minima.get(p.topic_partition.topic, default)
    ]
    if stopping:
        named = _named([p.topic_partition for p in _sorted(stopping)])
        yield (
            f"{counted(len(stopping), 'partition')} with as many replicas as {_MIN_ISR}: {named}:"
            f" lower {_MIN_ISR}, or add a replica, else producers with acks=all wait while a broker"
            " is replaced"
        )


def _sorted(partitions: list[DescribedPartition]) -> list[DescribedPartition]:
    return sorted(partitions, key=lambda p: p.topic_partition)


def _named(names: Sequence[object]) -> str:
    return listed(names, _NAMED)


# --- logs ---


def _of_logs(admin: ZkAdminStore, usable: UsableFiles, found: Obstacles) -> Iterator[str]:
    """Name logs with messages of old formats; note the brokers whose logs are not examined."""
    registered = [r for r in admin.read_brokers().values() if not isinstance(r, BadDataError)]
    unseen = {r.info.broker_id for r in registered if r.info.is_of_kafka}
    unseen -= {broker_id for broker_id, _ in usable.values()}
    for broker_id, settings in usable.values():
        for directory in map(Path, settings.log.log_dirs.split(",")):
            try:
                owner = LogDirectory(directory).read_meta_properties()
                old = logs_of_old_formats(directory) if owner in (None, str(broker_id)) else None
            except (OSError, StorageError):
                old = None
            if old is None:
                unseen.add(broker_id)
            elif old:
                yield (
                    f"broker {broker_id}: {counted(len(old), 'log')} with messages of format 0 or"
                    f" 1, which are not used: {_named(old)}: copy the records to new topics"
                )
    if unseen:
        found.notes.append(
            "messages of format 0 or 1 are not used, and the logs of these brokers were not"
            f" examined for them: {_named(sorted(unseen))}; run this on their machines, with"
            " --kafka-properties, as a user who may read the logs"
        )


# --- users ---


def _of_users(admin: ZkAdminStore) -> Iterator[str]:
    admin.configs.check_listed()
    for path, config in admin.configs.read_client_quotas().items():
        for quota, problem in sorted(unusable_in_quota(path, config).items()):
            yield f"/config/{path}: {quota} {problem}: correct it with kafka-configs.sh"
        for mechanism in ScramMechanism:
            try:
                if (text := config.get(mechanism.value)) is not None:
                    parsed_credential(mechanism, text)
            except BadDataError as error:
                yield f"/config/{path}: {error}: set the password of the user again"
    for pattern in admin.read_damaged_acls():
        yield f"the ACLs of {pattern} cannot be read: remove them, and add them again"


def _of_tokens(admin: ZkAdminStore, usable: UsableFiles) -> Iterator[str]:
    """Name the files of brokers at which users of delegation tokens could not log in."""
    count = admin.count_delegation_tokens()
    for path, (_, settings) in usable.items() if count else ():
        if not settings.delegation_tokens.delegation_token_secret_key_file:
            yield (
                f"{path} has no delegation.token.secret.key, and the cluster has"
                f" {counted(count, 'delegation token')}: write the key of the other brokers in"
                " it, else their users cannot log in there"
            )
