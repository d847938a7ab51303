"""What clients are answered without a permission, and with it: every API of a broker."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

import pytest

from regent.broker.api.authorization import (
    ROWS,
    Needed,
    with_authorization,
)
from regent.config.settings_file import load_settings
from regent.core.errors import Errors
from regent.core.security.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    AclOperation,
    Resource,
    ResourceType,
)
from regent.core.security.authorizer import ALLOW_ALL, NOT_NAMED, Asked, Authorizer
from regent.core.security.session import Session
from regent.testing.waits import scaled
from regent.transport.kafka.api import (
    API_NAMES,
    FIRST_FLEXIBLE_VERSION,
    Answering,
    KafkaApi,
    KafkaApiKey,
    KafkaRequest,
)
from tests.support.fuzzed_requests import GENUINE, TOPIC, ask, ask_versions, build, request
from tests.support.memory_logs import MemoryLogs
from tests.support.record_batches import batch
from tests.support.served_endpoint import ServedEndpoint
from tests.support.transactional_batches import in_transaction
from tests.transport.kafka.wire import request_of

KINDS: Final = {API_NAMES[KafkaApiKey(kind.API_KEY)]: kind for kind, _ in GENUINE}
CreateTopicsRequest, DeleteTopicsRequest = KINDS["CreateTopics"], KINDS["DeleteTopics"]
DescribeClusterRequest, DescribeConfigsRequest = KINDS["DescribeCluster"], KINDS["DescribeConfigs"]
DescribeGroupsRequest, ListGroupsRequest = KINDS["DescribeGroups"], KINDS["ListGroups"]
ElectLeadersRequest, FetchRequest = KINDS["ElectLeaders"], KINDS["Fetch"]
ListOffsetsRequest, OffsetFetchRequest = KINDS["ListOffsets"], KINDS["OffsetFetch"]
OffsetForLeaderEpochRequest = KINDS["OffsetForLeaderEpoch"]
FindCoordinatorRequest, MetadataRequest = KINDS["FindCoordinator"], KINDS["Metadata"]
InitProducerIdRequest, ProduceRequest = KINDS["InitProducerId"], KINDS["Produce"]

CLUSTER, GROUP, ID = ResourceType.CLUSTER, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
READ, WRITE, CREATE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE
DELETE, ALTER, DESCRIBE = AclOperation.DELETE, AclOperation.ALTER, AclOperation.DESCRIBE
BROKER = (AclOperation.CLUSTER_ACTION, CLUSTER)
TOPIC_ID = uuid.UUID(bytes=bytes([1]) * 16)
DENIED = {
    Errors.TOPIC_AUTHORIZATION_FAILED,
    Errors.GROUP_AUTHORIZATION_FAILED,
    Errors.CLUSTER_AUTHORIZATION_FAILED,
    Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
OF_TOPIC, OF_GROUP, OF_CLUSTER, OF_ID = (frozenset({error}) for error in sorted(DENIED))


class Grants(Authorizer):
    """Allows what is in ``given`` (None: everything), and notes what is asked."""

    is_configured = True

    def __init__(self) -> None:
        self.given: set[tuple[AclOperation, ResourceType, str]] | None = set()
        self.asked: dict[str, set[Needed]] = {}
        self.logged: set[tuple[AclOperation, Resource]] = set()

    def authorize(
        self,
        session: Session,
        operation: AclOperation,
        resource: Resource,
        asked: Asked = NOT_NAMED,
    ) -> bool:
        self.asked.setdefault(asked.request, set()).add((operation, resource.resource_type))
        is_allowed = self.given is None or (operation, *resource) in self.given
        if asked.is_logged and not is_allowed:
            self.logged.add((operation, resource))
        return is_allowed

    def authorize_by_resource_type(
        self,
        session: Session,
        operation: AclOperation,
        resource_type: ResourceType,
        asked: Asked = NOT_NAMED,
    ) -> bool:
        self.asked.setdefault(asked.request, set()).add((operation, resource_type))
        given = self.given
        return given is None or any(row[:2] == (operation, resource_type) for row in given)

    def allow(self, *needed: Needed, name: str | None = None) -> None:
        """Allow exactly these, on the resources that genuine requests name."""
        names = {ResourceType.TOPIC: TOPIC, GROUP: "g", ID: "x", CLUSTER: CLUSTER_NAME}
        self.given = {(operation, kind, name or names[kind]) for operation, kind in needed}


class Guarded(NamedTuple):
    """A broker that asks ``grants``."""

    served: ServedEndpoint
    grants: Grants

    def ask(self, kind: Any, values: Mapping[str, Any], version: int) -> Any:
        """Return the answer, read by kafka-python."""
        body = self.ask_bytes(kind, values, version)
        module = __import__(kind.__module__, fromlist=["responses"])
        response = getattr(module, kind.__name__.replace("Request", "Response"))
        return response.decode(body, version=version)

    def ask_bytes(self, kind: Any, values: Mapping[str, Any], version: int) -> bytes:
        data = request(kind.API_KEY, version, bytes(build(kind, values).encode(version=version)))
        body = ask(("127.0.0.1", self.served.port), data)
        is_flexible = version >= FIRST_FLEXIBLE_VERSION[KafkaApiKey(kind.API_KEY)]
        return body[1:] if is_flexible else body


@pytest.fixture(scope="module")
def broker() -> Iterator[Guarded]:
    with ExitStack() as stack:
        grants = Grants()
        settings = load_settings(None, {"broker": {"auto_create_topics_enable": True}})
        yield Guarded(
            ServedEndpoint(stack, MemoryLogs(), settings, TOPIC, authorizer=grants), grants
        )


@pytest.fixture
def guarded(broker: Guarded) -> Guarded:
    broker.grants.allow()
    broker.grants.logged.clear()
    return broker


def errors_of(value: Any) -> set[Errors]:
    """Return every error code in an answer, also NONE."""
    found: set[Errors] = set()
    for row in value if isinstance(value, list | tuple) else [value]:
        fields = getattr(type(row), "_struct", None)
        for field in () if fields is None else fields._fields:
            inner = getattr(row, field.name, None)
            if field.name.endswith("error_code") and isinstance(inner, int):
                found.add(Errors(inner))
            elif inner is not None and not isinstance(inner, str | bytes | int):
                found |= errors_of(inner)
    return found


def values_of(kind: Any) -> Mapping[str, Any]:
    return next(values for genuine, values in GENUINE if genuine is kind)


# --- the table ------------------------------------------------------------------------------------


def test_every_api_has_a_row(guarded: Guarded):
    advertised = ask_versions(("127.0.0.1", guarded.served.port))
    assert {*advertised, *KafkaApiKey} <= ROWS.keys()


def test_an_api_without_a_row_is_not_served():
    async def handle(_: object) -> None:
        raise AssertionError

    unknown = KafkaApi(99, 0, 0, handle)  # type: ignore[arg-type]
    for authorizer in (ALLOW_ALL, Grants()):
        with pytest.raises(KeyError):
            with_authorization([unknown], authorizer)


REFUSED_TO_ALL: Final = {
    *("CreateDelegationToken", "RenewDelegationToken", "ExpireDelegationToken"),
    "DescribeDelegationToken",
}
"""They are answered without a question; ``authentication`` tests them."""
ASKED_ELSEWHERE: Final = {
    ("Fetch", BROKER),  # of followers
    ("ListOffsets", BROKER),
    ("AddPartitionsToTxn", BROKER),
    ("ListGroups", (DESCRIBE, GROUP)),  # of what there is
    ("ListTransactions", (DESCRIBE, ID)),
    ("DescribeTransactions", (DESCRIBE, ResourceType.TOPIC)),
}


def test_the_handlers_ask_for_what_the_rows_say(guarded: Guarded):
    """With nothing allowed, and with everything: some things are asked only after others."""
    grants = guarded.grants
    grants.asked.clear()
    creating = {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}
    kinds: list[tuple[Any, Mapping[str, Any]]] = [
        *((kind, values) for kind, values in GENUINE if not is_closed(kind, values)),
        (FindCoordinatorRequest, {"key": "x", "key_type": 1, "coordinator_keys": ["x"]}),
        (InitProducerIdRequest, {"transactional_id": "x", "transaction_timeout_ms": 1_000}),
        (MetadataRequest, creating),
        (MetadataRequest, {"topics": [], "include_cluster_authorized_operations": True}),
    ]
    for name in ("AlterConfigs", "IncrementalAlterConfigs"):
        resource = {"resource_type": 4, "resource_name": "9", "configs": []}
        kinds.append((KINDS[name], {"resources": [resource]}))
    versions = ask_versions(("127.0.0.1", guarded.served.port))
    produce = {**values_of(ProduceRequest), "transactional_id": "x"}
    records = in_transaction(b"a", producer_id=1, sequence=0)
    topic = {"name": TOPIC, "partition_data": [{"index": 0, "records": records}]}
    kinds.append((ProduceRequest, {**produce, "topic_data": [topic]}))
    for is_allowed in (False, True):
        grants.given = None if is_allowed else set()
        for kind, values in kinds:
            name, last = API_NAMES[KafkaApiKey(kind.API_KEY)], versions[kind.API_KEY].max_version
            if not is_allowed or name not in FORWARDED:
                guarded.ask_bytes(kind, values, LAST_THAT_NAMES.get(name, last))
    # What is asked only with some permissions.
    grants.allow((DESCRIBE, ResourceType.TOPIC), name="new")
    guarded.ask_bytes(MetadataRequest, creating, 12)
    grants.allow((DESCRIBE, ResourceType.TOPIC))
    by_id = {"topics": [{"name": None, "topic_id": TOPIC_ID}], "timeout_ms": 1}
    guarded.ask_bytes(DeleteTopicsRequest, by_id, 6)
    needed = {API_NAMES[KafkaApiKey(key)]: set(ROWS[key].needed) for key in versions}
    for name in REFUSED_TO_ALL:
        needed[name] = set()
    asked = {name: grants.asked.get(name, set()) for name in needed}
    for name, what in ASKED_ELSEWHERE:
        needed[name].discard(what)
    operations = {(operation, CLUSTER) for operation in OPERATIONS[CLUSTER]}  # KIP-430
    extra = {"DescribeCluster": operations, "Metadata": operations}
    assert asked == {name: rows | extra.get(name, set()) for name, rows in needed.items()}


LAST_THAT_NAMES: Final = {"Fetch": 12, "Metadata": 8, "AddPartitionsToTxn": 3}
"""The last version that names topics, or has all that a client may ask."""


def is_closed(kind: Any, values: Mapping[str, Any]) -> bool:
    """Whether a genuine request is one that keeps a client waiting or is another's."""
    return kind is FetchRequest and values.get("replica_id") is not None


