"""The login of a connection: what is accepted when, split anywhere, and what ends it."""

from __future__ import annotations

import asyncio
import queue
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from regent.core.errors import Errors
from regent.core.protocol.messages.authentication import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from regent.core.security.oauthbearer import acknowledged, bearer_token_message
from regent.core.security.plain import plain_token
from regent.core.security.sasl_login import invalid_credentials
from regent.core.security.session import Session
from regent.testing.waits import eventually, scaled
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.limits import KafkaLimits
from regent.transport.kafka.listener import DEFAULT_LIMITS, KafkaListener
from regent.transport.kafka.message_codec import decoded, encoded
from regent.transport.kafka.metrics import Closed, ListenerMetrics
from regent.transport.kafka.sasl_server import (
    MAX_LOGINS_OF_ADDRESS,
    ConnectionOfLogin,
    LoginRefusedError,
    LoginSteps,
    SaslListener,
    SaslServerAuthenticator,
)
from tests.support.sasl_users import MECHANISMS, NAME, PASSWORD, sasl_for_test, unsecured_token
from tests.transport.kafka.raw_client import RawClient, framed, request_bytes
from tests.transport.kafka.test_tls_listener import no_new_thread

T = TypeVar("T")
METADATA, VERSIONS = KafkaApiKey.METADATA, KafkaApiKey.API_VERSIONS
HANDSHAKE, AUTHENTICATE = KafkaApiKey.SASL_HANDSHAKE, KafkaApiKey.SASL_AUTHENTICATE
BEARER = "OAUTHBEARER"


class Server:
    """A listener whose only API says who asks. Requests with the body ``wait`` are held."""

    def __init__(self, sasl: SaslListener, limits: KafkaLimits = DEFAULT_LIMITS) -> None:
        self.sasl = sasl
        self.asked: list[bytes] = []
        self._held: list[asyncio.Event] = []
        self.listener = KafkaListener(
            "127.0.0.1", 0, [KafkaApi(METADATA, 0, 8, self._who)], limits, sasl=sasl
        )
        self.listener.start()

    @property
    def metrics(self) -> ListenerMetrics:
        return self.listener.metrics

    def limit(self, **limits: Any) -> None:
        self.sasl.limits = replace(self.sasl.limits, **limits)

    def client(self, host: str = "127.0.0.1") -> Client:
        return Client(self.listener, host)

    def release(self) -> None:
        """Answer the held requests."""
        assert self.listener._running is not None
        loop, _ = self.listener._running
        for event in self._held:
            loop.call(event.set)

    async def _who(self, request: KafkaRequest) -> KafkaAnswer:
        self.asked.append(bytes(request.body))
        if bytes(request.body) == b"wait":
            event = asyncio.Event()
            self._held.append(event)
            await event.wait()
        return (str(request.session.principal).encode(),)


class Client(RawClient):
    """Sends the steps of a login."""

    def ask_for(self, response: type[T], request: bytes, version: int, flexible: int = 99) -> T:
        self.send(request)
        _, body = self.answer()
        is_flexible = version >= flexible
        return decoded(
            response,
            memoryview(body[1:] if is_flexible else body),
            version,
            is_flexible=is_flexible,
        )

    def shake_hands(self, mechanism: str, version: int = 1) -> SaslHandshakeResponse:
        return self.ask_for(SaslHandshakeResponse, handshake(mechanism, version), version)

    def authenticate(self, token: bytes, version: int = 1) -> SaslAuthenticateResponse:
        return self.ask_for(SaslAuthenticateResponse, authenticate(token, version), version, 2)

    def log_in(self, name: str = NAME, version: int = 1, **claims: Any) -> SaslAuthenticateResponse:
        assert self.shake_hands(BEARER).error_code == Errors.NONE
        return self.authenticate(bearer_token_message(unsecured_token(name, **claims)), version)

    def who(self) -> str:
        return self.ask(b"").decode()

    def raw(self) -> bytes:
        """The next answer without a header."""
        (size,) = struct.unpack(">i", self._receive(4))
        return self._receive(size)


def handshake(mechanism: str, version: int = 1) -> bytes:
    body = encoded(SaslHandshakeRequest(mechanism=mechanism), version, is_flexible=False)
    return request_bytes(body, 17, HANDSHAKE, version)


