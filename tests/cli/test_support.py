"""The support bundle: what is in it, who may read it, and no secret."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from regent.broker.metrics.metrics_server import open_metrics_server
from regent.cli.support import Bundle, SupportError, _stacks
from regent.client.doctor.examined_cluster import ExaminedCluster
from regent.cluster.cluster_file import BrokerEntry, ClusterFile
from regent.config.private_files import write_private
from regent.config.settings import Settings
from regent.config.tables.broker import BrokerConfig
from regent.config.threads import STACKS_FILE
from regent.core.errors import Errors
from regent.core.protocol.broker import DescribeEventsRequest, DescribeEventsResponse
from regent.testing.waits import next_line, scaled
from regent.transport.control.key_files import make_secret
from regent.transport.local_users import EVERYBODY
from tests.support.certificates import Authority
from tests.support.fake_cluster import FakeCluster, failing
from tests.support.free_ports import on_free_ports

SECRETS = (
    "zookeeper-password-1",
    "scram-salt-of-alice",
    "encoded-keystore-password",
    "token-hmac-value",
    "password-in-a-log",
    "key-in-a-log",
)


@pytest.fixture
def secured(local: FakeCluster, tmp_path: Path) -> FakeCluster:
    """A local cluster with secrets in files, znodes and logs."""
    (tmp_path / "keys").mkdir()
    (tmp_path / "zookeeper.secret").write_text(f"regent:{SECRETS[0]}\n")
    key = make_secret(tmp_path / "keys" / "operator.secret").secret
    (tmp_path / "zookeeper.secret").chmod(0o600)
    folder = tmp_path / "broker-0"
    (folder / "log" / "t-0").mkdir(parents=True)
    (folder / "log" / "t-0" / "0.log").write_text("records of clients")
    pem = f"-----BEGIN PRIVATE KEY-----\n{SECRETS[5]}\n-----END PRIVATE KEY-----"
    (folder / "broker.log").write_text(
        f"all is well\nkey {key}\nsasl.jaas.password={SECRETS[4]}, then\n{pem}\n"
    )
    (folder / "events.jsonl").write_text('{"ts_ms": 1}\n')
    for path, data in (
        ("/config/users/alice", SECRETS[1]),
        ("/config/brokers/0", SECRETS[2]),
        ("/delegation_token/tokens/1", SECRETS[3]),
        ("/config/topics/t", '{"version":1,"config":{"retention.ms":"1"}}'),
    ):
        local.zookeeper.put(path, data.encode())
    return local


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        names = [m.name.removeprefix("regent-support/") for m in archive if m.isfile()]
        return {
            name: file.read()
            for name in names
            if (file := archive.extractfile(f"regent-support/{name}")) is not None
        }


def test_a_bundle_has_what_explains_a_failure_and_no_secret(
    secured: FakeCluster, tmp_path: Path
) -> None:
    target = tmp_path / "bundle.tar.gz"
    result = secured.run("support", "bundle", "--file", str(target))
    assert result.exit_code == 0, result.output
    assert target.stat().st_mode & 0o777 == 0o600
    found = members(target)
    assert b"status" not in found["problems.txt"], found["problems.txt"]
    assert found.keys() >= {
        *("status.json", "doctor.json", "settings.json", "znodes.json", "problems.txt"),
        *("files/broker-0/broker.log", "files/broker-0/events.jsonl"),
    }
    assert b"all is well" in found["files/broker-0/broker.log"]
    assert b"retention.ms" in found["znodes.json"]
    everything = b"\n".join(found.values())
    key = (tmp_path / "keys" / "operator.secret").read_text().split()[1]
    assert [secret for secret in (*SECRETS, key) if secret.encode() in everything] == []
    assert b"records of clients" not in everything


def test_an_existing_file_is_not_overwritten(secured: FakeCluster, tmp_path: Path) -> None:
    target = tmp_path / "bundle.tar.gz"
    target.write_text("mine")
    assert "File exists; name another with --file" in failing(
        secured.run("support", "bundle", "--file", str(target))
    )
    assert target.read_text() == "mine"


def test_a_part_that_fails_does_not_end_the_others(
    secured: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Bundle) -> object:
        raise OSError("the disk is gone")

    monkeypatch.setattr(Bundle, "_znodes", fail)
    target = tmp_path / "bundle.tar.gz"
    secured.run("support", "bundle", "--file", str(target))
    found = members(target)
    assert b"znodes.json: the disk is gone" in found["problems.txt"]
    assert "status.json" in found


HANGING = """
import re, sys, threading
from pathlib import Path
from regent.config.threads import NamedThread, write_stacks_when_asked

