"""Many clients at once, requests of all sizes, answers in any order: everybody gets their own."""

from __future__ import annotations

import asyncio
import random
import threading

from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaRequest
from regent.transport.kafka.limits import KafkaLimits
from regent.transport.kafka.listener import KafkaListener
from tests.transport.kafka.conftest import Listen
from tests.transport.kafka.raw_client import METADATA, WAIT_S, RawClient, request_bytes

CLIENTS, REQUESTS = 8, 100
LIMITS = KafkaLimits(queued_requests_per_connection=5, queued_max_request_bytes=500_000)


async def echo(request: KafkaRequest) -> KafkaAnswer:
    """Answer with the body: at once, or some turns of the loop later."""
    turns = request.body[0] % 4
    for _ in range(turns * 3):
        await asyncio.sleep(0)
    return (b"answer to ", request.body)


def talk(listener: KafkaListener, seed: int, answered: list[int]) -> None:
    """Send requests in pieces of all sizes, while another thread reads the answers."""
    rng = random.Random(seed)
    sizes = [rng.choice([1, 100, 10_000, 70_000, 200_000]) for _ in range(REQUESTS)]
    bodies = [rng.randbytes(size) for size in sizes]
    stream = b"".join(request_bytes(body, number) for number, body in enumerate(bodies))

    def send(client: RawClient) -> None:
        sent = 0
        while sent < len(stream):
            count = rng.choice([1, 3, 1_000, 65_536, 300_000])
            client.send(stream[sent : sent + count])
            sent += count

    with RawClient(listener) as client:
        sender = threading.Thread(target=send, args=(client,))
        sender.start()
        for number, body in enumerate(bodies):
            if client.answer() == (number, b"answer to " + body):
                answered[seed] += 1
        sender.join(WAIT_S)


def test_everybody_gets_their_own_answers_in_order(listen: Listen):
    listener = listen([KafkaApi(METADATA, 0, 8, echo)], LIMITS)
    answered = [0] * CLIENTS
    clients = [
        threading.Thread(target=talk, args=(listener, seed, answered)) for seed in range(CLIENTS)
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join(WAIT_S * 3)
    assert answered == [REQUESTS] * CLIENTS
    assert +listener.metrics.closed == {}
    assert listener.metrics.throttled > 0