def authenticate(token: bytes, version: int = 1) -> bytes:
    is_flexible = version >= 2
    body = encoded(SaslAuthenticateRequest(auth_bytes=token), version, is_flexible=is_flexible)
    return request_bytes((b"\0" if is_flexible else b"") + body, 36, AUTHENTICATE, version)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    with ExitStack() as stack:

        def start(limits: KafkaLimits = DEFAULT_LIMITS, **settings: Any) -> Server:
            server = Server(sasl_for_test(tmp_path, **settings), limits)
            stack.callback(server.listener.close, 0.1)
            stack.callback(server.release)
            return server

        yield start


@pytest.fixture
def server(serve: Callable[..., Server]) -> Server:
    return serve()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.client() as client:
        yield client


# --- the way in -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_client_logs_in_and_its_requests_have_its_name(client: Client, version: int):
    assert client.log_in(version=version).error_code == Errors.NONE
    assert client.who() == f"User:{NAME}"


def test_a_login_is_the_same_however_its_bytes_are_split(server: Server):
    token = bearer_token_message(unsecured_token())
    steps = [
        request_bytes(b"", 18, VERSIONS, 0),
        handshake(BEARER),
        authenticate(token),
        request_bytes(b"", 3),
        request_bytes(b"", 4),
    ]
    stream = b"".join(steps)
    for at in range(len(stream)):
        with server.client() as client:
            client.send(stream[:at])
            client.send(stream[at:])
            answers = [client.answer() for _ in steps]
        assert [number for number, _ in answers] == [18, 17, 36, 3, 4]
        assert [body for _, body in answers[3:]] == [f"User:{NAME}".encode()] * 2


def test_a_login_with_raw_tokens_is_the_same_however_its_bytes_are_split(server: Server):
    token = framed(bearer_token_message(unsecured_token()))
    stream = handshake(BEARER, 0) + token + request_bytes(b"", 3)
    for at in range(0, len(stream), 3):
        with server.client() as client:
            client.send(stream[:at])
            client.send(stream[at:])
            assert client.answer()[0] == 17
            assert client.raw() == b""
            assert client.answer() == (3, f"User:{NAME}".encode())


def test_the_success_of_plain_with_raw_tokens_is_four_zero_bytes(client: Client):
    assert client.shake_hands("PLAIN", 0).error_code == Errors.NONE
    client.send(framed(plain_token(NAME, PASSWORD)))
    assert client.raw() == b""
    assert client.who() == f"User:{NAME}"


def test_the_versions_may_be_asked_for_again_in_another_form(client: Client):
    client.send(request_bytes(b"\0", 1, VERSIONS, 99))
    assert client.answer()[1][:2] == struct.pack(">h", Errors.UNSUPPORTED_VERSION)
    client.send(request_bytes(b"", 2, VERSIONS, 0))
    keys = {row[0] for row in struct.iter_unpack(">hhh", client.answer()[1][6:])}
    assert {int(HANDSHAKE), int(AUTHENTICATE), int(METADATA)} <= keys
    client.log_in()
    assert client.who() == f"User:{NAME}"


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "requests",
    [
        [request_bytes(b"any body")],
        [request_bytes(b"", api_key=999)],
        [authenticate(b"token")],
        [request_bytes(b"", 1, VERSIONS, 0), request_bytes(b"", 2, VERSIONS, 0)],
        [request_bytes(b"", 1, VERSIONS, 0), request_bytes(b"any body")],
        [handshake(BEARER), request_bytes(b"any body")],
        [handshake(BEARER), request_bytes(b"", 1, VERSIONS, 0)],
        [handshake(BEARER, 0), b"\0\0\xff\xff" + b"garbage"],
        [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"],
        [b"GET / HTTP/1.1\r\n\r\n"],
    ],
)
def test_what_is_no_step_of_a_login_closes_without_an_answer(
    server: Server, client: Client, requests: list[bytes]
):
    for request in requests[:-1]:
        client.send(request)
        client.answer()
    client.send(requests[-1])
    if requests[-1].startswith(b"\0\0\xff\xff"):
        client.socket.close()
    else:
        assert client.is_closed()
        assert server.metrics.failed_authentications == 1
    assert server.asked == []
    assert server.metrics.successful_authentications == 0