write_stacks_when_asked(Path(sys.argv[1]))
NamedThread(threading.Event().wait, "an-actor").start()

def hang_in_c():
    print("hangs", flush=True)
    re.match(r"(a+)+$", "a" * 40 + sys.argv[2])

hang_in_c()
"""


def test_a_process_writes_its_stacks_even_while_it_holds_the_gil(tmp_path: Path) -> None:
    """No value is in them, so no secret."""
    command = [sys.executable, "-c", HANGING, str(tmp_path), SECRETS[0]]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert next_line(process, "it hangs", scaled(20)) == b"hangs\n"
            text = _stacks(process.pid, tmp_path).decode()
            again = _stacks(process.pid, tmp_path).decode()
        finally:
            process.kill()
    assert "in hang_in_c" in text
    assert 'config/threads.py", line' in text, "the other thread"
    assert text.count("in hang_in_c") == again.count("in hang_in_c") == 1
    assert SECRETS[0] not in text
    assert (tmp_path / STACKS_FILE).stat().st_mode & 0o077 == 0


def test_a_process_that_does_not_wait_for_the_signal_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            with pytest.raises(SupportError, match="its release is an earlier one"):
                _stacks(process.pid, tmp_path)
            assert process.poll() is None
        finally:
            process.kill()


@pytest.mark.parametrize("has_tls", [False, True])
def test_metrics_behind_a_token_and_tls_are_read(
    secured: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_tls: bool
) -> None:
    (tmp_path / "ca").mkdir()
    authority = Authority(tmp_path / "ca")
    token = tmp_path / "metrics-token"
    write_private(token, "0123456789abcdef\n")
    config = BrokerConfig(metrics_token_file=str(token), metrics_tls=has_tls)
    settings = on_free_ports(Settings(broker=config, tls=authority.config()))
    told = {"regent.metrics.token.file": str(token), "regent.metrics.tls": str(has_tls).lower()}
    examined = ExaminedCluster(settings={0: told})
    monkeypatch.setattr("regent.cli.support.examine", lambda *_: (examined, []))
    trusts = tmp_path / "client.properties"
    write_private(
        trusts,
        "security.protocol=SSL\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={authority.trusted}\n",
    )
    how = ("--command-config", str(trusts)) if has_tls else ()
    with closing(open_metrics_server(settings, EVERYBODY)) as server:
        file = ClusterFile.read(tmp_path / "cluster.json")
        assert file is not None
        file.brokers[0] = BrokerEntry(0, 1, "localhost", 1, 2, 3, server.port)
        file.write()
        target = tmp_path / "bundle.tar.gz"
        secured.run("support", "bundle", "--file", str(target), *how)
    found = members(target)
    assert "metrics/broker-0.txt" in found, found["problems.txt"].decode()
    assert b"python_info" in found["metrics/broker-0.txt"]
    assert b"stacks of broker-0: its process 1 has ended" in found["problems.txt"]
    assert b"0123456789abcdef" not in b"".join(found.values())


def test_from_another_machine_the_brokers_read_their_journals_for_us(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    line = '{"ts_ms": 1, "event": "Startup"}'
    cluster.answers[DescribeEventsRequest] = lambda _: DescribeEventsResponse(
        Errors.NONE, 0, lines=(line,)
    )
    cluster.with_brokers(1)
    target = tmp_path / "bundle.tar.gz"
    cluster.run("support", "bundle", "--file", str(target))
    assert members(target)["journals/events.jsonl"].decode() == f"{line}\n"
