"""Declared messages in the encodings of others: random values, every version of Kafka 3.9."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
import re
import struct
import types
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import kafka.protocol
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.api_message import ApiMessage

import regent.core.protocol.messages as declared
from regent.core.protocol.message import Int32, message
from regent.core.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    PlacementOptions,
)
from regent.core.security.session import Session
from regent.transport.kafka.api import FIRST_FLEXIBLE_VERSION, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import answer, decode, decoded, encoded
from regent.transport.kafka.primitives import uuid_text
from tests.support import delegation_token_messages
from tests.support.kafka_versions import KAFKA_3_9
from tests.transport.kafka.wire import request_of

IS_NIGHTLY = settings.get_current_profile_name() == "nightly"
repeatable = settings(
    derandomize=True, deadline=None, database=None, max_examples=20 if IS_NIGHTLY else 5
)
INTEGERS = {
    f"int{bits}": st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)
}
UUIDS = st.none() | st.binary(min_size=16, max_size=16).filter(any).map(uuid_text)
RECORDED = re.compile("(LeaderAndIsr|StopReplica|UpdateMetadata)(Request|Response)")
"""See ``test_control_messages``."""
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=5),
    bool: st.booleans(),
    bytes: st.binary(max_size=5),
    float: st.floats(allow_nan=False),
}


def messages() -> Iterator[type]:
    for module_info in pkgutil.iter_modules(declared.__path__, f"{declared.__name__}."):
        for value in vars(importlib.import_module(module_info.name)).values():
            name = getattr(value, "__name__", "")
            is_own = getattr(value, "__module__", "") == module_info.name
            if is_own and name.endswith(("Request", "Response")) and others_type(name) is not None:
                yield value


@functools.cache
def others_modules() -> list[types.ModuleType]:
    """Return the modules in which kafka-python's messages are declared, and our declarations."""
    found = pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol.")
    modules = [importlib.import_module(module.name) for module in found]
    return [*modules, delegation_token_messages]


def others_type(name: str) -> Any:
    """Return kafka-python's class of a message; None: it has none, and there are recordings."""
    for module in others_modules():
        found = getattr(module, name, None)
        if isinstance(found, type) and issubclass(found, ApiMessage):
            return found
    assert RECORDED.fullmatch(name), name
    return None


def values_of(kind: Any, version: int) -> st.SearchStrategy[Any]:
    """Return random values of a type, with defaults in fields that the version does not have."""
    if get_origin(kind) is types.UnionType:
        (inner,) = [part for part in get_args(kind) if part is not types.NoneType]
        return st.none() | values_of(inner, version)
    if get_origin(kind) is tuple:
        return st.lists(values_of(get_args(kind)[0], version), max_size=3).map(tuple)
    if get_origin(kind) is Annotated:
        name = get_args(kind)[1]
        return UUIDS if name == "uuid" else INTEGERS[name]
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        present = {
            field.name: values_of(hints[field.name], version)
            for field in dataclasses.fields(kind)
            if not is_ours(field)
            and field.metadata.get("first version", 0)
            <= version
            <= field.metadata.get("last version", version)
        }
        return st.builds(kind, **present)
    return VALUES[kind]


def names(value: object) -> set[str]:
    assert dataclasses.is_dataclass(value)
    return {field.name for field in dataclasses.fields(value) if not is_ours(field)}


def is_ours(field: dataclasses.Field[Any]) -> bool:
    """Whether Kafka does not know a field."""
    return (field.metadata.get("tag") or 0) >= 10_000


CASES = [
    pytest.param(kind, version, id=f"{kind.__name__}-v{version}")
    for kind in messages()
    for version in range(KAFKA_3_9[others_type(kind.__name__).API_KEY][1] + 1)
]


@pytest.mark.parametrize(("kind", "version"), CASES)
def test_a_message_is_encoded_as_others_encode_it_and_decoded_again(kind: type, version: int):
    other = others_type(kind.__name__)
    key = KafkaApiKey(other.API_KEY)
    is_flexible = version >= FIRST_FLEXIBLE_VERSION[key]

    @repeatable
    @given(values_of(kind, version))
    def check(value: object) -> None:
        body = encoded(value, version, is_flexible=is_flexible)
        read = other.decode(body, version=version)
        read._header = None
        assert bytes(read.encode(version=version)) == body
        assert names(value) <= set(dir(read))
        assert decode(kind, request_of(key, version, body)) == value

    check()


@message
class _Row:
    number: Int32
    names: tuple[str, ...] = ()


@message
class _Rows:
    rows: tuple[_Row, ...]
    more: tuple[_Row, ...] | None = None


@pytest.mark.parametrize("version", [0, 4])
@pytest.mark.parametrize("bad", [_Row(number=2**31), _Row(number=1, names=("a", "\ud800"))])
def test_an_answer_leaves_out_the_rows_that_do_not_fit(bad: _Row, version: int):
    good = _Row(number=1, names=("a",)), _Row(number=2)
    request = KafkaRequest(
        KafkaApiKey.DESCRIBE_CONFIGS, version, 1, "c", Session(""), memoryview(b"")
    )
    pieces: Any = answer(_Rows(rows=(good[0], bad, good[1]), more=(bad,)), request)
    body = memoryview(b"".join(map(bytes, pieces)))
    found = decoded(_Rows, body, version, is_flexible=version == 4)
    assert found == _Rows(rows=good, more=())


def test_our_requests_never_omit_a_row():
    with pytest.raises(struct.error):
        encoded(_Rows(rows=(_Row(number=2**31),)), 0, is_flexible=True)


def test_fields_of_ours_are_tagged_so_that_others_ignore_them():
    placement = PlacementOptions(strategy="kafka", seed=2**62, awaits_service=True)
    topic = CreatableTopic(name="t", num_partitions=3, topic_id="AAAAAAAAAAAAAAAAAAAA_w")
    value = CreateTopicsRequest(
        topics=(topic,), timeout_ms=5, placement=placement, all_or_none=True, waits=False
    )
    body = encoded(value, 7, is_flexible=True)
    assert decode(CreateTopicsRequest, request_of(KafkaApiKey.CREATE_TOPICS, 7, body)) == value
    (read,) = others_type("CreateTopicsRequest").decode(body, version=7).topics
    assert (read.name, read.num_partitions) == ("t", 3)
    old = encoded(value, 4, is_flexible=False)
    received = decode(CreateTopicsRequest, request_of(KafkaApiKey.CREATE_TOPICS, 4, old))
    assert (received.placement, received.waits) == (None, True)