@pytest.mark.parametrize("key", [key for key, row in ROWS.items() if row.refuse is not None])
def test_with_one_of_the_permissions_of_the_cluster_a_handler_is_called(key: int):
    """And without all of them it is not."""
    called: list[KafkaRequest] = []

    async def handle(asked: KafkaRequest) -> None:
        called.append(asked)

    grants = Grants()
    (api,) = with_authorization([KafkaApi(KafkaApiKey(key), 0, 0, handle)], grants)
    for needed in ROWS[key].needed:
        grants.allow(needed)
        asyncio.run(await_(api.handle(request_of(key, 0, b""))))
    assert len(called) == len(ROWS[key].needed)


async def await_(answering: Answering) -> None:
    await answering


# --- each API, refused and allowed ----------------------------------------------------------------

CASES: Sequence[tuple[str, Sequence[Needed], frozenset[Errors]]] = [
    ("Produce", [(WRITE, ResourceType.TOPIC)], OF_TOPIC),
    ("Fetch", [(READ, ResourceType.TOPIC)], OF_TOPIC),
    ("ListOffsets", [(DESCRIBE, ResourceType.TOPIC)], OF_TOPIC),
    ("Metadata", [(DESCRIBE, ResourceType.TOPIC)], OF_TOPIC),
    ("OffsetCommit", [(READ, GROUP)], OF_GROUP),
    ("OffsetFetch", [(DESCRIBE, GROUP), (DESCRIBE, ResourceType.TOPIC)], OF_GROUP),
    ("FindCoordinator", [(DESCRIBE, GROUP)], OF_GROUP),
    ("JoinGroup", [(READ, GROUP)], OF_GROUP),
    ("Heartbeat", [(READ, GROUP)], OF_GROUP),
    ("LeaveGroup", [(READ, GROUP)], OF_GROUP),
    ("SyncGroup", [(READ, GROUP)], OF_GROUP),
    ("DeleteRecords", [(DELETE, ResourceType.TOPIC)], OF_TOPIC),
    ("InitProducerId", [(AclOperation.IDEMPOTENT_WRITE, CLUSTER)], OF_CLUSTER),
    ("InitProducerId", [(WRITE, ResourceType.TOPIC)], OF_CLUSTER),
    ("OffsetForLeaderEpoch", [(DESCRIBE, ResourceType.TOPIC)], OF_TOPIC),
    ("OffsetForLeaderEpoch", [BROKER], OF_TOPIC),
    ("AddOffsetsToTxn", [(WRITE, ID), (READ, GROUP)], OF_ID),
    ("EndTxn", [(WRITE, ID)], OF_ID),
    ("WriteTxnMarkers", [(ALTER, CLUSTER)], OF_CLUSTER),
    ("WriteTxnMarkers", [BROKER], OF_CLUSTER),
    ("TxnOffsetCommit", [(WRITE, ID), (READ, GROUP), (READ, ResourceType.TOPIC)], OF_ID),
    ("DescribeAcls", [(DESCRIBE, CLUSTER)], OF_CLUSTER),
    ("CreateAcls", [(ALTER, CLUSTER)], OF_CLUSTER),
    ("DeleteAcls", [(ALTER, CLUSTER)], OF_CLUSTER),
    ("AlterConfigs", [(AclOperation.ALTER_CONFIGS, ResourceType.TOPIC)], OF_TOPIC),
    ("IncrementalAlterConfigs", [(AclOperation.ALTER_CONFIGS, ResourceType.TOPIC)], OF_TOPIC),
    ("AlterReplicaLogDirs", [(ALTER, CLUSTER)], OF_CLUSTER),
    ("DescribeLogDirs", [(DESCRIBE, CLUSTER)], OF_CLUSTER),
    ("ElectLeaders", [(ALTER, CLUSTER)], OF_CLUSTER),
    ("AlterPartitionReassignments", [(ALTER, CLUSTER)], OF_CLUSTER),
    ("ListPartitionReassignments", [(DESCRIBE, CLUSTER)], OF_CLUSTER),
    ("OffsetDelete", [(DELETE, GROUP), (READ, ResourceType.TOPIC)], OF_GROUP),
    ("DescribeClientQuotas", [(AclOperation.DESCRIBE_CONFIGS, CLUSTER)], OF_CLUSTER),
    ("AlterClientQuotas", [(AclOperation.ALTER_CONFIGS, CLUSTER)], OF_CLUSTER),
    ("DescribeUserScramCredentials", [(DESCRIBE, CLUSTER)], OF_CLUSTER),
    ("UpdateFeatures", [(ALTER, CLUSTER)], OF_CLUSTER),
    ("DescribeProducers", [(READ, ResourceType.TOPIC)], OF_TOPIC),
    ("DescribeTransactions", [(DESCRIBE, ID)], OF_ID),
]
"""APIs whose genuine requests name one resource of a kind, what they need, and the refusal."""
NAMES_NO_TOPIC_FROM: Final = {"Fetch": 13}
FORWARDED: Final = {"ElectLeaders", "AlterPartitionReassignments", "ListPartitionReassignments"}
"""No controller would answer them here."""
HAS_NO_ERROR_BELOW: Final = {"DescribeLogDirs": 3, "OffsetFetch": 2, "ElectLeaders": 0}


