"""The login of a connection: which requests are accepted until somebody is logged in.

Mirrors ``SaslServerAuthenticator`` (KIP-43, KIP-152, KIP-368). Other than in Kafka, each request
that does not belong to a login closes the connection before its body is read.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from typing import Final, TypeAlias

from regent.config.threads import named_executor
from regent.core.errors import Errors
from regent.core.protocol.messages.authentication import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from regent.core.security.sasl_login import (
    LoggedIn,
    SaslAuthenticationError,
    SaslServer,
    invalid_credentials,
)
from regent.core.security.session import Session, network_of
from regent.transport.kafka.api import (
    KafkaAnswer,
    KafkaApi,
    KafkaApiKey,
    KafkaHandler,
    KafkaRequest,
)
from regent.transport.kafka.handshakes import HasClient, first_to_go
from regent.transport.kafka.message_codec import answer, decode
from regent.transport.kafka.metrics import Closed, ListenerMetrics

logger = logging.getLogger(__name__)

LOGIN_TIMEOUT_S: Final = 10.0
MAX_LOGINS_OF_ADDRESS: Final = 16
"""Connections of one address at a time that have not logged in; more are refused."""
MAX_LOGINS_OF_NETWORK: Final = 256
"""Those of one network (``network_of``): a new one takes the place of another one."""

_THREADS: Final = 2
_FAILURE_COUNTS_S: Final = 60.0
_MAX_FAILED: Final = 20_000  # addresses and networks
_REAUTH_INTERVAL_S: Final = 1.0  # as in Kafka
_Outcome: TypeAlias = bytes | SaslAuthenticationError  # of a step
_SASL_KEYS: Final = (KafkaApiKey.SASL_HANDSHAKE, KafkaApiKey.SASL_AUTHENTICATE)
_LAST_HANDSHAKE, _LAST_AUTHENTICATE = 1, 2  # versions


_Entry: TypeAlias = tuple[tuple[int, int], int, Future[_Outcome], Callable[[], _Outcome]]
"""A step of a login: how late it is done, its number, its result, and itself."""


class LoginRefusedError(Exception):
    """The connection is closed without an answer."""

    def __init__(self, reason: Closed, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class SaslLimits:
    """What clients may do that have not logged in; see ``config.tables.sasl``."""

    max_receive_bytes: int
    failure_delay_ms: int
    max_reauth_ms: int
    timeout_s: float = LOGIN_TIMEOUT_S
    logins_of_address: int = MAX_LOGINS_OF_ADDRESS
    logins_of_network: int = MAX_LOGINS_OF_NETWORK


class LoginSteps:
    """Runs steps of logins on a few threads: passwords are hashed there, which takes long.

    A step that waits is not behind those of networks whose logins failed in the last minute, or
    that have more logins under way, and so for the addresses of its network: strangers who try
    passwords keep no user out.
    """

    def __init__(self) -> None:
        self._executor = named_executor(_THREADS, "sasl-logins")
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: list[_Entry] = []
        """A heap: the first is done next."""
        self._failed: dict[str, tuple[int, float]] = {}  # how often and when, the oldest first

    async def run(
        self, step: Callable[[], _Outcome], client_host: str, logins: Collection[HasClient]
    ) -> _Outcome:
        """Return what ``step`` does, which raises nothing; ``logins`` of its network are under way.

        Raises ``RuntimeError`` if no thread can be started.
        """
        of_address = sum(one.client_host == client_host for one in logins)
        order = (
            self._failures(network_of(client_host)) + len(logins),
            self._failures(client_host) + of_address,
        )
        future: Future[_Outcome] = Future()
        with self._lock:
            entry = (order, next(self._numbers), future, step)
            heapq.heappush(self._waiting, entry)
        try:
            self._executor.submit(self._run_first)
        except RuntimeError:
            if self._take_back(entry):  # else a thread has it already
                raise
        return await asyncio.wrap_future(future)

    def count_failure(self, client_host: str) -> None:
        """A login of this address failed. Called on the loop's thread, as ``run``."""
        now = time.monotonic()
        for counted in {client_host, network_of(client_host)}:
            failures = self._failures(counted)
            self._failed.pop(counted, None)
            self._failed[counted] = (failures + 1, now)
            if len(self._failed) > _MAX_FAILED:
                del self._failed[next(iter(self._failed))]

    def close(self) -> None:
        """End the threads."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _failures(self, counted: str) -> int:
        """Return how many logins of an address or a network have failed lately."""
        failures, at = self._failed.get(counted, (0, 0.0))
        return failures if time.monotonic() < at + _FAILURE_COUNTS_S else 0

    def _take_back(self, entry: _Entry) -> bool:
        """Forget a step that waits: an executor may keep what it has refused, and run it later."""
        with self._lock:
            if entry not in self._waiting:
                return False
            self._waiting.remove(entry)
            heapq.heapify(self._waiting)
            return True

    def _run_first(self) -> None:
        with self._lock:
            if not self._waiting:
                return  # it was taken back
            _, _, future, step = heapq.heappop(self._waiting)
        if not future.set_running_or_notify_cancel():
            return  # its connection is closed
        future.set_result(step())


class SaslListener:
    """What the logins of a listener share. ``mechanisms`` begin a login each.

    Used on the listener's loop, except ``close``.
    """

    def __init__(
        self,
        mechanisms: Mapping[str, Callable[[], SaslServer]],
        limits: SaslLimits,
        closes: Sequence[Callable[[], object]] = (),
    ) -> None:
        self._closes = closes
        self.mechanisms = mechanisms
        self.limits = limits
        self.steps = LoginSteps()
        self.logging_in: dict[str, dict[SaslServerAuthenticator, None]] = {}
        """Of each network those of connections that have not logged in, the oldest first."""

    def apis(self) -> list[KafkaApi]:
        """Return the APIs that are advertised; their requests are the authenticators'."""
        last = {
            KafkaApiKey.SASL_HANDSHAKE: _LAST_HANDSHAKE,
            KafkaApiKey.SASL_AUTHENTICATE: _LAST_AUTHENTICATE,
        }
        return [KafkaApi(key, 0, version, _answered_by_login) for key, version in last.items()]

    def close(self) -> None:
        """End the threads, those of mechanisms too."""
        for close in self._closes:
            close()
        self.steps.close()


