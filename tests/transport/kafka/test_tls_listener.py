"""A listener with TLS, and those who come without it, with too little, or with too many."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

import aiokafka
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer

from regent.core.security.session import ANONYMOUS, KafkaPrincipal
from regent.storage.log_manager import LogManager
from regent.testing.waits import eventually, scaled
from regent.transport.kafka import acceptor, handshakes
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaRequest
from regent.transport.kafka.handshakes import MAX_HANDSHAKES
from regent.transport.kafka.limits import KafkaLimits
from regent.transport.kafka.listener import KafkaListener
from regent.transport.kafka.metrics import Closed
from regent.transport.kafka.tls import ServerTls
from tests.broker.api.one_broker import OneBroker
from tests.support.certificates import Authority
from tests.transport.kafka.conftest import Listen
from tests.transport.kafka.raw_client import METADATA, WAIT_S, Desk, RawClient, request_bytes

TOPIC = "orders"
VALUES = [b"value-%d" % number for number in range(500)]
LARGE = [bytes([number]) * 300_000 for number in range(10)]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def listener(listen: Listen, authority: Authority) -> KafkaListener:
    return listen(Desk().apis, tls=ServerTls(authority.config()))


class TlsClient(RawClient):
    """A raw client that encrypts."""

    def __init__(self, listener: KafkaListener, context: ssl.SSLContext) -> None:
        super().__init__(listener)
        self.socket = context.wrap_socket(self.socket, server_hostname="localhost")


def refusals(listener: KafkaListener) -> int:
    return listener.metrics.closed[Closed.FAILED_AUTHENTICATION]


def _has_refused(listener: KafkaListener, count: int) -> bool:
    return refusals(listener) == count


# --- those who are let in ---


def test_requests_know_the_user_of_a_certificate(listen: Listen, authority: Authority):
    seen: list[KafkaPrincipal] = []

    async def handle(request: KafkaRequest) -> KafkaAnswer:
        seen.append(request.session.principal)
        return (b"",)

    tls = ServerTls(authority.config(ssl_client_auth="requested"))
    listener = listen([KafkaApi(METADATA, 0, 8, handle)], tls=tls)
    for user in ("alice", None):
        with TlsClient(listener, authority.client_context(user)) as client:
            client.ask(b"")
    assert seen == [KafkaPrincipal("User", "CN=alice,OU=Tests,O=Regent"), ANONYMOUS]


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_everybody_gets_their_own_answers_in_order(
    listen: Listen, authority: Authority, version: str
):
    async def echo(request: KafkaRequest) -> KafkaAnswer:
        for _ in range(request.body[0] % 4 * 3):
            await asyncio.sleep(0)
        return (b"answer to ", request.body)

    limits = KafkaLimits(queued_requests_per_connection=5, queued_max_request_bytes=500_000)
    tls = ServerTls(authority.config(ssl_enabled_protocols=version))
    listener = listen([KafkaApi(METADATA, 0, 8, echo)], limits, tls=tls)

    async def talk(seed: int) -> None:
        dice = random.Random(seed)
        sizes = [dice.choice([1, 100, 10_000, 70_000, 200_000]) for _ in range(60)]
        bodies = [dice.randbytes(size) for size in sizes]
        stream = b"".join(request_bytes(body, number) for number, body in enumerate(bodies))
        reader, writer = await asyncio.open_connection(
            "localhost", listener.port, ssl=authority.client_context()
        )

        async def send() -> None:
            sent = 0
            while sent < len(stream):
                count = dice.choice([1, 3, 1_000, 65_536, 300_000])
                writer.write(stream[sent : sent + count])
                await writer.drain()
                sent += count

        sending = asyncio.create_task(send())
        for number, body in enumerate(bodies):
            size = int.from_bytes(await reader.readexactly(4), "big")
            answer = await reader.readexactly(size)
            assert answer == number.to_bytes(4, "big") + b"answer to " + body
        await sending
        writer.close()
        with suppress(ssl.SSLError, ConnectionError):
            await writer.wait_closed()

    async def all_talk() -> None:
        await asyncio.wait_for(asyncio.gather(*map(talk, range(6))), WAIT_S * 3)

    asyncio.run(all_talk())
    assert +listener.metrics.closed == {}


def test_a_client_that_reads_no_answers_is_not_read_from(listen: Listen, authority: Authority):
    answer = bytes(1_500_000)
    taken: list[int] = []

    async def handle(_: KafkaRequest) -> KafkaAnswer:
        taken.append(1)
        return (answer,)

    tls = ServerTls(authority.config())
    listener = listen([KafkaApi(METADATA, 0, 8, handle)], tls=tls)
    with TlsClient(listener, authority.client_context()) as client:
        client.send(b"".join(request_bytes(b"", number) for number in range(50)))
        eventually(lambda: listener.metrics.unread == 1, "a client that does not read")
        assert len(taken) < 50
        for number in range(50):
            assert client.answer() == (number, answer)
    assert len(taken) == 50


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_client_that_leaves_before_its_answer_is_no_fault(
    listen: Listen, authority: Authority, version: str
):
    begun, left = threading.Event(), threading.Event()

    async def handle(_: KafkaRequest) -> KafkaAnswer:
        begun.set()
        left.wait(WAIT_S)  # the loop stands still, and learns it when it sends
        return (bytes(1_000_000),)

    tls = ServerTls(authority.config(ssl_enabled_protocols=version))
    listener = listen([KafkaApi(METADATA, 0, 8, handle)], tls=tls)
    for way in ("told", "untold", "reset"):
        begun.clear()
        left.clear()
        with TlsClient(listener, authority.client_context()) as client:
            client.send(request_bytes(b""))
            assert begun.wait(WAIT_S)
            if way == "told":
                assert isinstance(client.socket, ssl.SSLSocket)
                client.socket.setblocking(False)
                with suppress(ssl.SSLError):
                    client.socket.unwrap()
            if way == "reset":
                linger = struct.pack("ii", 1, 0)
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        left.set()
        eventually(lambda: listener.metrics.connections == 0, f"it left {way}")
    assert listener.metrics.closed.total() == 0


@pytest.mark.parametrize("rest", [1, 100, 16_384, 17_408, 65_536, 81_920, 82_944, 150_000])
def test_a_large_request_is_answered_wherever_its_bytes_are_divided(
    listen: Listen, authority: Authority, rest: int
):
    async def count(request: KafkaRequest) -> KafkaAnswer:
        return (b"%d" % len(request.body),)

    listener = listen([KafkaApi(METADATA, 0, 8, count)], tls=ServerTls(authority.config()))
    with TlsClient(listener, authority.client_context()) as client:
        for size in (300_000, 10, 82_000, 300_000):
            request = request_bytes(bytes(size))
            first = max(0, len(request) - rest)
            for part in (request[:first], request[first:]):
                for at in range(0, len(part), 5_000):  # records of TLS that are not full
                    client.send(part[at : at + 5_000])
            assert client.answer()[1] == b"%d" % size


def test_a_client_may_change_its_keys(listen: Listen, authority: Authority):
    """Python cannot ask for that, the command of OpenSSL can: ``K`` asks for new ones of both."""
    listener = listen(Desk().apis, tls=ServerTls(authority.config()))
    assert asyncio.run(_change_keys(listener.port)) == [b"now 1", b"now 2", b"now 3"]


async def _change_keys(port: int) -> list[bytes]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *("openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-tls1_3"),
        stdin=pipe,
        stdout=pipe,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    answers = []
    # A request has no line that begins with a letter of a command of s_client.
    for number in (1, 2, 3):
        body = b"now %d" % number
        process.stdin.write(b"K\n")
        await process.stdin.drain()
        await asyncio.wait_for(process.stdout.readuntil(b"KEYUPDATE"), WAIT_S)
        process.stdin.write(request_bytes(body, number))
        await process.stdin.drain()
        head = number.to_bytes(4, "big") + body
        await asyncio.wait_for(process.stdout.readuntil(head), WAIT_S)
        answers.append(body)
    process.kill()
    await process.wait()
    return answers


# --- those who are not ---


def test_a_client_without_tls_is_closed_and_counted(listener: KafkaListener):
    with RawClient(listener) as client:
        client.send(request_bytes(b"now" * 1_000))
        while client.socket.recv(100):  # the end, after an alert if there is one, and no reset
            pass
    eventually(lambda: refusals(listener) == 1, "a refusal")


def test_a_client_with_tls_where_there_is_none_is_closed_and_counted(
    listen: Listen, authority: Authority
):
    listener = listen(Desk().apis)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        TlsClient(listener, authority.client_context())
    eventually(lambda: refusals(listener) == 1, "a refusal")


@pytest.mark.parametrize("fault", ["no certificate", "foreign", "expired", "does not trust us"])
def test_others_are_closed_and_counted_and_nobody_else_notices(
    listen: Listen, authority: Authority, tmp_path: Path, fault: str
):
    tls = ServerTls(authority.config(ssl_client_auth="required"))
    listener = listen(Desk().apis, tls=tls)
    foreign = Authority(tmp_path, "foreign")
    context = (foreign if fault == "does not trust us" else authority).client_context()
    if fault in ("foreign", "expired"):
        signer = foreign if fault == "foreign" else authority
        context.load_cert_chain(signer.keystore("bob", days=-1 if fault == "expired" else 90))
    with TlsClient(listener, authority.client_context("alice")) as innocent:
        for count in (1, 2, 3):
            with suppress(OSError), TlsClient(listener, context) as client:
                client.socket.recv(1)
            eventually(partial(_has_refused, listener, count), "a refusal")
        assert innocent.ask(b"now") == b"now"
    eventually(lambda: listener.metrics.connections == 0, "the end of all connections")
    metrics = listener.metrics
    assert (metrics.successful_authentications, metrics.failed_authentications) == (1, 3)
    assert metrics.accepted == metrics.disconnected == 4


def test_a_client_that_leaves_during_its_handshake_was_not_refused(
    listener: KafkaListener, authority: Authority
):
    for first in (b"", b"\x16\x03\x01\x02\x00\x01"):
        with RawClient(listener) as client:
            client.send(first)
    eventually(lambda: listener.metrics.disconnected == 2, "the end of both")
    assert refusals(listener) == listener.metrics.failed_authentications == 0


def test_ten_thousand_silent_clients_keep_nobody_out(listener: KafkaListener, authority: Authority):
    """Not all of them at a time: these are as many as one process may have."""
    silent: list[socket.socket] = []
    context = authority.client_context()
    with ExitStack() as stack, TlsClient(listener, context) as before:
        descriptors = len(os.listdir("/dev/fd"))
        for round_ in range(10):
            for _ in range(40):
                sock = stack.enter_context(
                    socket.create_connection(("127.0.0.1", listener.port), WAIT_S)
                )
                if round_ % 2:
                    sock.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")  # a beginning
                silent.append(sock)
            with TlsClient(listener, context) as client:
                assert client.ask(b"now") == b"now"
            assert before.ask(b"now") == b"now"
        theirs = len(os.listdir("/dev/fd")) - descriptors - len(silent)
        assert theirs <= MAX_HANDSHAKES + 5
        assert refusals(listener) >= len(silent) - MAX_HANDSHAKES


class GatedTls(ServerTls):
    """Counts the clients whose handshakes are calculated, and begins with none at first."""

    def __init__(self, authority: Authority) -> None:
        super().__init__(authority.config())
        self.gate, self.begun = threading.Event(), 0

    def wrap(self, sock: socket.socket) -> ssl.SSLSocket:
        self.begun += 1
        assert self.gate.wait(WAIT_S)
        return super().wrap(sock)


def test_handshakes_that_were_given_up_are_not_calculated(listen: Listen, authority: Authority):
    """Else clients that begin without end would keep the threads busy, and users out."""
    tls = GatedTls(authority)
    listener = listen(Desk().apis, tls=tls)
    with ExitStack() as stack:
        stack.callback(tls.gate.set)
        descriptors = len(os.listdir("/dev/fd"))
        count = 4 * MAX_HANDSHAKES
        for _ in range(count):
            sock = stack.enter_context(
                socket.create_connection(("127.0.0.1", listener.port), WAIT_S)
            )
            sock.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")  # a beginning
        eventually(lambda: refusals(listener) >= count - MAX_HANDSHAKES - 2, "they are given up")
        assert len(os.listdir("/dev/fd")) - descriptors - count <= MAX_HANDSHAKES + 5
        tls.gate.set()
        with TlsClient(listener, authority.client_context()) as client:
            assert client.ask(b"now") == b"now"
        assert tls.begun <= MAX_HANDSHAKES + 3


@contextmanager
def no_new_thread() -> Iterator[list[object]]:
    """Let executors queue what they are given, and start no thread; those that tried are noted."""
    tried: list[object] = []

    def fail(executor: object) -> NoReturn:
        tried.append(executor)
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ThreadPoolExecutor, "_adjust_thread_count", fail)
        yield tried


def test_a_client_for_whose_handshake_there_is_no_thread_is_closed_at_once(
    listen: Listen, authority: Authority, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(handshakes, "TIMEOUT_S", 10 * WAIT_S)
    listener = listen(Desk().apis, tls=ServerTls(authority.config()))
    with no_new_thread(), pytest.raises((OSError, EOFError)):
        TlsClient(listener, authority.client_context())
    eventually(lambda: listener.metrics.closed[Closed.FAILED] == 1, "it is counted")
    with TlsClient(listener, authority.client_context()) as client:
        assert client.ask(b"now") == b"now"


class CountingTls(ServerTls):
    """Counts the looks at its files."""

    looks = 0

    def reload_if_changed(self) -> bool:
        self.looks += 1
        return False


def test_the_files_of_keys_are_looked_at_again_after_there_was_no_thread_for_it(
    listen: Listen, authority: Authority, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(acceptor, "_KEYS_CHECK_S", 0.01)
    tls = CountingTls(authority.config())
    with no_new_thread() as tried:
        listen(Desk().apis, tls=tls)
        eventually(lambda: tried, "it has looked for a thread")
    eventually(lambda: tls.looks, "nobody looks")


def test_silent_clients_of_one_address_do_not_displace_those_of_another(
    listener: KafkaListener, authority: Authority
):
    with ExitStack() as stack:
        slow = socket.create_connection(("127.0.0.1", listener.port), WAIT_S, ("127.0.0.2", 0))
        stack.callback(slow.close)
        for _ in range(MAX_HANDSHAKES * 2):
            stack.enter_context(socket.create_connection(("127.0.0.1", listener.port), WAIT_S))
        eventually(lambda: refusals(listener) >= MAX_HANDSHAKES, "refusals")
        context = authority.client_context()
        with context.wrap_socket(slow, server_hostname="localhost") as client:
            client.sendall(request_bytes(b"now"))
            assert client.recv(4) == b"\0\0\0\x07"


def test_a_quarter_of_the_connections_may_be_in_their_handshakes(
    listen: Listen, authority: Authority
):
    limits = KafkaLimits(max_connections=20)
    listener = listen(Desk().apis, limits, tls=ServerTls(authority.config()))
    context = authority.client_context()
    with ExitStack() as stack:
        users = [stack.enter_context(TlsClient(listener, context)) for _ in range(10)]
        for user in users:
            assert user.ask(b"now") == b"now"  # its handshake has ended here, too
        slow = socket.create_connection(("127.0.0.1", listener.port), WAIT_S, ("127.0.0.2", 0))
        stack.callback(slow.close)
        for _ in range(9):
            stack.enter_context(socket.create_connection(("127.0.0.1", listener.port), WAIT_S))
        closed = listener.metrics.closed
        eventually(lambda: closed[Closed.TOO_MANY_UNAUTHENTICATED] == 5, "five that were closed")
        with context.wrap_socket(slow, server_hostname="localhost") as client:
            client.sendall(request_bytes(b"now"))
            assert client.recv(4) == b"\0\0\0\x07"
        for user in users:
            assert user.ask(b"now") == b"now"


def test_a_listener_that_closes_gives_its_handshakes_up(listen: Listen, authority: Authority):
    listener = listen(Desk().apis, tls=ServerTls(authority.config()))
    with RawClient(listener) as silent:
        with TlsClient(listener, authority.client_context()) as client:
            assert client.ask(b"now") == b"now"
        listener.close(0.1)
        assert silent.is_closed()


MUTATIONS = 300


def client_hello(context: ssl.SSLContext) -> bytes:
    """The first bytes that a client sends."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    "count", [MUTATIONS, pytest.param(20_000, marks=[pytest.mark.nightly, pytest.mark.slow])]
)
@pytest.mark.timeout(600)
def test_mutated_beginnings_of_handshakes_change_nothing(
    listener: KafkaListener, authority: Authority, count: int
):
    context = authority.client_context()
    hello, dice = client_hello(context), random.Random(count)
    with TlsClient(listener, context) as innocent:
        descriptors = len(os.listdir("/dev/fd"))
        for number in range(count):
            mutated = bytearray(hello)
            for _ in range(dice.choice([1, 1, 3, 30])):
                mutated[dice.randrange(len(mutated))] = dice.randrange(256)
            end = dice.choice([len(mutated), dice.randrange(len(mutated))])
            with RawClient(listener) as client, suppress(OSError):
                client.send(bytes(mutated[:end]))
            if number % 100 == 0:
                assert innocent.ask(b"now") == b"now"
        eventually(lambda: listener.metrics.disconnected == count, "the end of their handshakes")
        eventually(
            lambda: len(os.listdir("/dev/fd")) <= descriptors + 2, "the end of all connections"
        )
        assert innocent.ask(b"now") == b"now"
    assert listener.metrics.errors == 0