@pytest.mark.parametrize(("name", "needed", "refusal"), CASES)
def test_a_client_needs_the_permissions_of_the_row(
    guarded: Guarded, name: str, needed: Sequence[Needed], refusal: frozenset[Errors]
):
    kind = KINDS[name]
    advertised = ask_versions(("127.0.0.1", guarded.served.port))[kind.API_KEY]
    versions = range(advertised.min_version, advertised.max_version + 1)
    for version in versions:
        guarded.grants.allow()
        found = errors_of(guarded.ask(kind, values_of(kind), version))
        if HAS_NO_ERROR_BELOW.get(name, 0) <= version < NAMES_NO_TOPIC_FROM.get(name, 99):
            assert refusal <= found <= refusal | {Errors.NONE}, version
    for version in () if name in FORWARDED else versions:
        guarded.grants.allow(*needed, (READ, ResourceType.TOPIC))
        assert not errors_of(guarded.ask(kind, values_of(kind), version)) & DENIED, version


@pytest.mark.parametrize(
    ("name", "given", "refusal"),
    [
        ("OffsetCommit", [(READ, GROUP)], OF_TOPIC),
        ("AddOffsetsToTxn", [(WRITE, ID)], OF_GROUP),
        ("TxnOffsetCommit", [(WRITE, ID)], OF_GROUP),
        ("TxnOffsetCommit", [(WRITE, ID), (READ, GROUP)], OF_TOPIC),
        ("OffsetDelete", [(DELETE, GROUP)], OF_TOPIC),
    ],
)
def test_a_client_needs_each_of_several_permissions(
    guarded: Guarded, name: str, given: Sequence[Needed], refusal: frozenset[Errors]
):
    kind, commit = KINDS[name], KINDS["OffsetCommit"]
    guarded.grants.allow((READ, GROUP), (READ, ResourceType.TOPIC))
    guarded.ask(commit, values_of(commit), 2)  # makes the group
    guarded.grants.allow(*given)
    found = errors_of(guarded.ask(kind, values_of(kind), 0)) - {Errors.NONE}
    assert found == refusal


