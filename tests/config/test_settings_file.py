"""Settings: Kafka's defaults, one file, and the command line on top."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from regent.config.settings import Settings
from regent.config.settings_file import SettingsError, connections_per_ip_overrides, load_settings

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file of settings."""

    def write(text: str) -> Path:
        path = tmp_path / "broker.toml"
        path.write_text(text)
        return path

    return write


def refused(path: Path | None, overrides: dict[str, dict[str, Any]] | None = None) -> str:
    with pytest.raises(SettingsError) as raised:
        load_settings(path, overrides or {})
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_without_a_file_the_defaults_hold() -> None:
    settings = load_settings(None, {})
    assert settings == Settings()
    assert not settings.controller.unclean_leader_election_enable
    assert settings.controller.request_timeout_ms == 30_000
    assert settings.broker.controlled_shutdown_max_retries == 3
    assert settings.broker.controlled_shutdown_retry_backoff_ms == 5_000
    assert settings.zookeeper.session_timeout_ms == 6_000


def test_the_defaults_of_replication_and_administration_are_kafkas() -> None:
    broker, controller = Settings().broker, Settings().controller
    assert broker.replica_lag_time_max_ms == 30_000
    assert broker.replica_fetch_wait_max_ms == 500
    assert broker.replica_fetch_backoff_ms == 1_000
    assert broker.isr_change_protocol == "controller"
    assert controller.delete_topic_enable
    assert controller.auto_leader_rebalance_enable
    assert controller.leader_imbalance_per_broker_percentage == 10
    assert controller.leader_imbalance_check_interval_seconds == 300


def test_the_defaults_of_logs_are_kafkas() -> None:
    log, broker = Settings().log, Settings().broker
    assert (log.log_retention_ms, log.log_retention_bytes) == (7 * 24 * 3_600_000, -1)
    assert (log.log_segment_bytes, log.log_roll_ms) == (1024**3, 7 * 24 * 3_600_000)
    assert (log.message_max_bytes, log.min_insync_replicas) == (1_048_588, 1)
    assert log.replica_high_watermark_checkpoint_interval_ms == 5_000
    assert log.log_retention_check_interval_ms == 300_000
    assert broker.replica_fetch_response_max_bytes == 10 * 1024 * 1024
    assert broker.socket_request_max_bytes == 100 * 1024 * 1024
    assert broker.auto_create_topics_enable


def test_a_follower_may_not_be_kept_waiting_until_it_is_out_of_sync(write: Write) -> None:
    path = write("[broker]\nreplica_lag_time_max_ms = 499\n")
    assert refused(path) == (
        f"{path}: broker.replica_fetch_wait_max_ms (500) must not exceed"
        " replica_lag_time_max_ms (499)"
    )
    path = write("[broker]\nreplica_lag_time_max_ms = 499\nreplica_fetch_wait_max_ms = 499\n")
    assert load_settings(path, {}).broker.replica_lag_time_max_ms == 499


def test_a_file_changes_what_it_names(write: Write) -> None:
    path = write(
        '[broker]\nrack = "r1"\nport = 9092\n'
        "[controller]\nunclean_leader_election_enable = true\n"
        "[zookeeper]\nsession_timeout_ms = 18000\n"
    )
    settings = load_settings(path, {})
    assert (settings.broker.rack, settings.broker.port) == ("r1", 9092)
    assert settings.controller.unclean_leader_election_enable
    assert settings.zookeeper.session_timeout_ms == 18_000
    assert settings.broker.host == Settings().broker.host


def test_the_level_of_one_logger_leaves_those_of_others(write: Write) -> None:
    path = write('[logging.levels]\n"state.change" = "DEBUG"\n')
    levels = {"kazoo": "WARNING", "pykka": "WARNING", "state.change": "DEBUG"}
    assert load_settings(path, {}).logging.levels == levels


def test_the_command_line_has_the_last_word(write: Write) -> None:
    path = write("[broker]\nport = 9092\nmetrics_port = 1\n")
    settings = load_settings(path, {"broker": {"port": 1234}, "zookeeper": {}})
    assert (settings.broker.port, settings.broker.metrics_port) == (1234, 1)


