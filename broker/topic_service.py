"""The service for requests that the active controller's broker decides: starts and stops its parts.

Every request goes to the ForwardingManager of the receiving broker, and through its
BrokerToControllerChannel to the active controller's broker, which may be the same broker. There the
TopicRequestHandler decides about topics, and the controller about elections and reassignments::

    listener ─► ForwardingManager ─► BrokerToControllerChannel ═► TopicRequestHandler ─► ZooKeeper
                  ▲   │                                        │    └─ placement service
    metadata ─────┘   └─► answer                               └► controller
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast

from pykka import ActorDeadError, ActorRef

from regent.actors.automatic_creation import CreationRefusal
from regent.actors.broker import Broker
from regent.actors.broker_to_controller_channel import (
    BrokerToControllerChannel,
    refuse_forwarded,
)
from regent.actors.controller_event_manager import ControllerEventManager
from regent.actors.event_journal import EventJournalReader
from regent.actors.forwarding_manager import CreateMissing, ForwardingManager, MetadataChanged
from regent.actors.inbox import InboxFullError, MessageWithReply, Reply
from regent.actors.request_router import RequestRouter
from regent.actors.runtime import launch, start_actor, stop_actor
from regent.actors.scheduler import Scheduler, monotonic_ms
from regent.actors.topic_request_handler import TopicRequestHandler
from regent.broker.broker_settings import broker_settings
from regent.broker.internal_topics import COORDINATED_TOPICS, coordinator_obstacle, creatable_topic
from regent.broker.listener_security import controllers_of_kafka
from regent.broker.placement_client import PlacementClient, placement_finder
from regent.broker.topic_ids import RandomTopicIds
from regent.config.settings import Settings
from regent.core.admin.admin_manager import AdminManager, AdminSettings
from regent.core.admin.admin_requests import RespondToClient, RespondToCreation
from regent.core.admin.config_descriptions import BrokerSettings, describe_topic
from regent.core.admin.partition_requests import RespondAboutPartitions
from regent.core.errors import ApiError, Errors
from regent.core.model import BrokerId
from regent.core.ports import TopicIds
from regent.core.protocol.envelope import (
    EnvelopeRequest,
    ForwardedClient,
    ForwardedResponse,
    Requester,
)
from regent.core.protocol.messages.partitions import PartitionsRequest
from regent.core.protocol.topics import TopicsRequest
from regent.core.quota.client_quota_manager import (
    ControllerMutationQuotaManager,
    QuotaClient,
)
from regent.core.replication.metadata_cache import MetadataCache, MetadataSnapshot
from regent.core.security.authorizer import ALLOW_ALL, Authorizer
from regent.core.setting import SettingValues
from regent.transport.control.client import RequestClient
from regent.transport.control.sockets import Context
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.stores.topic_store import ZkTopicStore

_STOP_TIMEOUT_S = 2.0
_INTERNAL_TOPICS_DELAY_MS = 500
_WARN_MS = 600_000  # after the last client that needed an internal topic


class BrokerTopicService:
    """Implements ``TopicService`` and ``PartitionService``, from ``start`` to ``stop``."""

    reconfigurable_configs: Final = ("delete.topic.enable",)

    def __init__(
        self, context: Context, broker_id: BrokerId, settings: Settings, scheduler: Scheduler
    ) -> None:
        self._context = context
        self._broker_id = broker_id
        self._settings = settings
        self._scheduler = scheduler
        self._of_kafka = controllers_of_kafka(settings, f"broker-{broker_id}")
        self._forwarding: ActorRef[ForwardingManager] | None = None
        self._channel: ActorRef[BrokerToControllerChannel] | None = None
        self._spread_channel: ActorRef[BrokerToControllerChannel] | None = None
        self._handler: ActorRef[TopicRequestHandler] | None = None
        self._manager: AdminManager | None = None
        self._authorizer = ALLOW_ALL
        self._pending_count: Callable[[], int] = lambda: 0
        self._refusals: Callable[[], Mapping[str, CreationRefusal]] = dict
        self._cache: MetadataCache | None = None
        self._is_controller: Callable[[], bool] = lambda: False
        self._is_creating_soon = False
        self.placement = PlacementClient(
            context,
            placement_finder(settings.broker.placement_service),
            client_id=f"broker-{broker_id}",
        )

    def start(
        self,
        cache: MetadataCache,
        zookeeper: ZooKeeper,
        is_controller: Callable[[], bool],
        mutation_quota: ControllerMutationQuotaManager,
        authorizer: Authorizer = ALLOW_ALL,
    ) -> None:
        """Start the actors; ``is_controller`` is called on any thread."""

        def take_permits(requester: Requester, permits: int) -> tuple[bool, int]:
            user, client_id, is_strict = requester
            client, now_ms = QuotaClient(user, client_id), monotonic_ms()
            return mutation_quota.record(client, permits, now_ms, is_strict=is_strict)

        broker, controller = self._settings.broker, self._settings.controller
        topic_ids = RandomTopicIds(cache)
        own = BrokerSettings(broker_settings(self._settings, self._broker_id), {}, {})
        self._manager = manager = AdminManager(
            cache,
            ZkTopicStore(zookeeper),
            topic_ids,
            is_controller,
            self.placement,
            AdminSettings(
                broker.num_partitions,
                broker.default_replication_factor,
                controller.delete_topic_enable,
                topic_defaults={row.name: row.value or "" for row in describe_topic({}, own)},
            ),
            take_permits,
        )
        self._handler = start_actor(
            TopicRequestHandler, self._broker_id, manager, cache, authorizer
        )
        self._cache, self._is_controller, self._authorizer = cache, is_controller, authorizer
        self._forwarding = self._start_forwarding(cache, topic_ids)

    def _start_forwarding(
        self, cache: MetadataCache, topic_ids: TopicIds
    ) -> ActorRef[ForwardingManager]:
        self._channel = start_actor(
            BrokerToControllerChannel,
            self._broker_id,
            cache,
            self._open_channel,
            of_kafka=self._of_kafka,
            topics=self._handler,
        )
        self._spread_channel = start_actor(
            BrokerToControllerChannel,
            self._broker_id,
            cache,
            self._open_channel,
            of_kafka=self._of_kafka,
            name="asks-controller-about-brokers",
        )
        forwarding = ForwardingManager(
            self._broker_id,
            cache,
            topic_ids,
            self._channel,
            self._spread_channel,
            self._scheduler,
            creatable=partial(creatable_topic, self._settings),
        )
        self._refusals = lambda: forwarding.refusals
        self._pending_count = lambda: forwarding.pending_count
        return launch(forwarding)

    def reconfigure(self, old: SettingValues, new: SettingValues) -> None:
        """Refuse deletions of topics from now on, or accept them."""
        del old
        (name,) = self.reconfigurable_configs
        if self._manager is not None:
            self._manager.delete_topic_enable = bool(new[name])

    def stop(self) -> None:
        """Stop the actors, which refuses the requests that wait. Idempotent."""
        actors: tuple[ActorRef[Any] | None, ...] = (
            self._forwarding,
            self._channel,
            self._spread_channel,
            self._handler,
        )
        for actor in actors:
            if actor is not None:
                stop_actor(actor, _STOP_TIMEOUT_S)

    def router(
        self,
        broker: ActorRef[Broker],
        controller: ActorRef[ControllerEventManager],
        journal: ActorRef[EventJournalReader],
    ) -> RequestRouter:
        """Return what routes control requests, and has the clients of forwarded ones authorized."""
        assert self._handler is not None
        return RequestRouter(broker, controller, journal, self._handler, self._authorizer)

    @property
    def pending_count(self) -> int:
        """How many requests are not answered yet."""
        return self._pending_count()

    def wake(self) -> None:
        """Report a change of the metadata cache. Thread-safe."""
        self._create_internal_topics_soon()
        if self._forwarding is not None:
            with suppress(ActorDeadError, InboxFullError):
                self._forwarding.tell(MetadataChanged())

    def ask(
        self,
        request: TopicsRequest,
        respond: RespondToClient,
        requester: Requester | None = None,
        client: ForwardedClient | None = None,
    ) -> None:
        """See ``TopicService.ask``."""
        self._forward(EnvelopeRequest.of(request, requester, client), respond)

    def ask_controller(
        self, request: PartitionsRequest, respond: RespondAboutPartitions, client: ForwardedClient
    ) -> None:
        """See ``PartitionService.ask_controller``."""
        self._forward(EnvelopeRequest.of(request, client=client), respond)

    def create_missing(self, topics: Collection[str], respond: RespondToCreation) -> None:
        """See ``TopicService.create_missing``."""

        def deliver(answer: object) -> None:
            respond({} if isinstance(answer, Exception) else cast("Mapping[str, ApiError]", answer))

        try:
            assert self._forwarding is not None
            message = CreateMissing(tuple(topics))
            self._forwarding.tell(MessageWithReply(message, Reply.of(deliver)))
        except (ActorDeadError, InboxFullError):
            respond({})

    def _create_internal_topics_soon(self) -> None:
        """Let the active controller's broker create them, a moment after enough brokers live.

        The moment is for brokers that still start.
        """
        is_on = self._settings.broker.internal_topics_at_start and not self._is_creating_soon
        if is_on and self._is_controller() and self._creatable_internal_topics():
            self._is_creating_soon = True
            self._scheduler.schedule(_INTERNAL_TOPICS_DELAY_MS, self._create_internal_topics)

    def _create_internal_topics(self) -> None:
        self._is_creating_soon = False
        topics = self._creatable_internal_topics()
        if topics:
            self.create_missing(topics, lambda _: None)

    def _creatable_internal_topics(self) -> Collection[str]:
        """Return the internal topics that are missing, and for which there are enough brokers."""
        snapshot = MetadataSnapshot() if self._cache is None else self._cache.snapshot
        return [
            topic
            for topic in COORDINATED_TOPICS
            if snapshot.is_complete
            and topic not in snapshot.topic_ids
            and creatable_topic(self._settings, topic).replication_factor <= snapshot.most_replicas
        ]

    def coordinator_obstacle(self, topic: str, error: ApiError) -> str:
        """Return why an internal topic does not exist, after a creation that failed."""
        live = 0 if self._cache is None else len(self._cache.snapshot.brokers_for_replicas)
        return coordinator_obstacle(self._settings, topic, live, error.message)

    def coordinator_warnings(self) -> Sequence[str]:
        """Return a line for each internal topic that clients need and that does not exist.

        For ``status``; any thread may call it.
        """
        known = {} if self._cache is None else self._cache.snapshot.topic_ids
        since_ms = monotonic_ms() - _WARN_MS
        return [
            self.coordinator_obstacle(topic, refusal.error)
            for topic, refusal in sorted(self._refusals().items())
            if topic in COORDINATED_TOPICS and topic not in known and refusal.at_ms >= since_ms
        ]

    def _forward(self, envelope: EnvelopeRequest, respond: Callable[[Any], None]) -> None:
        """Call ``respond`` once, with the response to the request."""
        request = envelope.request

        def deliver(answer: object) -> None:
            if not isinstance(answer, ForwardedResponse):
                answer = refuse_forwarded(request, Errors.UNKNOWN_SERVER_ERROR, str(answer))
            respond(answer)

        try:
            assert self._forwarding is not None
            self._forwarding.tell(MessageWithReply(envelope, Reply.of(deliver)))
        except (ActorDeadError, InboxFullError) as error:
            deliver(refuse_forwarded(request, Errors.NOT_CONTROLLER, str(error)))

    def _open_channel(self, endpoint: str) -> RequestClient:
        return RequestClient(self._context, endpoint, client_id=f"broker-{self._broker_id}")
