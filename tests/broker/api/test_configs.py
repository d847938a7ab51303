"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kafka.protocol.admin.configs import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)

from regent.broker.api.broker_loggers import KAFKA_LOGGERS
from regent.broker.api.configs import (
    ConfigAlterations,
    ConfigResourceType,
    ConfigView,
    alter_config_apis,
    config_apis,
)
from regent.broker.broker_settings import broker_settings
from regent.config.settings import KAFKA_SETTINGS
from regent.config.settings_file import load_settings
from regent.core.admin.admin_requests import RespondToClient, RespondToCreation, refuse
from regent.core.admin.config_alterations import BrokerConfigManager
from regent.core.admin.config_descriptions import ConfigSource
from regent.core.errors import ApiError, Errors, RegentError, SessionExpiredError
from regent.core.model import BrokerId
from regent.core.protocol.control import (
    ControlHeader,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.core.protocol.envelope import ForwardedClient, Requester
from regent.core.protocol.messages.configs import AlterOperation
from regent.core.protocol.topics import TopicsRequest
from regent.core.replication.metadata_cache import MetadataCache
from tests.support.topic_requests import alter_topic, alteration
from tests.support.world import topic_id
from tests.transport.kafka.wire import ask

TOPIC, BROKER, LOGGERS = (
    ConfigResourceType.TOPIC,
    ConfigResourceType.BROKER,
    ConfigResourceType.BROKER_LOGGER,
)
SET, DELETE, APPEND = AlterOperation.SET, AlterOperation.DELETE, AlterOperation.APPEND
OWN, OF_ALL = "brokers/1", "brokers/<default>"
SETTINGS = broker_settings(load_settings(None, {"broker": {"num_partitions": 3}}), 1)


class Configs:
    """Broker 1, which knows a topic ``t``, with configurations that can be read and changed."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self.configs: dict[str, dict[str, str]] = {}
        self.reads = 0
        self.asked: list[TopicsRequest] = []
        self.refusal = ApiError(Errors.NONE)
        self.failure: Exception | None = None
        cache = MetadataCache()
        row = UpdateMetadataPartition(0, 1, 1, 0, (1,), 0, (1,), ())
        topic = UpdateMetadataTopic("t", topic_id(1), (row,))
        cache.update(ControlHeader(1, 1, 1), UpdateMetadataRequest((topic,), (), lists_all=True))
        view = ConfigView(1, cache, SETTINGS, self.read)
        brokers = BrokerConfigManager(self, KAFKA_SETTINGS, SETTINGS, self.check)
        alterations = ConfigAlterations(1, self, brokers, executor)
        self.apis = [*config_apis(view, executor), *alter_config_apis(alterations)]

    def read(self, entities: Collection[str]) -> Mapping[str, Mapping[str, str]]:
        self.reads += 1
        if self.failure is not None:
            raise self.failure
        return {entity: self.configs[entity] for entity in entities if entity in self.configs}

    def read_broker_configs(
        self, broker_ids: Iterable[BrokerId]
    ) -> Mapping[str, Mapping[str, str]]:
        names = ["<default>", *map(str, broker_ids)]
        return {name: self.configs.get(f"brokers/{name}", {}) for name in names}

    def change_config(
        self,
        entity: str,
        change: Callable[[Mapping[str, str]], Mapping[str, str | None]],
    ) -> Mapping[str, str]:
        if self.failure is not None:
            raise self.failure
        current = self.configs.get(entity, {})
        merged = {**current, **change(current)}
        self.configs[entity] = {n: v for n, v in merged.items() if v is not None}
        return self.configs[entity]

    def check(self, config: Mapping[str, str]) -> None:
        if config.get("max.connections.per.ip") == "0":
            raise RegentError("it must name a host")

    def ask(
        self,
        request: TopicsRequest,
        respond: RespondToClient,
        requester: Requester | None = None,
        client: ForwardedClient | None = None,
    ) -> None:
        self.asked.append(request)
        respond(refuse(request, *self.refusal))

    def create_missing(self, topics: Collection[str], respond: RespondToCreation) -> None:
        raise NotImplementedError

    def describe(
        self,
        *resources: tuple[int, str],
        version: int = 3,
        names: list[str] | None = None,
        synonyms: bool = False,
        documentation: bool = True,
    ) -> list[Any]:
        rows = [
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=type_, resource_name=name, configuration_keys=names
            )
            for type_, name in resources
        ]
        request = DescribeConfigsRequest(
            resources=rows,
            include_synonyms=synonyms and version >= 1,
            include_documentation=documentation and version >= 3,
        )
        return list(ask(self.apis, request, version).results)

    def replace(
        self,
        configs: dict[str, str | None],
        *,
        type_: int = TOPIC,
        name: str = "t",
        validate_only: bool = False,
        version: int = 2,
    ) -> Any:
        resource = AlterConfigsRequest.AlterConfigsResource
        rows = [resource.AlterableConfig(name=n, value=v) for n, v in configs.items()]
        return self._alter(AlterConfigsRequest, version, type_, name, rows, validate_only)

    def alter_some(
        self,
        *changes: tuple[str, int, str | None],
        type_: int = TOPIC,
        name: str = "t",
        validate_only: bool = False,
        version: int = 1,
    ) -> Any:
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        rows = [
            resource.AlterableConfig(name=n, config_operation=op, value=v) for n, op, v in changes
        ]
        return self._alter(
            IncrementalAlterConfigsRequest, version, type_, name, rows, validate_only
        )

    def _alter(
        self, kind: Any, version: int, type_: int, name: str, rows: list[Any], validate_only: bool
    ) -> Any:
        resource = kind.AlterConfigsResource(resource_type=type_, resource_name=name, configs=rows)
        request = kind(resources=[resource], validate_only=validate_only)
        (response,) = ask(self.apis, request, version).responses
        assert (response.resource_type, response.resource_name) == (type_, name)
        return response


@pytest.fixture
def configs() -> Iterator[Configs]:
    with ThreadPoolExecutor(1) as executor:
        yield Configs(executor)


# --- DescribeConfigs ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_a_topic_is_described_with_its_overrides_and_defaults(configs: Configs, version: int):
    configs.configs["topics/t"] = {"retention.ms": "99"}
    configs.configs["brokers/<default>"] = {"log.roll.ms": "7"}
    (result,) = configs.describe((TOPIC, "t"), version=version)
    assert (result.error_code, result.error_message, result.resource_name) == (0, None, "t")
    found = {c.name: (c.value, source(c, version), c.read_only) for c in result.configs}
    own, of_all, default = 1, 3, 5
    if version == 0:
        own, of_all, default = False, False, True
    assert found["retention.ms"] == ("99", own, False)
    assert found["segment.ms"] == ("7", of_all, False)
    assert found["segment.bytes"] == ("1073741824", default, False)
    assert not any(c.is_sensitive or c.synonyms for c in result.configs)
    if version >= 3:
        assert {c.config_type for c in result.configs if c.name == "retention.ms"} == {5}


def source(config: Any, version: int) -> int:
    """Return where the value was set; in version 0, whether it is the default."""
    return int(config.is_default if version == 0 else config.config_source)


def test_only_the_requested_settings_are_returned_with_their_synonyms(configs: Configs):
    configs.configs["topics/t"] = {"retention.ms": "99"}
    (result,) = configs.describe((TOPIC, "t"), names=["retention.ms", "made.up"], synonyms=True)
    (config,) = result.configs
    assert [(s.name, s.value, s.source) for s in config.synonyms] == [("retention.ms", "99", 1)]
    configs.configs["topics/t"] = {"segment.bytes": "99"}
    (result,) = configs.describe((TOPIC, "t"), names=["segment.bytes"], synonyms=True)
    (config,) = result.configs
    assert [(s.name, s.value, s.source) for s in config.synonyms] == [
        ("segment.bytes", "99", 1),
        ("log.segment.bytes", "1073741824", 5),
    ]


def test_documentation_is_returned_when_requested(configs: Configs):
    for wanted in (True, False):
        (result,) = configs.describe((TOPIC, "t"), names=["retention.ms"], documentation=wanted)
        (config,) = result.configs
        assert config.documentation == (
            "How long records are kept; -1: no limit." if wanted else None
        )


def test_a_broker_is_described_with_static_and_dynamic_settings(configs: Configs):
    configs.configs["brokers/1"] = {"log.retention.ms": "5"}
    (own,) = configs.describe((BROKER, "1"))
    found = {c.name: (c.value, c.config_source, c.read_only) for c in own.configs}
    assert found["num.partitions"] == ("3", ConfigSource.STATIC_BROKER, True)
    assert found["log.retention.ms"] == ("5", ConfigSource.DYNAMIC_BROKER, False)


def test_the_default_broker_has_only_cluster_wide_settings(configs: Configs):
    configs.configs["brokers/<default>"] = {"log.retention.ms": "5"}
    (result,) = configs.describe((BROKER, ""))
    assert [(c.name, c.value) for c in result.configs] == [("log.retention.ms", "5")]


def test_each_resource_has_its_own_error_and_all_are_read_at_once(configs: Configs):
    wanted: list[tuple[int, str]] = [(TOPIC, "t"), (TOPIC, "unknown"), (TOPIC, "no spaces")]
    wanted += [
        (BROKER, "2"),
        (BROKER, "one"),
        (LOGGERS, ""),
        (LOGGERS, "2"),
        (16, "metrics"),
        (99, "1"),
    ]
    results = configs.describe(*wanted)
    assert [result.error_code for result in results] == [
        Errors.NONE,
        Errors.UNKNOWN_TOPIC_OR_PARTITION,
        Errors.INVALID_TOPIC_EXCEPTION,
        *[Errors.INVALID_REQUEST] * 6,
    ]
    assert [result.error_message for result in results[3:7]] == [
        "Unexpected broker id, expected 1 or empty string, but received 2",
        "Broker id must be an integer, but it is: one",
        "Broker id must not be empty",
        "Unexpected broker id, expected 1, but received 2",
    ]
    assert all(result.error_message for result in results[1:])
    assert configs.reads == 1


def test_a_long_error_message_is_shortened(configs: Configs):
    (result,) = configs.describe((BROKER, "b" * 32_767))
    assert len(result.error_message) == 1_000


def test_without_zookeeper_the_request_times_out(configs: Configs):
    configs.failure = SessionExpiredError("no session")
    (topic, unknown) = configs.describe((TOPIC, "t"), (TOPIC, "unknown"))
    assert topic.error_code == Errors.REQUEST_TIMED_OUT
    assert unknown.error_code == Errors.UNKNOWN_TOPIC_OR_PARTITION


def test_without_zookeeper_a_broker_tells_what_does_not_change_while_it_runs(configs: Configs):
    configs.failure = SessionExpiredError("no session")
    (fixed,) = configs.describe((BROKER, "1"), names=["regent.control.port", "broker.id"])
    assert fixed.error_code == Errors.NONE
    assert {row.name: row.value for row in fixed.configs} == {
        "broker.id": "1",
        "regent.control.port": "10092",
    }
    assert configs.reads == 0
    for names in (["broker.id", "log.retention.ms"], ["my.plugin.url"], []):
        (result,) = configs.describe((BROKER, "1"), names=names)
        assert result.error_code == Errors.REQUEST_TIMED_OUT


# --- AlterConfigs ---------------------------------------------------------------------------------


def test_alter_configs_replaces_all_settings_of_a_topic(configs: Configs):
    assert configs.replace({"segment.ms": "6"}).error_code == Errors.NONE
    change = alteration("segment.ms", AlterOperation.SET, "6")
    assert configs.asked == [alter_topic("t", change, replaces=True)]


def test_incremental_alter_configs_changes_or_validates_some_settings(configs: Configs):
    changes = ("segment.ms", AlterOperation.DELETE, None), ("cleanup.policy", 2, "compact")
    assert configs.alter_some(*changes, validate_only=True).error_code == Errors.NONE
    wanted = (alteration(*change) for change in changes)
    assert configs.asked == [alter_topic("t", *wanted, validate_only=True)]


def test_a_refusal_is_returned_with_its_reason(configs: Configs):
    configs.refusal = ApiError(Errors.INVALID_CONFIG, "topic t config segment.ms must be a number")
    response = configs.replace({"segment.ms": "soon"})
    assert (response.error_code, response.error_message) == configs.refusal


def test_a_resource_named_twice_and_other_types_are_refused(configs: Configs):
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    rows = [
        resource(resource_type=type_, resource_name="t", configs=[])
        for type_ in (TOPIC, TOPIC, ConfigResourceType.CLIENT_METRICS, 99)
    ]
    request = IncrementalAlterConfigsRequest(resources=rows, validate_only=False)
    responses = ask(configs.apis, request, 1).responses
    assert [r.error_code for r in responses] == [Errors.INVALID_REQUEST] * 4
    assert not configs.asked


# --- brokers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "entity"), [("1", OWN), ("", OF_ALL)])
def test_settings_of_this_broker_and_of_all_are_changed(configs: Configs, name: str, entity: str):
    configs.configs[entity] = {"log.roll.ms": "9", "made.up": "1"}
    changes = (("log.retention.ms", SET, "5"), ("log.roll.ms", DELETE, None))
    changed = configs.alter_some(*changes, ("made.up", DELETE, ""), type_=BROKER, name=name)
    assert (changed.error_code, changed.error_message) == (Errors.NONE, None)
    assert configs.configs[entity] == {"log.retention.ms": "5"}
    (described,) = configs.describe((BROKER, name), names=["log.retention.ms"])
    assert [c.value for c in described.configs] == ["5"]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_all_settings_of_a_broker_are_replaced(configs: Configs, version: int):
    configs.configs[OWN] = {"log.roll.ms": "9"}
    changes: dict[str, str | None] = {"max.connections": "7"}
    changed = configs.replace(changes, type_=BROKER, name="1", version=version)
    assert changed.error_code == Errors.NONE
    assert configs.configs[OWN] == {"max.connections": "7"}


def test_valid_settings_of_a_broker_are_not_written_when_only_validated(configs: Configs):
    for value, error in (("5", Errors.NONE), ("x", Errors.INVALID_REQUEST)):
        change = ("log.retention.ms", SET, value)
        for name in ("1", ""):
            changed = configs.alter_some(change, type_=BROKER, name=name, validate_only=True)
            assert changed.error_code == error
    assert configs.configs == {}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (("num.partitions", SET, "3"), Errors.INVALID_REQUEST, "restart the broker"),
        (("broker.id", SET, "3"), Errors.INVALID_REQUEST, "restart the broker"),
        (("num.io.threads", SET, "0"), Errors.INVALID_REQUEST, "must be a number from 1"),
        (("sasl.jaas.config", SET, "x"), Errors.INVALID_REQUEST, "for one listener only"),
        (
            ("listener.name.a.ssl.key.password", SET, "x"),
            Errors.INVALID_REQUEST,
            "Password encoder secret not configured",
        ),
        (
            ("listener.name.a.plain.sasl.jaas.config", SET, "x"),
            Errors.INVALID_REQUEST,
            "Password encoder secret not configured",
        ),
        (("log.segment.bytes", SET, "3"), Errors.INVALID_REQUEST, "must be a number from 14"),
        (("log.segment.bytes", SET, None), Errors.INVALID_REQUEST, "has no value"),
        (("log.segment.bytes", 9, "3"), Errors.INVALID_REQUEST, "unknown operation 9"),
        (("log.segment.bytes", APPEND, "3"), Errors.INVALID_CONFIG, "is not a list"),
        (("max.connections.per.ip", SET, "0"), Errors.INVALID_REQUEST, "must name a host"),
    ],
)
def test_a_setting_that_a_broker_cannot_get_is_refused(
    configs: Configs, change: tuple[str, int, str | None], error: Errors, message: str
):
    refused = configs.alter_some(change, type_=BROKER, name="1")
    assert refused.error_code == error
    assert message in refused.error_message
    assert configs.configs == {}


def test_settings_without_effect_and_of_plug_ins_are_stored_and_shown(configs: Configs):
    for name, value in (("num.io.threads", "16"), ("my.plugin.url", "x")):
        changed = configs.alter_some((name, SET, value), type_=BROKER, name="1")
        assert changed.error_code == Errors.NONE
    assert configs.configs[OWN] == {"num.io.threads": "16", "my.plugin.url": "x"}
    (result,) = configs.describe((BROKER, "1"), names=["num.io.threads", "my.plugin.url"])
    plugin, threads = result.configs
    assert (threads.value, threads.config_source, threads.is_sensitive) == ("16", 2, False)
    assert (plugin.value, plugin.config_source, plugin.is_sensitive) == (None, 2, True)


def test_settings_of_other_brokers_and_settings_named_twice_are_refused(configs: Configs):
    change = ("log.retention.ms", SET, "5")
    refused = configs.alter_some(change, type_=BROKER, name="2")
    assert refused.error_code == Errors.INVALID_REQUEST
    assert refused.error_message == "Unexpected broker id, expected 1, but received 2"
    refused = configs.alter_some(change, change, type_=BROKER, name="1")
    assert refused.error_code == Errors.INVALID_REQUEST
    assert configs.configs == {}


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (SessionExpiredError("no session"), Errors.REQUEST_TIMED_OUT),
        (RegentError("garbage"), Errors.UNKNOWN_SERVER_ERROR),
    ],
)
def test_without_zookeeper_a_broker_is_not_changed(
    configs: Configs, failure: RegentError, error: Errors
):
    configs.failure = failure
    change = ("log.retention.ms", SET, "5")
    assert configs.alter_some(change, type_=BROKER, name="1").error_code == error


# --- loggers --------------------------------------------------------------------------------------


@pytest.fixture
def tested_logger() -> Iterator[logging.Logger]:
    found = logging.getLogger("regent.tests.of.levels")
    yield found
    found.setLevel(logging.NOTSET)


def level_of(configs: Configs, name: str) -> str:
    (result,) = configs.describe((LOGGERS, "1"), names=[name])
    (config,) = result.configs
    assert config.config_source == ConfigSource.DYNAMIC_BROKER_LOGGER
    return str(config.value)


def test_levels_of_loggers_are_set_and_deleted(configs: Configs, tested_logger: logging.Logger):
    name = tested_logger.name
    for level in ("FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE"):
        assert configs.alter_some((name, SET, level), type_=LOGGERS, name="1").error_code == 0
        assert level_of(configs, name) == level
    assert configs.alter_some((name, DELETE, ""), type_=LOGGERS, name="1").error_code == 0
    assert tested_logger.level == logging.NOTSET
    assert level_of(configs, name) == level_of(configs, "root")
    changed = configs.alter_some((name, SET, "FATAL"), type_=LOGGERS, name="1", validate_only=True)
    assert (changed.error_code, tested_logger.level) == (Errors.NONE, logging.NOTSET)


@pytest.mark.parametrize(
    ("logger", "operation", "value", "error"),
    [
        ("no.such.logger", SET, "INFO", Errors.INVALID_CONFIG),
        ("root", SET, "LOUD", Errors.INVALID_CONFIG),
        ("root", SET, "info", Errors.INVALID_CONFIG),
        ("root", DELETE, None, Errors.INVALID_REQUEST),
        ("root", APPEND, "INFO", Errors.INVALID_REQUEST),
    ],
)
def test_a_level_that_cannot_be_set_is_refused(
    configs: Configs,
    tested_logger: logging.Logger,
    logger: str,
    operation: int,
    value: str | None,
    error: Errors,
):
    changes = ((tested_logger.name, SET, "FATAL"), (logger, operation, value))
    refused = configs.alter_some(*changes, type_=LOGGERS, name="1")
    assert refused.error_code == error
    assert refused.error_message
    assert tested_logger.level == logging.NOTSET


@pytest.mark.parametrize("name", KAFKA_LOGGERS)
def test_kafkas_names_of_loggers_stand_for_ours(configs: Configs, name: str):
    ours = KAFKA_LOGGERS[name]
    are_no_modules = "state.change", "kafka.authorizer.logger"
    assert ours in are_no_modules or importlib.util.find_spec(ours) is not None
    logger = logging.getLogger(ours)
    before = logger.level
    try:
        changed = configs.alter_some((name, SET, "DEBUG"), type_=LOGGERS, name="1")
        assert (changed.error_code, logger.level) == (Errors.NONE, logging.DEBUG)
        (result,) = configs.describe((LOGGERS, "1"), names=[name, ours])
        assert {row.name: row.value for row in result.configs} == {name: "DEBUG", ours: "DEBUG"}
        configs.alter_some((ours, SET, "ERROR"), type_=LOGGERS, name="1")
        (result,) = configs.describe((LOGGERS, "1"), names=[name])
        assert [row.value for row in result.configs] == ["ERROR"]
    finally:
        logger.setLevel(before)


def test_levels_of_loggers_are_only_changed_one_by_one_and_here(configs: Configs):
    refused = configs.replace({"root": "INFO"}, type_=LOGGERS, name="1")
    assert refused.error_code == Errors.INVALID_REQUEST
    refused = configs.alter_some(("root", SET, "INFO"), type_=LOGGERS, name="2")
    assert refused.error_code == Errors.INVALID_REQUEST