def test_given_settings_are_distinguished_from_defaults(write: Write) -> None:
    path = write("[broker]\nnum_partitions = 1\n")
    assert load_settings(path, {"broker": {"port": 0}, "zookeeper": {}}).given == {
        "broker.num_partitions",
        "broker.port",
    }
    assert load_settings(None, {}).given == frozenset()


def test_an_empty_file_changes_nothing(write: Write) -> None:
    assert load_settings(write(""), {}) == Settings()


def test_every_setting_can_be_set_to_its_default(write: Write) -> None:
    tables = asdict(Settings())
    del tables["given"]
    assert load_settings(None, tables) == Settings()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[brokr]\n",
            "unknown table [brokr]; the tables are broker, controller, log, groups,"
            " transactions, quotas, delegation_tokens, zookeeper, tls, sasl, authorizer, logging",
        ),
        ("port = 1\n", "unknown table [port]"),
        ("broker = 1\n", "[broker] must be a table"),
        ("[broker]\nprot = 1\n", "broker.prot is not a setting; did you mean port?"),
        (
            '[broker]\nport = "9092"\n',
            "broker.port must be a number from 0 to 65535, not '9092': correct it, or remove it for"
            " the default, 9092",
        ),
        ("[broker]\nport = true\n", "broker.port must be a number from 0 to 65535, not True"),
        ("[broker]\nport = 1.5\n", "broker.port must be a number from 0 to 65535, not 1.5"),
        ("[broker]\nrack = 1\n", "broker.rack must be a string, not 1"),
        ("[controller]\nunclean_leader_election_enable = 1\n", "must be true or false, not 1"),
        ("[broker]\nport = 65536\n", "broker.port must be a number from 0 to 65535, not 65536"),
        (
            "[broker]\ncontrol_port = -1\n",
            "broker.control_port must be a number from 0 to 65535, not -1",
        ),
        (
            "[zookeeper]\nsession_timeout_ms = 99\n",
            "session_timeout_ms must be a number from 100 to",
        ),
        ("[controller]\nretry_backoff_ms = -1\n", "retry_backoff_ms must be a number from 0 to"),
        ("[controller]\nrequest_timeout_ms = 86400001\n", "to 86400000, not 86400001"),
        (
            '[broker]\nisr_change_protocol = "raft"\n',
            "broker.isr_change_protocol must be one of controller, zookeeper, not 'raft'",
        ),
        ('[logging]\nlevel = "LOUD"\n', "logging.level must be one of DEBUG, INFO,"),
        (
            '[logging]\nlevels = "DEBUG"\n',
            "logging.levels must be a table of names, each with one of DEBUG,",
        ),
        (
            '[logging.levels]\nkazoo = "info"\n',
            "logging.levels must be a table of names, each with one of",
        ),
        (
            "[broker]\nisr_change_protocol = 1\n",
            "isr_change_protocol must be one of controller, zookeeper, not 1",
        ),
        (
            "[controller]\nleader_imbalance_per_broker_percentage = 101\n",
            "leader_imbalance_per_broker_percentage must be a number from 0 to 100, not 101",
        ),
        (
            "[controller]\nleader_imbalance_check_interval_seconds = 0\n",
            "must be a number from 1 to 9223372036854775807, not 0",
        ),
        ("[log]\nlog_retention_ms = -2\n", "log.log_retention_ms must be a number from -1 to"),
        (
            "[log]\nlog_segment_bytes = 13\n",
            "log.log_segment_bytes must be a number from 14 to 2147483647",
        ),
        ("[log]\nmin_insync_replicas = 0\n", "log.min_insync_replicas must be a number from 1 to"),
        (
            "[log]\nmessage_max_bytes = 2147483648\n",
            "message_max_bytes must be a number from 0 to 2147483647",
        ),
        (
            '[log]\nlog_cleanup_policy = "purge"\n',
            "compact, delete, compact,delete, not 'purge'",
        ),
        (
            '[broker]\nthread_name_prefix = "b 1"\n',
            "broker.thread_name_prefix must be up to 32 letters, digits, dots, dashes and"
            " underscores, not 'b 1': correct it, or remove it for the default, ''",
        ),
        ('[log]\nlog_dirs = "a,,b"\n', "log.log_dirs names an empty directory: 'a,,b'"),
        ('[log]\nlog_dirs = "a,b, a"\n', "log.log_dirs names a directory twice: 'a,b, a'"),
        ('[log]\nlog_dirs = "a,./a/"\n', "log.log_dirs names a directory twice: 'a,./a/'"),
        ('[broker]\nhost = "0.0.0.0"\n', "set broker.advertised_host (--advertised-host)"),
        ('[broker]\nhost = "::"\n', "broker.host '::' listens on every address"),
        ('[broker]\nhost = "0::0"\n', "set broker.advertised_host"),
        ('[broker]\nhost = ""\n', "broker.host must not be empty"),
        ('[broker]\nhost = "[::1]"\n', "broker.host must be a name or an address, IPv6 without"),
        (
            '[broker]\nhost = "::"\nadvertised_host = "0.0.0.0"\n',
            "broker.advertised_host must be an address others can connect to: '0.0.0.0'",
        ),
        (
            '[broker]\nadvertised_host = "b1:9092/x"\n',
            "broker.advertised_host must be a name or an address",
        ),
        ("[broker]\nadvertised_port = 65536\n", "advertised_port must be a number from 0 to 65535"),
        (
            "[broker]\nreplica_fetch_max_bytes = 0\n",
            "replica_fetch_max_bytes must be a number from 1 to",
        ),
        (
            "[controller]\nport = 1\n",
            "controller.port is not a setting; move it to the table [broker]",
        ),
        ("[broker\n", "not valid TOML"),
        ("[broker]\nport = 1\nport = 2\n", "not valid TOML"),
    ],
)
def test_a_mistake_is_named_with_its_file(write: Write, text: str, expected: str) -> None:
    path = write(text)
    message = refused(path)
    assert message.startswith(f"{path}: ")
    assert expected in message


