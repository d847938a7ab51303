"""The interface between the listener and the handlers of requests."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Final, TypeAlias, TypeVar

from regent.core.model import BrokerId
from regent.core.records import RecordBytes, Records
from regent.core.repeated_lines import RepeatedLines
from regent.core.security.acls import CLUSTER_NAME, AclOperation, Resource, ResourceType
from regent.core.security.authorizer import ALLOW_ALL, Asked, Authorizer
from regent.core.security.session import Session
from regent.transport.kafka.primitives import Reader, Writer
from regent.transport.kafka.throttle import Throttle

S = TypeVar("S")

logger = logging.getLogger(__name__)
_lines: Final = RepeatedLines()  # of this process; used on the listener's loop


class KafkaApiKey(IntEnum):
    """The API keys that this project's brokers answer or send."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68


API_NAMES: Final = {key: key.name.title().replace("_", "") for key in KafkaApiKey}
"""Kafka's names of the APIs."""

NEVER_FLEXIBLE: Final = 2**15
_NO_TAGGED_FIELDS: Final = b"\x00"

FIRST_FLEXIBLE_VERSION: Final[Mapping[KafkaApiKey, int]] = {
    KafkaApiKey.PRODUCE: 9,
    KafkaApiKey.FETCH: 12,
    KafkaApiKey.LIST_OFFSETS: 6,
    KafkaApiKey.METADATA: 9,
    KafkaApiKey.LEADER_AND_ISR: 4,
    KafkaApiKey.STOP_REPLICA: 2,
    KafkaApiKey.UPDATE_METADATA: 6,
    KafkaApiKey.CONTROLLED_SHUTDOWN: 3,
    KafkaApiKey.OFFSET_COMMIT: 8,
    KafkaApiKey.OFFSET_FETCH: 6,
    KafkaApiKey.FIND_COORDINATOR: 3,
    KafkaApiKey.JOIN_GROUP: 6,
    KafkaApiKey.HEARTBEAT: 4,
    KafkaApiKey.LEAVE_GROUP: 4,
    KafkaApiKey.SYNC_GROUP: 4,
    KafkaApiKey.DESCRIBE_GROUPS: 5,
    KafkaApiKey.LIST_GROUPS: 3,
    KafkaApiKey.SASL_HANDSHAKE: NEVER_FLEXIBLE,
    KafkaApiKey.API_VERSIONS: 3,
    KafkaApiKey.CREATE_TOPICS: 5,
    KafkaApiKey.DELETE_TOPICS: 4,
    KafkaApiKey.DELETE_RECORDS: 2,
    KafkaApiKey.INIT_PRODUCER_ID: 2,
    KafkaApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
    KafkaApiKey.ADD_PARTITIONS_TO_TXN: 3,
    KafkaApiKey.ADD_OFFSETS_TO_TXN: 3,
    KafkaApiKey.END_TXN: 3,
    KafkaApiKey.WRITE_TXN_MARKERS: 1,
    KafkaApiKey.TXN_OFFSET_COMMIT: 3,
    KafkaApiKey.DESCRIBE_ACLS: 2,
    KafkaApiKey.CREATE_ACLS: 2,
    KafkaApiKey.DELETE_ACLS: 2,
    KafkaApiKey.DESCRIBE_CONFIGS: 4,
    KafkaApiKey.ALTER_CONFIGS: 2,
    KafkaApiKey.ALTER_REPLICA_LOG_DIRS: 2,
    KafkaApiKey.DESCRIBE_LOG_DIRS: 2,
    KafkaApiKey.SASL_AUTHENTICATE: 2,
    KafkaApiKey.CREATE_PARTITIONS: 2,
    KafkaApiKey.CREATE_DELEGATION_TOKEN: 2,
    KafkaApiKey.RENEW_DELEGATION_TOKEN: 2,
    KafkaApiKey.EXPIRE_DELEGATION_TOKEN: 2,
    KafkaApiKey.DESCRIBE_DELEGATION_TOKEN: 2,
    KafkaApiKey.DELETE_GROUPS: 2,
    KafkaApiKey.ELECT_LEADERS: 2,
    KafkaApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    KafkaApiKey.ALTER_PARTITION_REASSIGNMENTS: 0,
    KafkaApiKey.LIST_PARTITION_REASSIGNMENTS: 0,
    KafkaApiKey.OFFSET_DELETE: NEVER_FLEXIBLE,
    KafkaApiKey.DESCRIBE_CLIENT_QUOTAS: 1,
    KafkaApiKey.ALTER_CLIENT_QUOTAS: 1,
    KafkaApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: 0,
    KafkaApiKey.ALTER_USER_SCRAM_CREDENTIALS: 0,
    KafkaApiKey.ALTER_PARTITION: 0,
    KafkaApiKey.UPDATE_FEATURES: 0,
    KafkaApiKey.DESCRIBE_CLUSTER: 0,
    KafkaApiKey.DESCRIBE_PRODUCERS: 0,
    KafkaApiKey.DESCRIBE_TRANSACTIONS: 0,
    KafkaApiKey.LIST_TRANSACTIONS: 0,
    KafkaApiKey.ALLOCATE_PRODUCER_IDS: 0,
    KafkaApiKey.CONSUMER_GROUP_HEARTBEAT: 0,
}
"""The first version of each API whose messages are flexible (KIP-482)."""