def test_a_mechanism_that_is_not_enabled_is_answered_with_those_that_are(
    server: Server, client: Client
):
    answer = client.shake_hands("GSSAPI")
    assert answer.error_code == Errors.UNSUPPORTED_SASL_MECHANISM
    assert answer.mechanisms == MECHANISMS
    assert client.is_closed()
    assert server.metrics.closed[Closed.FAILED_AUTHENTICATION] == 1


def test_a_second_handshake_is_refused_and_the_connection_closes(client: Client):
    client.shake_hands(BEARER)
    assert client.shake_hands("PLAIN").error_code == Errors.ILLEGAL_SASL_STATE
    assert client.is_closed()


def test_a_wrong_token_is_answered_and_the_connection_closes(server: Server, client: Client):
    client.shake_hands("SCRAM-SHA-256")
    answer = client.authenticate(b"garbage")
    assert answer.error_code == Errors.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism"
        " SCRAM-SHA-256"
    )
    assert client.is_closed()
    assert server.metrics.failed_authentications == 1


def test_a_wrong_raw_token_closes_without_an_answer(server: Server, client: Client):
    client.shake_hands("PLAIN", 0)
    client.send(framed(plain_token(NAME, "wrong")))
    assert client.is_closed()
    assert server.metrics.failed_authentications == 1


def test_a_client_whose_bearer_token_is_refused_may_leave(server: Server):
    for says_so in (True, False):
        with server.client() as client:
            client.shake_hands(BEARER)
            refused = client.authenticate(bearer_token_message(unsecured_token(exp=1)))
            assert refused.error_code == Errors.NONE
            if says_so:
                answer = client.authenticate(acknowledged())
                assert answer.error_code == Errors.SASL_AUTHENTICATION_FAILED
                assert answer.error_message == '{"status":"invalid_token"}'
    eventually(lambda: not server.sasl.logging_in, "no login is left")


def test_cve_2022_34917_a_large_request_is_refused_by_its_size(server: Server, client: Client):
    client.send(struct.pack(">i", 65_537))
    assert client.is_closed()
    assert server.metrics.closed[Closed.MALFORMED] == 1


def test_the_largest_request_before_a_login_is_a_setting(serve: Callable[..., Server]):
    with serve(sasl_server_max_receive_size=100).client() as client:
        client.send(struct.pack(">i", 101))
        assert client.is_closed()


def test_after_the_login_a_large_request_is_accepted(client: Client):
    client.log_in()
    assert client.ask(bytes(100_000)).decode() == f"User:{NAME}"


def test_kafka_6950_the_answer_to_a_failure_is_delayed_with_the_close(
    serve: Callable[..., Server],
):
    server = serve(connection_failed_authentication_delay_ms=300)
    with server.client() as client:
        client.shake_hands("SCRAM-SHA-512")
        began = time.monotonic()
        client.send(authenticate(b"garbage") + request_bytes(b"any body"))
        client.answer()
        assert time.monotonic() - began >= 0.3
        assert client.is_closed()
    assert server.asked == []


def test_an_unexpected_error_tells_the_client_nothing(
    server: Server, client: Client, caplog: pytest.LogCaptureFixture
):
    class Broken:
        login = None

        def evaluate(self, token: bytes) -> bytes:
            raise RuntimeError("a secret")

    server.sasl.mechanisms = {"PLAIN": Broken}
    client.shake_hands("PLAIN")
    answer = client.authenticate(b"x")
    assert answer.error_code == Errors.SASL_AUTHENTICATION_FAILED
    assert "secret" not in (answer.error_message or "")
    assert "failed unexpectedly" in caplog.text


def test_a_login_for_which_there_is_no_thread_is_closed_at_once(server: Server):
    done: list[bytes] = []

    class Noting:
        login = None

        def evaluate(self, token: bytes) -> bytes:
            done.append(token)
            return token

    server.sasl.mechanisms = {"PLAIN": Noting}
    with server.client() as client, no_new_thread():
        client.shake_hands("PLAIN")
        client.send(authenticate(b"given up"))
        assert client.is_closed()
    with server.client() as client:
        client.shake_hands("PLAIN")
        assert client.authenticate(b"served").auth_bytes == b"served"
    assert done == [b"served"], "nobody waits for the other"
    assert server.metrics.closed[Closed.FAILED] == 1


