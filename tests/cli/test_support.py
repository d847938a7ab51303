"""The support bundle: what is in it, who may read it, and no secret."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from regent.cli.support import Bundle
from regent.transport.control.key_files import make_secret
from tests.support.fake_cluster import FakeCluster, failing

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