def test_produced_records_of_a_transaction_need_its_id_too(guarded: Guarded):
    partition = {"index": 0, "records": in_transaction(b"a", producer_id=1, sequence=0)}
    asked = {
        **values_of(ProduceRequest),
        "transactional_id": "x",
        "topic_data": [{"name": TOPIC, "partition_data": [partition]}],
    }
    guarded.grants.allow((WRITE, ResourceType.TOPIC))
    assert errors_of(guarded.ask(ProduceRequest, asked, 9)) == OF_ID
    guarded.grants.allow((WRITE, ResourceType.TOPIC), (WRITE, ID))
    assert not errors_of(guarded.ask(ProduceRequest, asked, 9)) & DENIED


def test_without_an_answer_the_connection_of_a_producer_is_closed(guarded: Guarded):
    asked = {**values_of(ProduceRequest), "acks": 0}
    with pytest.raises(ConnectionError):
        guarded.ask(ProduceRequest, asked, 9)


def test_only_the_partitions_of_topics_that_are_denied_are_refused(guarded: Guarded):
    guarded.grants.allow((WRITE, ResourceType.TOPIC), (READ, ResourceType.TOPIC))
    one = {"partition_data": [{"index": 0, "records": batch(b"a")}]}
    asked = {
        **values_of(ProduceRequest),
        "topic_data": [{"name": TOPIC, **one}, {"name": "other", **one}],
    }
    answered = guarded.ask(ProduceRequest, asked, 9)
    errors = {row.name: row.partition_responses[0].error_code for row in answered.responses}
    assert errors == {TOPIC: Errors.NONE, "other": Errors.TOPIC_AUTHORIZATION_FAILED}
    fetch = values_of(FetchRequest)
    partition = fetch["topics"][0]["partitions"]
    topics = [{"topic": TOPIC, "partitions": partition}, {"topic": "x", "partitions": partition}]
    fetched = guarded.ask(FetchRequest, {**fetch, "topics": topics}, 11)
    errors = {row.topic: row.partitions[0].error_code for row in fetched.responses}
    assert errors.pop("x") == Errors.TOPIC_AUTHORIZATION_FAILED
    assert errors[TOPIC] in (Errors.NONE, Errors.OFFSET_OUT_OF_RANGE)