# --- limits ---------------------------------------------------------------------------------------


def test_a_login_must_not_take_long(server: Server):
    server.limit(timeout_s=0.1)
    with server.client() as silent, server.client() as begun:
        begun.shake_hands(BEARER)
        assert silent.is_closed()
        assert begun.is_closed()
    assert server.metrics.closed[Closed.LOGIN_SLOW] == 2


def test_a_client_that_is_logged_in_may_be_silent(server: Server, client: Client):
    server.limit(timeout_s=scaled(0.5))
    with server.client() as silent:
        client.log_in()
        assert silent.is_closed()
        assert client.who() == f"User:{NAME}"


def test_an_address_has_a_few_connections_that_have_not_logged_in(server: Server):
    server.limit(logins_of_address=2)
    with server.client() as first, server.client() as second:
        first.shake_hands(BEARER)
        second.shake_hands(BEARER)
        with server.client() as third:
            assert third.is_closed()
        assert server.metrics.closed[Closed.TOO_MANY_LOGINS] == 1
        first.authenticate(bearer_token_message(unsecured_token()))
        with server.client() as fourth:
            fourth.log_in()
            assert fourth.who() == first.who() == f"User:{NAME}"
    eventually(lambda: not server.sasl.logging_in, "no login is left")


@dataclass
class Logins:
    """Logins that say nothing."""

    server: Server
    begun: list[SaslServerAuthenticator] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)

    def begin(self, host: str) -> None:
        """Begin one from an address."""
        uses = ConnectionOfLogin(lambda _: None, lambda: None, lambda *_: close())
        session, metrics = Session(host), self.server.metrics
        login = SaslServerAuthenticator(self.server.sasl, session, uses, metrics, "")

        def close() -> None:
            login.stop()
            self.closed.append(host)

        login.begin()
        self.begun.append(login)

    def stop(self) -> None:
        for login in self.begun:
            login.stop()
        assert not self.server.sasl.logging_in


def test_neighbours_that_say_nothing_keep_no_client_of_their_network_out(server: Server):
    async def begin() -> None:
        logins = Logins(server)
        for _ in range(MAX_LOGINS_OF_ADDRESS):
            logins.begin("2001:db8::bad")
        with pytest.raises(LoginRefusedError, match="16 connections have not logged in"):
            logins.begin("2001:db8::bad")
        for number in range(1, 101):
            logins.begin(f"2001:db8::{number:x}")
        assert not logins.closed
        logins.stop()

    asyncio.run(begin())


def test_a_network_has_a_limit_of_logins_and_a_new_one_takes_the_place_of_the_busiest_address(
    server: Server,
):
    server.limit(logins_of_network=5)
    user, elsewhere = "2001:db8::a", "2001:db8:0:1::1"

    async def begin() -> None:
        logins = Logins(server)
        for host in (elsewhere, user, *["2001:db8::bad"] * 4):
            logins.begin(host)
        for number in range(1, 4):
            logins.begin(f"2001:db8::{number}")
        assert logins.closed == ["2001:db8::bad"] * 3
        logins.begin("2001:db8::4")
        assert elsewhere not in logins.closed
        logins.stop()

    asyncio.run(begin())


def test_a_step_of_a_login_waits_neither_for_the_busiest_network_nor_for_the_busiest_address():
    steps, done = LoginSteps(), list[str]()
    go_on, may_end = threading.Event(), threading.Event()

    def wait(event: threading.Event) -> bytes:
        assert event.wait(scaled(10.0))
        return b""

    def note(host: str) -> bytes:
        done.append(host)
        return b""

    async def run() -> None:
        stranger, user, elsewhere = Session("2001:db8::bad"), Session("2001:db8::a"), Session("::2")
        for _ in range(3):
            steps.count_failure(stranger.client_host)
        tasks = [
            asyncio.create_task(steps.run(partial(wait, event), elsewhere.client_host, ()))
            for event in (go_on, may_end)
        ]
        await asyncio.sleep(0)
        tasks += [
            asyncio.create_task(steps.run(partial(note, host), host, logins))
            for host, logins in (
                (stranger.client_host, [stranger, user]),
                (user.client_host, [stranger, user]),
                (elsewhere.client_host, [elsewhere]),
            )
        ]
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(tasks[0], *tasks[2:])
        may_end.set()
        await tasks[1]

    asyncio.run(run())
    steps.close()
    assert done == ["::2", "2001:db8::a", "2001:db8::bad"]


