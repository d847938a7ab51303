"""What other users may do with files: by modes, owners, and the directories above them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from regent.client.doctor.examined_cluster import ExaminedCluster
from regent.client.doctor.file_check import check_files
from regent.client.doctor.findings import Finding, Severity


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    for directory in (folder, folder / "broker-0", folder / "keys", folder / "keys" / "allowed"):
        directory.mkdir(mode=0o700)
    for name in ("cluster.json", "broker-0/0.log", "broker-0/1.log", "zookeeper.secret"):
        (folder / name).touch(mode=0o600)
    (folder / "link").symlink_to("/etc")
    return folder


def findings(folder: Path) -> list[Finding]:
    return list(check_files(ExaminedCluster(folder=folder)))


def test_a_closed_folder_is_all_right(folder: Path):
    (found,) = findings(folder)
    assert found.severity is Severity.OK


def test_an_open_file_below_a_closed_folder_is_a_warning(folder: Path):
    log = folder / "broker-0" / "0.log"
    log.chmod(0o644)
    (found,) = findings(folder)
    assert found.severity is Severity.WARNING
    assert found.message == f"{log} has mode 0644: only a folder above keeps other users out"
    assert found.remedy == f"`chmod go-rwx {log}`"


def test_open_files_in_open_folders_are_a_problem_with_one_remedy(folder: Path):
    folder.chmod(0o755)
    (folder / "broker-0").chmod(0o711)
    for name in ("0.log", "1.log"):
        (folder / "broker-0" / name).chmod(0o666)
    found = {finding.subject: finding for finding in findings(folder)}
    assert {finding.severity for finding in found.values()} == {Severity.PROBLEM}
    assert found[str(folder)].message.endswith(
        "has mode 0755: other users of this machine may enter it"
    )
    assert found[str(folder / "broker-0")].remedy == f"`chmod -R go-rwx {folder / 'broker-0'}`"
    assert f"3 files in {folder / 'broker-0'} are open" in found[str(folder / "broker-0")].message


@pytest.mark.parametrize(
    "name",
    ["zookeeper.secret", "keys/operator.secret", "broker-0/curve.secret", "zookeeper-0/jaas.conf"],
)
def test_an_open_secret_is_a_problem_behind_a_closed_folder_too(folder: Path, name: str):
    path = folder / name
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.touch()
    path.chmod(0o640)
    (found,) = findings(folder)
    assert found.severity is Severity.PROBLEM
    assert found.message.startswith(f"{path} has mode 0640, and it is a secret")
    assert found.remedy == f"`chmod 600 {path}`"


def test_who_may_write_an_allowed_key_decides_who_is_an_operator(folder: Path):
    key = folder / "keys" / "allowed" / "alice.key"
    key.touch()
    key.chmod(0o620)
    assert Severity.PROBLEM in {finding.severity for finding in findings(folder)}


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_file_of_another_user_is_a_problem(folder: Path):
    log = folder / "broker-0" / "0.log"
    os.chown(log, 65_534, 0)
    (found,) = findings(folder)
    assert found.severity is Severity.PROBLEM
    assert found.message.startswith(f"{log} belongs to user ")
    assert found.remedy == f"chown -R {'root'} {folder}"


def test_a_folder_that_others_may_replace_is_a_problem(folder: Path):
    folder.parent.chmod(0o777)
    (found,) = findings(folder)
    folder.parent.chmod(0o700)
    assert found.severity is Severity.PROBLEM
    assert found.message == f"{folder.parent} has mode 0777: others may replace {folder}"


def test_a_folder_that_does_not_exist_is_one_finding(tmp_path: Path):
    (found,) = findings(tmp_path / "none")
    assert (found.severity, found.subject) == (Severity.WARNING, str(tmp_path / "none"))


def test_a_secret_elsewhere_that_a_setting_names_is_examined(folder: Path, tmp_path: Path):
    from regent.cluster.cluster_file import BrokerEntry, ClusterFile

    secret = tmp_path / "secret"
    secret.touch()
    secret.chmod(0o644)
    file = ClusterFile(folder / "cluster.json", "")
    file.brokers[0] = BrokerEntry(0, os.getpid(), "127.0.0.1", 1, 2, 3, 4)
    cluster = ExaminedCluster(
        folder=folder,
        file=file,
        processes={os.getpid(): "broker 0"},
        settings={0: {"regent.secret.file": str(secret), "log.dirs": f"{folder}/broker-0"}},
    )
    (found,) = check_files(cluster)
    assert found.remedy == f"`chmod 600 {secret}`"