@pytest.mark.parametrize("topic_id", [TOPIC_ID, uuid.UUID(int=77)])
def test_a_fetch_by_id_tells_no_more_than_whether_the_id_is_known(
    guarded: Guarded, topic_id: uuid.UUID
):
    fetch = values_of(FetchRequest)
    partition = fetch["topics"][0]["partitions"]
    topics = [{"topic_id": topic_id, "partitions": partition}]
    fetched = guarded.ask(FetchRequest, {**fetch, "topics": topics}, 13)
    is_known = topic_id == TOPIC_ID
    expected = Errors.TOPIC_AUTHORIZATION_FAILED if is_known else Errors.UNKNOWN_TOPIC_ID
    assert fetched.responses[0].partitions[0].error_code == expected


def test_the_partitions_of_a_transaction_are_added_together_or_not_at_all(guarded: Guarded):
    kind = KINDS["AddPartitionsToTxn"]
    topics = [{"name": TOPIC, "partitions": [0]}, {"name": "other", "partitions": [0]}]
    asked = {**values_of(kind), "v3_and_below_topics": topics}
    assert errors_of(guarded.ask(kind, asked, 3)) - {Errors.NONE} == OF_ID
    guarded.grants.allow((WRITE, ID), (WRITE, ResourceType.TOPIC))
    answered = guarded.ask(kind, asked, 3).results_by_topic_v3_and_below
    errors = {row.name: row.results_by_partition[0].partition_error_code for row in answered}
    assert errors == {
        TOPIC: Errors.OPERATION_NOT_ATTEMPTED,
        "other": Errors.TOPIC_AUTHORIZATION_FAILED,
    }


# --- metadata -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [TOPIC, "absent", "__consumer_offsets"])
@pytest.mark.parametrize("version", range(13))
def test_whether_a_topic_exists_is_not_told(guarded: Guarded, name: str, version: int):
    asked = {"topics": [{"name": name}], "allow_auto_topic_creation": True}
    (row,) = guarded.ask(MetadataRequest, asked, version).topics
    assert (row.error_code, row.name, row.partitions) == (29, name, [])
    assert not getattr(row, "is_internal", False)
    assert not getattr(row, "topic_id", None)
    assert guarded.grants.logged == {(DESCRIBE, Resource(ResourceType.TOPIC, name))}