@dataclass(slots=True, eq=False)  # a frozen one takes eight times as long to make
class KafkaRequest:
    """One request; ``body`` follows the header, and is writable.

    ``errors`` counts the responses to this kind of request by their errors. ``throttle`` is None as
    long as there are no quotas. Requests with the same ``connection`` keep their sequence.
    ``is_raw_token``: ``body`` is a token of a login that came without a header, as the answer goes.
    ``authorizer`` decides what the client may do: handlers ask it by ``may`` and ``denied``.
    """

    api_key: KafkaApiKey
    api_version: int
    correlation_id: int
    client_id: str | None
    session: Session
    body: memoryview
    errors: Counter[str] = field(default_factory=Counter, repr=False)
    throttle: Throttle | None = field(default=None, repr=False)
    connection: Hashable = field(default=None, repr=False)
    is_raw_token: bool = False
    authorizer: Authorizer = field(default=ALLOW_ALL, repr=False)

    @property
    def is_flexible(self) -> bool:
        """Whether this request, and its response, have the form of KIP-482."""
        return self.api_version >= FIRST_FLEXIBLE_VERSION[self.api_key]

    @property
    def response_header_end(self) -> bytes:
        """What follows the correlation id in the header of the response (KIP-482).

        ApiVersions has the old header in every version: the client does not know the versions yet.
        """
        is_old = self.api_key is KafkaApiKey.API_VERSIONS or not self.is_flexible
        return b"" if is_old else _NO_TAGGED_FIELDS

    @property
    def throttle_time_ms(self) -> int:
        """How long the client must wait after the response."""
        return 0 if self.throttle is None else self.throttle.time_ms

    def exempt_from_quotas(self) -> None:
        """Do not make the sender wait: it is a broker, which quotas of clients must not keep out.

        Call it before the first ``await`` of a handler.
        """
        if self.throttle is not None:
            self.throttle.exempt()

    def may_act_as(self, broker_id: BrokerId) -> bool:
        """Whether the client may be this broker. A refusal is logged."""
        session = self.session
        if session.may_act_as(broker_id):
            return True
        who = (API_NAMES[self.api_key], session.client_host, str(session.principal), broker_id)
        if _lines.is_due(who, round(time.monotonic() * 1000)):
            logger.warning(
                "%s from %s is refused: the user is %s, and it acts as broker %d: a user broker-N"
                " may be broker N only",
                *who,
            )
        return False

    def may(
        self,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str = CLUSTER_NAME,
        *,
        is_logged: bool = True,
    ) -> bool:
        """Whether the client may do an operation on a resource.

        ``is_logged`` false: it did not name the resource, so a denial is not logged.
        """
        authorizer = self.authorizer
        if authorizer is ALLOW_ALL:
            return True
        asked = Asked(API_NAMES[self.api_key], is_logged=is_logged)
        return authorizer.authorize(self.session, operation, Resource(resource_type, name), asked)

    def may_any(self, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Whether the client may do an operation on any resource of a type."""
        asked = Asked(API_NAMES[self.api_key])
        return self.authorizer.authorize_by_resource_type(
            self.session, operation, resource_type, asked
        )

    def denied(
        self,
        operation: AclOperation,
        resource_type: ResourceType,
        names: Iterable[str],
        *,
        is_logged: bool = True,
    ) -> Collection[str]:
        """Return those of the names that the client may not use so; each is decided once."""
        authorizer = self.authorizer
        if authorizer is ALLOW_ALL:
            return ()
        api, session = API_NAMES[self.api_key], self.session
        counts: dict[str, int] = {}  # quicker than a Counter for few names
        for name in names:
            counts[name] = counts.get(name, 0) + 1
        return {
            name
            for name, count in counts.items()
            if not authorizer.authorize(
                session, operation, Resource(resource_type, name), Asked(api, count, is_logged)
            )
        }

    def reader(self) -> Reader:
        """Return a reader of the body."""
        return Reader(self.body, is_flexible=self.is_flexible)

    def answer_writer(self) -> Writer:
        """Return a writer for the body of the response."""
        return Writer(is_flexible=self.is_flexible)


class UnansweredRequestError(Exception):
    """A failed request without a response: the connection is closed instead.

    This tells a producer with acks=0 that it writes to the wrong broker.
    """


KafkaAnswer: TypeAlias = Sequence[RecordBytes | Records] | None
"""The body of the response, in pieces; None: no response is sent (acks=0)."""

Answering: TypeAlias = Awaitable[KafkaAnswer]

KafkaHandler: TypeAlias = Callable[[KafkaRequest], Answering]
"""Runs on the listener's event loop and must not block it.

The handlers of one connection begin and answer in the order of its requests. A handler may begin
before earlier ones have answered. So what must happen in order happens before the first ``await``.
Raises ``MalformedRequestError``.
"""


@dataclass(frozen=True, slots=True)
class KafkaApi:
    """One kind of request, with the versions that are advertised and the handler."""

    key: KafkaApiKey
    min_version: int
    max_version: int
    handle: KafkaHandler


def apis_of(
    served: S, rows: Iterable[tuple[KafkaApiKey, int, Callable[[S, KafkaRequest], Answering]]]
) -> list[KafkaApi]:
    """Return APIs, each with its last version: the first is 0. Their handlers get ``served``."""
    return [KafkaApi(key, 0, last, partial(handle, served)) for key, last, handle in rows]