def test_a_broker_on_all_interfaces_needs_an_advertised_host(write: Write) -> None:
    path = write(
        '[broker]\nhost = "::"\nadvertised_host = "fd00::7"\nallow_unauthenticated = true\n'
    )
    settings = load_settings(path, {"broker": {"advertised_host": "broker-7.example"}})
    assert (settings.broker.host, settings.broker.advertised_host) == ("::", "broker-7.example")


def test_bytes_that_are_no_text_are_no_settings(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_bytes(b"\xff\xfe")
    assert "not valid TOML" in refused(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing.toml"
    assert refused(path) == f"{path}: No such file or directory"
    assert refused(tmp_path) == f"{tmp_path}: Is a directory"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            {"broker": {"port": 70_000}},
            "command line: broker.port must be a number from 0 to 65535, not 70000",
        ),
        (
            {"broker": {"nope": 1}},
            "command line: broker.nope is not a setting; those of [broker] are host,",
        ),
        ({"nope": {}}, "command line: unknown table [nope]"),
    ],
)
def test_a_mistake_on_the_command_line_is_named_as_such(
    overrides: dict[str, dict[str, Any]], expected: str
) -> None:
    assert refused(None, overrides).startswith(expected)


def test_connections_are_limited_by_address_as_in_kafka() -> None:
    broker = Settings().broker
    assert broker.max_connections == broker.max_connections_per_ip == 2**31 - 1
    assert connections_per_ip_overrides(broker) == {}
    for wrong in ("host", "host:", ":7", "host:many", "host:-1"):
        message = refused(None, {"broker": {"max_connections_per_ip_overrides": wrong}})
        assert "must be HOST:COUNT" in message
    assert "must name a host" in refused(None, {"broker": {"max_connections_per_ip": 0}})