def test_strangers_who_try_passwords_without_end_keep_no_user_out(server: Server):
    steps: queue.Queue[bytes] = queue.Queue()
    go_on = threading.Semaphore(0)

    class Slow:
        login = None

        def evaluate(self, token: bytes) -> bytes:
            steps.put(token)
            assert go_on.acquire(timeout=scaled(10.0))
            raise invalid_credentials("PLAIN", "wrong")

    server.sasl.mechanisms = {"PLAIN": Slow}
    hosts = [f"127.0.0.{number}" for number in range(2, 6)]
    with ExitStack() as stack:

        def try_a_password(host: str, token: bytes) -> Client:
            client = stack.enter_context(server.client(host))
            client.shake_hands("PLAIN")
            client.send(authenticate(token))
            return client

        go_on.release(len(hosts))
        for host in hosts:
            try_a_password(host, b"first").answer()
            assert steps.get(timeout=scaled(10.0)) == b"first"
        for host in hosts * 3:
            try_a_password(host, host.encode())
        in_turn = [steps.get(timeout=scaled(10.0)) for _ in range(2)]  # all threads are busy
        try_a_password("127.0.0.1", b"the user's")
        eventually(lambda: len(server.sasl.steps._waiting) == 11, "all wait")
        for _ in range(13):
            go_on.release()
            in_turn += [steps.get(timeout=scaled(10.0))] if len(in_turn) < 13 else []
    assert in_turn.index(b"the user's") == 2


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_of_listener"])
def test_a_quarter_of_the_connections_may_be_without_a_login(
    serve: Callable[..., Server], limit: str
):
    limits: dict[str, Any] = {limit: 12}
    server = serve(KafkaLimits(**limits))
    with ExitStack() as stack:
        users = []
        for _ in range(6):
            users.append(stack.enter_context(server.client()))
            users[-1].log_in()
        slow = stack.enter_context(server.client("127.0.0.2"))
        slow.shake_hands(BEARER)
        strangers = [stack.enter_context(server.client()) for _ in range(8)]
        for stranger in strangers[:-2]:  # the oldest of the address with the most of them
            assert stranger.is_closed()
        assert server.metrics.closed[Closed.TOO_MANY_UNAUTHENTICATED] == 6
        slow.authenticate(bearer_token_message(unsecured_token()))
        assert {user.who() for user in [*users, slow]} == {f"User:{NAME}"}
        for stranger in strangers[-2:]:
            stranger.log_in()
        with server.client() as another:
            another.log_in()
        assert server.metrics.closed[Closed.TOO_MANY_UNAUTHENTICATED] == 6


def test_one_connection_may_always_log_in(serve: Callable[..., Server]):
    server = serve(KafkaLimits(max_connections=1))
    for _ in range(3):
        with server.client() as client:
            client.log_in()
            assert client.who() == f"User:{NAME}"
        eventually(lambda: not server.metrics.connections, "the end of the connection")


# --- after a login --------------------------------------------------------------------------------


def test_a_login_without_an_end_is_not_repeated_and_the_connection_stays(client: Client):
    client.shake_hands("PLAIN")
    answer = client.authenticate(plain_token(NAME, PASSWORD))
    assert (answer.error_code, answer.session_lifetime_ms) == (Errors.NONE, 0)
    assert client.shake_hands("PLAIN").error_code == Errors.ILLEGAL_SASL_STATE
    refused = client.authenticate(plain_token(NAME, PASSWORD))
    assert refused.error_code == Errors.ILLEGAL_SASL_STATE
    assert client.who() == f"User:{NAME}"


def test_a_client_is_told_how_long_its_login_is_valid(serve: Callable[..., Server]):
    with serve().client() as client:
        answer = client.log_in(exp=time.time() + 100)
        assert 0 < answer.session_lifetime_ms <= 100_000
    with serve(connections_max_reauth_ms=5_000).client() as client:
        assert client.log_in(exp=time.time() + 100).session_lifetime_ms == 5_000