def test_the_name_of_a_topic_that_is_asked_for_by_id_is_not_told(guarded: Guarded):
    asked = {"topics": [{"topic_id": TOPIC_ID, "name": None}]}
    (row,) = guarded.ask(MetadataRequest, asked, 12).topics
    assert (row.error_code, row.name, row.topic_id) == (29, None, TOPIC_ID)
    guarded.grants.allow((DESCRIBE, ResourceType.TOPIC))
    (row,) = guarded.ask(MetadataRequest, asked, 12).topics
    assert (row.error_code, row.name, len(row.partitions)) == (0, TOPIC, 1)


def test_of_all_topics_those_that_are_denied_are_left_out_silently(guarded: Guarded):
    assert guarded.ask(MetadataRequest, {"topics": None}, 9).topics == []
    assert guarded.grants.logged == set()
    guarded.grants.allow((DESCRIBE, ResourceType.TOPIC))
    (row,) = guarded.ask(MetadataRequest, {"topics": None}, 9).topics
    assert row.name == TOPIC


def test_a_topic_is_created_only_for_a_client_that_may_create_it(guarded: Guarded):
    asked = {"topics": [{"name": "wanted"}], "allow_auto_topic_creation": True}
    describe = (DESCRIBE, ResourceType.TOPIC, "wanted")
    guarded.grants.given = {describe}
    (row,) = guarded.ask(MetadataRequest, asked, 9).topics
    assert row.error_code == Errors.TOPIC_AUTHORIZATION_FAILED
    for create in ((CREATE, ResourceType.TOPIC, "wanted"), (CREATE, CLUSTER, CLUSTER_NAME)):
        guarded.grants.given = {describe, create}
        (row,) = guarded.ask(MetadataRequest, asked, 9).topics
        assert row.error_code == Errors.LEADER_NOT_AVAILABLE


def test_a_client_is_told_the_operations_that_it_may_do(guarded: Guarded):
    asked = {
        "topics": [{"name": TOPIC}],
        "include_topic_authorized_operations": True,
        "include_cluster_authorized_operations": True,
    }
    guarded.grants.allow(
        (DESCRIBE, ResourceType.TOPIC), (READ, ResourceType.TOPIC), (ALTER, CLUSTER)
    )
    answered = guarded.ask(MetadataRequest, asked, 8)
    assert answered.topics[0].authorized_operations == {DESCRIBE, READ}
    assert answered.authorized_operations == set()  # it may not describe the cluster
    guarded.grants.allow((DESCRIBE, CLUSTER), (ALTER, CLUSTER))
    cluster = guarded.ask(
        DescribeClusterRequest, {"include_cluster_authorized_operations": True}, 0
    )
    assert cluster.authorized_operations == {DESCRIBE, ALTER}
    assert guarded.grants.logged == set()


# --- groups ---------------------------------------------------------------------------------------


def test_groups_are_refused_one_by_one(guarded: Guarded):
    guarded.grants.allow((DESCRIBE, GROUP), (READ, GROUP))
    asked = {"groups": ["h", "g"], "include_authorized_operations": True}
    other, own = guarded.ask(DescribeGroupsRequest, asked, 5).groups
    assert (other.group_id, other.error_code) == ("h", Errors.GROUP_AUTHORIZATION_FAILED)
    assert (own.group_id, own.error_code) == ("g", Errors.NONE)
    assert own.authorized_operations == {DESCRIBE, READ}
    kind = KINDS["DeleteGroups"]
    guarded.grants.allow((DELETE, GROUP))
    rows = guarded.ask(kind, {"groups_names": ["h", "g"]}, 2).results
    errors = {row.group_id: row.error_code for row in rows}
    assert errors.pop("h") == Errors.GROUP_AUTHORIZATION_FAILED
    assert errors["g"] in (Errors.NONE, Errors.GROUP_ID_NOT_FOUND)


def test_a_list_of_groups_has_those_that_the_client_may_describe(guarded: Guarded):
    guarded.grants.allow((READ, GROUP), (READ, ResourceType.TOPIC))
    kind = KINDS["OffsetCommit"]
    assert errors_of(guarded.ask(kind, values_of(kind), 2)) == {Errors.NONE}  # makes the group
    guarded.grants.allow()
    assert guarded.ask(ListGroupsRequest, {}, 0).groups == []
    assert guarded.grants.logged == set()
    for needed in ((DESCRIBE, GROUP), (DESCRIBE, CLUSTER)):
        guarded.grants.allow(needed)
        assert [row.group_id for row in guarded.ask(ListGroupsRequest, {}, 0).groups] == ["g"]


