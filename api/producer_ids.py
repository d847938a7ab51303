"""InitProducerId, versions 0 and 1, for idempotent producers; there are no transactions.

Mirrors ``kafka.coordinator.transaction.TransactionCoordinator.handleInitProducerId``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor

from regent.core.errors import Errors, RegentError
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.primitives import Reader, Writer

logger = logging.getLogger(__name__)

_NOT_THROTTLED = 0
_NO_PRODUCER_ID = -1
_NO_EPOCH = -1
_FIRST_EPOCH = 0


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


def producer_id_apis(take_block: Callable[[], range], executor: Executor) -> Sequence[KafkaApi]:
    """Return the API InitProducerId.

    ``take_block`` returns ids reserved for this broker, or raises ``RegentError``; it runs in
    ``executor``.
    """
    producer_ids = _ProducerIds(take_block, executor)

    async def handle(request: KafkaRequest) -> KafkaAnswer:
        reader = Reader(request.body)
        transactional_id, _timeout_ms = reader.nullable_string(), reader.int32()
        if transactional_id is not None:
            return _refused(Errors.INVALID_REQUEST)
        try:
            producer_id = await producer_ids.next_id()
        except RegentError as error:
            logger.warning("No producer id for a client: %s", error)
            return _refused(Errors.COORDINATOR_LOAD_IN_PROGRESS)  # clients retry on this code
        return _encode(Errors.NONE, producer_id, _FIRST_EPOCH)

    return [KafkaApi(KafkaApiKey.INIT_PRODUCER_ID, 0, 1, handle)]


def _refused(error_code: Errors) -> KafkaAnswer:
    return _encode(error_code, _NO_PRODUCER_ID, _NO_EPOCH)


def _encode(error_code: Errors, producer_id: int, epoch: int) -> KafkaAnswer:
    writer = Writer()
    writer.int32(_NOT_THROTTLED)
    writer.int16(error_code)
    writer.int64(producer_id)
    writer.int16(epoch)
    return writer.pieces()
