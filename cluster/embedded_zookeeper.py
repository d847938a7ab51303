"""An embedded ZooKeeper server: the one in PySpark's wheel, in its own JVM.

Nothing is downloaded, and pyspark is not imported. A data directory holds ``zoo.cfg``
(written anew at each start), ZooKeeper's own files, ``zookeeper.log`` (rolled at 10 MB),
``zookeeper.out`` (what the last JVM printed), ``.lock`` (held by the JVM: ZooKeeper itself lets two
servers write into one folder), with a login ``jaas.conf`` and, in an ensemble, ``myid`` and
``peer.json``.
"""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import json
import os
import random
import re
import shlex
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from itertools import count
from pathlib import Path
from typing import BinaryIO, NamedTuple

from regent.cluster.jvm_launcher import ending_with_this_process
from regent.config.addresses import bracketed, listening_socket
from regent.config.cluster_location import numbered_folders
from regent.config.command_line import JOBS, pip_install
from regent.config.java import OPTION_VARIABLES, JavaRuntime, find_java, java_environment
from regent.config.private_files import write_private
from regent.core.errors import RegentError
from regent.transport.local_users import SAME, LocalUsers, local_users
from regent.zk.client.login import Login

PEER_FILE = "peer.json"
_JAAS_FILE = "jaas.conf"
_LOCK_FILE = ".lock"
_LOCK_WAIT_S = 3.0  # a server whose owner was killed ends by itself
LOOPBACK = "127.0.0.1"
HEAP_MB = 512
"""The default size of the heap. A partition takes 1.8 KB, so it holds some 290,000 at most."""
MIN_HEAP_MB = 64
SERVER_STATE = "srvr"
"""The one four-letter word that a server answers by default: others tell strangers too much."""
START_TIMEOUT_S = 600.0
"""How long a server whose process lives may take until it answers: it loads its data first."""

USERS_OPTION = "-Dregent.local.users="
"""The option of the server's Java with the ids of the users of this machine that may connect."""

_PORT_ATTEMPTS = 3
_MAX_CONNECTIONS = 2_000
ANY_PORTS = range(20_000, 32_768)
"""Where a free port is chosen: below those that Linux gives to outgoing connections. One of them
could take the port before the server listens there, or while it is down."""
_TURNS = count(random.SystemRandom().randrange(len(ANY_PORTS)))
"""The next port to try: this process gives no port twice, others begin elsewhere."""
_POLL_S = 0.05
_ANSWER_TIMEOUT_S = 5.0
_MAX_LOG_TAIL_BYTES = 64 * 1024
_PORT_IN_USE = "Address already in use"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_EXCEPTION = re.compile(r"(Caused by: )?[\w.$]+(Exception|Error)\b")

# The jars of PySpark that the server needs.
_JARS = re.compile(
    r"(zookeeper|netty-|slf4j-api|log4j-(api|core|slf4j2-impl)|metrics-core|snappy-java|jcl-over)"
)
_LOG_CONFIGURATION = Path(__file__).parents[1] / "config" / "log4j2-zookeeper.properties"
_OUR_CLASSES = Path(__file__).with_name("java")
_JVM_OPTIONS = (
    "-XX:+ExitOnOutOfMemoryError",  # otherwise it keeps running but does not answer
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
)


class ZooKeeperStartError(RegentError):
    """The server did not start; the message is one line with the reason."""


class QuorumPeer(NamedTuple):
    """One member of an ensemble and its ports for the other members."""

    server_id: int
    quorum_port: int
    election_port: int


