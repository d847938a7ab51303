"""``status``: whether the cluster is healthy, as one screen and an exit code."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click

from regent.cli.brokers import broker_json
from regent.cli.controller import controller_json
from regent.cli.output import Output, output_option, print_facts, print_json
from regent.cli.placement import placement_status
from regent.cli.watching import watch_option, watched
from regent.client.broker_answers import (
    answers_and_failures,
    silence_of,
    warnings_of,
    warnings_of_kafka,
)
from regent.client.cluster_connection import Cluster, ClusterNotFoundError, pass_cluster
from regent.client.command_config import SECURITY_OF_COMMAND
from regent.client.deletion_obstacles import deletion_obstacles
from regent.client.group_states import group_states
from regent.client.log_sizes import catching_up
from regent.client.missing_brokers import EndsOfBrokers, remedy_of_restless, restless_brokers
from regent.client.partitions import DescribedPartition, read_partitions
from regent.client.slow_brokers import remedy_of_slow, slow_brokers
from regent.client.wording import counted, listed
from regent.cluster.cluster_file import ClusterFile
from regent.config.command_line import program
from regent.config.settings import KAFKA_SETTINGS
from regent.core.admin.config_problems import (
    unusable_in_broker,
    unusable_in_quota,
    unusable_in_topic,
)
from regent.core.controller.quarantine import FAILURES_TO_QUARANTINE
from regent.core.errors import (
    BadDataError,
    ForeignDirectoryError,
    StorageError,
    UnreadableError,
)
from regent.core.model import (
    HELD_BY_KRAFT,
    MAX_CONTROLLER_EPOCH,
    NO_CONTROLLER,
    NO_CONTROLLER_EPOCH_LEFT,
    OUR_SOFTWARE,
    BrokerId,
    BrokerRegistration,
)
from regent.core.protocol.controller import DescribeControllerRequest, DescribeControllerResponse
from regent.storage.log_directory import LogDirectory
from regent.zk.codecs.admin_znodes import DEFAULT_ENTITY_NAME
from regent.zk.stores.admin_store import ZkAdminStore
from regent.zk.znodes import TopicPartitionStateZNode

_CONTROLLER_LIMIT_S = 3.0
_PLACEMENT_LIMIT_S = 1.0
_GROUPS_LIMIT_S = 1.0
_NAMED_PARTITIONS = 5
_PRINTED_LINES = 10  # of each kind


@dataclass(slots=True)
class Health:
    """The content of ``status``; the fields are those of its JSON.

    The cluster is healthy when there are no ``reasons``; ``warnings`` may disappear by themselves.
    """

    zookeeper: dict[str, object]
    reasons: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    controller: dict[str, object] | None = None
    event_queue_size: int | None = None
    unanswered: list[dict[str, object]] = field(default_factory=list)
    brokers: list[dict[str, object]] = field(default_factory=list)
    missing_brokers: list[int] = field(default_factory=list)
    missing: list[dict[str, object]] = field(default_factory=list)
    slow_brokers: list[int] = field(default_factory=list)
    catching_up: list[dict[str, object]] = field(default_factory=list)
    placement: dict[str, object] | None = None
    topics: int = 0
    topics_being_deleted: int = 0
    topics_waiting_for_deletion: list[dict[str, object]] = field(default_factory=list)
    partitions: int = 0
    partitions_being_reassigned: int = 0
    under_replicated_partitions: int = 0
    leaderless_partitions: int = 0
    groups: dict[str, int] | None = None


@click.command()
@watch_option
@output_option
@pass_cluster
@click.pass_context
def status(context: click.Context, cluster: Cluster, /, output: str, watch_s: float | None) -> None:
    """Show whether the cluster is healthy; the exit code is 1 when it is not.

    It is unhealthy without ZooKeeper or a controller, with partitions that have no leader or
    replicas out of sync, with a missing broker of the local cluster, with a broker that does not
    answer the controller, or with a controller that does not answer.
    """
    states: list[bool] = []
    watched(lambda: states.append(_show(cluster, output)), watch_s)
    if states and not states[-1]:
        context.exit(1)


def _show(cluster: Cluster, output: str) -> bool:
    """Print the state of the cluster; return whether it is healthy."""
    health = _examine(cluster)
    is_healthy = not health.reasons
    if output == Output.JSON:
        print_json({"healthy": is_healthy, **asdict(health)})
    else:
        if health.zookeeper["connected"]:
            _print(health)
        _say("catching up", [str(row["message"]) for row in health.catching_up])
        _say("warning", health.warnings)
        _say("unhealthy", health.reasons)
    return is_healthy


def examine_status(cluster: Cluster) -> dict[str, object]:
    """Return what ``status -o json`` prints."""
    health = _examine(cluster)
    return {"healthy": not health.reasons, **asdict(health)}


def _say(kind: str, messages: Sequence[str]) -> None:
    for message in messages[:_PRINTED_LINES]:
        click.echo(f"{kind}: {message}")
    if len(messages) > _PRINTED_LINES:
        click.echo(f"{kind}: … and {len(messages) - _PRINTED_LINES} more (-o json has them all)")


def _examine(cluster: Cluster) -> Health:
    health = Health({"address": cluster.zookeeper_address, "connected": False})
    file = cluster.file
    try:
        with cluster.admin() as admin:
            _examine_cluster(admin, cluster.data_dir, file, health)
    except ClusterNotFoundError as error:
        return Health(health.zookeeper, [*health.reasons, str(error)])
    health.zookeeper["connected"] = True
    if file is not None and file.placement is not None:
        placement = file.placement
        state, message = placement.state, placement.message
        if placement.endpoint:
            answer = placement_status(placement, timeout_s=_PLACEMENT_LIMIT_S)
            state, message = ("unreachable", "") if answer is None else answer
        health.placement = {"endpoint": placement.endpoint, "state": state, "message": message}
        if state == "unreachable":
            health.warnings.append("the placement service does not answer")
        elif state == "failed":
            health.warnings.append(f"the placement service failed: {message}")
    return health


def _examine_cluster(
    admin: ZkAdminStore, data_dir: Path | None, file: ClusterFile | None, health: Health
) -> None:
    health.reasons += admin.read_denied()
    if data_dir is not None:
        with _bad_data_is_a_reason(health):
            health.reasons += _replaced_data(admin, data_dir)
    described, controller_id = None, NO_CONTROLLER
    with _bad_data_is_a_reason(health):
        controller_id = _find_controller(admin, health)
    with _bad_data_is_a_reason(health):
        _examine_brokers(admin, controller_id, health)
        described = _examine_controller(admin, health)
    with _bad_data_is_a_reason(health):
        _examine_failures(admin, health)
    partitions: Sequence[DescribedPartition] = ()
    with _bad_data_is_a_reason(health):
        partitions = _examine_partitions(admin, described, health)
    with _bad_data_is_a_reason(health):
        assigned = {replica for p in partitions for replica in p.assignment.replicas}
        _examine_missing(admin, file, assigned, described, health)
    with _bad_data_is_a_reason(health):
        registered = admin.read_brokers().values()
        live = [broker for broker in registered if isinstance(broker, BrokerRegistration)]
        answers, failures = answers_and_failures(live)
        health.warnings += [*silence_of(failures), *warnings_of(answers)]
        health.warnings += warnings_of_kafka(row.info for row in live)
        of_live = {broker.info.broker_id: broker for broker in live}
        slow = list(slow_brokers(of_live, described, answers))
        health.slow_brokers = [broker_id for broker_id, _ in slow]
        health.warnings += [f"{warning}: {remedy_of_slow()}" for _, warning in slow]
        restless = restless_brokers(described)
        health.warnings += [f"{warning}: {remedy_of_restless()}" for _, warning in restless]
        health.catching_up = [
            {**row._asdict(), "seconds_left": row.seconds_left, "message": row.sentence()}
            for row in catching_up(partitions, of_live)
        ]
        endpoints = [e for b in live if (e := SECURITY_OF_COMMAND.endpoint_of(b.info)) is not None]
        health.groups = group_states(endpoints, _GROUPS_LIMIT_S)
        for path, quotas in admin.configs.read_client_quotas().items():
            health.warnings += _ignored(path, unusable_in_quota(path, quotas))


def _replaced_data(admin: ZkAdminStore, data_dir: Path) -> list[str]:
    """Return why the brokers of ``data_dir`` refuse ZooKeeper's data: one line, or none.

    The reason of the first broker is enough. Raises ``BadDataError`` when ``/cluster/id`` is
    unreadable.
    """
    cluster_id, zxid, mark = admin.read_cluster_id(), admin.latest_zxid(), admin.read_mark()
    for meta in sorted(data_dir.glob("broker-*/*/meta.properties")):
        directory = LogDirectory(meta.parent)
        try:
            directory.read_meta_properties()
            directory.check_cluster(cluster_id)
            directory.check_not_older(zxid, mark, directory.read_seen())
        except ForeignDirectoryError as error:
            return [str(error)]
        except StorageError:
            continue  # the broker reports that
    return []


@contextmanager
def _bad_data_is_a_reason(health: Health) -> Iterator[None]:
    """Skip the rest of the block when a znode is unreadable, and report that once."""
    try:
        yield
    except BadDataError as error:
        if str(error) not in health.reasons:
            health.reasons.append(str(error))


def _why_no_broker_is_elected(admin: ZkAdminStore) -> list[str]:
    try:
        epoch = admin.read_controller_epoch()
    except UnreadableError:
        return []  # reported already
    except BadDataError as error:
        return [str(error)]
    return [NO_CONTROLLER_EPOCH_LEFT] if epoch == MAX_CONTROLLER_EPOCH else []


def _find_controller(admin: ZkAdminStore, health: Health) -> BrokerId:
    controller = admin.read_controller()
    if controller is None:
        health.reasons += ["there is no controller", *_why_no_broker_is_elected(admin)]
        return NO_CONTROLLER
    if controller.is_of_kraft:
        health.reasons.append(HELD_BY_KRAFT.format(controller.broker_id))
        return NO_CONTROLLER
    health.controller = controller_json(controller)
    migrating = admin.read_migrating_controller()
    if migrating is not None:
        health.warnings.append(
            f"/migration says that the KRaft controller {migrating} has begun to migrate the"
            " cluster to KRaft; brokers rule the cluster as before: if it went back, delete"
            " /migration"
        )
    return controller.broker_id


def _examine_brokers(admin: ZkAdminStore, controller_id: BrokerId, health: Health) -> None:
    registrations = admin.read_brokers()
    if health.controller is not None and controller_id not in registrations:
        health.reasons.append(f"the controller, broker {controller_id}, is not registered")
    for registration in registrations.values():
        if isinstance(registration, BrokerRegistration):
            health.brokers.append(broker_json(registration, controller_id))
        else:
            health.reasons.append(str(registration))
    for name, config in admin.configs.read_broker_configs(sorted(registrations)).items():
        if isinstance(config, BadDataError):
            health.warnings.append(f"dynamic settings are ignored: {config}")
            continue
        of_all = name == DEFAULT_ENTITY_NAME
        unusable = unusable_in_broker(config, KAFKA_SETTINGS, of_all=of_all)
        health.warnings += _ignored("all brokers" if of_all else f"broker {name}", unusable)


def _examine_missing(
    admin: ZkAdminStore,
    file: ClusterFile | None,
    assigned: Collection[BrokerId],
    described: DescribeControllerResponse | None,
    health: Health,
) -> None:
    """Name the brokers that have replicas, or belong to the local cluster, but are not there."""
    supervised = {} if file is None else file.brokers
    registered = admin.read_brokers().keys()
    controller = admin.read_controller()
    elected_ms = 0 if controller is None else controller.elected_ms
    ends = EndsOfBrokers(admin.read_ends(), supervised, described, elected_ms)
    found = [ends.of(b) for b in sorted({*supervised, *assigned} - registered)]
    health.missing_brokers = [one.broker_id for one in found]
    health.missing = [asdict(one) for one in found]
    health.reasons[:0] = [one.sentence() for one in found]  # often the cause of the others
    known = {*registered, *health.missing_brokers}
    health.warnings += [one.sentence() for one in ends.recent_failures(known)]


def _examine_controller(admin: ZkAdminStore, health: Health) -> DescribeControllerResponse | None:
    """Ask the controller for its status; None when it does not answer."""
    if health.controller is None:
        return None
    from regent.cli.remote_actors import controller_of

    deadline = time.monotonic() + _CONTROLLER_LIMIT_S
    with controller_of(admin) as controller:
        request = DescribeControllerRequest()
        answer = controller.ask(request, DescribeControllerResponse, deadline=deadline)
        if answer is None:
            said = health.reasons if controller.is_silent else health.warnings
            said.append(controller.failure)
            return None
    health.event_queue_size = answer.event_queue_size
    software = dict(answer.software)
    for broker in health.brokers:
        broker["software"] = software.get(int(str(broker["id"])), broker["software"])
    health.reasons += [
        f"broker {row.broker_id}: {counted(row.number, 'replica')} offline:"
        f" {listed(row.some, total=row.number)}: see its log for the reason, then restart it"
        for row in answer.offline_replicas
        if software.get(row.broker_id, OUR_SOFTWARE) != OUR_SOFTWARE
    ]
    health.unanswered = [row._asdict() for row in answer.unanswered]
    health.reasons += [
        f"broker {row.broker_id} has left {row.request} unanswered for"
        f" {row.unanswered_ms / 1000:.1f} s{row.reason and ': '}{row.reason}"
        for row in answer.unanswered
    ]
    return answer


def _named(broker: Mapping[str, object]) -> str:
    """Return the id of a broker, and what it is if it is not one of ours."""
    is_ours = broker["software"] == OUR_SOFTWARE
    return f"{broker['id']}" if is_ours else f"{broker['id']} ({broker['software']})"


def _why_states_stay(described: DescribeControllerResponse | None, health: Health) -> list[str]:
    """Name the states that ZooKeeper lets the controller read but not change."""
    refused = () if described is None else described.refused_states
    paths = {p: TopicPartitionStateZNode.path(p) for p in refused}
    return [
        f"{partition}: ZooKeeper refuses to let the controller change {path};"
        f" to allow it: setAcl {path} world:anyone:cdrwa"
        for partition, path in paths.items()
        if not any(path in reason for reason in health.reasons)
    ][:_NAMED_PARTITIONS]


def _examine_failures(admin: ZkAdminStore, health: Health) -> None:
    """Report what is quarantined; an event that ended only one controller is a warning."""
    for failure in admin.read_failures():
        if failure.controllers >= FAILURES_TO_QUARANTINE:
            health.reasons.append(
                f"{failure.what} is quarantined because it ended {failure.controllers} controllers:"
                f" {failure.error}; correct it, then run: {program()} controller try-again"
            )
        else:
            health.warnings.append(
                f"{failure.what} ended a controller (broker {failure.broker_id}, epoch"
                f" {failure.controller_epoch}): {failure.error}"
            )


def _examine_partitions(
    admin: ZkAdminStore, described: DescribeControllerResponse | None, health: Health
) -> Sequence[DescribedPartition]:
    """Examine the topics that are not being deleted: those have no leaders any more."""
    registered = admin.read_brokers()
    live = {b for b, r in registered.items() if not isinstance(r, BadDataError)}
    deleted = admin.topics.read_topics_being_deleted()
    names = admin.topics.read_topic_names()
    found = read_partitions(admin, [name for name in names if name not in deleted])
    leaderless = [p.topic_partition for p in found.partitions if p.is_unavailable(live)]
    behind = [p.topic_partition for p in found.partitions if p.is_under_replicated]
    health.topics = len(names)
    health.topics_being_deleted = sum(name in deleted for name in names)
    health.topics_waiting_for_deletion = _waiting(admin, deleted & set(names), described)
    health.warnings += [
        f"topic {row['topic']} waits to be deleted: {row['reason']}"
        for row in health.topics_waiting_for_deletion
        if row["ineligible"]
    ]
    health.partitions = len(found.partitions)
    health.partitions_being_reassigned = (
        sum(partition.assignment.is_being_reassigned for partition in found.partitions)
        if described is None
        else described.reassigning_partitions
    )
    health.leaderless_partitions = len(leaderless)
    health.under_replicated_partitions = len(behind)
    health.reasons += found.unreadable
    health.reasons += _why_states_stay(described, health)
    for topic, config in admin.configs.read_topic_configs(names).items():
        if isinstance(config, BadDataError):
            health.warnings.append(
                f"the settings of topic {topic} cannot be read: {config}; brokers keep those that"
                " they know, or delete nothing"
            )
        else:
            health.warnings += _ignored(f"topic {topic}", unusable_in_topic(config))
    for partitions, what in ((leaderless, "without a leader"), (behind, "under-replicated")):
        if partitions:
            named = listed(partitions, _NAMED_PARTITIONS)
            health.reasons.append(f"{counted(len(partitions), 'partition')} {what}: {named}")
    health.warnings += _on_brokers_without_replicas(found.partitions, registered)
    waiting = [(p.topic_partition, p.waiting_reason(registered)) for p in found.partitions]
    health.reasons += [f"{partition} {reason}" for partition, reason in waiting if reason][
        :_NAMED_PARTITIONS
    ]
    return found.partitions


def _on_brokers_without_replicas(
    partitions: Sequence[DescribedPartition],
    registered: Mapping[BrokerId, BrokerRegistration | BadDataError],
) -> Iterator[str]:
    """Yield a line for each broker with ``no_replicas`` that has some, with the command."""
    for broker_id, registration in registered.items():
        if isinstance(registration, BadDataError) or not registration.info.no_replicas:
            continue
        placed = [p.topic_partition for p in partitions if broker_id in p.assignment.replicas]
        if placed:
            yield (
                f"broker {broker_id} has the setting no_replicas, and"
                f" {counted(len(placed), 'replica')}: {listed(placed, _NAMED_PARTITIONS)}: move"
                f" them: {program()} jobs plan decommission --from {broker_id}"
            )


def _ignored(owner: str, problems: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each setting in ZooKeeper that is not in force."""
    for name, problem in sorted(problems.items()):
        yield f"{owner}: the setting {name} {problem}; it is ignored"


