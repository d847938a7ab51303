from __future__ import annotations

import errno
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NoReturn

import pytest

from regent.cluster import embedded_zookeeper
from regent.cluster.embedded_zookeeper import (
    ANY_PORTS,
    PEER_FILE,
    EmbeddedZooKeeper,
    ZooKeeperStartError,
    server_classpath,
    server_of,
    start_ensemble,
)
from regent.config.java import JavaNotFoundError, find_java
from regent.testing.waits import eventually, next_line, pause_process, scaled
from regent.transport.local_users import EVERYBODY, LocalUsers
from regent.zk.client.operations import ConnectionLossError, Create
from regent.zk.client.zookeeper_client import ZooKeeperClient
from tests.support.ipv6 import needs_ipv6

pytestmark = [pytest.mark.zookeeper, pytest.mark.usefixtures("zookeeper_server")]

FILE_BYTES = 64 * 1024
OTHER = os.geteuid() + 1
STRANGE = '数据 ü \\ "x" \\u0041 ${sys:a} %i 🙂'


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def client_of(addresses: str, stack: ExitStack) -> ZooKeeperClient:
    client = ZooKeeperClient(addresses, 6000, on_watch=lambda _: None)
    client.start(timeout_s=scaled(10.0))
    stack.callback(client.close)
    return client


def test_a_stopped_server_has_no_process_and_no_port(tmp_path: Path, stack: ExitStack) -> None:
    server = EmbeddedZooKeeper(tmp_path / "zk")
    stack.callback(server.stop)
    server.start()
    with pytest.raises(ZooKeeperStartError, match="already running"):
        server.start()

    server.stop()

    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)
    server.stop()


@pytest.mark.parametrize(
    "locale",
    ["C", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("C.UTF-8", "xx_XX.UTF-8"))],
)
def test_the_data_folder_can_be_moved_and_can_have_any_name(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, locale: str
) -> None:
    monkeypatch.setenv("LC_ALL", locale)
    server = EmbeddedZooKeeper(tmp_path / STRANGE)
    stack.callback(server.stop)
    server.start()
    client_of(server.address, stack).multi([Create("/kept")])
    server.stop()

    assert list(tmp_path.iterdir()) == [tmp_path / STRANGE]
    assert {"version-2", "zookeeper.log"} <= {
        path.name for path in server.transaction_log.parent.iterdir()
    }
    moved = EmbeddedZooKeeper((tmp_path / STRANGE).rename(tmp_path / "moved"))
    stack.callback(moved.stop)
    moved.start()
    assert client_of(moved.address, stack).get("/kept") is not None


@pytest.mark.parametrize(("name", "misread"), [("数据", "æ\x95°æ\x8d®"), (r"a\b\u\t", "ab\x75\t")])
def test_data_that_an_earlier_version_put_elsewhere_are_named_with_the_cure(
    tmp_path: Path, name: str, misread: str
) -> None:
    written = tmp_path / misread / "zk" / "version-2"
    written.mkdir(parents=True)
    server = EmbeddedZooKeeper(tmp_path / name / "zk")

    with pytest.raises(ZooKeeperStartError) as refused:
        server.start()

    said = str(refused.value)
    assert said.startswith("an earlier version wrote ZooKeeper's data into another folder")
    subprocess.run(said[said.index("mv ") :], shell=True, check=True, timeout=scaled(20))
    assert server.transaction_log.exists()
    assert not written.exists()


def test_a_folder_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ZooKeeperStartError, match=r"Java cannot open .*udcff.* is not utf-8"):
        EmbeddedZooKeeper(tmp_path / os.fsdecode(b"\xff")).start()


@pytest.mark.nightly
def test_the_heap_of_each_server_of_an_ensemble_is_as_large_as_asked(
    tmp_path: Path, stack: ExitStack
) -> None:
    for server in start_ensemble([tmp_path / "a", tmp_path / "b"], [0, 0], heap_mb=99):
        stack.callback(server.stop, 1.0)
        assert b"-Xmx99m" in Path(f"/proc/{server.pid}/cmdline").read_bytes().split(b"\0")