# --- clients of other projects ---


@pytest.fixture(params=["TLSv1.2", "TLSv1.3"])
def broker(
    request: pytest.FixtureRequest, tmp_path: Path, authority: Authority
) -> Iterator[OneBroker]:
    """A broker with records on disk; clients must have certificates."""
    logs = LogManager([tmp_path / "logs"], 1)
    logs.open()
    config = authority.config(ssl_client_auth="required", ssl_enabled_protocols=request.param)
    broker = OneBroker(logs, {TOPIC: 1}, tls=ServerTls(config))
    broker.start()
    yield broker
    broker.close()
    logs.close(is_clean=False)


def librdkafka(
    broker: OneBroker, authority: Authority, user: str | None
) -> dict[str, str | int | float | bool]:
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": broker.address,
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority.trusted),
        "log_level": 0,
    }
    if user is not None:
        keystore = str(authority.keystore(user))
        settings |= {"ssl.certificate.location": keystore, "ssl.key.location": keystore}
    return settings


def test_librdkafka_reads_what_it_wrote(broker: OneBroker, authority: Authority):
    settings = librdkafka(broker, authority, "alice")
    producer = Producer({**settings, "linger.ms": 5})
    for value in [*VALUES, *LARGE]:
        producer.produce(TOPIC, value, partition=0)
    assert producer.flush(WAIT_S * 2) == 0
    consumer = Consumer({**settings, "group.id": "none", "enable.auto.commit": False})
    with closing(consumer):
        consumer.assign([ConfluentPartition(TOPIC, 0, 0)])
        read: list[object] = []
        while len(read) < len(VALUES) + len(LARGE):
            messages = consumer.consume(len(VALUES) + len(LARGE) - len(read), WAIT_S)
            assert messages
            read += [message.value() for message in messages]
    assert read == [*VALUES, *LARGE]


