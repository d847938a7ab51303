"""``status``: whether the cluster is healthy, as one screen and an exit code."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click

from regent.cli.brokers import broker_json
from regent.cli.controller import controller_json
from regent.cli.output import Output, output_option, print_facts, print_json
from regent.cli.watching import watch_option, watched
from regent.client.answered_tree import NOT_TOLD
from regent.client.cluster_connection import (
    Cluster,
    ClusterNotFoundError,
    as_named,
    bootstrap_option,
    pass_cluster,
)
from regent.client.command_config import SECURITY_OF_COMMAND
from regent.client.group_states import group_states
from regent.client.health import Troubles
from regent.client.log_sizes import catching_up
from regent.client.missing_brokers import EndsOfBrokers
from regent.client.partitions import Topics, read_partitions
from regent.client.wording import counted, listed
from regent.cluster.cluster_file import ClusterFile
from regent.core.errors import (
    BadDataError,
)
from regent.core.model import (
    NO_CONTROLLER,
    BrokerId,
    BrokerRegistration,
    is_our_software,
)
from regent.core.protocol.controller import DescribeControllerResponse
from regent.zk.stores.admin_store import ActiveController, ZkAdminStore

_CONTROLLER_LIMIT_S = 3.0
_PLACEMENT_LIMIT_S = 1.0
_GROUPS_LIMIT_S = 1.0
_NAMED_PARTITIONS = 5
_PRINTED_LINES = 10  # of each kind


@dataclass(slots=True)
class Health:
    """The content of ``status``; the fields are those of its JSON.

    The cluster is healthy when there are no ``reasons``; ``warnings`` may disappear by themselves.
    ``zookeeper`` None: brokers were asked, and do not know what is ``not_told``.
    """

    zookeeper: dict[str, object] | None
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
    not_told: list[str] = field(default_factory=list)

    @property
    def is_read(self) -> bool:
        """Whether ZooKeeper, or a broker, has told all of it."""
        return bool(self.not_told) if self.zookeeper is None else bool(self.zookeeper["connected"])


@click.command()
@watch_option
@output_option
@bootstrap_option
@pass_cluster
@click.pass_context
def status(context: click.Context, cluster: Cluster, /, output: str, watch_s: float | None) -> None:
    """Show whether the cluster is healthy; the exit code is 1 when it is not.

    It is unhealthy without ZooKeeper or a controller, with partitions that have no leader or
    replicas out of sync, with a missing broker of the local cluster, with a broker that does not
    answer the controller, or with a controller that does not answer.

    With --bootstrap-server brokers answer for ZooKeeper, and a line says what they do not know.
    """
    cluster = as_named(cluster)
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
        if health.is_read:
            _print(health)
        _say("catching up", [str(row["message"]) for row in health.catching_up])
        _say("warning", health.warnings)
        _say("not known", health.not_told)
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
    address = cluster.zookeeper_address
    zookeeper: dict[str, object] = {"address": address, "connected": False}
    health = Health(None if cluster.bootstrap else zookeeper)
    file = cluster.file
    try:
        with cluster.admin() as admin:
            _examine_cluster(admin, cluster.data_dir, file, health)
            if not admin.tells_all:
                health.not_told.insert(0, NOT_TOLD)
    except ClusterNotFoundError as error:
        return Health(health.zookeeper, [*health.reasons, str(error)])
    zookeeper["connected"] = True
    health.placement = Troubles(health.reasons, health.warnings).examine_placement(file)
    return health


def _examine_cluster(
    admin: ZkAdminStore, data_dir: Path | None, file: ClusterFile | None, health: Health
) -> None:
    troubles = Troubles(health.reasons, health.warnings, health.not_told)
    controller, described = troubles.find_controller(admin, data_dir), None
    with troubles.bad_data_is_a_reason():
        _show_brokers(admin, controller, health)
        described = _ask_controller(admin, troubles, health)
    found = Topics({}, (), ())
    with troubles.bad_data_is_a_reason():
        found = _examine_partitions(admin, described, troubles, health)
    troubles.examine(admin, found, described)
    partitions = found.partitions
    with troubles.bad_data_is_a_reason():
        assigned = {replica for p in partitions for replica in p.assignment.replicas}
        _examine_missing(admin, file, assigned, described, troubles, health)
    with troubles.bad_data_is_a_reason():
        registered = admin.read_brokers().values()
        live = [broker for broker in registered if isinstance(broker, BrokerRegistration)]
        of_live = {broker.info.broker_id: broker for broker in live}
        health.slow_brokers = troubles.examine_answers(of_live, described)
        health.catching_up = [
            {**row._asdict(), "seconds_left": row.seconds_left, "message": row.sentence()}
            for row in catching_up(partitions, of_live)
        ]
        endpoints = [e for b in live if (e := SECURITY_OF_COMMAND.endpoint_of(b.info)) is not None]
        health.groups = group_states(endpoints, _GROUPS_LIMIT_S)


def _show_brokers(admin: ZkAdminStore, controller: ActiveController | None, health: Health) -> None:
    if controller is not None:
        health.controller = controller_json(controller)
    controller_id = NO_CONTROLLER if controller is None else controller.broker_id
    for registration in admin.read_brokers().values():
        if isinstance(registration, BrokerRegistration):
            health.brokers.append(broker_json(registration, controller_id))
        else:
            health.reasons.append(str(registration))


def _examine_missing(
    admin: ZkAdminStore,
    file: ClusterFile | None,
    assigned: Collection[BrokerId],
    described: DescribeControllerResponse | None,
    troubles: Troubles,
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
    troubles.note_ends(ends, {*registered, *health.missing_brokers})


def _ask_controller(
    admin: ZkAdminStore, troubles: Troubles, health: Health
) -> DescribeControllerResponse | None:
    """Ask the controller for its status; None when it does not answer."""
    if health.controller is None:
        return None
    from regent.cli.remote_actors import controller_of

    with controller_of(admin) as controller:
        answer = troubles.ask_controller(controller)
    if answer is not None:
        health.event_queue_size = answer.event_queue_size
        software = dict(answer.software)
        for broker in health.brokers:
            if not is_our_software(str(broker["software"])):
                broker["software"] = software.get(int(str(broker["id"])), broker["software"])
        health.unanswered = [row._asdict() for row in answer.unanswered]
    return answer


def _named(brokers: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the ids of brokers; what each is, if they differ or are not ours."""
    software = {str(broker["software"]) for broker in brokers}
    is_plain = len(software) == 1 and all(map(is_our_software, software))
    return [str(b["id"]) if is_plain else f"{b['id']} ({b['software']})" for b in brokers]


def _examine_partitions(
    admin: ZkAdminStore,
    described: DescribeControllerResponse | None,
    troubles: Troubles,
    health: Health,
) -> Topics:
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
    waiting = troubles.examine_deletions(admin, deleted & set(names), described)
    health.topics_waiting_for_deletion = waiting
    health.partitions = len(found.partitions)
    health.partitions_being_reassigned = (
        sum(partition.assignment.is_being_reassigned for partition in found.partitions)
        if described is None
        else described.reassigning_partitions
    )
    health.leaderless_partitions = len(leaderless)
    health.under_replicated_partitions = len(behind)
    for partitions, what in ((leaderless, "without a leader"), (behind, "under-replicated")):
        if partitions:
            named = listed(partitions, _NAMED_PARTITIONS)
            health.reasons.append(f"{counted(len(partitions), 'partition')} {what}: {named}")
    return found


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
            ("zookeeper", "not asked" if health.zookeeper is None else health.zookeeper["address"]),
            ("controller", active),
            ("events queued", health.event_queue_size),
            ("brokers", listed(_named(health.brokers), 20) or "none"),
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