@pytest.mark.parametrize("version", [0, 1])
def test_kafka_9241_a_client_whose_login_has_ended_is_cut_whatever_it_was_told(
    serve: Callable[..., Server], version: int
):
    server = serve(connections_max_reauth_ms=1)
    with server.client() as client:
        client.log_in(version=version)
        time.sleep(0.002)  # longer than the login is valid
        client.send(request_bytes(b""))
        assert client.is_closed()
    assert server.metrics.closed[Closed.LOGIN_EXPIRED] == 1
    assert server.asked == []


def test_a_client_logs_in_again_on_its_connection(serve: Callable[..., Server]):
    server = serve(connections_max_reauth_ms=60_000)
    with server.client() as client:
        client.log_in()
        assert client.log_in().session_lifetime_ms == 60_000
        assert client.who() == f"User:{NAME}"
        again = client.shake_hands(BEARER)  # within a second
        assert again.error_code == Errors.ILLEGAL_SASL_STATE
        assert client.who() == f"User:{NAME}"
    assert server.metrics.successful_authentications == 1
    assert server.metrics.successful_reauthentications == 1


def test_an_ended_login_can_be_repeated(serve: Callable[..., Server]):
    server = serve(connections_max_reauth_ms=1)
    with server.client() as client:
        client.log_in()
        time.sleep(0.002)  # longer than the login is valid
        assert client.log_in().error_code == Errors.NONE


def test_another_user_or_mechanism_cannot_take_over_a_connection(serve: Callable[..., Server]):
    server = serve(connections_max_reauth_ms=60_000)
    with server.client() as client:
        client.log_in()
        refused = client.log_in("bob")
        assert refused.error_code == Errors.SASL_AUTHENTICATION_FAILED
        assert "Cannot change principals" in (refused.error_message or "")
        assert client.is_closed()
    with server.client() as client:
        client.log_in()
        assert client.shake_hands("PLAIN").error_code == Errors.NONE
        refused = client.authenticate(plain_token(NAME, PASSWORD))
        assert refused.error_code == Errors.SASL_AUTHENTICATION_FAILED
        assert "not supported for re-authentication" in (refused.error_message or "")
        assert client.is_closed()
    assert server.metrics.failed_reauthentications == 2


def test_kafka_9854_a_later_login_waits_for_the_answers_before_it(serve: Callable[..., Server]):
    server = serve(connections_max_reauth_ms=60_000)
    with server.client() as client:
        client.log_in()
        token = bearer_token_message(unsecured_token())
        client.send(
            request_bytes(b"wait", 1)
            + handshake(BEARER)
            + authenticate(token)
            + request_bytes(b"later", 2)
        )
        eventually(lambda: server.asked, "the first request is handled")
        assert server.metrics.successful_reauthentications == 0
        server.release()
        assert [client.answer()[0] for _ in range(4)] == [1, 17, 36, 2]
    assert server.asked == [b"wait", b"later"]


def test_requests_of_a_client_that_is_logged_in_are_handled_together(
    server: Server, client: Client
):
    client.log_in()
    client.send(request_bytes(b"wait", 1) + request_bytes(b"wait", 2))
    eventually(lambda: len(server.asked) == 2, "both are handled")


# --- anything -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [200, pytest.param(20_000, marks=pytest.mark.nightly)])
def test_changed_logins_harm_nobody(serve: Callable[..., Server], count: int):
    server, dice = serve(), random.Random(5)
    server.limit(logins_of_address=count)
    valid = handshake(BEARER) + authenticate(bearer_token_message(unsecured_token()))
    valid += request_bytes(b"in", 3)
    for _ in range(count):
        data = bytearray(valid)
        for _ in range(dice.randrange(1, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        with server.client() as client:
            client.send(bytes(data))
    with server.client() as client:
        client.log_in()
        assert client.who() == f"User:{NAME}"
    eventually(lambda: server.metrics.connections == 0, "all have left")
    assert server.metrics.errors == server.metrics.closed[Closed.FAILED] == 0
    assert not server.sasl.logging_in
