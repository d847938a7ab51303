"""``broker``: what happens before the broker runs."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from regent.cli.broker import _log_to, _misnamed, broker
from regent.cli.setting_options import given_settings
from regent.client.profiles import PROFILE_VARIABLE
from regent.cluster.cluster_plan import ClusterPlan
from regent.config.cluster_location import VARIABLES_OF_COMMANDS
from regent.config.settings import SETTING_OPTIONS, Settings, rows
from regent.config.settings_file import load_settings
from regent.config.tables.logging import LoggingConfig
from regent.core.setting import ConfigType
from regent.testing.regent_cluster import START_TIMEOUT_S
from regent.testing.waits import eventually, next_line, scaled
from regent.zk.client.login import SECRET_VARIABLE

LOGGERS = ("", "state.change", "pykka")


@pytest.fixture(autouse=True)
def loggers_as_they_were() -> Iterator[None]:
    handlers = list(logging.root.handlers)
    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    yield
    for handler in set(logging.root.handlers) - set(handlers):
        logging.root.removeHandler(handler)
        handler.close()
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def test_the_log_has_the_levels_that_are_configured(tmp_path: Path) -> None:
    _log_to(tmp_path, LoggingConfig("WARNING", {"state.change": "DEBUG", "pykka": "ERROR"}))

    logging.getLogger("some.module").info("not wanted")
    logging.getLogger("some.module").warning("wanted")
    logging.getLogger("state.change").debug("payments-0")
    logging.getLogger("pykka").warning("not wanted either")

    lines = (tmp_path / "broker.log").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == [
        "WARNING wanted (some.module)",
        "DEBUG payments-0 (state.change)",
    ]


def test_every_setting_with_one_value_has_an_option_unless_it_is_secret() -> None:
    options = {parameter.name for parameter in broker.params}
    for table, row in rows():
        if (table, row.name) != ("logging", "levels"):
            is_secret = row.type is ConfigType.PASSWORD
            name = {"level": "log_level"}.get(row.name, row.name)
            assert (name in options) is not is_secret


def test_options_override_their_settings_and_no_others() -> None:
    given = given_settings({"delete_topic_enable": False, "log_level": "ERROR", "rack": None})
    assert given == {"controller": {"delete_topic_enable": False}, "logging": {"level": "ERROR"}}
    assert load_settings(None, given).broker == Settings().broker


def test_a_bad_value_of_an_option_is_refused_before_the_broker_starts(tmp_path: Path) -> None:
    data_dir = tmp_path / "broker-1"
    arguments = ["--id", "1", "--zookeeper", "localhost:1", "--data-dir", str(data_dir)]
    result = CliRunner().invoke(broker, [*arguments, "--num-partitions", "0"])
    assert "command line: broker.num_partitions must be a number from 1" in str(result.exception)
    assert not data_dir.exists()


def test_what_a_file_of_kafka_asks_in_vain_is_refused_before_the_broker_starts(
    tmp_path: Path,
) -> None:
    file = tmp_path / "server.properties"
    file.write_text("broker.id=1\nprocess.roles=broker\nlisteners=PLAINTEXT://127.0.0.1:0\n")
    command = ["--kafka-properties", str(file), "--num-partitions", "0"]

    result = CliRunner().invoke(broker, command)

    assert f"{file}: process.roles=broker cannot be honoured" in str(result.exception)
    assert not [path for path in tmp_path.iterdir() if path != file]


def test_a_wrong_address_of_zookeeper_is_refused_before_the_broker_starts(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "broker.id=1\nzookeeper.connect=zk:port/kafka\nlisteners=PLAINTEXT://127.0.0.1:0\n"
        f"log.dirs={tmp_path}/logs\n"
    )
    of_file = ["--kafka-properties", str(file)]
    alone = ["--id", "1", "--data-dir", f"{tmp_path}/broker", "--zookeeper", "zk:port/kafka"]
    for command in (of_file, alone):
        result = CliRunner().invoke(broker, command)
        assert str(result.exception) == (
            "ZooKeeper address 'zk:port/kafka': expected host:port[,host:port...][/chroot]"
        )
    assert not [path for path in tmp_path.iterdir() if path != file]


def test_an_id_and_a_folder_are_needed_without_a_file_of_kafka(tmp_path: Path) -> None:
    for command in (["--id", "1"], ["--data-dir", str(tmp_path)]):
        assert "is missing" in CliRunner().invoke(broker, command).output


@pytest.mark.parametrize("broker_id", ["-1", "2147483648", "99999999999"])
def test_an_id_that_no_client_could_see_is_refused(tmp_path: Path, broker_id: str) -> None:
    data_dir = tmp_path / "broker"
    arguments = ["--id", broker_id, "--zookeeper", "localhost:1", "--data-dir", str(data_dir)]
    result = CliRunner().invoke(broker, arguments)
    assert result.exit_code == 2
    assert f"{broker_id} is not in the range 0<=x<=2147483647" in result.output
    assert not data_dir.exists()


SIGNALS = """
import os, signal, threading
from regent.cli import broker