def test_positions_in_topics_that_are_denied_are_not_told(guarded: Guarded):
    guarded.grants.allow((READ, GROUP), (READ, ResourceType.TOPIC))
    commit = KINDS["OffsetCommit"]
    guarded.ask(commit, values_of(commit), 2)
    named = {"group_id": "g", "topics": [{"name": TOPIC, "partition_indexes": [0]}]}
    of_all = {"group_id": "g", "topics": None}
    guarded.grants.allow((DESCRIBE, GROUP))
    (topic,) = guarded.ask(OffsetFetchRequest, named, 7).topics
    row = topic.partitions[0]
    assert (row.error_code, row.committed_offset) == (Errors.TOPIC_AUTHORIZATION_FAILED, -1)
    assert guarded.ask(OffsetFetchRequest, of_all, 7).topics == []
    guarded.grants.allow((DESCRIBE, GROUP), (DESCRIBE, ResourceType.TOPIC))
    for asked in (named, of_all):
        (topic,) = guarded.ask(OffsetFetchRequest, asked, 7).topics
        assert topic.partitions[0].committed_offset == 1
    several = {"groups": [{**named, "group_id": "h"}, named]}
    other, own = guarded.ask(OffsetFetchRequest, several, 8).groups
    assert (other.error_code, own.error_code) == (Errors.GROUP_AUTHORIZATION_FAILED, Errors.NONE)


def test_the_coordinators_of_keys_are_refused_one_by_one(guarded: Guarded):
    guarded.grants.allow((DESCRIBE, ID))
    asked = {"key_type": 1, "coordinator_keys": ["y", "x"]}
    rows = guarded.ask(FindCoordinatorRequest, asked, 4).coordinators
    errors = {row.key: row.error_code for row in rows}
    assert errors == {"y": Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "x": Errors.NONE}


# --- topics and configurations --------------------------------------------------------------------