class EmbeddedZooKeeper:
    """One server in a child process, alone or a member of an ensemble.

    Call ``start`` on the main thread: when the calling thread or the process ends, the kernel kills
    the server. With ``port`` 0 the first start chooses a free port; later starts use it again. On
    loopback ``users`` may connect, by default the user of this process.
    """

    def __init__(  # noqa: PLR0913
        self,
        data_dir: Path,
        *,
        port: int = 0,
        client_host: str = LOOPBACK,
        server_id: int | None = None,
        peers: Sequence[QuorumPeer] = (),
        tick_time_ms: int = 500,
        heap_mb: int = HEAP_MB,
        four_letter_words: str = SERVER_STATE,
        login: Login | None = None,
        users: LocalUsers | None = None,
    ) -> None:
        self._data_dir = data_dir.absolute()
        self._port = port
        self._any_port = port == 0
        self._host = client_host
        self._server_id = server_id
        self._peers = tuple(peers)
        self._tick_time_ms = tick_time_ms
        self._heap_mb = heap_mb
        self._four_letter_words = four_letter_words
        self._login = login
        self._users = (local_users(SAME) if users is None else users).at(client_host)
        self._log = self._data_dir / "zookeeper.log"
        self._log_start = 0  # where the lines of this run begin
        self._output = self._data_dir / "zookeeper.out"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def transaction_log(self) -> Path:
        """The folder of the server's transaction log, which it creates at its first start."""
        return self._data_dir / "version-2"

    @property
    def pid(self) -> int:
        """The process id of the server; raises ``ZooKeeperStartError`` before ``launch``."""
        if self._process is None:
            raise ZooKeeperStartError("ZooKeeper has not been started")
        return self._process.pid

    @property
    def port(self) -> int:
        """The client port; 0 before the first start if a free port is to be chosen."""
        return self._port

    @property
    def address(self) -> str:
        """``host:port`` for clients."""
        return f"{bracketed(self._host)}:{self._port}"

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start the server and return when it answers.

        Raises ``ZooKeeperStartError`` and ``config.java.JavaNotFoundError``; no process is left
        running then.
        """
        for attempt in range(_PORT_ATTEMPTS):
            self.launch()
            try:
                self.wait_serving(timeout_s)
            except ZooKeeperStartError as error:
                last = attempt == _PORT_ATTEMPTS - 1
                if last or not self._any_port or _PORT_IN_USE not in str(error):
                    raise
                self._port = 0  # another process took the port first
            else:
                self._any_port = False
                return

    def launch(self) -> None:
        """Start the process without waiting for it: members of an ensemble need each other.

        Raises ``ZooKeeperStartError``.
        """
        if self._process is not None and self._process.poll() is None:
            raise ZooKeeperStartError(f"ZooKeeper is already running as process {self.pid}")
        java = find_java()
        classpath = server_classpath()
        self._port = _usable_port(self._host, self._port)
        try:
            self._data_dir.mkdir(parents=True, exist_ok=True)
            with self._locked() as lock:
                self._launch(java, classpath, lock)
        except OSError as error:
            raise ZooKeeperStartError(f"ZooKeeper cannot be started: {error}") from error

    def _launch(self, java: JavaRuntime, classpath: str, lock: BinaryIO) -> None:
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        self._check_place_of_data()
        configuration = self._data_dir / "zoo.cfg"
        write_private(configuration, self._configuration())
        jaas = self._data_dir / _JAAS_FILE
        if self._login is not None:
            write_private(jaas, self._login.jaas("Server"))
        if self._server_id is not None:
            (self._data_dir / "myid").write_text(f"{self._server_id}\n")
        command = [
            str(java.executable),
            f"-Xmx{self._heap_mb}m",
            *_JVM_OPTIONS,
            f"-Dlog4j2.configurationFile={_LOG_CONFIGURATION.as_uri()}",
            *(() if self._login is None else (f"-Djava.security.auth.login.config={jaas}",)),
            *self._who_may_connect(),
            *("-cp", os.pathsep.join([classpath, str(_OUR_CLASSES)])),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(configuration),
        ]
        environment = {k: v for k, v in os.environ.items() if k not in OPTION_VARIABLES}
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                ending_with_this_process(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=java_environment(environment),
                pass_fds=(lock.fileno(),),
                cwd=self._data_dir,  # the log is written there
                start_new_session=True,
            )

    def _locked(self) -> BinaryIO:
        """Lock the folder for a server that inherits the lock. Raises ``ZooKeeperStartError``."""
        lock = (self._data_dir / _LOCK_FILE).open("ab")
        deadline = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(_POLL_S)
                    continue
                lock.close()
                raise ZooKeeperStartError(
                    f"another ZooKeeper uses {self._data_dir}: stop it, or choose another folder"
                ) from None
            return lock

    def wait_serving(self, timeout_s: float) -> None:
        """Return when the server answers clients.

        Raises ``ZooKeeperStartError`` when it ends or does not answer in time; it is stopped then.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            status = self._process.poll() if self._process is not None else None
            if status is not None:
                raise ZooKeeperStartError(
                    f"ZooKeeper ended with status {status} while it started: {self.last_line()}"
                )
            if _serves(self._host, self._port):
                return
            if time.monotonic() > deadline:
                self.stop(0.0)
                raise ZooKeeperStartError(
                    f"ZooKeeper did not answer at {self.address} within {timeout_s:g} s: "
                    f"{self.last_line()}"
                )
            time.sleep(_POLL_S)

    def poll(self) -> int | None:
        """Return the exit status once the server has ended (negative: the signal), else None."""
        return None if self._process is None else self._process.poll()

    def last_line(self) -> str:
        """Return the last exception, or else the last line, that this run printed or logged."""
        for path, start in ((self._output, 0), (self._log, self._log_start)):
            try:
                with path.open("rb") as file:
                    size = file.seek(0, os.SEEK_END)
                    file.seek(max(start if start <= size else 0, size - _MAX_LOG_TAIL_BYTES))
                    lines = file.read().decode(errors="replace").split("\n")
            except OSError:  # there is none, or it cannot be read now
                continue
            causes = [line for line in lines if _EXCEPTION.match(line)]
            said = causes or [line for line in lines if line.strip()]
            if said:
                return said[-1].strip()
        return "it printed nothing"

    def stop(self, timeout_s: float = 10.0) -> None:
        """Stop the server if it runs; kill it after ``timeout_s``. Its data stays."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait(10.0)

    def _check_place_of_data(self) -> None:
        """Check that Java can open the folder, and that no earlier version put the data elsewhere.

        Raises ``ZooKeeperStartError``.
        """
        try:
            str(self._data_dir).encode()
        except UnicodeEncodeError:
            raise ZooKeeperStartError(
                f"Java cannot open {str(self._data_dir)!r}, whose name is not"
                f" {sys.getfilesystemencoding()}: choose another folder"
            ) from None
        stray = _misread(self._data_dir) / self.transaction_log.name
        if stray != self.transaction_log and stray.exists() and not self.transaction_log.exists():
            raise ZooKeeperStartError(
                f"an earlier version wrote ZooKeeper's data into another folder: move them with"
                f" {shlex.join(['mv', str(stray), str(self.transaction_log)])}"
            )

    def _configuration(self) -> str:
        lines = [
            f"tickTime={self._tick_time_ms}",
            "initLimit=20",
            "syncLimit=10",
            f"dataDir={_property_value(str(self._data_dir))}",
            f"clientPort={self._port}",
            f"clientPortAddress={self._host}",
            f"maxClientCnxns={_MAX_CONNECTIONS}",  # of one address
            f"minSessionTimeout={self._tick_time_ms}",
            "maxSessionTimeout=60000",
            "snapCount=100000",
            "autopurge.snapRetainCount=3",
            "autopurge.purgeInterval=1",
            "admin.enableServer=false",
            f"4lw.commands.whitelist={self._four_letter_words}",
            *self._access(),
            *(
                f"server.{peer.server_id}={LOOPBACK}:{peer.quorum_port}:{peer.election_port}"
                for peer in self._peers
            ),
        ]
        return "\n".join(lines) + "\n"

    def _who_may_connect(self) -> Sequence[str]:
        """Return the options that make the server refuse other users of this machine."""
        ids = self._users.admitted
        if ids is None:
            return ()
        return (
            "-Dzookeeper.serverCnxnFactory=LocalUsersCnxnFactory",
            f"{USERS_OPTION}{','.join(map(str, sorted(ids)))}",
        )

    def _access(self) -> Sequence[str]:
        """Return the lines that let the login do everything, by either of its two schemes."""
        if self._login is None:
            return ()
        provider = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
        return (
            f"authProvider.sasl={provider}",
            "fips-mode=false",  # otherwise there is no DIGEST-MD5, the only SASL without Kerberos
            f"superUser={self._login.user}",
            f"DigestAuthenticationProvider.superDigest={self._login.digest}",
        )


def start_ensemble(
    data_dirs: Sequence[Path],
    ports: Sequence[int],
    timeout_s: float = START_TIMEOUT_S,
    *,
    heap_mb: int = HEAP_MB,
    login: Login | None = None,
    users: LocalUsers | None = None,
) -> list[EmbeddedZooKeeper]:
    """Start an ensemble on loopback and return its servers when all of them answer.

    ``ports`` are client ports; 0: a free port. The ports between the servers are chosen once and
    kept in ``peer.json`` of each data directory, so that a single server can be restarted.
    Raises what ``EmbeddedZooKeeper.start`` raises; no process is left running then.
    """
    peers = [_peer(data_dir, n) for n, data_dir in enumerate(data_dirs, start=1)]
    servers = [
        EmbeddedZooKeeper(
            data_dir,
            port=port,
            server_id=peer.server_id,
            peers=peers,
            heap_mb=heap_mb,
            login=login,
            users=users,
        )
        for data_dir, port, peer in zip(data_dirs, ports, peers, strict=True)
    ]
    deadline = time.monotonic() + timeout_s
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.wait_serving(max(deadline - time.monotonic(), 0.0))
    except BaseException:
        for server in servers:
            server.stop(0.0)
        raise
    return servers


def server_of(
    data_dir: Path,
    port: int,
    host: str = LOOPBACK,
    *,
    heap_mb: int = HEAP_MB,
    login: Login | None = None,
    users: LocalUsers | None = None,
) -> EmbeddedZooKeeper:
    """Return the server of a data directory; a member of an ensemble joins it again.

    The server listens for clients at ``host``, and for other members on loopback. The other
    members' data directories are ``zookeeper-N`` beside it. Raises ``ZooKeeperStartError`` when a
    ``peer.json`` cannot be read.
    """
    data_dir = data_dir.absolute()
    if not (data_dir / PEER_FILE).exists():
        return EmbeddedZooKeeper(
            data_dir, port=port, client_host=host, heap_mb=heap_mb, login=login, users=users
        )
    folders = {data_dir, *numbered_folders(data_dir.parent, "zookeeper").values()}
    peers = {f: _read_peer(f / PEER_FILE) for f in folders if (f / PEER_FILE).exists()}
    return EmbeddedZooKeeper(
        data_dir,
        port=port,
        client_host=host,
        server_id=peers[data_dir].server_id,
        peers=sorted(peers.values()),
        heap_mb=heap_mb,
        login=login,
        users=users,
    )


def server_classpath() -> str:
    """Return the class path of the server; raises ``ZooKeeperStartError`` without PySpark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ZooKeeperStartError(
            "the embedded ZooKeeper server comes with PySpark, which is not installed: run"
            f" {pip_install(JOBS)}, or use a server of your own (--zookeeper HOST:PORT)"
        )
    jars = sorted(Path(spec.origin).with_name("jars").glob("*.jar"))
    wanted = [str(jar) for jar in jars if _JARS.match(jar.name)]
    if not any("zookeeper" in jar for jar in wanted):
        raise ZooKeeperStartError(f"there is no ZooKeeper in {spec.origin}: reinstall pyspark")
    return os.pathsep.join(wanted)


