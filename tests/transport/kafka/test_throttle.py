"""Clients that use more than their quotas are told to wait, and are not read meanwhile."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence

import pytest

from regent.core.quota.client_quota_manager import QuotaClient
from regent.core.quota.quota_config import QuotaConfig
from regent.core.quota.quota_managers import QuotaManagers
from regent.testing.waits import eventually
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaRequest
from regent.transport.kafka.limits import KafkaLimits
from regent.transport.kafka.metrics import Closed
from regent.transport.kafka.replies import AwaitedReply, Replies, TimedSteps
from regent.transport.kafka.throttle import Throttle
from tests.transport.kafka.conftest import Listen
from tests.transport.kafka.raw_client import METADATA, WAIT_S, RawClient, request_bytes

CLIENT = QuotaClient("ANONYMOUS", "client")
WAIT_MS = 200
LONG_MS = 60_000


def quotas_of(**limits: str) -> QuotaManagers:
    quotas = QuotaManagers(QuotaConfig())
    quotas.configure({"users/ANONYMOUS/clients/client": limits})
    return quotas


NO_BOUND = "1000000000"


class Waiter:
    """Makes clients wait as long as their requests say; None as the answer for ``silent``."""

    def __init__(self) -> None:
        self.begun: list[tuple[bytes, float]] = []
        self.apis: Sequence[KafkaApi] = [KafkaApi(METADATA, 0, 8, self._handle)]

    async def _handle(self, request: KafkaRequest) -> KafkaAnswer:
        body = bytes(request.body)
        self.begun.append((body, time.monotonic()))
        assert request.throttle is not None
        name, _, wait_ms = body.partition(b" ")
        request.throttle.wait(int(wait_ms or b"0"))
        return None if name == b"silent" else (body,)


@pytest.mark.parametrize("name", [b"answered", b"silent"])
def test_the_next_request_is_read_after_the_wait(listen: Listen, name: bytes):
    waiter = Waiter()
    listener = listen(waiter.apis, quotas=quotas_of(producer_byte_rate=NO_BOUND))
    with RawClient(listener) as client:
        client.send(request_bytes(name + b" %d" % WAIT_MS) + request_bytes(b"next"))
        while client.answer()[1] != b"next":
            pass
    (_, first_at), (_, next_at) = waiter.begun
    assert next_at - first_at >= WAIT_MS / 1_000
    assert listener.metrics.throttled >= 1


def test_the_next_request_is_not_read_while_one_that_must_wait_awaits_its_reply(listen: Listen):
    replies, begun = Replies(), list[tuple[bytes, AwaitedReply[KafkaAnswer]]]()

    def handle(request: KafkaRequest) -> AwaitedReply[KafkaAnswer]:
        reply: AwaitedReply[KafkaAnswer] = replies.new()
        body = bytes(request.body)
        if request.throttle is not None and body == b"first":
            request.throttle.wait(LONG_MS)
        begun.append((body, reply))
        if body == b"other":
            reply.give((body,))
        return reply

    quotas = quotas_of(producer_byte_rate=NO_BOUND)
    listener = listen([KafkaApi(METADATA, 0, 8, handle)], quotas=quotas)
    with RawClient(listener) as client, RawClient(listener) as other:
        client.send(request_bytes(b"first") + request_bytes(b"next"))
        eventually(lambda: begun, "the first is begun", WAIT_S)
        for _ in range(3):  # the loop goes round
            assert other.ask(b"other") == b"other"
        begun[0][1].give((b"done",))
        assert client.answer()[1] == b"done"
        assert [name for name, _ in begun] == [b"first", *[b"other"] * 3]


def test_the_response_is_sent_before_the_wait(listen: Listen):
    listener = listen(Waiter().apis, quotas=quotas_of(producer_byte_rate=NO_BOUND))
    with RawClient(listener) as client:
        assert client.ask(b"answered %d" % LONG_MS) == b"answered %d" % LONG_MS


def test_a_client_does_not_wait_when_quotas_have_changed(listen: Listen):
    listener = listen(Waiter().apis, quotas=quotas_of(producer_byte_rate=NO_BOUND))
    with RawClient(listener) as client:
        client.ask(b"answered %d" % LONG_MS)
        client.send(request_bytes(b"next"))
        listener.end_waits()
        assert client.answer()[1] == b"next"


def test_a_broker_does_not_wait(listen: Listen):
    """The quotas of clients must not delay a follower, or a controller."""

    async def handle(request: KafkaRequest) -> KafkaAnswer:
        request.exempt_from_quotas()
        assert request.throttle is not None
        request.throttle.wait(LONG_MS)
        return (b"%d" % request.throttle_time_ms,)

    quotas = quotas_of(request_percentage="0.000001")
    quotas.request.record(CLIENT, 1_000_000.0, int(time.monotonic() * 1_000))
    listener = listen([KafkaApi(METADATA, 0, 8, handle)], quotas=quotas)
    with RawClient(listener) as client:
        assert [client.ask(b"") for _ in range(3)] == [b"0"] * 3
    assert not listener.metrics.throttled


def test_other_connections_do_not_wait(listen: Listen):
    listener = listen(Waiter().apis, quotas=quotas_of(producer_byte_rate=NO_BOUND))
    with RawClient(listener) as client, RawClient(listener) as other:
        client.ask(b"answered %d" % LONG_MS)
        assert other.ask(b"now") == b"now"


def test_a_client_that_waits_is_not_idle(listen: Listen):
    limits = KafkaLimits(connections_max_idle_ms=50)
    quotas = quotas_of(producer_byte_rate=NO_BOUND)
    listener = listen(Waiter().apis, limits, quotas=quotas)
    with RawClient(listener) as client, RawClient(listener) as idle:
        client.send(request_bytes(b"answered %d" % WAIT_MS) + request_bytes(b"next"))
        assert idle.is_closed()
        assert [client.answer()[1] for _ in range(2)] == [b"answered %d" % WAIT_MS, b"next"]
    assert listener.metrics.closed[Closed.IDLE] >= 1


def test_a_broker_that_stops_does_not_wait(listen: Listen):
    listener = listen(Waiter().apis, quotas=quotas_of(producer_byte_rate=NO_BOUND))
    with RawClient(listener) as client:
        client.ask(b"answered %d" % LONG_MS)
        listener.close(LONG_MS / 1_000)
        assert client.is_closed()


def test_a_client_that_takes_too_much_time_waits_at_its_next_request(listen: Listen):
    throttles: list[int] = []

    async def work(request: KafkaRequest) -> KafkaAnswer:
        throttles.append(request.throttle_time_ms)
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        return (b"done",)

    quotas = quotas_of(request_percentage="0.01")
    with RawClient(listen([KafkaApi(METADATA, 0, 8, work)], quotas=quotas)) as client:
        for _ in range(2):
            client.ask(b"")
    assert throttles[0] == 0
    assert throttles[1] == 1_000, "20 ms are 20 times what may be used in 10 s"


def test_the_work_on_an_answer_that_came_later_counts_too(listen: Listen):
    throttles: list[int] = []
    replies = Replies()

    def encode(_: None) -> KafkaAnswer:
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        return (b"done",)

    def handle(request: KafkaRequest) -> AwaitedReply[KafkaAnswer]:
        throttles.append(request.throttle_time_ms)
        reply: AwaitedReply[None] = replies.new()
        replies.loop().call_soon(reply.give, None)
        return reply.mapped(encode)

    quotas = quotas_of(request_percentage="0.01")
    with RawClient(listen([KafkaApi(METADATA, 0, 8, handle)], quotas=quotas)) as client:
        for _ in range(2):
            client.ask(b"")
    assert throttles == [0, 1_000]


def test_without_quotas_requests_have_no_throttle(listen: Listen):
    seen: list[object] = []

    async def look(request: KafkaRequest) -> KafkaAnswer:
        seen.append(request.throttle)
        return (b"",)

    with RawClient(listen([KafkaApi(METADATA, 0, 8, look)])) as client:
        client.ask(b"")
    assert seen == [None]


def test_connections_that_come_too_fast_are_closed(listen: Listen):
    quotas = QuotaManagers(QuotaConfig())
    quotas.configure({"ips/127.0.0.1": {"connection_creation_rate": "1"}})
    listener = listen(Waiter().apis, quotas=quotas)
    clients = [RawClient(listener) for _ in range(11)]
    try:
        assert clients[-1].is_closed()
    finally:
        for client in clients:
            client.socket.close()
    assert listener.metrics.closed[Closed.RATE_OF_ADDRESS] == 1
    assert listener.metrics.accepted == 10


# --- the quotas of bytes --------------------------------------------------------------------------


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the throttles, in seconds: it stands still, and a test may set it."""
    now = [1_000.0]
    monkeypatch.setattr("regent.transport.kafka.throttle._clock", lambda: now[0])
    return now


