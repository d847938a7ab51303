"""What the console changes about topics, by the requests of the commands ``topics``.

Each function gets the fields of a form, with the topic as ``target``; it returns what was done, in
a sentence, and raises ``RegentError``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from regent.client import undeletion
from regent.client.cluster_connection import Cluster
from regent.client.controller_ref import ControllerRef
from regent.client.topics import TopicsClient, new_topic_id, raise_if_refused
from regent.client.wording import counted
from regent.console.form_numbers import number_in
from regent.console.record_browser import write_record
from regent.core.admin.topic_settings import DELETION_PROTECTION
from regent.core.errors import RegentError
from regent.core.protocol.messages.configs import AlterableConfig, AlterOperation
from regent.core.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    PlacementOptions,
)
from regent.core.topic_validation import INTERNAL_TOPICS
from regent.transport.control.remote_ref import actor_at

_CLIENT_ID: Final = "regent-console"
_TIMEOUT_S: Final = 30.0
_DEFAULT: Final = -1  # of the brokers


class TopicChangeError(RegentError):
    """A field of a form cannot be understood."""


def _client(cluster: Cluster) -> TopicsClient:
    return TopicsClient(
        cluster.brokers(), timeout_s=_TIMEOUT_S, find_others=cluster.registered_brokers
    )


def _number(fields: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = fields.get(name, "").strip()
    if not text and default is not None:
        return default
    number = number_in(text, 2**15 - 1)
    if not number:
        raise TopicChangeError(f"{text!r} is no number of {name}: give one from 1")
    return number


def create(cluster: Cluster, fields: Mapping[str, str]) -> str:
    """Create a topic and wait for its leaders; ``settings`` has lines NAME=VALUE."""
    name = fields.get("name", "").strip()
    if not name:
        raise TopicChangeError("which topic? Give a name")
    settings = []
    for line in filter(None, map(str.strip, fields.get("settings", "").splitlines())):
        setting, equals, value = line.partition("=")
        if not equals:
            raise TopicChangeError(f"the setting {line!r} is not NAME=VALUE")
        settings.append(CreatableTopicConfig(name=setting.strip(), value=value.strip()))
    topic = CreatableTopic(
        name=name,
        num_partitions=_number(fields, "partitions", _DEFAULT),
        replication_factor=_number(fields, "replicas", _DEFAULT),
        configs=tuple(settings),
        topic_id=new_topic_id(),
    )
    for response in _client(cluster).create([topic], None):
        raise_if_refused(response.topics)
    return f"topic {name} is created"


def grow(cluster: Cluster, fields: Mapping[str, str]) -> str:
    """Give a topic more partitions, and wait for their leaders."""
    topic, total = fields["target"], _number(fields, "partitions")
    raise_if_refused(_client(cluster).grow(topic, total, PlacementOptions()).results)
    return f"topic {topic} has {counted(total, 'partition')}"


def configure(cluster: Cluster, fields: Mapping[str, str]) -> str:
    """Set an override of a topic; without a value it is removed."""
    name, value = fields.get("setting", "").strip(), fields.get("value", "").strip()
    if not name:
        raise TopicChangeError("which setting? Give a name, such as retention.ms")
    _set(cluster, fields["target"], name, value or None)
    done = f"is {value}" if value else "is the brokers' again"
    return f"topic {fields['target']}: {name} {done}"


def protect(cluster: Cluster, fields: Mapping[str, str]) -> str:
    """Let brokers refuse every request to delete a topic."""
    _set(cluster, fields["target"], DELETION_PROTECTION, "true")
    return f"topic {fields['target']} is protected: it cannot be deleted"


def unprotect(cluster: Cluster, fields: Mapping[str, str]) -> str:
    """Take the protection of a topic away."""
    _set(cluster, fields["target"], DELETION_PROTECTION, None)
    return f"topic {fields['target']} is not protected: it can be deleted"


def _set(cluster: Cluster, topic: str, name: str, value: str | None) -> None:
    operation = AlterOperation.DELETE if value is None else AlterOperation.SET
    change = AlterableConfig(name=name, config_operation=operation, value=value)
    raise_if_refused(_client(cluster).configure(topic, [change]).responses)


def delete(cluster: Cluster, fields: Mapping[str, str]) -> str:
    """Mark a topic for deletion; its name must be written again."""
    topic = fields["target"]
    if fields.get("again", "").strip() != topic:
        raise TopicChangeError(f"the name that was written is not {topic}: nothing was deleted")
    if topic in INTERNAL_TOPICS:
        raise TopicChangeError(f"topic {topic} is internal and cannot be deleted")
    response = _client(cluster).delete([topic], waits=False, all_or_none=True)
    raise_if_refused(response.responses)
    return f"topic {topic} is marked for deletion"


def undelete(cluster: Cluster, fields: Mapping[str, str]) -> str:
    """Bring a deleted topic back, the last one of the name, and wait for its leaders."""
    name = fields.get("name", "").strip()
    if not name:
        raise TopicChangeError("which topic? Give a name")
    open_actor = partial(actor_at, client_id=_CLIENT_ID)
    with (
        cluster.admin() as admin,
        ControllerRef(admin.read_controller_endpoint, client_id=_CLIENT_ID) as controller,
    ):
        undeletion.undelete(admin, controller, open_actor, name, timeout_s=_TIMEOUT_S)
    return f"topic {name} is back"


def produce(cluster: Cluster, fields: Mapping[str, str]) -> str:
    """Write a record; what it says is not written down."""
    topic_partition, offset = write_record(cluster, fields)
    return f"a record is at offset {offset} of partition {topic_partition}"