def _waiting(
    admin: ZkAdminStore, topics: Collection[str], described: DescribeControllerResponse | None
) -> list[dict[str, object]]:
    ineligible = () if described is None else described.topics_ineligible_for_deletion
    obstacles = deletion_obstacles(admin, sorted(topics), described)
    return [
        {"topic": topic, "ineligible": topic in ineligible, "reason": reason}
        for topic, reason in obstacles.items()
    ]


def _placement_state(placement: Mapping[str, object] | None) -> str:
    if placement is None:
        return "none"
    return ": ".join(str(placement[key]) for key in ("state", "message") if placement[key])


def _print(health: Health) -> None:
    controller, placement = health.controller, health.placement
    active = "none"
    if controller is not None:
        active = f"broker {controller['broker_id']} (epoch {controller['controller_epoch']})"
    print_facts(
        [
            ("zookeeper", health.zookeeper["address"]),
            ("controller", active),
            ("events queued", health.event_queue_size),
            ("brokers", listed(list(map(_named, health.brokers)), 20) or "none"),
            *_host_facts(health.brokers),
            ("placement service", _placement_state(placement)),
            ("topics", health.topics),
            ("topics being deleted", health.topics_being_deleted),
            ("partitions", health.partitions),
            ("partitions being reassigned", health.partitions_being_reassigned),
            ("under-replicated partitions", health.under_replicated_partitions),
            ("leaderless partitions", health.leaderless_partitions),
            *_group_facts(health.groups),
            ("health", "unhealthy" if health.reasons else "ok"),
        ]
    )


def _host_facts(brokers: Sequence[Mapping[str, object]]) -> list[tuple[str, str]]:
    """Return the line about machines with their brokers; none if no broker names one."""
    on_host: dict[str, list[object]] = {}
    for broker in brokers:
        if broker["node_host"] is not None:
            on_host.setdefault(str(broker["node_host"]), []).append(broker["id"])
    each = (f"{host} ({listed(ids, 20)})" for host, ids in on_host.items())
    return [("hosts", ", ".join(each))] if on_host else []


def _group_facts(groups: Mapping[str, int] | None) -> list[tuple[str, str]]:
    """Return the line about groups; none without a group, or if a broker did not tell."""
    shown = ", ".join(f"{count} {state}" for state, count in (groups or {}).items() if count)
    return [("consumer groups", shown)] if shown else []
