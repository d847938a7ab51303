"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

from enum import IntEnum

from regent.core.protocol.message import Int8, Int16, Int32, message, since, until


@message
class DescribeConfigsResource:
    """A resource to describe; ``configuration_keys`` None: all of its settings."""

    resource_type: Int8
    resource_name: str
    configuration_keys: tuple[str, ...] | None


@message
class DescribeConfigsRequest:
    """A client asks for the settings of resources."""

    resources: tuple[DescribeConfigsResource, ...]
    include_synonyms: bool = since(1, default=False)
    include_documentation: bool = since(3, default=False)


@message
class DescribeConfigsSynonym:
    """A value of a setting, with the name under which it was set."""

    name: str
    value: str | None
    source: Int8


@message
class DescribeConfigsResourceResult:
    """A setting with the value in effect."""

    name: str
    value: str | None
    read_only: bool
    is_default: bool = until(0, default=False)
    config_source: Int8 = since(1, default=-1)
    is_sensitive: bool
    synonyms: tuple[DescribeConfigsSynonym, ...] = since(1, default=())
    config_type: Int8 = since(3, default=0)
    documentation: str | None = since(3, default=None)


@message
class DescribeConfigsResult:
    """A resource with its settings, or the reason why it has none."""

    error_code: Int16 = 0
    error_message: str | None = None
    resource_type: Int8
    resource_name: str
    configs: tuple[DescribeConfigsResourceResult, ...] = ()


@message
class DescribeConfigsResponse:
    """A result for each resource of the request."""

    throttle_time_ms: Int32 = 0
    results: tuple[DescribeConfigsResult, ...]


@message
class ReplacedConfig:
    """A setting that the resource will have."""

    name: str
    value: str | None


@message
class ReplacedConfigsResource:
    """A resource with all settings that it will have."""

    resource_type: Int8
    resource_name: str
    configs: tuple[ReplacedConfig, ...]


@message
class AlterConfigsRequest:
    """A client replaces all settings of resources."""

    resources: tuple[ReplacedConfigsResource, ...]
    validate_only: bool


class AlterOperation(IntEnum):
    """How a setting is changed (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@message
class AlterableConfig:
    """A change of a setting; ``config_operation``: an ``AlterOperation``, or one we do not know."""

    name: str
    config_operation: Int8 = AlterOperation.SET
    value: str | None = None


@message
class AlterConfigsResource:
    """A resource with the changes of its settings; ``replaces``: all other overrides are removed.

    Brokers use ``replaces`` among themselves; clients send AlterConfigs for it.
    """

    resource_type: Int8
    resource_name: str
    configs: tuple[AlterableConfig, ...]
    replaces: bool = since(1, default=False, tag=10_000)


@message
class IncrementalAlterConfigsRequest:
    """A client changes some settings of resources."""

    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool = False


@message
class AlterConfigsResourceResult:
    """The outcome for a resource."""

    error_code: Int16
    error_message: str | None = None
    resource_type: Int8
    resource_name: str


@message
class AlterConfigsResponse:
    """An outcome for each resource of the request."""

    throttle_time_ms: Int32 = 0
    responses: tuple[AlterConfigsResourceResult, ...]


@message
class IncrementalAlterConfigsResponse:
    """An outcome for each resource of the request."""

    throttle_time_ms: Int32 = 0
    responses: tuple[AlterConfigsResourceResult, ...]