def test_a_folder_serves_one_server_as_long_as_it_lives(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers would write transactions with the same numbers into it."""
    monkeypatch.setattr(embedded_zookeeper, "_LOCK_WAIT_S", 0.0)
    first, second = EmbeddedZooKeeper(tmp_path / "zk"), EmbeddedZooKeeper(tmp_path / "zk")
    stack.callback(second.stop)
    stack.callback(first.stop)
    first.start()
    configuration = (tmp_path / "zk" / "zoo.cfg").read_text()
    with pytest.raises(ZooKeeperStartError, match=f"another ZooKeeper uses {tmp_path / 'zk'}"):
        second.start()
    assert (tmp_path / "zk" / "zoo.cfg").read_text() == configuration
    first.stop()
    second.start()


@pytest.mark.parametrize("step", ["write_private", "ending_with_this_process"])
def test_a_server_that_cannot_be_launched_for_now_is_told_of_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Its supervisor tries again. Any other error would end the whole cluster."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    server = EmbeddedZooKeeper(tmp_path / "zk")
    with monkeypatch.context() as patch:
        patch.setattr(f"regent.cluster.embedded_zookeeper.{step}", fail)
        with pytest.raises(ZooKeeperStartError, match="No space left on device"):
            server.launch()
        patch.setattr(Path, "open", fail)
        assert server.last_line() == "it printed nothing"


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(ZooKeeperStartError, match=rf"port {port} .* is in use: .*another port"):
            EmbeddedZooKeeper(tmp_path, port=port).start()


def test_the_error_of_a_server_that_fails_quotes_its_log(tmp_path: Path) -> None:
    (tmp_path / "version-2").write_text("in the way of the directory")

    with pytest.raises(ZooKeeperStartError, match=r"ended with status \d+ .*version-2"):
        EmbeddedZooKeeper(tmp_path).start()


def test_a_server_with_a_full_disk_reports_the_cause(tmp_path: Path, stack: ExitStack) -> None:
    server = EmbeddedZooKeeper(tmp_path)
    stack.callback(server.stop)
    server.start()
    client = client_of(server.address, stack)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))

    with suppress(ConnectionLossError):
        for number in range(FILE_BYTES // 1024):
            client.multi([Create(f"/large-{number}", bytes(2048))])

    eventually(lambda: server.poll() is not None, "it has ended")
    assert server.last_line() == "java.io.IOException: File too large"


def test_without_java_the_server_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))

    with pytest.raises(JavaNotFoundError):
        EmbeddedZooKeeper(tmp_path / "zk").start()

    assert not (tmp_path / "zk").exists()


def test_the_server_dies_with_the_process_that_started_it(tmp_path: Path, stack: ExitStack) -> None:
    script = tmp_path / "starter.py"
    script.write_text(
        "import sys, pathlib\n"
        "from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper\n"
        "server = EmbeddedZooKeeper(pathlib.Path(sys.argv[1]))\n"
        "server.start()\n"
        "sys.stdout.write(f'{server.pid}\\n')\n"
        "sys.stdout.flush()\n"
        "sys.stdin.read()\n"
    )
    starter = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "zk")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with starter:
        server_pid = int(next_line(starter, "the server has started", 60))
        stack.callback(os.close, server := os.pidfd_open(server_pid))
        pause_process(server_pid)  # a server that hangs ends too

        starter.send_signal(signal.SIGKILL)
        starter.wait(scaled(5.0))

    ended, _, _ = select.select([server], [], [], scaled(5.0))
    assert ended


def test_the_copy_of_a_member_joins_no_ensemble(tmp_path: Path) -> None:
    for number, name in ((1, "zookeeper-0"), (2, "zookeeper-1"), (2, "zookeeper-1.bak")):
        (tmp_path / name).mkdir()
        peer = {"server_id": number, "quorum_port": 1, "election_port": 2}
        (tmp_path / name / PEER_FILE).write_text(json.dumps(peer))
    server = server_of(tmp_path / "zookeeper-0", 0)
    assert [peer.server_id for peer in server._peers] == [1, 2]


@pytest.mark.nightly
def test_an_ensemble_serves_while_one_member_is_down_and_takes_it_back(
    tmp_path: Path, stack: ExitStack
) -> None:
    data_dirs = [tmp_path / f"zookeeper-{number}" for number in range(3)]
    servers = start_ensemble(data_dirs, [0, 0, 0])
    for server in servers:
        stack.callback(server.stop, 1.0)
    between = [json.loads((folder / PEER_FILE).read_text()) for folder in data_dirs]
    ports = [server.port for server in servers]
    ports += [peer[name] for peer in between for name in ("quorum_port", "election_port")]
    assert set(ports) <= set(ANY_PORTS), "no connection takes one while a server is down"
    assert len(set(ports)) == 9
    client = client_of(",".join(server.address for server in servers), stack)
    client.multi([Create("/a")])

    servers[2].stop(timeout_s=0.0)
    client.get("/a")
    client.multi([Create("/b")])
    servers[2].start()

    reader = client_of(servers[2].address, stack)
    assert reader.children("/") == ["a", "b", "zookeeper"]


def answer_to_srvr(host: str, port: int) -> bytes:
    """Return the beginning of what a new client is answered; nothing if it is refused."""
    with (
        suppress(ConnectionError),  # it may be refused before it has connected
        socket.create_connection((host, port), scaled(10.0)) as client,
    ):
        client.sendall(b"srvr")
        return client.recv(9)
    return b""


@pytest.mark.parametrize(
    ("host", "reached_at"),
    [
        ("127.0.0.1", ("127.0.0.1", "::ffff:127.0.0.1")),
        pytest.param("::1", ("::1",), marks=needs_ipv6),
        ("0.0.0.0", ("127.0.0.1",)),  # other machines are let in, so users are not asked for
    ],
)
def test_its_own_user_is_let_in_at_every_form_of_its_address(
    tmp_path: Path, stack: ExitStack, host: str, reached_at: tuple[str, ...]
) -> None:
    server = EmbeddedZooKeeper(tmp_path / "zk", client_host=host)
    stack.callback(server.stop)
    server.start()

    assert {answer_to_srvr(address, server.port) for address in reached_at} == {b"Zookeeper"}


def test_other_users_of_the_machine_are_refused_before_a_byte_is_read(
    tmp_path: Path, stack: ExitStack
) -> None:
    """Without a login they could fill its heap with watches until it ends.

    The server takes our own process for that of another user.
    """
    server = EmbeddedZooKeeper(tmp_path / "zk", users=LocalUsers({OTHER}))
    stack.callback(server.stop)
    server.launch()
    log = tmp_path / "zk" / "zookeeper.log"

    def says_who_was_refused() -> bool:
        assert answer_to_srvr("127.0.0.1", server.port) == b""
        return log.exists() and f"it belongs to user {os.geteuid()}" in log.read_text()

    eventually(says_who_was_refused, "the log names the other user", scaled(30.0))
    for _ in range(100):
        assert answer_to_srvr("127.0.0.1", server.port) == b""


def test_a_server_for_every_user_asks_nobody(tmp_path: Path, stack: ExitStack) -> None:
    server = EmbeddedZooKeeper(tmp_path / "zk", users=EVERYBODY)
    stack.callback(server.stop)
    server.start()

    assert answer_to_srvr("127.0.0.1", server.port) == b"Zookeeper"
    assert b"LocalUsers" not in Path(f"/proc/{server.pid}/cmdline").read_bytes()


def test_the_class_that_refuses_them_is_made_of_its_source(tmp_path: Path) -> None:
    source = Path(embedded_zookeeper.__file__).with_name("java") / "LocalUsersCnxnFactory.java"
    needed = server_classpath()
    jars = Path(needed.partition(os.pathsep)[0]).parent
    compiler = [*jars.glob("janino-*.jar"), *jars.glob("commons-compiler-*.jar")]
    classpath = os.pathsep.join(map(str, compiler))
    main = "org.codehaus.commons.compiler.samples.CompilerDemo"
    arguments = ["-d", str(tmp_path), "-classpath", needed, str(source)]
    java = str(find_java().executable)
    command = [java, "-cp", f"{classpath}{os.pathsep}{needed}", main, *arguments]
    subprocess.run(command, check=True, timeout=scaled(60))

    made = tmp_path / source.with_suffix(".class").name
    assert made.read_bytes() == source.with_suffix(".class").read_bytes()