@pytest.mark.parametrize("fault", ["no certificate", "another authority"])
def test_librdkafka_is_refused(broker: OneBroker, authority: Authority, tmp_path: Path, fault: str):
    foreign = Authority(tmp_path, "foreign")
    settings = librdkafka(broker, authority, None)
    if fault == "another authority":
        settings = librdkafka(broker, foreign, "alice")
    with pytest.raises(KafkaException):
        AdminClient(settings).list_topics(timeout=scaled(0.5))
    assert refusals(broker.listener) > 0


def test_kafka_python_reads_what_it_wrote(broker: OneBroker, authority: Authority):
    keystore = str(authority.keystore("alice"))
    settings = {
        "bootstrap_servers": broker.address,
        "security_protocol": "SSL",
        "ssl_cafile": str(authority.trusted),
        "ssl_certfile": keystore,
        "ssl_keyfile": keystore,
    }
    with closing(KafkaProducer(**settings)) as producer:
        for value in VALUES:
            producer.send(TOPIC, value, partition=0)
        producer.flush(WAIT_S)
    consumer = KafkaConsumer(
        TOPIC, **settings, auto_offset_reset="earliest", group_id=None, consumer_timeout_ms=10_000
    )
    with closing(consumer):
        assert [next(consumer).value for _ in VALUES] == VALUES