class _State(Enum):
    """What is expected next."""

    FIRST = auto()  # ApiVersions, or the handshake
    HANDSHAKE = auto()
    TOKEN = auto()  # in a SaslAuthenticate
    RAW_TOKEN = auto()  # without a header, after a handshake of version 0
    COMPLETE = auto()  # any request
    FAILED = auto()  # nothing: the answer is delayed, and then the connection closes


@dataclass(frozen=True, slots=True)
class ConnectionOfLogin:
    """What a login does to its connection."""

    on_changed: Callable[[Session], None]
    """The session, or what is accepted next, is another one."""
    end: Callable[[], None]
    """Close when the requests in progress are answered; never in the first step of a handler."""
    close: Callable[[Closed, str], None]


class SaslServerAuthenticator:
    """The logins of one connection, the first and later ones. Used on the loop's thread."""

    def __init__(
        self,
        listener: SaslListener,
        session: Session,
        connection: ConnectionOfLogin,
        metrics: ListenerMetrics,
        name: str,
    ) -> None:
        self._listener = listener
        self._session = session
        self.client_host = session.client_host
        self._network = network_of(session.client_host)
        self._connection = connection
        self._metrics = metrics
        self._name = name  # the listener's
        self._state = _State.FIRST
        self._mechanism = ""
        self._refusal: str | None = None  # why the next token is refused
        self._server: SaslServer | None = None
        self._login: LoggedIn | None = None  # the last one that succeeded
        self._ends_at: float | None = None  # of the monotonic clock
        self._again_at: float | None = None  # when the last later login began
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_logging_in(self) -> bool:
        """Whether one request at a time is handled."""
        return self._state is not _State.COMPLETE

    @property
    def has_logged_in(self) -> bool:
        """Whether somebody has, once: later logins are of the same user."""
        return self._login is not None

    @property
    def takes_raw_tokens(self) -> bool:
        """Whether what comes next has no header."""
        return self._state is _State.RAW_TOKEN

    @property
    def max_receive_bytes(self) -> int | None:
        """The size of the largest request now; None: that of the listener."""
        return self._listener.limits.max_receive_bytes if self._login is None else None

    def begin(self) -> None:
        """Expect a login. Raises ``LoginRefusedError``."""
        limits, logins = self._listener.limits, self._logins
        if sum(one.client_host == self.client_host for one in logins) >= limits.logins_of_address:
            raise LoginRefusedError(
                Closed.TOO_MANY_LOGINS,
                f"{limits.logins_of_address} connections have not logged in, more are closed",
            )
        if len(logins) >= limits.logins_of_network:
            why = f"{limits.logins_of_network} others of its network have not logged in"
            first_to_go(logins).give_up(why)
        self._listener.logging_in.setdefault(self._network, {})[self] = None
        self._start_timer()

    @property
    def _logins(self) -> Collection[SaslServerAuthenticator]:
        """Those of the network that are under way."""
        return self._listener.logging_in.get(self._network, ())

    def give_up(self, why: str) -> None:
        """Close the connection: others of its network need the room."""
        self._connection.close(Closed.TOO_MANY_UNAUTHENTICATED, why)

    def stop(self) -> None:
        """The connection is closed, or a login has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        logins = self._listener.logging_in.get(self._network, {})
        if self in logins:
            del logins[self]
            if not logins:
                del self._listener.logging_in[self._network]

    def admit(self, api_key: int) -> None:
        """Raise ``LoginRefusedError`` if a request must not be read any further."""
        match self._state:
            case _State.COMPLETE:
                if api_key != KafkaApiKey.SASL_HANDSHAKE and self._has_expired():
                    user = self._session.principal.name
                    raise LoginRefusedError(Closed.LOGIN_EXPIRED, f"the login of {user!a} is over")
                return
            case _State.FIRST:
                if api_key == KafkaApiKey.API_VERSIONS:
                    return
                is_expected = api_key == KafkaApiKey.SASL_HANDSHAKE
            case _State.HANDSHAKE:
                is_expected = api_key == KafkaApiKey.SASL_HANDSHAKE
            case _State.TOKEN | _State.RAW_TOKEN:
                is_expected = api_key in _SASL_KEYS  # a handshake is answered with an error
            case _State.FAILED:
                is_expected = False
        if not is_expected:
            self._count_failure()
            raise LoginRefusedError(Closed.NOT_LOGGED_IN, f"api {api_key} before a login")

    def handler(self, request: KafkaRequest, api: KafkaApi) -> KafkaHandler:
        """Return what handles a request: the handler of ``api``, or a step of the login."""
        if request.api_key is KafkaApiKey.SASL_HANDSHAKE:
            return self._shake_hands
        if request.api_key is KafkaApiKey.SASL_AUTHENTICATE:
            return self._take_raw if request.is_raw_token else self._take
        if self._state is _State.FIRST and request.api_version <= api.max_version:
            self._state = _State.HANDSHAKE  # in another version it may ask for the versions again
        return api.handle

    def raw_request(self, frame: memoryview) -> KafkaRequest:
        """Return a token without a header as a request."""
        key = KafkaApiKey.SASL_AUTHENTICATE
        return KafkaRequest(key, 0, 0, None, self._session, frame, is_raw_token=True)

    # --- the requests ---

    async def _shake_hands(self, request: KafkaRequest) -> KafkaAnswer:
        mechanism = decode(SaslHandshakeRequest, request).mechanism
        names = tuple(self._listener.mechanisms)
        if self._state not in (_State.FIRST, _State.HANDSHAKE) and not self._may_begin_again():
            refused = SaslHandshakeResponse(error_code=Errors.ILLEGAL_SASL_STATE, mechanisms=names)
            if self._state is _State.TOKEN:
                await self._fail("a second handshake")
            return answer(refused, request)
        if self._state is _State.COMPLETE:
            self._again_at = time.monotonic()
            self._start_timer()
        is_other = self._login is not None and mechanism != self._mechanism
        if mechanism not in names and not is_other:
            await self._fail(f"the mechanism {mechanism[:100]!a} is not enabled")
            error = Errors.UNSUPPORTED_SASL_MECHANISM
            return answer(SaslHandshakeResponse(error_code=error, mechanisms=names), request)
        self._refusal = None
        if is_other:
            self._refusal = (
                f"SASL mechanism '{self._mechanism}' requested by client is not supported for"
                " re-authentication: use the mechanism of the first login"
            )
        else:
            self._mechanism = mechanism
            self._server = self._listener.mechanisms[mechanism]()
        self._state = _State.TOKEN if request.api_version else _State.RAW_TOKEN
        self._connection.on_changed(self._session)
        return answer(SaslHandshakeResponse(error_code=Errors.NONE, mechanisms=names), request)

    async def _take(self, request: KafkaRequest) -> KafkaAnswer:
        token = decode(SaslAuthenticateRequest, request).auth_bytes
        if self._state is not _State.TOKEN:
            refused = SaslAuthenticateResponse(
                error_code=Errors.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate request received after successful authentication",
            )
            return answer(refused, request)
        try:
            reply, lifetime_ms = await self._step(bytes(token))
        except SaslAuthenticationError as error:
            message = str(error)
            await self._fail(error.detail)
            failed = SaslAuthenticateResponse(
                error_code=Errors.SASL_AUTHENTICATION_FAILED, error_message=message
            )
            return answer(failed, request)
        response = SaslAuthenticateResponse(
            error_code=Errors.NONE,
            error_message=None,
            auth_bytes=reply,
            session_lifetime_ms=lifetime_ms,
        )
        return answer(response, request)

    async def _take_raw(self, request: KafkaRequest) -> KafkaAnswer:
        """The body is a token, and so is the answer."""
        try:
            reply, _ = await self._step(bytes(request.body))
        except SaslAuthenticationError as error:
            detail = error.detail
            await self._fail(detail)
            return None
        return (reply,)

    async def _step(self, token: bytes) -> tuple[bytes, int]:
        """Take a token; return the answer and how long the login is valid, in milliseconds.

        Raises ``SaslAuthenticationError``.
        """
        server = self._server
        if self._refusal is not None or server is None:
            raise SaslAuthenticationError(self._refusal or "Authentication failed: no handshake")
        step = partial(self._evaluate, server, token)
        reply = await self._listener.steps.run(step, self.client_host, self._logins)
        if isinstance(reply, SaslAuthenticationError):
            raise reply
        if server.login is None:
            return reply, 0
        return reply, self._complete(server.login)

    def _evaluate(self, server: SaslServer, token: bytes) -> _Outcome:
        """Take a token, on a thread of the logins."""
        try:
            return server.evaluate(token)
        except SaslAuthenticationError as error:
            return error.with_traceback(None)
        except Exception as error:
            logger.exception("a login with %s failed unexpectedly", self._mechanism)
            return invalid_credentials(self._mechanism, f"unexpected {type(error).__name__}")

    def _complete(self, login: LoggedIn) -> int:
        """Let a login take effect; return how long it is valid, 0: for ever."""
        before = self._login
        if before is not None and login.principal != before.principal:
            raise SaslAuthenticationError(
                f"Cannot change principals during re-authentication from {before.principal} to"
                f" {login.principal}"
            )
        lifetimes = []
        if login.expires_at_ms is not None:
            lifetimes.append(max(0, login.expires_at_ms - time.time_ns() // 1_000_000))
        if self._listener.limits.max_reauth_ms:
            lifetimes.append(self._listener.limits.max_reauth_ms)
        lifetime_ms = min(lifetimes, default=None)
        self._ends_at = None if lifetime_ms is None else time.monotonic() + lifetime_ms / 1000
        self._login = login
        self._server = None
        self._state = _State.COMPLETE
        self.stop()
        self._session = replace(self._session, principal=login.principal, by_token=login.by_token)
        self._connection.on_changed(self._session)
        if before is None:
            self._metrics.successful_authentications += 1
        else:
            self._metrics.successful_reauthentications += 1
        return lifetime_ms or 0

    async def _fail(self, detail: str) -> None:
        """Count a login that failed. Return when it is time to answer and to close."""
        self._count_failure()
        self._state = _State.FAILED
        self._server = None
        if self._timer is not None:
            self._timer.cancel()
        self._listener.steps.count_failure(self.client_host)
        detail = f"{self._mechanism}: {detail}" if self._mechanism else detail
        self._metrics.count_closed(
            Closed.FAILED_AUTHENTICATION, self._name, self._session.client_host, detail
        )
        await asyncio.sleep(self._listener.limits.failure_delay_ms / 1000)
        self._connection.end()

    def break_off(self) -> None:
        """The client sent what is no request: count a login that is under way as failed."""
        if self.is_logging_in:
            self._count_failure()

    def _count_failure(self) -> None:
        if self._state is _State.FAILED:
            return  # it is counted
        if self._login is None:
            self._metrics.failed_authentications += 1
        else:
            self._metrics.failed_reauthentications += 1

    # --- times ---

    def _has_expired(self) -> bool:
        return self._ends_at is not None and time.monotonic() >= self._ends_at

    def _may_begin_again(self) -> bool:
        """Whether a client that is logged in may do so again."""
        if self._state is not _State.COMPLETE or self._ends_at is None:
            return False
        return self._again_at is None or time.monotonic() >= self._again_at + _REAUTH_INTERVAL_S

    def _start_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._listener.limits.timeout_s, self._on_timeout)

    def _on_timeout(self) -> None:
        self._count_failure()
        detail = f"no login in {self._listener.limits.timeout_s:g} s"
        self._connection.close(Closed.LOGIN_SLOW, detail)


async def _answered_by_login(request: KafkaRequest) -> KafkaAnswer:
    """Answer a request that no login handles: each connection of the listener has one."""
    raise AssertionError(f"{request.api_key.name} is handled by the login of the connection")
