"""``regent certs``."""

from __future__ import annotations

import json
import socket
import ssl
import stat
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner, Result

from regent.cli.main import cli
from regent.testing.waits import scaled


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["certs", *arguments])


def make(directory: Path, *names: str) -> None:
    result = run("make", "--dir", str(directory), *names)
    assert result.exit_code == 0, result.output


def peer_of(directory: Path, server: str, client: str, host: str) -> object:
    """Return the subject that a server sees of a client that checks the server's host."""
    accepting = ssl.create_default_context(
        ssl.Purpose.CLIENT_AUTH, cafile=str(directory / "ca.pem")
    )
    accepting.verify_mode = ssl.CERT_REQUIRED
    accepting.load_cert_chain(directory / f"{server}.pem")
    connecting = ssl.create_default_context(cafile=str(directory / "ca.pem"))
    connecting.load_cert_chain(directory / f"{client}.pem")
    ours, theirs = socket.socketpair()
    seen: list[object] = []

    def accept() -> None:
        with (
            suppress(ssl.SSLError),  # the client has refused
            accepting.wrap_socket(theirs, server_side=True) as connection,
        ):
            seen.append(connection.getpeercert())
            connection.sendall(b"!")

    with ours, theirs:
        for end in (ours, theirs):
            end.settimeout(scaled(10.0))
        thread = Thread(target=accept, daemon=True)
        thread.start()
        with connecting.wrap_socket(ours, server_hostname=host) as connection:
            assert connection.recv(1) == b"!"
        thread.join(scaled(10.0))
    return dict(rdn[0] for rdn in seen[0]["subject"])  # type: ignore[index]


@pytest.mark.parametrize("letter", ["a", "é"])
def test_a_name_that_fits_into_no_certificate_is_refused_before_anything_is_written(
    tmp_path: Path, letter: str
) -> None:
    longest = letter * (64 // len(letter.encode()))
    longer = longest + letter
    result = run("make", "--dir", str(tmp_path / "certs"), "alice", longer)
    assert result.exit_code == 1
    assert result.stderr == (
        f"regent: {longer!r} is too long: the name in a certificate has at most 64 bytes\n"
    )
    assert list(tmp_path.iterdir()) == []
    make(tmp_path / "certs", longest)


def test_a_broker_and_a_user_prove_who_they_are_to_each_other(tmp_path: Path) -> None:
    make(tmp_path, "broker-0=127.0.0.1,::1,broker-0.example", "alice")
    for host in ("127.0.0.1", "::1", "broker-0.example"):
        assert peer_of(tmp_path, "broker-0", "alice", host) == {"commonName": "alice"}
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        peer_of(tmp_path, "broker-0", "alice", "broker-1.example")


def test_the_authority_is_made_once(tmp_path: Path) -> None:
    make(tmp_path, "broker-0=127.0.0.1")
    authority = (tmp_path / "ca.pem").read_bytes()
    make(tmp_path, "alice")
    assert (tmp_path / "ca.pem").read_bytes() == authority
    assert peer_of(tmp_path, "broker-0", "alice", "127.0.0.1") == {"commonName": "alice"}


def test_other_users_may_not_read_what_is_made(tmp_path: Path) -> None:
    make(tmp_path / "new", "alice")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    made = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert made == ["alice.pem", "ca.key", "ca.pem"]
    for name in made:
        assert stat.S_IMODE((tmp_path / "new" / name).stat().st_mode) == 0o600


def test_a_certificate_is_replaced_only_if_asked(tmp_path: Path) -> None:
    make(tmp_path, "alice")
    before = (tmp_path / "alice.pem").read_bytes()
    refused = run("make", "--dir", str(tmp_path), "bob", "alice")
    assert refused.exit_code == 1
    assert "alice.pem exists: --replace makes a new one in its place" in refused.output
    assert (tmp_path / "alice.pem").read_bytes() == before
    assert not (tmp_path / "bob.pem").exists()
    make(tmp_path, "alice", "--replace")
    assert (tmp_path / "alice.pem").read_bytes() != before


@pytest.mark.parametrize("name", ["=127.0.0.1", "ca", "a/b", ".hidden", "broker-0=b\u00fccher"])
def test_a_name_that_cannot_be_used_is_refused_and_nothing_is_written(
    tmp_path: Path, name: str
) -> None:
    refused = run("make", "--dir", str(tmp_path / "new"), "alice", name)
    assert refused.exit_code == 1
    assert not (tmp_path / "new").exists()


def test_an_authority_of_somebody_else_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "a", "alice")
    make(tmp_path / "b", "alice")
    (tmp_path / "a" / "ca.key").write_bytes((tmp_path / "b" / "ca.key").read_bytes())
    refused = run("make", "--dir", str(tmp_path / "a"), "bob")
    assert refused.exit_code == 1
    assert "use another folder" in refused.output


def test_list_shows_hosts_and_the_end(tmp_path: Path) -> None:
    make(tmp_path, "broker-0=127.0.0.1,broker-0.example", "--days", "1")
    rows = json.loads(run("list", "--dir", str(tmp_path), "-o", "json").output)
    assert [row["file"] for row in rows] == ["broker-0.pem", "ca.pem"]
    assert rows[0]["subject"] == "CN=broker-0"
    assert rows[0]["hosts"] == "127.0.0.1,broker-0.example"
    assert rows[0]["expires"] < rows[1]["expires"]
