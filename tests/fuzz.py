"""``python -m tests.fuzz --requests 50000``: what strangers send to a real broker; prints JSON.

Genuine requests of every kind and version are changed at random and sent to one port, ``--port``,
while other clients produce and ask at that port. ``problems`` must be empty: no traceback in a log,
nobody else kept waiting, no memory that stays, the same session. ``--seed`` repeats a run.

``--port sasl`` changes logins and bearer tokens, ``tls`` and ``curve`` handshakes: nobody may be
let in whom an independent decision refuses.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple, Protocol, TypeAlias

import click
from hypothesis import HealthCheck, Phase, given, seed, settings

from regent.config.cluster_location import KEYS_DIR
from regent.config.private_files import write_private
from regent.core.errors import RegentError
from regent.core.protocol.broker import DescribeMetadataRequest
from regent.core.protocol.control import ControlHeader
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import scaled
from regent.transport.control.key_files import BROKER_SECRET, KeyPair, KeysDirectory, read_secret
from regent.transport.control.remote_ref import RemoteActorRef
from regent.transport.control.sockets import new_context
from tests.support import crowds, fuzzed_frames, fuzzed_handshakes, fuzzed_logins
from tests.support.certificates import Authority
from tests.support.fuzzed_requests import (
    TOPIC,
    Conversation,
    ask,
    ask_versions,
    conversations,
    genuine_requests,
    talk,
)

CONNECTIONS = 25
REQUESTS_PER_CONNECTION = 2  # on average
MAX_WAIT_S = 2.0
MAX_GROWTH_MB = 64
MAX_GROWTH_BY_LOGINS_MB = 128  # two threads hash passwords, and each of them keeps 16 MiB twice
TIMEOUT_S = scaled(10.0)
SETTINGS = "[broker]\nauto_create_topics_enable = false\n"
PROTOCOL_OF = {
    "PLAINTEXT": "PLAINTEXT",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SSL": "SSL",
    "INSIDE": "PLAINTEXT",
}
LISTENERS = """\
listeners = "{listeners}"
listener_security_protocol_map = "{protocols}"
inter_broker_listener_name = "INSIDE"
[sasl]
sasl_enabled_mechanisms = "{mechanisms}"
sasl_plain_users_file = "{users}"
connection_failed_authentication_delay_ms = 0
connections_max_reauth_ms = 600000
sasl_oauthbearer_jwks_endpoint_url = "{keys}"
sasl_oauthbearer_expected_audience = "{audience}"
sasl_oauthbearer_expected_issuer = "{issuer}"
[tls]
ssl_keystore_location = "{keystore}"
ssl_truststore_location = "{truststore}"
ssl_client_auth = "required"
"""
PRODUCE = 0
AT_A_TIME = 8  # handshakes
PORTS = ("kafka", "control", "replication", "sasl", "tls", "curve")
PROTOCOLS = {"sasl": "SASL_PLAINTEXT", "tls": "SSL"}
EXPIRIES = "kafka_server_sessionexpirelistener_zookeeperexpirespersec"

Address: TypeAlias = tuple[str, int]
Use: TypeAlias = Callable[[], object]
"""What a client that does nothing wrong does once; raises OSError or RegentError."""


class HasHandshakes(Protocol):
    """A port at which handshakes are done."""

    def handshake(
        self, chance: random.Random, *, is_genuine: bool = False
    ) -> fuzzed_handshakes.Handshake: ...


class Seen(NamedTuple):
    """What a client saw that did nothing wrong."""

    answers: int
    longest_s: float
    failures: list[str]


# --- clients that do nothing wrong ---


def producer(address: Address, produce: bytes) -> Iterator[Use]:
    """Produce, on a connection a request."""
    yield partial(ask, address, produce)


def asker(endpoint: str, keys: KeyPair) -> Iterator[Use]:
    """Ask as tools do, on one connection."""
    context = new_context(keys)
    request = DescribeMetadataRequest()
    try:
        with RemoteActorRef(context, endpoint, client_id="innocent") as actor:
            yield partial(actor.ask, request, timeout=TIMEOUT_S)
    finally:
        context.destroy(linger=0)


def use_until_told(pipe: Connection, client: Callable[[], Iterator[Use]]) -> None:
    """Use a broker again and again; tell what was seen."""
    answers, longest_s, failures = 0, 0.0, []
    with contextmanager(client)() as use:
        while not pipe.poll(0.01):
            began = monotonic()
            try:
                use()
                answers += 1
            except (OSError, RegentError) as error:
                failures.append(repr(error))
            longest_s = max(longest_s, monotonic() - began)
    pipe.send(Seen(answers, round(longest_s, 3), failures))


class Innocent:
    """A client in a process of its own."""

    def __init__(self, client: Callable[[], Iterator[Use]]) -> None:
        self._pipe, other_end = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=use_until_told, args=(other_end, client), daemon=True
        )
        self._process.start()

    def stop(self) -> Seen:
        """Return what it saw."""
        self._pipe.send(None)
        assert self._pipe.poll(2 * TIMEOUT_S), "a client does not end"
        seen: Seen = self._pipe.recv()
        self._process.join(TIMEOUT_S)
        return seen


def process_facts(pid: int) -> dict[str, float]:
    """What a process has taken."""
    process = Path(f"/proc/{pid}")
    pages = int((process / "statm").read_text().split()[1])
    return {
        "resident_mb": round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1),
        "files": len(list((process / "fd").iterdir())),
        "threads": len(list((process / "task").iterdir())),
    }


# --- those that do ---


def fuzz_kafka(address: Address, requests: int, chosen: int) -> Counter[str]:
    """Send so many requests of Kafka's protocol; return what became of them."""
    outcomes: Counter[str] = Counter()
    genuine = genuine_requests(ask_versions(address))

    while (left := requests - outcomes["requests"]) > 0:

        @seed(chosen)
        @settings(
            database=None,
            deadline=None,
            max_examples=1 + left // (CONNECTIONS * REQUESTS_PER_CONNECTION),
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(conversations(genuine, CONNECTIONS))
        def check(sent: list[Conversation]) -> None:
            outcomes.update(talk(address, sent))

        check()
        chosen += 1
    return outcomes


def fuzz_frames(
    target: fuzzed_frames.Target, commander: ControlHeader, requests: int, chosen: int
) -> Counter[str]:
    """Send so many requests as they are between brokers; return what became of them."""
    outcomes: Counter[str] = Counter()
    chance = random.Random(f"{chosen}, frames")
    sent = fuzzed_frames.conversations(commander, requests, chance)
    while some := list(islice(sent, CONNECTIONS)):
        outcomes.update(fuzzed_frames.talk(target, some))
    return outcomes


def problems(result: dict[str, Any], innocent: list[Seen]) -> list[str]:
    """Return what must not be."""
    grown = result["after"]["resident_mb"] - result["before"]["resident_mb"]
    limit = MAX_GROWTH_BY_LOGINS_MB if result["port"] == "sasl" else MAX_GROWTH_MB
    return [
        *(f"an innocent client: {failure}" for seen in innocent for failure in seen.failures[:10]),
        *([f"{result['tracebacks']} tracebacks"] if result["tracebacks"] else []),
        *([f"{grown:.0f} MB more"] if grown > limit else []),
        *(["waited for too long"] if any(seen.longest_s > MAX_WAIT_S for seen in innocent) else []),
        *(["its session expired"] if result["expiries"] else []),
    ]


class Entrance:
    """The ports of a broker that ask who comes, and what its users, keys and tokens are."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.issuer = fuzzed_logins.Issuer()
        self._authority = Authority(folder)
        self.good, self.stranger = self._authority.keystore("alice"), Authority(folder, "other")
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []

    def settings(self) -> str:
        """Return the settings of the broker."""
        users = self._folder / "plain.users"
        write_private(users, fuzzed_logins.plain_users())
        keys = self._authority.config()
        return LISTENERS.format(
            listeners=",".join(f"{name}://127.0.0.1:0" for name in PROTOCOL_OF),
            protocols=",".join(f"{name}:{protocol}" for name, protocol in PROTOCOL_OF.items()),
            mechanisms=",".join(fuzzed_logins.MECHANISMS),
            users=users,
            keys=self.issuer.write_keys(self._folder / "keys.json"),
            audience=fuzzed_logins.AUDIENCE,
            issuer=fuzzed_logins.ISSUER,
            keystore=keys.ssl_keystore_location,
            truststore=keys.ssl_truststore_location,
        )

    def add_users(self, data_dir: Path) -> None:
        """Let the users log in with SCRAM."""
        for name, password in fuzzed_logins.USERS.items():
            file = self._folder / f"{name.decode()}.password"
            write_private(file, password.decode())
            command = ("users", "add", name.decode(), "--password-file", str(file))
            arguments = [sys.executable, "-m", "regent", *command, "--data-dir", str(data_dir)]
            subprocess.run(arguments, check=True, capture_output=True, timeout=TIMEOUT_S)

    def fuzz_logins(self, address: Address, logins: int, chosen: int) -> None:
        """Log in so many times."""
        crowd, chance = crowds.Crowd(address), random.Random(f"{chosen}, logins")
        while self.outcomes["requests"] < logins:
            found = crowd.talk(self.issuer, chance)
            self.outcomes["requests"] += crowds.AT_ONCE
            for outcome in found:
                self.outcomes["refused" if outcome.body is None else "let in"] += 1
                if outcome.body is not None and outcome.allowed is None:
                    self.wrong.append(f"let in: {outcome}")
                if outcome.body is None and outcome.is_genuine:
                    self.wrong.append(f"a genuine login is refused: {outcome}")
        crowd.await_closed()
        self.outcomes.update(crowd.seen)

    def tls_target(self, address: Address) -> fuzzed_handshakes.TlsTarget:
        """Return a port with TLS."""
        authority = self._authority
        nobody, stranger = authority.client_context(), authority.client_context()
        stranger.load_cert_chain(self.stranger.keystore("mallory"))
        good = authority.client_context()
        good.load_cert_chain(self.good)
        return fuzzed_handshakes.TlsTarget(address, good, [nobody, stranger])

    def shake_hands(self, target: HasHandshakes, handshakes: int, chance: random.Random) -> None:
        """Do so many handshakes; a genuine one at first and at last."""
        for number in range(handshakes + 2):
            is_genuine = number in (0, handshakes + 1)
            found = target.handshake(chance, is_genuine=is_genuine)
            self.outcomes["requests"] += 1
            self.outcomes["let in" if found.is_let_in else "refused"] += 1
            self.outcomes["held"] += found.is_held
            if found.is_let_in and not found.is_allowed:
                self.wrong.append(f"let in: {found.detail}")
            if is_genuine and not found.is_let_in:
                self.wrong.append("a genuine handshake is refused")

    def fuzz_handshakes(
        self, new_target: Callable[[], HasHandshakes], handshakes: int, chosen: int
    ) -> None:
        """Do so many handshakes, some at a time."""
        with ThreadPoolExecutor(AT_A_TIME) as threads:
            shares = [
                threads.submit(
                    self.shake_hands,
                    new_target(),
                    handshakes // AT_A_TIME,
                    random.Random(f"{chosen}, handshakes {number}"),
                )
                for number in range(AT_A_TIME)
            ]
            for share in shares:
                share.result(scaled(10.0 * handshakes))


def user(address: Address) -> Iterator[Use]:
    """Log in, on a connection a login."""
    yield partial(crowds.log_in, address, fuzzed_logins.Issuer())


class Target:
    """A cluster of one broker, one of whose ports is fuzzed."""

    def __init__(self, cluster: RegentCluster, port: str, entrance: Entrance) -> None:
        self._cluster = cluster
        self._entrance = entrance
        self._port = port
        self._operator = KeysDirectory(cluster.data_dir / KEYS_DIR).operator()
        cluster.create_topic(TOPIC)
        cluster.await_agreement([0], TOPIC)
        host, kafka_port = cluster.bootstrap_servers.rsplit(":", 1)
        self._kafka = host, int(kafka_port)
        (broker,) = cluster.description["brokers"]
        self._address = self._kafka if port == "kafka" else (host, self._port_of(broker))
        entrance.add_users(cluster.data_dir)

    def _port_of(self, broker: dict[str, Any]) -> int:
        if self._port == "curve":
            return int(broker["control_port"])
        if self._port not in PROTOCOLS:
            return int(broker[f"{self._port}_port"])
        (listener,) = (
            name for name in broker["listeners"] if name.startswith(f"{PROTOCOLS[self._port]}:")
        )
        return int(listener.rpartition(":")[2])

    def innocent(self) -> list[Innocent]:
        """Start clients that do nothing wrong."""
        genuine = genuine_requests(ask_versions(self._kafka))
        produce = next(r for r in genuine if r[:2] == PRODUCE.to_bytes(2, "big"))
        clients = [Innocent(partial(producer, self._kafka, produce))]
        if self._port == "sasl":
            clients.append(Innocent(partial(user, self._address)))
        if self._port in ("control", "curve"):
            clients.append(
                Innocent(partial(asker, self._cluster.control_endpoint(0), self._operator))
            )
        return clients

    def fuzz(self, requests: int, chosen: int) -> Counter[str]:
        """Send so many requests; return what became of them."""
        entrance = self._entrance
        if self._port == "sasl":
            entrance.fuzz_logins(self._address, requests, chosen)
            return entrance.outcomes
        if self._port == "tls":
            new = partial(entrance.tls_target, self._address)
            entrance.fuzz_handshakes(new, requests, chosen)
            return entrance.outcomes
        if self._port == "curve":
            endpoint, context = self._cluster.control_endpoint(0), self._cluster.context
            asked = fuzzed_frames.genuine_request()
            curve = partial(fuzzed_handshakes.CurveTarget, endpoint, context, asked)
            entrance.fuzz_handshakes(curve, requests, chosen)
            return entrance.outcomes
        if self._port != "control":
            return fuzz_kafka(self._address, requests, chosen)
        epoch = self._cluster.broker_epoch(0)
        assert epoch is not None
        commander = ControlHeader(0, self._cluster.controller_epoch(), epoch, broker_id=0)
        own = new_context(read_secret(self._cluster.data_dir / "broker-0" / BROKER_SECRET))
        contexts = (self._cluster.context, own)
        target = fuzzed_frames.Target(self._cluster.control_endpoint(0), contexts)
        try:
            return fuzz_frames(target, commander, requests, chosen)
        finally:
            own.destroy(linger=0)

    def run(self, requests: int, chosen: int) -> dict[str, Any]:
        """Return what the broker and everybody else saw of it."""
        clients = self.innocent()
        result: dict[str, Any] = {"port": self._port, "seed": chosen}
        result["before"] = process_facts(self._cluster.pid(0))
        began = monotonic()
        outcomes = self.fuzz(requests, chosen)
        result["seconds"] = round(monotonic() - began, 1)
        innocent = [client.stop() for client in clients]
        sleep(1)  # what is held ends when its client has left
        result["after"] = process_facts(self._cluster.pid(0))
        result["outcomes"] = dict(outcomes)
        result["innocent"] = [seen._asdict() for seen in innocent]
        result["expiries"] = self._cluster.metrics(0)[EXPIRIES]
        logs = [path.read_text("utf-8", "replace") for path in self._logs()]
        result["log_bytes"] = sum(map(len, logs))
        result["tracebacks"] = sum(text.count("Traceback") for text in logs)
        result["problems"] = self._entrance.wrong[:10] + problems(result, innocent)
        return result

    def _logs(self) -> Iterator[Path]:
        return self._cluster.data_dir.rglob("*broker*.log")


@click.command()
@click.option("--port", type=click.Choice(PORTS), default="kafka")
@click.option("--requests", type=click.IntRange(1), default=50_000, show_default=True)
@click.option("--seed", "chosen", type=int, help="What is sent; by chance when not given.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Kept; temporary when not given.")
def main(port: str, requests: int, chosen: int | None, data_dir: Path | None) -> None:
    """Send changed requests to a broker; exit with 1 when it did harm."""
    first = random.randrange(2**32) if chosen is None else chosen
    with ExitStack() as stack:
        folder = data_dir or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        entrance = Entrance(folder)
        config = folder / "fuzz.toml"
        write_private(config, SETTINGS + entrance.settings())
        options = ("--brokers", "1", "--no-placement-service", "--config", str(config))
        cluster = stack.enter_context(closing(RegentCluster(folder / "cluster", *options)))
        result = Target(cluster, port, entrance).run(requests, first)
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    sys.exit(bool(result["problems"]))


if __name__ == "__main__":
    main()