class Process:
    is_serving = True

    def read_keys_again(self):
        print("read", flush=True)

    def request_stop(self):
        print("stop", flush=True)


os._exit = lambda status: print("at once", status, flush=True)
broker.SAME_SIGNAL_S = 0.0
signal.pthread_sigmask(signal.SIG_BLOCK, broker._SIGNALS)
print("ready", flush=True)
broker._await_signals(Process(), ends_with_terminal=%s, supervisor=os.getppid())
"""


@pytest.mark.parametrize(
    ("ends_with_terminal", "number", "expected"),
    [
        (False, signal.SIGHUP, "read"),
        (False, signal.SIGTERM, "stop"),
        (True, signal.SIGHUP, "stop"),  # the terminal is gone: this process has none
    ],
)
def test_sighup_reads_the_keys_again_unless_the_terminal_was_closed(
    ends_with_terminal: bool, number: signal.Signals, expected: str
) -> None:
    with waiting_for_signals(ends_with_terminal=ends_with_terminal) as process:
        for _ in range(2):
            process.send_signal(number)
            assert next_line(process, "an answer to the signal", START_TIMEOUT_S) == expected + "\n"
            if expected == "stop":
                break


def test_a_signal_of_the_supervisor_does_not_end_a_broker_at_once_that_is_stopping() -> None:
    """Systemd may have sent SIGTERM to both of them."""
    with waiting_for_signals(ends_with_terminal=False) as process:
        by_somebody_else = ("/bin/kill", "-TERM", str(process.pid))
        subprocess.run(by_somebody_else, timeout=scaled(20), check=True)
        assert next_line(process, "it stops", START_TIMEOUT_S) == "stop\n"
        process.send_signal(signal.SIGTERM)
        eventually(lambda: not has_waiting_signal(process.pid), "the signal is not taken")
        subprocess.run(by_somebody_else, timeout=scaled(20), check=True)
        assert next_line(process, "it ends", START_TIMEOUT_S) == "at once 130\n"
        process.kill()
        assert process.communicate(timeout=scaled(20))[0] == ""


def has_waiting_signal(pid: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return any(int(line.split()[1], 16) for line in lines if line.startswith("ShdPnd"))


@pytest.mark.parametrize("has_properties", [False, True])
def test_root_makes_nothing_in_a_folder_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_properties: bool
) -> None:
    """Kafka, which has another user, could not open the log directories afterwards."""
    log, properties = tmp_path / "kafka" / "log", tmp_path / "server.properties"
    log.mkdir(parents=True)
    if os.geteuid() == 0:
        os.chown(log, 12345, 12345)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    properties.write_text(
        f"broker.id=1\nzookeeper.connect=localhost:1\nlog.dirs={log}\n"
        "listeners=PLAINTEXT://127.0.0.1:9092\n"
    )
    data_dir = ("--data-dir", str(tmp_path / "new"))
    by_options = ("--id", "1", "--zookeeper", "localhost:1", "--log-dirs", str(log), *data_dir)
    by_file = ("--kafka-properties", str(properties))
    before = sorted(tmp_path.rglob("*"))
    result = CliRunner().invoke(broker, by_file if has_properties else by_options)
    assert f"{log} belongs to user {log.stat().st_uid}, who could not open what root makes" in str(
        result.exception
    )
    assert sorted(tmp_path.rglob("*")) == before


@contextmanager
def waiting_for_signals(*, ends_with_terminal: bool) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", SIGNALS % ends_with_terminal],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert next_line(process, "it waits for signals", START_TIMEOUT_S) == "ready\n"
            yield process
        finally:
            process.kill()


def test_a_broker_has_the_ports_of_the_first_broker_of_a_local_cluster(tmp_path: Path) -> None:
    """So a rule of a firewall that fits one fits the other."""
    plan = ClusterPlan(("regent",), tmp_path, 1, 9_092, None, 1, 6_000, None, False, False)
    config = Settings().broker
    for name, port in plan.broker_ports(0)._asdict().items():
        assert getattr(config, name) == port


def test_a_second_cluster_on_a_machine_shares_no_port_with_the_first(tmp_path: Path) -> None:
    taken: list[int] = []
    for base in (9_092, 9_192, 19_092):
        plan = ClusterPlan(("regent",), tmp_path, 5, base, None, 3, 6_000, None, False, False)
        taken += [port for broker in range(5) for port in plan.broker_ports(broker)]
        taken += plan.zookeeper_ports()
    assert len(set(taken)) == len(taken)


def test_a_variable_of_the_environment_is_an_option_that_is_not_given(tmp_path: Path) -> None:
    where = ["--id", "1", "--zookeeper", "localhost:1", "--data-dir", str(tmp_path / "b")]
    wrong = {"REGENT_NUM_PARTITIONS": "0"}
    expected = "broker.num_partitions must be a number from 1"
    result = CliRunner(env=wrong).invoke(broker, where)
    assert expected in str(result.exception)
    over = [*where, "--num-partitions", "1", "--replica-fetch-max-bytes", "0"]
    result = CliRunner(env=wrong).invoke(broker, over)
    assert "broker.replica_fetch_max_bytes must be" in str(result.exception)


def test_a_broker_takes_the_login_of_commands_if_no_setting_names_another(tmp_path: Path) -> None:
    """Without a login it would make znodes that everybody may change."""
    where = ["--id", "1", "--zookeeper", "localhost:1", "--data-dir", str(tmp_path / "b")]
    missing, other = tmp_path / "missing", tmp_path / "other"
    with_variable = CliRunner(env={SECRET_VARIABLE: str(missing)})
    assert str(missing) in str(with_variable.invoke(broker, where).exception)
    refused = with_variable.invoke(broker, [*where, "--secret-file", str(other)]).exception
    assert str(other) in str(refused)
    assert str(missing) not in str(refused)


def test_no_variable_of_a_setting_is_one_of_commands() -> None:
    variables = {f"REGENT_{name.upper()}" for name in SETTING_OPTIONS}
    assert {PROFILE_VARIABLE, SECRET_VARIABLE} <= VARIABLES_OF_COMMANDS
    assert not variables & VARIABLES_OF_COMMANDS


def test_a_variable_that_is_almost_a_setting_is_named(tmp_path: Path) -> None:
    variables = {
        "REGENT_RETENTION_MS": "-1",
        "REGENT_NUM_PARTITION": "3",
        "REGENT_SERVICE_HOST": "10.0.0.1",  # of Kubernetes
        "REGENT_KEYS": str(tmp_path),
        "REGENT_LOG_RETENTION_MS": "-1",
    }
    assert list(_misnamed(variables)) == [
        "REGENT_NUM_PARTITION in the environment is no setting: did you mean"
        " REGENT_NUM_PARTITIONS?",
        "REGENT_RETENTION_MS in the environment is no setting: did you mean"
        " REGENT_LOG_RETENTION_MS?",
    ]
