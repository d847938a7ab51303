"""InitProducerId, versions 0 to 5, for idempotent and for transactional producers.

Mirrors ``kafka.server.KafkaApis.handleInitProducerIdRequest``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor

from regent.broker.api.coordinator_requests import CoordinatorRequests
from regent.core.errors import Errors, RegentError
from regent.core.protocol.groups import ProducerIdAndEpoch
from regent.core.protocol.messages.producer_ids import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from regent.core.protocol.transactions import InitProducerId
from regent.core.security.acls import AclOperation, ResourceType
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import answer, decode

logger = logging.getLogger(__name__)

_FIRST_EPOCH = 0
_NONE = -1
_FIRST_WITH_PRODUCER_FENCED = 4  # older clients know INVALID_PRODUCER_EPOCH


class _ProducerIds:
    """Gives out the ids of one block after another; used on the listener's loop only."""

    def __init__(self, take_block: Callable[[], range], executor: Executor) -> None:
        self._take_block = take_block
        self._executor = executor
        self._block: Iterator[int] = iter(())
        self._fetching = asyncio.Lock()  # one request for a block, for all that wait

    async def next_id(self) -> int:
        """Return an id never returned before, by any broker; raises what ``take_block`` does."""
        producer_id = next(self._block, None)
        while producer_id is None:
            async with self._fetching:
                producer_id = next(self._block, None)
                if producer_id is None:
                    loop = asyncio.get_running_loop()
                    block = await loop.run_in_executor(self._executor, self._take_block)
                    self._block = iter(block)
                    producer_id = next(self._block, None)
        return producer_id


def producer_id_apis(
    take_block: Callable[[], range],
    executor: Executor,
    transactions: CoordinatorRequests | None = None,
) -> Sequence[KafkaApi]:
    """Return the API InitProducerId.

    ``take_block`` returns ids reserved for this broker, or raises ``RegentError``; it runs in
    ``executor``. ``transactions`` asks the transaction coordinator; None: there is none.
    """
    producer_ids = _ProducerIds(take_block, executor)

    async def handle(request: KafkaRequest) -> KafkaAnswer:
        asked, version = decode(InitProducerIdRequest, request), request.api_version
        if (error := _denial(asked, request)) is not Errors.NONE:
            return _refused(error, request)
        has_id, has_epoch = asked.producer_id != _NONE, asked.producer_epoch != _NONE
        if has_id is not has_epoch:
            return _refused(Errors.INVALID_REQUEST, request)
        if asked.transactional_id is None:
            return await _init_without_id(producer_ids, request)
        if transactions is None:
            return _refused(Errors.INVALID_REQUEST, request)
        expected = ProducerIdAndEpoch(asked.producer_id, asked.producer_epoch) if has_id else None
        given = await transactions.ask(
            InitProducerId(
                asked.transactional_id,
                asked.transaction_timeout_ms,
                expected,
                knows_fencing=version >= _FIRST_WITH_PRODUCER_FENCED,
            )
        )
        return answer(given, request)

    return [KafkaApi(KafkaApiKey.INIT_PRODUCER_ID, 0, 5, handle)]


def _denial(asked: InitProducerIdRequest, request: KafkaRequest) -> Errors:
    """Return the error of a client that may not have a producer id, else NONE (KIP-679)."""
    if asked.transactional_id is not None:
        is_allowed = request.may(
            AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, asked.transactional_id
        )
        return Errors.NONE if is_allowed else Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    may_write = request.may(
        AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, is_logged=False
    ) or request.may_any(AclOperation.WRITE, ResourceType.TOPIC)
    return Errors.NONE if may_write else Errors.CLUSTER_AUTHORIZATION_FAILED


async def _init_without_id(producer_ids: _ProducerIds, request: KafkaRequest) -> KafkaAnswer:
    """Give an id to a producer that is idempotent, but not transactional."""
    try:
        producer_id = await producer_ids.next_id()
    except RegentError as error:
        logger.warning("No producer id for a client: %s", error)
        # Clients retry on this code.
        return _refused(Errors.COORDINATOR_LOAD_IN_PROGRESS, request)
    given = InitProducerIdResponse(
        error_code=Errors.NONE, producer_id=producer_id, producer_epoch=_FIRST_EPOCH
    )
    return answer(given, request)


def _refused(error_code: Errors, request: KafkaRequest) -> KafkaAnswer:
    return answer(InitProducerIdResponse(error_code=error_code), request)
