"""What clients are told of configurations, and how they change them."""

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

from regent.api.config_changes import AlterOperation, config_change_apis
from regent.api.configs import ConfigView, ResourceType, config_apis
from regent.broker.broker_settings import broker_settings
from regent.config.settings_file import load_settings
from regent.core.admin.config_descriptions import ConfigSource
from regent.core.errors import BadDataError, Errors, SessionExpiredError
from regent.core.protocol.control import (
    ControlHeader,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.core.replication.metadata_cache import MetadataCache
from tests.support.term import topic_id
from tests.transport.kafka.wire import ask

TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER
SETTINGS = broker_settings(load_settings(None, {"broker": {"num_partitions": 3}}), 1)


class Desk:
    """A broker 1 that knows a topic ``t``, and configurations that can be read and changed."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self.configs: dict[str, dict[str, str]] = {}
        self.reads = 0
        self.changes: list[tuple[str, Mapping[str, str | None]]] = []
        self.failure: Exception | None = None
        cache = MetadataCache()
        row = UpdateMetadataPartition(0, 1, 1, 0, (1,), 0, (1,), ())
        topic = UpdateMetadataTopic("t", topic_id(1), (row,))
        cache.update(ControlHeader(1, 1, 1), UpdateMetadataRequest((topic,), ()))
        view = ConfigView(1, cache, SETTINGS, self.read)
        self.apis = [*config_apis(view, executor), *config_change_apis(view, self.alter, executor)]

    def read(self, entities: Collection[str]) -> Mapping[str, Mapping[str, str]]:
        self.reads += 1
        if self.failure is not None:
            raise self.failure
        return {entity: self.configs[entity] for entity in entities if entity in self.configs}

    def alter(self, topic: str, changes: Mapping[str, str | None]) -> None:
        self.changes.append((topic, changes))

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
def desk() -> Iterator[Desk]:
    with ThreadPoolExecutor(1) as executor:
        yield Desk(executor)


# --- describing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_topic_is_described_with_its_overrides_and_the_defaults(desk: Desk, version: int):
    desk.configs["topics/t"] = {"retention.ms": "99"}
    desk.configs["brokers/<default>"] = {"log.roll.ms": "7"}
    (result,) = desk.describe((TOPIC, "t"), version=version)
    assert (result.error_code, result.error_message, result.resource_name) == (0, None, "t")
    found = {c.name: (c.value, c.config_source, c.read_only) for c in result.configs}
    assert found["retention.ms"] == ("99", ConfigSource.TOPIC, False)
    assert found["segment.ms"] == ("7", ConfigSource.DYNAMIC_DEFAULT_BROKER, False)
    assert found["segment.bytes"] == ("1073741824", ConfigSource.DEFAULT, False)
    assert not any(c.is_sensitive or c.synonyms for c in result.configs)
    if version >= 3:
        assert {c.config_type for c in result.configs if c.name == "retention.ms"} == {5}


def test_only_the_settings_that_were_asked_for_are_named_with_their_synonyms(desk: Desk):
    desk.configs["topics/t"] = {"retention.ms": "99"}
    (result,) = desk.describe((TOPIC, "t"), names=["retention.ms", "made.up"], synonyms=True)
    (config,) = result.configs
    assert [(s.name, s.value, s.source) for s in config.synonyms] == [
        ("retention.ms", "99", 1),
        ("log.retention.ms", "604800000", 5),
    ]


def test_the_meaning_of_a_setting_is_told_to_those_that_ask(desk: Desk):
    for wanted in (True, False):
        (result,) = desk.describe((TOPIC, "t"), names=["retention.ms"], documentation=wanted)
        (config,) = result.configs
        assert config.documentation == (
            "How long records are kept; -1: no limit." if wanted else None
        )


def test_a_broker_is_described_as_it_was_started(desk: Desk):
    desk.configs["brokers/1"] = {"log.retention.ms": "5"}
    (own,) = desk.describe((BROKER, "1"))
    found = {c.name: (c.value, c.config_source, c.read_only) for c in own.configs}
    assert found["num.partitions"] == ("3", ConfigSource.STATIC_BROKER, True)
    assert found["log.retention.ms"] == ("5", ConfigSource.DYNAMIC_BROKER, False)


def test_all_brokers_have_what_is_set_for_them(desk: Desk):
    desk.configs["brokers/<default>"] = {"log.retention.ms": "5"}
    (result,) = desk.describe((BROKER, ""))
    assert [(c.name, c.value) for c in result.configs] == [("log.retention.ms", "5")]


def test_each_resource_is_refused_alone_and_all_are_read_at_once(desk: Desk):
    wanted = [(TOPIC, "t"), (TOPIC, "nobody"), (TOPIC, "no spaces"), (BROKER, "2"), (8, "1")]
    results = desk.describe(*wanted)
    assert [result.error_code for result in results] == [
        Errors.NONE,
        Errors.UNKNOWN_TOPIC_OR_PARTITION,
        Errors.INVALID_TOPIC_EXCEPTION,
        Errors.INVALID_REQUEST,
        Errors.INVALID_REQUEST,
    ]
    assert all(result.error_message for result in results[1:])
    assert desk.reads == 1


def test_a_refusal_that_quotes_a_long_name_is_cut_short(desk: Desk):
    (result,) = desk.describe((BROKER, "b" * 32_767))
    assert len(result.error_message) == 1_000


def test_without_zookeeper_nothing_is_told(desk: Desk):
    desk.failure = SessionExpiredError("no session")
    (topic, nobody) = desk.describe((TOPIC, "t"), (TOPIC, "nobody"))
    assert topic.error_code == Errors.REQUEST_TIMED_OUT
    assert nobody.error_code == Errors.UNKNOWN_TOPIC_OR_PARTITION


# --- changing -------------------------------------------------------------------------------------


def test_replacing_drops_what_is_not_named(desk: Desk):
    desk.configs["topics/t"] = {"retention.ms": "99", "segment.ms": "5"}
    assert desk.replace({"segment.ms": "6"}).error_code == Errors.NONE
    assert desk.changes == [("t", {"retention.ms": None, "segment.ms": "6"})]


def test_changes_leave_the_rest_alone(desk: Desk):
    desk.configs["topics/t"] = {"retention.ms": "99", "segment.ms": "5"}
    response = desk.alter_some(
        ("segment.ms", AlterOperation.DELETE, None),
        ("flush.ms", AlterOperation.SET, "1"),
    )
    assert response.error_code == Errors.NONE
    assert desk.changes == [("t", {"segment.ms": None, "flush.ms": "1"})]


@pytest.mark.parametrize(
    ("before", "operation", "value", "after"),
    [
        (None, AlterOperation.APPEND, "compact", "delete,compact"),
        ("compact", AlterOperation.APPEND, "compact,delete", "compact,delete"),
        ("compact,delete", AlterOperation.SUBTRACT, "delete", "compact"),
    ],
)
def test_lists_take_and_lose_values(
    desk: Desk, before: str | None, operation: AlterOperation, value: str, after: str
):
    desk.configs["topics/t"] = {} if before is None else {"cleanup.policy": before}
    assert desk.alter_some(("cleanup.policy", operation, value)).error_code == Errors.NONE
    assert desk.changes == [("t", {"cleanup.policy": after})]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("made.up", AlterOperation.SET, "1"), Errors.INVALID_CONFIG),
        (("segment.ms", AlterOperation.SET, "soon"), Errors.INVALID_CONFIG),
        (("segment.ms", AlterOperation.SET, None), Errors.INVALID_REQUEST),
        (("segment.ms", AlterOperation.APPEND, "1"), Errors.INVALID_REQUEST),
        (("segment.ms", 9, "1"), Errors.INVALID_REQUEST),
        (("cleanup.policy", AlterOperation.SUBTRACT, "delete"), Errors.INVALID_CONFIG),
    ],
)
def test_what_cannot_be_is_refused(desk: Desk, change: tuple[str, int, str | None], error: Errors):
    response = desk.alter_some(change)
    assert response.error_code == error
    assert response.error_message
    assert not desk.changes


def test_a_setting_named_twice_a_broker_and_an_unknown_topic_are_refused(desk: Desk):
    change = ("segment.ms", AlterOperation.SET, "1")
    refused = [
        desk.alter_some(change, change),
        desk.alter_some(change, type_=BROKER, name="1"),
        desk.alter_some(change, name="nobody"),
    ]
    assert [response.error_code for response in refused] == [
        Errors.INVALID_REQUEST,
        Errors.INVALID_REQUEST,
        Errors.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert not desk.changes


def test_validation_alone_changes_nothing(desk: Desk):
    assert desk.replace({"segment.ms": "6"}, validate_only=True).error_code == Errors.NONE
    assert desk.replace({"segment.ms": "x"}, validate_only=True).error_code != Errors.NONE
    assert not desk.changes


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (SessionExpiredError("no session"), Errors.REQUEST_TIMED_OUT),
        (BadDataError("garbage"), Errors.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_change_that_zookeeper_does_not_take_is_refused(
    desk: Desk, failure: Exception, error: Errors
):
    desk.failure = failure
    assert desk.replace({"segment.ms": "6"}).error_code == error
