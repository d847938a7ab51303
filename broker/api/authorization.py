"""Which operations on which resources each API needs, and how a whole request is refused.

Every API of a broker has a row: one without a row is not served. What a row with ``refuse`` needs
of the cluster is asked here, before its handler is called. The handlers of the others ask for each
topic, group or the like that a request names, by ``KafkaRequest.may`` and ``denied``, before they
look whether it exists. Mirrors the checks of ``kafka.server.KafkaApis`` and ``AclApis``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from regent.broker.api.transactions import refuse_markers
from regent.core.admin.partition_requests import refuse_partitions
from regent.core.errors import Errors
from regent.core.protocol.envelope import ForwardedClient
from regent.core.protocol.messages import (
    acls,
    client_quotas,
    control,
    controller,
    features,
    log_dirs,
    partitions,
)
from regent.core.protocol.messages.scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    DescribeUserScramCredentialsResponse,
)
from regent.core.security.acls import AclOperation, ResourceType
from regent.core.security.authorizer import ALLOW_ALL, Authorizer
from regent.transport.kafka.api import (
    Answering,
    KafkaAnswer,
    KafkaApi,
    KafkaApiKey,
    KafkaHandler,
    KafkaRequest,
    UnansweredRequestError,
)
from regent.transport.kafka.message_codec import answer, decode

_DENIED: Final = Errors.CLUSTER_AUTHORIZATION_FAILED
_REASON: Final = "Cluster authorization failed."


def _refuse_elections(request: KafkaRequest) -> object:
    asked = decode(partitions.ElectLeadersRequest, request)
    if asked.partitions is None and request.api_version == 0:
        # The answer would be the one that no election is needed.
        raise UnansweredRequestError(f"elections of all leaders: {_DENIED.name}")
    return refuse_partitions(asked, _DENIED, _REASON)


def _refuse_reassignments(request: KafkaRequest) -> object:
    asked = decode(partitions.AlterPartitionReassignmentsRequest, request)
    return refuse_partitions(asked, _DENIED, _REASON)


def _refuse_list_of_reassignments(request: KafkaRequest) -> object:
    asked = decode(partitions.ListPartitionReassignmentsRequest, request)
    return refuse_partitions(asked, _DENIED, _REASON)


def _refuse_new_acls(request: KafkaRequest) -> object:
    count = len(decode(acls.CreateAclsRequest, request).creations)
    refused = acls.AclCreationResult(error_code=_DENIED, error_message=_REASON)
    return acls.CreateAclsResponse(results=(refused,) * count)


def _refuse_deletion_of_acls(request: KafkaRequest) -> object:
    count = len(decode(acls.DeleteAclsRequest, request).filters)
    refused = acls.DeleteAclsFilterResult(error_code=_DENIED, error_message=_REASON)
    return acls.DeleteAclsResponse(filter_results=(refused,) * count)


def _refuse_quotas(request: KafkaRequest) -> object:
    asked = decode(client_quotas.AlterClientQuotasRequest, request)
    refused = (
        client_quotas.AlteredQuotas(error_code=_DENIED, error_message=_REASON, entity=row.entity)
        for row in asked.entries
    )
    return client_quotas.AlterClientQuotasResponse(entries=tuple(refused))


def _refuse_credentials(request: KafkaRequest) -> object:
    asked = decode(AlterUserScramCredentialsRequest, request)
    users = dict.fromkeys(row.name for row in asked.deletions)
    users |= dict.fromkeys(row.name for row in asked.upsertions)
    refused = (
        AlterUserScramCredentialsResult(user=user, error_code=_DENIED, error_message=_REASON)
        for user in users
    )
    return AlterUserScramCredentialsResponse(results=tuple(refused))


def _refuse_moves(request: KafkaRequest) -> object:
    asked = decode(log_dirs.AlterReplicaLogDirsRequest, request)
    results = (
        log_dirs.AlterReplicaLogDirTopicResult(
            topic_name=topic.name,
            partitions=tuple(
                log_dirs.AlterReplicaLogDirPartitionResult(
                    partition_index=number, error_code=_DENIED
                )
                for number in topic.partitions
            ),
        )
        for row in asked.dirs
        for topic in row.topics
    )
    return log_dirs.AlterReplicaLogDirsResponse(results=tuple(results))


Needed: TypeAlias = tuple[AclOperation, ResourceType]


class Row(NamedTuple):
    """What an API needs.

    With ``refuse``, which returns the answer that refuses a whole request, one of ``needed`` must
    be allowed on the cluster. Without, the handler asks for each of ``needed``.
    """

    needed: tuple[Needed, ...] = ()
    refuse: Callable[[KafkaRequest], object] | None = None


def _of_cluster(refuse: Callable[[KafkaRequest], object], *operations: AclOperation) -> Row:
    return Row(tuple((operation, ResourceType.CLUSTER) for operation in operations), refuse)


_READ_TOPIC: Final = AclOperation.READ, ResourceType.TOPIC
_WRITE_TOPIC: Final = AclOperation.WRITE, ResourceType.TOPIC
_DESCRIBE_TOPIC: Final = AclOperation.DESCRIBE, ResourceType.TOPIC
_DELETE_TOPIC: Final = AclOperation.DELETE, ResourceType.TOPIC
_CREATE_TOPIC: Final = AclOperation.CREATE, ResourceType.TOPIC
_READ_GROUP: Final = AclOperation.READ, ResourceType.GROUP
_DESCRIBE_GROUP: Final = AclOperation.DESCRIBE, ResourceType.GROUP
_DELETE_GROUP: Final = AclOperation.DELETE, ResourceType.GROUP
_WRITE_ID: Final = AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID
_DESCRIBE_ID: Final = AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID
_CREATE: Final = AclOperation.CREATE, ResourceType.CLUSTER
_DESCRIBE: Final = AclOperation.DESCRIBE, ResourceType.CLUSTER
_ALTER: Final = AclOperation.ALTER, ResourceType.CLUSTER
_BROKER: Final = AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER

ROWS: Final[Mapping[int, Row]] = {
    KafkaApiKey.PRODUCE: Row((_WRITE_ID, _WRITE_TOPIC)),
    KafkaApiKey.FETCH: Row((_READ_TOPIC, _BROKER)),
    KafkaApiKey.LIST_OFFSETS: Row((_DESCRIBE_TOPIC, _BROKER)),
    KafkaApiKey.METADATA: Row((_DESCRIBE_TOPIC, _CREATE, _CREATE_TOPIC, _DESCRIBE)),
    KafkaApiKey.LEADER_AND_ISR: _of_cluster(
        lambda _: control.LeaderAndIsrResponse(error_code=_DENIED), AclOperation.CLUSTER_ACTION
    ),
    KafkaApiKey.STOP_REPLICA: _of_cluster(
        lambda _: control.StopReplicaResponse(error_code=_DENIED), AclOperation.CLUSTER_ACTION
    ),
    KafkaApiKey.UPDATE_METADATA: _of_cluster(
        lambda _: control.UpdateMetadataResponse(error_code=_DENIED), AclOperation.CLUSTER_ACTION
    ),
    KafkaApiKey.CONTROLLED_SHUTDOWN: _of_cluster(
        lambda _: controller.ControlledShutdownResponseData(error_code=_DENIED),
        AclOperation.CLUSTER_ACTION,
    ),
    KafkaApiKey.OFFSET_COMMIT: Row((_READ_GROUP, _READ_TOPIC)),
    KafkaApiKey.OFFSET_FETCH: Row((_DESCRIBE_GROUP, _DESCRIBE_TOPIC)),
    KafkaApiKey.FIND_COORDINATOR: Row((_DESCRIBE_GROUP, _DESCRIBE_ID)),
    KafkaApiKey.JOIN_GROUP: Row((_READ_GROUP,)),
    KafkaApiKey.HEARTBEAT: Row((_READ_GROUP,)),
    KafkaApiKey.LEAVE_GROUP: Row((_READ_GROUP,)),
    KafkaApiKey.SYNC_GROUP: Row((_READ_GROUP,)),
    KafkaApiKey.DESCRIBE_GROUPS: Row((_DESCRIBE_GROUP,)),
    KafkaApiKey.LIST_GROUPS: Row((_DESCRIBE, _DESCRIBE_GROUP)),
    KafkaApiKey.SASL_HANDSHAKE: Row(),
    KafkaApiKey.API_VERSIONS: Row(),
    KafkaApiKey.CREATE_TOPICS: Row(
        (_CREATE, _CREATE_TOPIC, (AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC))
    ),
    KafkaApiKey.DELETE_TOPICS: Row((_DELETE_TOPIC, _DESCRIBE_TOPIC)),
    KafkaApiKey.DELETE_RECORDS: Row((_DELETE_TOPIC,)),
    KafkaApiKey.INIT_PRODUCER_ID: Row(
        (_WRITE_ID, (AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER), _WRITE_TOPIC)
    ),
    KafkaApiKey.OFFSET_FOR_LEADER_EPOCH: Row((_BROKER, _DESCRIBE_TOPIC)),
    KafkaApiKey.ADD_PARTITIONS_TO_TXN: Row((_WRITE_ID, _WRITE_TOPIC, _BROKER)),
    KafkaApiKey.ADD_OFFSETS_TO_TXN: Row((_WRITE_ID, _READ_GROUP)),
    KafkaApiKey.END_TXN: Row((_WRITE_ID,)),
    KafkaApiKey.WRITE_TXN_MARKERS: _of_cluster(
        lambda request: refuse_markers(request, _DENIED),
        AclOperation.ALTER,
        AclOperation.CLUSTER_ACTION,
    ),
    KafkaApiKey.TXN_OFFSET_COMMIT: Row((_WRITE_ID, _READ_GROUP, _READ_TOPIC)),
    KafkaApiKey.DESCRIBE_ACLS: _of_cluster(
        lambda _: acls.DescribeAclsResponse(error_code=_DENIED, error_message=_REASON),
        AclOperation.DESCRIBE,
    ),
    KafkaApiKey.CREATE_ACLS: _of_cluster(_refuse_new_acls, AclOperation.ALTER),
    KafkaApiKey.DELETE_ACLS: _of_cluster(_refuse_deletion_of_acls, AclOperation.ALTER),
    KafkaApiKey.DESCRIBE_CONFIGS: Row(
        (
            (AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),
            (AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC),
        )
    ),
    KafkaApiKey.ALTER_CONFIGS: Row(
        (
            (AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER),
            (AclOperation.ALTER_CONFIGS, ResourceType.TOPIC),
        )
    ),
    KafkaApiKey.ALTER_REPLICA_LOG_DIRS: _of_cluster(_refuse_moves, AclOperation.ALTER),
    KafkaApiKey.DESCRIBE_LOG_DIRS: _of_cluster(
        lambda _: log_dirs.DescribeLogDirsResponse(error_code=_DENIED, results=()),
        AclOperation.DESCRIBE,
    ),
    KafkaApiKey.SASL_AUTHENTICATE: Row(),
    KafkaApiKey.CREATE_PARTITIONS: Row(((AclOperation.ALTER, ResourceType.TOPIC),)),
    KafkaApiKey.CREATE_DELEGATION_TOKEN: Row(((AclOperation.CREATE_TOKENS, ResourceType.USER),)),
    KafkaApiKey.RENEW_DELEGATION_TOKEN: Row(),  # its owner and its renewers may
    KafkaApiKey.EXPIRE_DELEGATION_TOKEN: Row(),
    KafkaApiKey.DESCRIBE_DELEGATION_TOKEN: Row(
        (
            (AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN),
            (AclOperation.DESCRIBE_TOKENS, ResourceType.USER),
        )
    ),
    KafkaApiKey.DELETE_GROUPS: Row((_DELETE_GROUP,)),
    KafkaApiKey.ELECT_LEADERS: _of_cluster(_refuse_elections, AclOperation.ALTER),
    KafkaApiKey.INCREMENTAL_ALTER_CONFIGS: Row(
        (
            (AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER),
            (AclOperation.ALTER_CONFIGS, ResourceType.TOPIC),
        )
    ),
    KafkaApiKey.ALTER_PARTITION_REASSIGNMENTS: _of_cluster(
        _refuse_reassignments, AclOperation.ALTER
    ),
    KafkaApiKey.LIST_PARTITION_REASSIGNMENTS: _of_cluster(
        _refuse_list_of_reassignments, AclOperation.DESCRIBE
    ),
    KafkaApiKey.OFFSET_DELETE: Row((_DELETE_GROUP, _READ_TOPIC)),
    KafkaApiKey.DESCRIBE_CLIENT_QUOTAS: _of_cluster(
        lambda _: client_quotas.DescribeClientQuotasResponse(
            error_code=_DENIED, error_message=_REASON
        ),
        AclOperation.DESCRIBE_CONFIGS,
    ),
    KafkaApiKey.ALTER_CLIENT_QUOTAS: _of_cluster(_refuse_quotas, AclOperation.ALTER_CONFIGS),
    KafkaApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _of_cluster(
        lambda _: DescribeUserScramCredentialsResponse(error_code=_DENIED, error_message=_REASON),
        AclOperation.DESCRIBE,
    ),
    KafkaApiKey.ALTER_USER_SCRAM_CREDENTIALS: _of_cluster(_refuse_credentials, AclOperation.ALTER),
    KafkaApiKey.ALTER_PARTITION: _of_cluster(
        lambda _: controller.AlterPartitionResponseData(error_code=_DENIED),
        AclOperation.CLUSTER_ACTION,
    ),
    KafkaApiKey.UPDATE_FEATURES: _of_cluster(
        lambda _: features.UpdateFeaturesResponse(
            error_code=_DENIED, error_message=_REASON, results=()
        ),
        AclOperation.ALTER,
    ),
    KafkaApiKey.DESCRIBE_CLUSTER: Row((_DESCRIBE,)),
    KafkaApiKey.DESCRIBE_PRODUCERS: Row((_READ_TOPIC,)),
    KafkaApiKey.DESCRIBE_TRANSACTIONS: Row((_DESCRIBE_ID, _DESCRIBE_TOPIC)),
    KafkaApiKey.LIST_TRANSACTIONS: Row((_DESCRIBE_ID,)),
    KafkaApiKey.ALLOCATE_PRODUCER_IDS: _of_cluster(
        lambda _: controller.AllocateProducerIdsResponseData(error_code=_DENIED),
        AclOperation.CLUSTER_ACTION,
    ),
    KafkaApiKey.CONSUMER_GROUP_HEARTBEAT: Row(),  # refused to everybody
}
"""The row of each API."""


def with_authorization(apis: Iterable[KafkaApi], authorizer: Authorizer) -> list[KafkaApi]:
    """Return APIs that ``authorizer`` guards. Raises ``KeyError`` for one without a row."""
    return [_guarded(api, ROWS[api.key], authorizer) for api in apis]


def _guarded(api: KafkaApi, row: Row, authorizer: Authorizer) -> KafkaApi:
    if authorizer is ALLOW_ALL:
        return api
    handle = api.handle

    def authorize(request: KafkaRequest) -> Answering:
        request.authorizer = authorizer
        if row.refuse is not None and not _has_one(row.needed, request):
            return _refused(request, row.refuse)
        return handle(request)

    handler: KafkaHandler = authorize
    return KafkaApi(api.key, api.min_version, api.max_version, handler)


def _has_one(needed: tuple[Needed, ...], request: KafkaRequest) -> bool:
    *others, last = needed
    return any(request.may(*one, is_logged=False) for one in others) or request.may(*last)


async def _refused(request: KafkaRequest, refuse: Callable[[KafkaRequest], object]) -> KafkaAnswer:
    return answer(refuse(request), request)


def forwarded_client(request: KafkaRequest) -> ForwardedClient:
    """Return whom the controller authorizes again."""
    return ForwardedClient(*request.session.principal, request.session.client_host)