def test_aiokafka_reads_what_it_wrote(broker: OneBroker, authority: Authority):
    async def talk() -> list[bytes | None]:
        settings = {
            "bootstrap_servers": broker.address,
            "security_protocol": "SSL",
            "ssl_context": authority.client_context("alice"),
        }
        async with aiokafka.AIOKafkaProducer(**settings) as producer:
            for value in VALUES:
                await producer.send(TOPIC, value, partition=0)
        async with aiokafka.AIOKafkaConsumer(
            TOPIC, **settings, auto_offset_reset="earliest"
        ) as consumer:
            return [(await asyncio.wait_for(consumer.getone(), WAIT_S)).value for _ in VALUES]

    assert asyncio.run(talk()) == VALUES


def test_new_keys_are_served_without_a_restart(listen: Listen, authority: Authority):
    listener = listen(Desk().apis, tls=ServerTls(authority.config()))
    context = authority.client_context()

    def serial() -> object:
        with TlsClient(listener, context) as client:
            assert isinstance(client.socket, ssl.SSLSocket)
            return (client.socket.getpeercert() or {})["serialNumber"]

    with TlsClient(listener, context) as old:
        first = serial()
        authority.keystore("broker")
        listener.read_keys_again()
        eventually(lambda: serial() != first, "new keys")
        assert old.ask(b"now") == b"now"