def creation(*names: str) -> Mapping[str, Any]:
    topics = [
        {
            "name": name,
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        for name in names
    ]
    return {"timeout_ms": 1, "topics": topics}


def test_topics_to_create_are_refused_one_by_one(guarded: Guarded):
    create = CREATE, ResourceType.TOPIC
    guarded.grants.given = {(*create, "mine"), (AclOperation.DESCRIBE_CONFIGS, create[1], "mine")}
    rows = guarded.ask(CreateTopicsRequest, creation("theirs", "mine"), 5).topics
    found = {row.name: (row.error_code, row.error_message) for row in rows}
    assert found["theirs"] == (Errors.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
    assert found["mine"][0] in (Errors.NONE, Errors.REQUEST_TIMED_OUT)
    assert "/brokers/topics/mine" in guarded.served.world.zookeeper.snapshot()
    assert "/brokers/topics/theirs" not in guarded.served.world.zookeeper.snapshot()


def test_a_refused_creation_says_whether_the_settings_may_be_described(guarded: Guarded):
    create, describe = CREATE, AclOperation.DESCRIBE_CONFIGS
    given = {(create, "failed"), (create, "twice"), (describe, "described")}
    guarded.grants.given = {(operation, ResourceType.TOPIC, name) for operation, name in given}
    asked = {**creation("hidden", "described", "failed", "twice", "twice"), "timeout_ms": 1}
    asked["topics"][2]["replication_factor"] = 7
    rows = guarded.ask(CreateTopicsRequest, asked, 5).topics
    denied = Errors.TOPIC_AUTHORIZATION_FAILED
    assert {row.name: (row.error_code, row.topic_config_error_code) for row in rows} == {
        "hidden": (denied, denied),
        "described": (denied, 0),
        "failed": (Errors.INVALID_REPLICATION_FACTOR, 0),
        "twice": (Errors.INVALID_REQUEST, denied),
    }
    assert all((row.num_partitions, row.configs) == (-1, []) for row in rows)


def test_topics_to_delete_are_refused_and_hide_their_names(guarded: Guarded):
    by_id = {"topics": [{"name": None, "topic_id": TOPIC_ID}], "timeout_ms": 1}
    by_name = {"topics": [{"name": TOPIC}, {"name": "absent"}], "timeout_ms": 1}
    for row in guarded.ask(DeleteTopicsRequest, by_name, 6).responses:
        assert row.error_code == Errors.TOPIC_AUTHORIZATION_FAILED
    (row,) = guarded.ask(DeleteTopicsRequest, by_id, 6).responses
    assert (row.error_code, row.name, row.topic_id) == (29, None, TOPIC_ID)
    guarded.grants.allow((DESCRIBE, ResourceType.TOPIC))
    (row,) = guarded.ask(DeleteTopicsRequest, by_id, 6).responses
    assert (row.error_code, row.name) == (29, TOPIC)
    unknown = {"topics": [{"name": None, "topic_id": uuid.UUID(int=77)}], "timeout_ms": 1}
    (row,) = guarded.ask(DeleteTopicsRequest, unknown, 6).responses
    assert (row.error_code, row.name) == (Errors.UNKNOWN_TOPIC_ID, None)
    assert f"/admin/delete_topics/{TOPIC}" not in guarded.served.world.zookeeper.snapshot()


@pytest.mark.parametrize(
    ("resource_type", "name", "needed", "refusal"),
    [
        (2, TOPIC, (AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC), OF_TOPIC),
        (2, "absent", None, OF_TOPIC),
        (4, "0", (AclOperation.DESCRIBE_CONFIGS, CLUSTER), OF_CLUSTER),
        (8, "0", (AclOperation.DESCRIBE_CONFIGS, CLUSTER), OF_CLUSTER),
    ],
)
def test_configurations_are_described_to_those_who_may(
    guarded: Guarded,
    resource_type: int,
    name: str,
    needed: Needed | None,
    refusal: frozenset[Errors],
):
    resource = {"resource_type": resource_type, "resource_name": name, "configuration_keys": None}
    (row,) = guarded.ask(DescribeConfigsRequest, {"resources": [resource]}, 4).results
    assert {row.error_code} == refusal
    assert not row.configs
    if needed is not None:
        guarded.grants.allow(needed)
        (row,) = guarded.ask(DescribeConfigsRequest, {"resources": [resource]}, 4).results
        assert row.error_code == Errors.NONE
        assert row.configs


def test_the_settings_of_the_cluster_are_changed_by_those_who_may(guarded: Guarded):
    kind = KINDS["IncrementalAlterConfigs"]
    config = {"name": "log.cleaner.threads", "value": "2", "config_operation": 0}
    resource = {"resource_type": 4, "resource_name": "", "configs": [config]}
    asked = {"resources": [resource], "validate_only": True}
    assert errors_of(guarded.ask(kind, asked, 1)) == OF_CLUSTER
    guarded.grants.allow((AclOperation.ALTER_CONFIGS, CLUSTER))
    assert errors_of(guarded.ask(kind, asked, 1)) == {Errors.NONE}


def test_partitions_are_added_by_those_who_may_alter_a_topic(guarded: Guarded):
    kind = KINDS["CreatePartitions"]
    assert errors_of(guarded.ask(kind, values_of(kind), 3)) == OF_TOPIC
    guarded.grants.allow((ALTER, ResourceType.TOPIC), name="grown")
    assert errors_of(guarded.ask(kind, values_of(kind), 3)) == {Errors.UNKNOWN_TOPIC_OR_PARTITION}


def test_an_old_client_that_asks_for_all_elections_is_disconnected(guarded: Guarded):
    with pytest.raises(ConnectionError):
        guarded.ask(ElectLeadersRequest, {"topic_partitions": None, "timeout_ms": 1}, 0)


# --- followers ------------------------------------------------------------------------------------


def test_offsets_and_epochs_are_told_to_brokers(guarded: Guarded):
    """On the listener of clients a follower is refused first."""
    guarded.grants.allow(BROKER)
    epochs = guarded.ask(OffsetForLeaderEpochRequest, values_of(OffsetForLeaderEpochRequest), 2)
    assert errors_of(epochs) == {Errors.NONE}
    follower = {**values_of(ListOffsetsRequest), "replica_id": 7}
    assert errors_of(guarded.ask(ListOffsetsRequest, follower, 7)) == OF_CLUSTER


def test_decisions_on_several_threads_do_not_disturb_each_other(guarded: Guarded):
    """DescribeConfigs is handled beside the event loop."""
    guarded.grants.allow((AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC))
    kind, found = KINDS["DescribeConfigs"], set[Errors]()

    def describe() -> None:
        found.update(errors_of(guarded.ask(kind, values_of(kind), 4)))

    threads = [threading.Thread(target=describe) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(scaled(10.0))
    assert found == {Errors.NONE, Errors.CLUSTER_AUTHORIZATION_FAILED}