def throttle(quotas: QuotaManagers, size: int = 100) -> Throttle:
    return Throttle(quotas, CLIENT, size)


def test_the_bytes_of_a_produce_request_count(now: list[float]):
    quotas = quotas_of(producer_byte_rate="1")
    first = throttle(quotas, size=20)
    first.on_produce()
    assert first.time_ms == 10_000


def test_records_that_are_not_sent_do_not_count(now: list[float]):
    quotas = quotas_of(consumer_byte_rate="10")
    assert throttle(quotas).may_fetch(90)
    refused = throttle(quotas)
    assert not refused.may_fetch(90)
    assert refused.time_ms == 8_000
    assert throttle(quotas).may_fetch(10)


def test_a_batch_that_is_larger_than_the_quota_is_sent_once(now: list[float]):
    quotas = quotas_of(consumer_byte_rate="1")
    first = throttle(quotas)
    assert first.max_fetch_bytes == 10
    assert first.may_fetch(1_000)
    assert first.time_ms == 990_000
    assert not throttle(quotas).may_fetch(1_000)


def test_a_client_that_must_wait_for_its_requests_gets_no_records(now: list[float]):
    quotas = quotas_of(request_percentage="1", consumer_byte_rate="1000")
    busy = throttle(quotas)
    quotas.request.record(CLIENT, 100, int(now[0] * 1_000))
    assert busy.time_ms == 0
    waiting = throttle(quotas)
    assert waiting.time_ms == 1_000
    assert not waiting.may_fetch(1)


def test_the_longest_wait_counts(now: list[float]):
    quotas = quotas_of(producer_byte_rate="1", request_percentage="1")
    quotas.request.record(CLIENT, 100, int(now[0] * 1_000))
    both = throttle(quotas, size=20)
    both.on_produce()
    assert both.time_ms == 10_000
    both.wait(5)
    assert both.time_ms == 10_000


def test_each_step_of_a_request_counts_and_not_the_time_between_them(now: list[float]):
    """Asynchronous work of 20 ms, in two steps, with a wait of a second between them."""

    def work() -> Generator[None, None, str]:
        now[0] += 0.005
        yield
        now[0] += 0.015
        return "done"

    quotas = quotas_of(request_percentage="0.1")  # 10 ms in 10 s
    request = throttle(quotas)
    request.end_step()
    steps: TimedSteps[str] = TimedSteps(work(), request)
    next(steps)
    now[0] += 1.0
    with pytest.raises(StopIteration, match="done"):
        next(steps)
    request.end()
    (use,) = quotas.request.uses(int(now[0] * 1_000))
    assert use.rate == pytest.approx(0.2, rel=0.01)
