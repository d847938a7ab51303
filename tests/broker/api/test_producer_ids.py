from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from kafka.protocol.producer.transaction import InitProducerIdRequest

from regent.broker.api.producer_ids import producer_id_apis
from regent.core.errors import Errors, SessionExpiredError
from tests.transport.kafka.wire import ask, request_of, whole

PLAIN = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


class Blocks:
    """Returns blocks of three ids, or raises; counts its calls."""

    def __init__(self, *failures: Exception) -> None:
        self.taken = 0
        self._failures = list(failures)

    def __call__(self) -> range:
        if self._failures:
            raise self._failures.pop(0)
        first = 3 * self.taken
        self.taken += 1
        return range(first, first + 3)


def ids_of(count: int, take_block: Callable[[], range], executor: ThreadPoolExecutor) -> list[int]:
    """Return the ids of ``count`` concurrent requests."""
    (api,) = producer_id_apis(take_block, executor)
    request = request_of(api.key, 1, PLAIN.encode(version=1))

    async def all_of_them() -> list[int]:
        answers = await asyncio.gather(*(api.handle(request) for _ in range(count)))
        return [int.from_bytes(whole(answer)[6:14], "big", signed=True) for answer in answers]

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("version", [0, 1])
def test_an_idempotent_producer_gets_an_id_and_epoch_0(version: int, executor: ThreadPoolExecutor):
    answer = ask(producer_id_apis(lambda: range(4_000, 5_000), executor), PLAIN, version)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, 4_000, 0)


def test_a_new_block_is_taken_when_the_previous_one_is_used_up(executor: ThreadPoolExecutor):
    blocks = Blocks()
    assert sorted(ids_of(7, blocks, executor)) == list(range(7))
    assert blocks.taken == 3


def test_a_transactional_id_is_refused(executor: ThreadPoolExecutor):
    blocks = Blocks()
    request = InitProducerIdRequest(transactional_id="orders", transaction_timeout_ms=1)
    answer = ask(producer_id_apis(blocks, executor), request, 1)
    assert (answer.error_code, answer.producer_id) == (Errors.INVALID_REQUEST, -1)
    assert not blocks.taken


def test_without_zookeeper_the_error_is_retriable(executor: ThreadPoolExecutor):
    blocks = Blocks(SessionExpiredError("no session"))
    (api,) = producer_id_apis(blocks, executor)
    request = request_of(api.key, 1, PLAIN.encode(version=1))

    async def twice() -> list[bytes]:
        return [whole(await api.handle(request)) for _ in range(2)]

    refused, accepted = asyncio.run(twice())
    assert int.from_bytes(refused[4:6], "big") == Errors.COORDINATOR_LOAD_IN_PROGRESS
    assert int.from_bytes(accepted[4:6], "big") == Errors.NONE