def _property_value(text: str) -> str:
    """Return a value for a file of Java properties, which Java reads as ISO-8859-1."""
    encoded = text.encode("utf-16-be")
    units = struct.unpack(f">{len(encoded) // 2}H", encoded)
    return "".join(
        chr(unit) if 0x20 < unit < 0x7F and chr(unit) != "\\" else f"\\u{unit:04x}"
        for unit in units
    )


def _misread(path: Path) -> Path:
    """Return the path that Java reads where ``path`` was written as UTF-8 without any escape."""
    text = os.fsencode(path).decode("latin-1")
    return Path(re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), text))


def _peer(data_dir: Path, server_id: int) -> QuorumPeer:
    path = data_dir / PEER_FILE
    if path.exists():
        return _read_peer(path)
    peer = QuorumPeer(server_id, *_free_ports(LOOPBACK, 2))
    data_dir.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(peer._asdict()))
    return peer


def _read_peer(path: Path) -> QuorumPeer:
    try:
        return QuorumPeer(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise ZooKeeperStartError(
            f"{path} cannot be read ({error}): delete it if no member of the ensemble runs"
        ) from error


def _free_ports(host: str, count: int) -> list[int]:
    """Return different ports on which a server can listen; raises ``ZooKeeperStartError``."""
    with ExitStack() as held:
        found: list[int] = []
        for _ in ANY_PORTS:
            port = ANY_PORTS[next(_TURNS) % len(ANY_PORTS)]
            with suppress(OSError):
                held.callback(listening_socket(host, port).close)
                found.append(port)
            if len(found) == count:
                return found
    raise ZooKeeperStartError(f"no port of {host} from {ANY_PORTS[0]} to {ANY_PORTS[-1]} is free")


def _usable_port(host: str, port: int) -> int:
    """Return ``port``, or a free port for 0; raise if a server cannot listen on it."""
    try:
        listening_socket(host, port).close()
        return port or _free_ports(host, 1)[0]
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ZooKeeperStartError(
                f"port {port} on {host} is in use: "
                "stop what listens there or choose another port for ZooKeeper"
            ) from None
        raise ZooKeeperStartError(
            f"ZooKeeper cannot listen on {host} ({error}): choose an address of this machine"
        ) from None


def _serves(host: str, port: int) -> bool:
    """Send ``srvr``; a member of an ensemble answers it only after it has joined the quorum."""
    try:
        with closing(socket.create_connection((host, port), _ANSWER_TIMEOUT_S)) as sock:
            sock.sendall(SERVER_STATE.encode())
            return b"Mode: " in sock.makefile("rb").read(4096)
    except OSError:
        return False
