"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kafka.protocol.admin.configs import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)

from regent.api.config_changes import config_change_apis
from regent.api.configs import ConfigView, ResourceType, config_apis
from regent.broker.broker_settings import broker_settings
from regent.config.settings_file import load_settings
from regent.core.admin.admin_requests import RespondToClient
from regent.core.admin.config_descriptions import ConfigSource
from regent.core.errors import ApiError, Errors, SessionExpiredError
from regent.core.protocol.control import (
    ControlHeader,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.core.protocol.topics import (
    AlterOperation,
    AlterTopicConfigsRequest,
    ConfigAlteration,
    ConfiguredTopic,
    TopicOutcome,
    TopicsRequest,
)
from regent.core.replication.metadata_cache import MetadataCache
from tests.support.controller_parts import topic_id
from tests.transport.kafka.wire import ask

TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER
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
        cache.update(ControlHeader(1, 1, 1), UpdateMetadataRequest((topic,), ()))
        view = ConfigView(1, cache, SETTINGS, self.read)
        self.apis = [*config_apis(view, executor), *config_change_apis(self)]

    def read(self, entities: Collection[str]) -> Mapping[str, Mapping[str, str]]:
        self.reads += 1
        if self.failure is not None:
            raise self.failure
        return {entity: self.configs[entity] for entity in entities if entity in self.configs}

    def ask(self, request: TopicsRequest, respond: RespondToClient) -> None:
        self.asked.append(request)
        assert isinstance(request, AlterTopicConfigsRequest)
        respond([TopicOutcome(row.topic, *self.refusal) for row in request.topics])

    def create_missing(self, topics: Collection[str]) -> None:
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
            include_synonyms=synonyms,
            include_documentation=documentation and version >= 3,
        )
        return list(ask(self.apis, request, version).results)

    def replace(self, configs: dict[str, str | None], *, validate_only: bool = False) -> Any:
        resource = AlterConfigsRequest.AlterConfigsResource
        rows = [resource.AlterableConfig(name=n, value=v) for n, v in configs.items()]
        return self._alter(AlterConfigsRequest, 1, TOPIC, "t", rows, validate_only)

    def alter_some(
        self,
        *changes: tuple[str, int, str | None],
        type_: int = TOPIC,
        name: str = "t",
        validate_only: bool = False,
    ) -> Any:
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        rows = [
            resource.AlterableConfig(name=n, config_operation=op, value=v) for n, op, v in changes
        ]
        return self._alter(IncrementalAlterConfigsRequest, 0, type_, name, rows, validate_only)

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


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_topic_is_described_with_its_overrides_and_defaults(configs: Configs, version: int):
    configs.configs["topics/t"] = {"retention.ms": "99"}
    configs.configs["brokers/<default>"] = {"log.roll.ms": "7"}
    (result,) = configs.describe((TOPIC, "t"), version=version)
    assert (result.error_code, result.error_message, result.resource_name) == (0, None, "t")
    found = {c.name: (c.value, c.config_source, c.read_only) for c in result.configs}
    assert found["retention.ms"] == ("99", ConfigSource.TOPIC, False)
    assert found["segment.ms"] == ("7", ConfigSource.DYNAMIC_DEFAULT_BROKER, False)
    assert found["segment.bytes"] == ("1073741824", ConfigSource.DEFAULT, False)
    assert not any(c.is_sensitive or c.synonyms for c in result.configs)
    if version >= 3:
        assert {c.config_type for c in result.configs if c.name == "retention.ms"} == {5}


def test_only_the_requested_settings_are_returned_with_their_synonyms(configs: Configs):
    configs.configs["topics/t"] = {"retention.ms": "99"}
    (result,) = configs.describe((TOPIC, "t"), names=["retention.ms", "made.up"], synonyms=True)
    (config,) = result.configs
    assert [(s.name, s.value, s.source) for s in config.synonyms] == [
        ("retention.ms", "99", 1),
        ("log.retention.ms", "604800000", 5),
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
    wanted = [(TOPIC, "t"), (TOPIC, "unknown"), (TOPIC, "no spaces"), (BROKER, "2"), (8, "1")]
    results = configs.describe(*wanted)
    assert [result.error_code for result in results] == [
        Errors.NONE,
        Errors.UNKNOWN_TOPIC_OR_PARTITION,
        Errors.INVALID_TOPIC_EXCEPTION,
        Errors.INVALID_REQUEST,
        Errors.INVALID_REQUEST,
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


# --- AlterConfigs ---------------------------------------------------------------------------------


def test_alter_configs_replaces_all_settings_of_a_topic(configs: Configs):
    assert configs.replace({"segment.ms": "6"}).error_code == Errors.NONE
    alterations = (ConfigAlteration("segment.ms", AlterOperation.SET, "6"),)
    wanted = (ConfiguredTopic("t", alterations, replaces=True),)
    assert configs.asked == [AlterTopicConfigsRequest(wanted, 0)]


def test_incremental_alter_configs_changes_or_validates_some_settings(configs: Configs):
    changes = ("segment.ms", AlterOperation.DELETE, None), ("cleanup.policy", 2, "compact")
    assert configs.alter_some(*changes, validate_only=True).error_code == Errors.NONE
    wanted = (ConfiguredTopic("t", tuple(ConfigAlteration(*change) for change in changes)),)
    assert configs.asked == [AlterTopicConfigsRequest(wanted, 0, validate_only=True)]


def test_a_refusal_is_returned_with_its_reason(configs: Configs):
    configs.refusal = ApiError(Errors.INVALID_CONFIG, "topic t config segment.ms must be a number")
    response = configs.replace({"segment.ms": "soon"})
    assert (response.error_code, response.error_message) == configs.refusal


def test_the_settings_of_a_broker_cannot_be_changed(configs: Configs):
    change = ("segment.ms", AlterOperation.SET, "1")
    refused = configs.alter_some(change, type_=BROKER, name="1")
    assert refused.error_code == Errors.INVALID_REQUEST
    assert not configs.asked
