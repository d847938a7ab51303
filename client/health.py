"""Why a cluster is unhealthy: the sentences of ``status``, which ``doctor`` and the console share.

Missing brokers, and partitions without leaders or out of sync, are not here: each of them knows
these, and says them in words of its own. ``doctor`` has its own words for what brokers say of
themselves and for deletions that wait, too.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from regent.client.broker_answers import (
    answers_and_failures,
    silence_of,
    warnings_of,
    warnings_of_kafka,
)
from regent.client.controller_ref import ControllerRef
from regent.client.deletion_obstacles import deletion_obstacles
from regent.client.missing_brokers import EndsOfBrokers, remedy_of_restless, restless_brokers
from regent.client.partitions import DescribedPartition, Topics
from regent.client.slow_brokers import remedy_of_slow, slow_brokers
from regent.client.wording import counted, listed
from regent.cluster.cluster_file import ClusterFile, PlacementEntry
from regent.config.cluster_location import numbered_folders
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
    NotToldError,
    StorageError,
    UnreadableError,
)
from regent.core.model import (
    HELD_BY_KRAFT,
    MAX_CONTROLLER_EPOCH,
    NO_CONTROLLER_EPOCH_LEFT,
    OUR_SOFTWARE,
    BrokerId,
    BrokerRegistration,
    is_our_software,
)
from regent.core.protocol.controller import DescribeControllerRequest, DescribeControllerResponse
from regent.core.protocol.placement import PlacementStatusRequest, PlacementStatusResponse
from regent.storage.log_directory import LogDirectory
from regent.zk.codecs.admin_znodes import DEFAULT_ENTITY_NAME
from regent.zk.stores.admin_store import ActiveController, ZkAdminStore
from regent.zk.znodes import TopicPartitionStateZNode

_CLIENT_ID: Final = "regent-cli"
_CONTROLLER_LIMIT_S: Final = 3.0
_PLACEMENT_LIMIT_S: Final = 1.0
_NAMED: Final = 5


@dataclass(slots=True)
class Troubles:
    """The sentences: a cluster with ``reasons`` is unhealthy, ``warnings`` may go by themselves.

    ``not_told`` is what brokers who were asked do not tell.
    """

    reasons: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    not_told: list[str] = field(default_factory=list)

    @contextmanager
    def bad_data_is_a_reason(self) -> Iterator[None]:
        """Skip the rest of the block when a znode is unreadable, and report that once."""
        try:
            yield
        except BadDataError as error:
            self._note(error)

    def _note(self, unreadable: BadDataError) -> None:
        if str(unreadable) not in self.reasons:
            self.reasons.append(str(unreadable))

    # --- the controller ---

    def find_controller(
        self, admin: ZkAdminStore, data_dir: Path | None
    ) -> ActiveController | None:
        """Return the controller; None if there is none, or no broker rules the cluster.

        Before, examine whether ZooKeeper may be read, and has the data of the local cluster in
        ``data_dir``.
        """
        self.reasons += admin.read_denied()
        with self.bad_data_is_a_reason():
            self.reasons += _replaced_data(admin, data_dir)
        try:
            return self._controller(admin)
        except BadDataError as error:
            self._note(error)
            return None

    def _controller(self, admin: ZkAdminStore) -> ActiveController | None:
        controller = admin.read_controller()
        if controller is None:
            self.reasons += ["there is no controller", *_why_no_broker_is_elected(admin)]
            return None
        if controller.is_of_kraft:
            self.reasons.append(HELD_BY_KRAFT.format(controller.broker_id))
            return None
        migrating = admin.read_migrating_controller()
        if migrating is not None:
            self.warnings.append(
                f"/migration says that the KRaft controller {migrating} has begun to migrate the"
                " cluster to KRaft; brokers rule the cluster as before: if it went back, delete"
                " /migration"
            )
        with self.bad_data_is_a_reason():
            if controller.broker_id not in admin.read_brokers():
                broker = f"broker {controller.broker_id}"
                self.reasons.append(f"the controller, {broker}, is not registered")
        return controller

    def ask_controller(self, controller: ControllerRef) -> DescribeControllerResponse | None:
        """Return what the controller says of itself; None when it does not answer."""
        deadline = time.monotonic() + _CONTROLLER_LIMIT_S
        request = DescribeControllerRequest()
        answer = controller.ask(request, DescribeControllerResponse, deadline=deadline)
        if answer is None:
            said = self.reasons if controller.is_silent else self.warnings
            said.append(controller.failure)
            return None
        self.note_described(answer)
        return answer

    def note_described(self, answer: DescribeControllerResponse) -> None:
        """Report what the controller has said."""
        software = dict(answer.software)
        self.reasons += [
            f"broker {row.broker_id}: {counted(row.number, 'replica')} offline:"
            f" {listed(row.some, total=row.number)}: see its log for the reason, then restart it"
            for row in answer.offline_replicas
            if not is_our_software(software.get(row.broker_id, OUR_SOFTWARE))
        ]
        self.reasons += [
            f"broker {row.broker_id} has left {row.request} unanswered for"
            f" {row.unanswered_ms / 1000:.1f} s{row.reason and ': '}{row.reason}"
            for row in answer.unanswered
        ]

    def _examine_failures(self, admin: ZkAdminStore) -> None:
        """Report what is quarantined; an event that ended only one controller is a warning."""
        for failure in admin.read_failures():
            if failure.controllers >= FAILURES_TO_QUARANTINE:
                self.reasons.append(
                    f"{failure.what} is quarantined because it ended {failure.controllers}"
                    f" controllers: {failure.error}; correct it, then run: {program()} controller"
                    " try-again"
                )
            else:
                self.warnings.append(
                    f"{failure.what} ended a controller (broker {failure.broker_id}, epoch"
                    f" {failure.controller_epoch}): {failure.error}"
                )

    # --- brokers ---

    def examine(
        self,
        admin: ZkAdminStore,
        found: Topics,
        described: DescribeControllerResponse | None,
    ) -> None:
        """Examine all but the controller and its brokers."""
        with self.bad_data_is_a_reason():
            self._examine_failures(admin)
        with self.bad_data_is_a_reason():
            self._examine_brokers(admin)
        with self.bad_data_is_a_reason():
            self._examine_topics(admin, found, described)
        with self.bad_data_is_a_reason():
            for path, quotas in admin.configs.read_client_quotas().items():
                self.warnings += _ignored(path, unusable_in_quota(path, quotas))

    def examine_placement(self, file: ClusterFile | None) -> dict[str, object] | None:
        """Return the address and the state of the placement service of a local cluster, if any."""
        if file is None or file.placement is None:
            return None
        placement = file.placement
        state, message = placement.state, placement.message
        if placement.endpoint:
            answer = _placement_status(placement, timeout_s=_PLACEMENT_LIMIT_S)
            state, message = ("unreachable", "") if answer is None else answer
        if state == "unreachable":
            self.warnings.append("the placement service does not answer")
        elif state == "failed":
            self.warnings.append(f"the placement service failed: {message}")
        return {"endpoint": placement.endpoint, "state": state, "message": message}

    def examine_answers(
        self,
        live: Mapping[BrokerId, BrokerRegistration],
        described: DescribeControllerResponse | None,
    ) -> list[BrokerId]:
        """Ask the brokers what they warn of; return those that are slow.

        Disks, refused producers, failed log directories and lost packets are what they warn of.
        """
        answers, failures = answers_and_failures(live.values())
        self.warnings += [*silence_of(failures), *warnings_of(answers)]
        slow = list(slow_brokers(live, described, answers))
        self.warnings += [f"{warning}: {remedy_of_slow()}" for _, warning in slow]
        restless = restless_brokers(described)
        self.warnings += [f"{warning}: {remedy_of_restless()}" for _, warning in restless]
        return [broker_id for broker_id, _ in slow]

    def note_ends(self, ends: EndsOfBrokers, known: Collection[BrokerId]) -> None:
        """Report brokers that failed in the last day, except those that are ``known``."""
        self.warnings += [one.sentence() for one in ends.recent_failures(known)]

    def _examine_brokers(self, admin: ZkAdminStore) -> None:
        """Examine their settings in ZooKeeper, and the log directories of those of Kafka."""
        found = admin.read_brokers()
        live = [row.info for row in found.values() if isinstance(row, BrokerRegistration)]
        self.warnings += warnings_of_kafka(live)
        for name, config in admin.configs.read_broker_configs(sorted(found)).items():
            if isinstance(config, BadDataError):
                self.warnings.append(f"dynamic settings are ignored: {config}")
                continue
            of_all = name == DEFAULT_ENTITY_NAME
            unusable = unusable_in_broker(config, KAFKA_SETTINGS, of_all=of_all)
            self.warnings += _ignored("all brokers" if of_all else f"broker {name}", unusable)

    # --- topics ---

    def examine_deletions(
        self,
        admin: ZkAdminStore,
        topics: Collection[str],
        described: DescribeControllerResponse | None,
    ) -> list[dict[str, object]]:
        """Return what topics wait for that are being deleted."""
        ineligible = () if described is None else described.topics_ineligible_for_deletion
        obstacles = deletion_obstacles(admin, sorted(topics), described)
        self.warnings += [
            f"topic {topic} waits to be deleted: {reason}"
            for topic, reason in obstacles.items()
            if topic in ineligible
        ]
        return [
            {"topic": topic, "ineligible": topic in ineligible, "reason": reason}
            for topic, reason in obstacles.items()
        ]

    def _examine_topics(
        self, admin: ZkAdminStore, found: Topics, described: DescribeControllerResponse | None
    ) -> None:
        """Examine what cannot be read or written of topics, and what their partitions wait for."""
        self.reasons += found.unreadable
        self.reasons += self._why_states_stay(described)
        self._examine_topic_configs(admin)
        registered = admin.read_brokers()
        self.warnings += _on_brokers_without_replicas(found.partitions, registered)
        live = {b for b, r in registered.items() if isinstance(r, BrokerRegistration)}
        waiting = [
            (p.topic_partition, p.waiting_reason(registered))
            for p in found.partitions
            if p.leader not in live
        ]
        self.reasons += [f"{partition} {reason}" for partition, reason in waiting if reason][
            :_NAMED
        ]

    def _examine_topic_configs(self, admin: ZkAdminStore) -> None:
        names, untold = admin.topics.read_topic_names(), defaultdict[str, list[str]](list)
        for topic, config in admin.configs.read_topic_configs(names).items():
            if isinstance(config, NotToldError):
                untold[str(config)].append(topic)
            elif isinstance(config, BadDataError):
                self.warnings.append(
                    f"the settings of topic {topic} cannot be read: {config}; brokers keep those"
                    " that they know, or delete nothing"
                )
            else:
                self.warnings += _ignored(f"topic {topic}", unusable_in_topic(config))
        self.not_told += [
            f"the settings of {counted(len(topics), 'topic')} ({listed(topics, _NAMED)}): {why}"
            for why, topics in untold.items()
        ]

    def _why_states_stay(self, described: DescribeControllerResponse | None) -> list[str]:
        """Name the states that ZooKeeper lets the controller read but not change."""
        refused = () if described is None else described.refused_states
        paths = {p: TopicPartitionStateZNode.path(p) for p in refused}
        return [
            f"{partition}: ZooKeeper refuses to let the controller change {path};"
            f" to allow it: setAcl {path} world:anyone:cdrwa"
            for partition, path in paths.items()
            if not any(path in reason for reason in self.reasons)
        ][:_NAMED]


def read_troubles(
    admin: ZkAdminStore,
    data_dir: Path | None,
    file: ClusterFile | None,
    found: Topics,
    described: DescribeControllerResponse | None,
) -> Troubles:
    """Return all of them; ``found`` and ``described`` were read before.

    ``file`` is that of the local cluster in ``data_dir``.
    """
    troubles = Troubles()
    troubles.find_controller(admin, data_dir)
    if described is not None:
        troubles.note_described(described)
    deleted = admin.topics.read_topics_being_deleted()
    kept = tuple(p for p in found.partitions if p.topic_partition.topic not in deleted)
    with troubles.bad_data_is_a_reason():
        troubles.examine_deletions(admin, deleted & set(admin.topics.read_topic_names()), described)
    troubles.examine(admin, replace(found, partitions=kept), described)
    with troubles.bad_data_is_a_reason():
        registered = admin.read_brokers()
        supervised = {} if file is None else file.brokers
        assigned = {replica for p in kept for replica in p.assignment.replicas}
        ends = EndsOfBrokers(admin.read_ends(), supervised, described)
        troubles.note_ends(ends, {*registered, *supervised, *assigned})
        live = {b: r for b, r in registered.items() if isinstance(r, BrokerRegistration)}
        troubles.examine_answers(live, described)
    troubles.examine_placement(file)
    return troubles


def _placement_status(service: PlacementEntry, *, timeout_s: float) -> tuple[str, str] | None:
    """Return the state of the service and a message; None when it does not answer."""
    from regent.transport.control.client import RequestError
    from regent.transport.control.remote_ref import actor_at, ask

    try:
        with actor_at(service.endpoint, client_id=_CLIENT_ID) as actor:
            request = PlacementStatusRequest()
            status = ask(actor, request, PlacementStatusResponse, timeout_s=timeout_s)
            return status.state, status.message
    except RequestError:
        return None


def _replaced_data(admin: ZkAdminStore, data_dir: Path | None) -> list[str]:
    """Return why the brokers of ``data_dir`` refuse ZooKeeper's data: one line, or none.

    The reason of the first broker is enough. Raises ``BadDataError`` when ``/cluster/id`` is
    unreadable.
    """
    if data_dir is None:
        return []
    cluster_id, zxid, mark = admin.read_cluster_id(), admin.latest_zxid(), admin.read_mark()
    folders = numbered_folders(data_dir, "broker").values()
    for meta in sorted(meta for folder in folders for meta in folder.glob("*/meta.properties")):
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


def _why_no_broker_is_elected(admin: ZkAdminStore) -> list[str]:
    try:
        epoch = admin.read_controller_epoch()
    except UnreadableError:
        return []  # reported already
    except BadDataError as error:
        return [str(error)]
    return [NO_CONTROLLER_EPOCH_LEFT] if epoch == MAX_CONTROLLER_EPOCH else []


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
                f" {counted(len(placed), 'replica')}: {listed(placed, _NAMED)}: move"
                f" them: {program()} jobs plan decommission --from {broker_id}"
            )


def _ignored(owner: str, problems: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each setting in ZooKeeper that is not in force."""
    for name, problem in sorted(problems.items()):
        yield f"{owner}: the setting {name} {problem}; it is ignored"
