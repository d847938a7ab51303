"""The age of keys, keys of nobody, and brokers that believe an open ZooKeeper."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from regent.client.doctor.examined_cluster import ExaminedCluster
from regent.client.doctor.findings import Finding, Severity
from regent.client.doctor.key_check import check_keys
from regent.config.cluster_location import KEYS_DIR
from regent.core.model import BrokerInfo
from regent.transport.control.key_files import KeysDirectory, make_secret, new_key_pair
from regent.zk.client.operations import AclEntry, Permission

OPEN = [("/", (AclEntry(~Permission(0), "world", "anyone"),))]
YEAR_S = 365 * 86_400


@pytest.fixture
def directory(tmp_path: Path) -> KeysDirectory:
    directory = KeysDirectory(tmp_path / KEYS_DIR)
    directory.make_operator()
    return directory


def bad(cluster: ExaminedCluster) -> list[Finding]:
    return [finding for finding in check_keys(cluster) if finding.severity is not Severity.OK]


def age(path: Path, days: int) -> None:
    then = time.time() - days * 86_400 - 60
    os.utime(path, (then, then))


def registered(**keys: str) -> dict[int, BrokerInfo]:
    return {
        int(name.removeprefix("b")): BrokerInfo(int(name.removeprefix("b")), (), control_key=key)
        for name, key in keys.items()
    }


def test_new_keys_are_all_right(directory: KeysDirectory, tmp_path: Path):
    key = make_secret(tmp_path / "broker-0" / "curve.secret").public
    directory.allow("broker-0", key)
    cluster = ExaminedCluster(folder=tmp_path, registrations=registered(b0=key))
    assert bad(cluster) == []
    assert [finding.message for finding in check_keys(cluster)][-1] == (
        "operator may send requests of operators, with 1 key"
    )


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("keys/operator.secret", "keys rotate --keys "),
        ("keys/placement.secret", "remove the file and start the cluster again"),
        ("broker-0/curve.secret", "keys rotate --broker "),
    ],
)
def test_a_key_that_was_not_replaced_for_a_year_is_a_warning(
    directory: KeysDirectory, tmp_path: Path, name: str, remedy: str
):
    path = tmp_path / name
    make_secret(path)
    age(path, 365)
    assert bad(ExaminedCluster(folder=tmp_path)) == []
    age(path, 366)
    (found,) = bad(ExaminedCluster(folder=tmp_path))
    assert (found.severity, found.subject) == (Severity.WARNING, str(path))
    assert "is 366 days old" in found.message
    assert remedy in found.remedy


def test_an_operator_of_another_machine_is_named_with_the_age_of_its_key(
    directory: KeysDirectory, tmp_path: Path
):
    directory.allow("alice", new_key_pair().public)
    age(directory.file_of("alice"), 400)
    age(directory.file_of("operator"), 400)  # its secret is here, and new
    (found,) = bad(ExaminedCluster(folder=tmp_path))
    assert found.message == "alice may send requests of operators, with 1 key, since 400 days"


def test_keys_that_no_broker_has_are_named(directory: KeysDirectory, tmp_path: Path):
    first, old, gone = (new_key_pair().public for _ in range(3))
    directory.allow("broker-0", first, old)
    directory.allow("broker-9", gone)
    found = bad(ExaminedCluster(folder=tmp_path, registrations=registered(b0=first)))
    assert [finding.subject for finding in found] == ["broker-0", "broker-9"]
    assert f"keys revoke broker-0 {old}" in found[0].remedy
    assert "keys revoke broker-9" in found[1].remedy
    directory.revoke("broker-9")
    found = bad(ExaminedCluster(folder=tmp_path, registrations=registered(b0=first)))
    assert [finding.subject for finding in found] == ["broker-0"]
    assert bad(ExaminedCluster(folder=tmp_path)) == [], "ZooKeeper is away"


def test_a_key_that_a_broker_has_from_its_next_start_on_is_all_right(
    directory: KeysDirectory, tmp_path: Path
):
    now = new_key_pair().public
    after = make_secret(tmp_path / "broker-0" / "curve.secret").public
    directory.allow("broker-0", now, after)
    assert bad(ExaminedCluster(folder=tmp_path, registrations=registered(b0=now))) == []


def test_brokers_must_not_believe_registrations_that_everybody_may_write():
    settings = {0: {"regent.broker.keys": "registered"}, 1: {"regent.broker.keys": "allowed"}}
    (found,) = bad(ExaminedCluster(settings=settings, acls=OPEN))
    assert found.severity is Severity.PROBLEM
    assert found.message.startswith('broker 0 with broker_keys = "registered" and a ZooKeeper')
    assert bad(ExaminedCluster(settings=settings, acls=[])) == []
    assert bad(ExaminedCluster(settings={1: settings[1]}, acls=OPEN)) == []