def test_a_file_with_a_secret_must_be_private_and_no_error_shows_the_secret(write: Write) -> None:
    path = write('[tls]\nssl_key_password = "a secret"\n')
    path.chmod(0o640)
    with pytest.raises(SettingsError, match=r"tls.ssl_key_password.*chmod 600") as raised:
        load_settings(path, {})
    assert "a secret" not in str(raised.value)
    path.chmod(0o600)
    settings = load_settings(path, {})
    assert settings.tls.ssl_key_password == "a secret"
    assert "a secret" not in repr(settings)
    path = write("[tls]\nssl_key_password = 12345\n")
    with pytest.raises(SettingsError, match="ssl_key_password must be") as raised:
        load_settings(path, {})
    assert "12345" not in str(raised.value)


def test_keys_may_have_several_lines(write: Write) -> None:
    path = write('[tls]\nssl_keystore_key = """\n-----BEGIN\nx\n-----END"""\n')
    path.chmod(0o600)
    assert load_settings(path, {}).tls.ssl_keystore_key.count("\n") == 2


_LISTENERS = (
    '[broker]\nlisteners = "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0"\n'
    'listener_security_protocol_map = "CLIENTS:SASL_PLAINTEXT,BROKERS:SASL_PLAINTEXT"\n'
    'inter_broker_listener_name = "BROKERS"\nconnections_max_idle_ms = 200\n'
)


def test_the_secrets_of_one_listener_are_private_too(write: Write) -> None:
    text = '[listener_name.clients]\nssl_key_password = "a secret"\n'
    path = write(_LISTENERS + text)
    path.chmod(0o644)
    with pytest.raises(
        SettingsError, match=r"listener_name.clients.ssl_key_password.*chmod 600"
    ) as raised:
        load_settings(path, {})
    assert "a secret" not in str(raised.value)
    path.chmod(0o600)
    assert load_settings(path, {}).of_listener("CLIENTS").tls.ssl_key_password == "a secret"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "[sasl]\nconnection_failed_authentication_delay_ms = 200\n",
            r"connection_failed_authentication_delay_ms \(200\).*connections_max_idle_ms \(200\)",
            id="delay as long as the idle time",
        ),
        pytest.param(
            "[listener_name.clients]\nconnection_failed_authentication_delay_ms = 300\n",
            r"delay_ms \(300\).*connections_max_idle_ms \(200\).*CLIENTS",
            id="delay of one listener",
        ),
        pytest.param(
            '[sasl]\nsasl_mechanism_inter_broker_protocol = "PLAIN"\n',
            r"sasl_mechanism_inter_broker_protocol \(PLAIN\).*sasl_enabled_mechanisms \(SCRAM",
            id="a mechanism that is not enabled",
        ),
        pytest.param(
            '[listener_name.brokers]\nsasl_enabled_mechanisms = "SCRAM-SHA-256"\n',
            r"sasl_mechanism_inter_broker_protocol \(SCRAM-SHA-512\).*\(SCRAM-SHA-256\).*BROKERS",
            id="a mechanism that is not enabled for brokers",
        ),
    ],
)
def test_settings_of_logins_that_contradict_each_other_are_refused_as_in_kafka(
    write: Write, text: str, expected: str
) -> None:
    with pytest.raises(SettingsError, match=expected):
        load_settings(write(_LISTENERS + text), {})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[sasl]\nconnection_failed_authentication_delay_ms = 199\n",
        '[listener_name.clients]\nsasl_enabled_mechanisms = "PLAIN"\n',
        '[listener_name.brokers]\nsasl_enabled_mechanisms = "PLAIN"\n'
        'sasl_mechanism_inter_broker_protocol = "PLAIN"\n',
    ],
)
def test_settings_of_logins_that_go_together_are_accepted(write: Write, text: str) -> None:
    load_settings(write(_LISTENERS + text), {})


def test_the_delay_of_failed_logins_matters_only_where_clients_log_in_or_if_it_is_given() -> None:
    load_settings(None, {"broker": {"connections_max_idle_ms": 50}})
    load_settings(
        None,
        {
            "broker": {"connections_max_idle_ms": -1},
            "sasl": {"connection_failed_authentication_delay_ms": 60_000},
        },
    )
    text = refused(
        None,
        {
            "broker": {"connections_max_idle_ms": 500},
            "sasl": {"connection_failed_authentication_delay_ms": 1_000},
        },
    )
    assert "connection_failed_authentication_delay_ms (1000)" in text
