"""Changes of the overrides of topics and brokers, as clients ask for them.

Mirrors ``kafka.server.ConfigAdminManager`` and ``ZkAdminManager.alterBrokerConfigs``. As in Kafka,
unknown settings of brokers can be set, and what is not valid is INVALID_REQUEST (KAFKA-13609).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from regent.core.admin.config_descriptions import BrokerSetting
from regent.core.admin.config_handlers import DEFAULT_BROKER
from regent.core.admin.config_problems import broker_config_problem, is_password
from regent.core.admin.topic_settings import (
    TOPIC_SETTINGS,
    topic_config_conflict,
    topic_config_problem,
)
from regent.core.errors import BadDataError, Errors, RegentError
from regent.core.model import BrokerId
from regent.core.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterOperation,
)
from regent.core.protocol.messages.topics import CreatableTopicConfig
from regent.core.setting import ConfigType, Setting


class RefusedError(Exception):
    """A change that is refused; the message is a sentence that names the topic or the setting."""

    def __init__(self, error_code: Errors, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


def check_form(owner: str, alterations: Sequence[AlterableConfig]) -> None:
    """Check what needs no knowledge of the settings; raises ``RefusedError``.

    ``owner`` is the first word or words of the message, as "topic t".
    """
    for name, count in Counter(row.name for row in alterations).items():
        if count > 1:
            message = f"{owner} config {name} is named {count} times"
            raise RefusedError(Errors.INVALID_REQUEST, message)
    for row in alterations:
        name, operation, value = row.name, row.config_operation, row.value
        if value is None and operation != AlterOperation.DELETE:
            message = f"{owner} config {name} has no value"
            raise RefusedError(Errors.INVALID_REQUEST, message)
        if operation not in set(AlterOperation):
            message = f"{owner} config {name} cannot be changed: unknown operation {operation}"
            raise RefusedError(Errors.INVALID_REQUEST, message)


def altered(
    owner: str,
    alterations: Sequence[AlterableConfig],
    current: Mapping[str, str],
    *,
    replaces: bool,
    settings: Mapping[str, Setting],
    defaults: Mapping[str, str],
    problem: Callable[[str, str], RefusedError | None],
) -> dict[str, str | None]:
    """Return the new overrides, None for those to remove.

    ``replaces``: all other overrides are removed. ``defaults`` has the values of settings without
    an override: items are appended to them. ``problem`` is asked about each new value. Raises
    ``RefusedError``.
    """
    check_form(owner, alterations)
    changes: dict[str, str | None] = dict.fromkeys(current) if replaces else {}
    for row in alterations:
        old = current.get(row.name, defaults.get(row.name, ""))
        value = changes[row.name] = _new_value(owner, row, old, settings)
        refusal = None if value is None else problem(row.name, value)
        if refusal is not None:
            raise refusal
    return changes


def _new_value(
    owner: str, alteration: AlterableConfig, old: str, settings: Mapping[str, Setting]
) -> str | None:
    """Return the new value of a setting, None to remove it; ``old`` is the value in effect."""
    name, operation, value = alteration.name, alteration.config_operation, alteration.value
    if operation == AlterOperation.DELETE or value is None:
        return None
    if operation == AlterOperation.SET:
        return value
    row = settings.get(name)
    if row is not None and row.type is not ConfigType.LIST:
        raise RefusedError(Errors.INVALID_CONFIG, f"{owner} config {name} is not a list")
    present, given = [item for item in old.split(",") if item], value.split(",")
    if operation == AlterOperation.APPEND:
        return ",".join(dict.fromkeys([*present, *given]))
    return ",".join(item for item in present if item not in given)


# --- topics ---------------------------------------------------------------------------------------


def checked_topic_config(
    topic: str, config: Sequence[CreatableTopicConfig], defaults: Mapping[str, str]
) -> dict[str, str]:
    """Return the overrides of a new topic; raises ``RefusedError``.

    ``defaults`` has the values of settings without an override.
    """
    checked: dict[str, str] = {}
    for row in config:
        name, value = row.name, row.value
        if value is None:
            message = f"topic {topic} config {name} has no value"
            raise RefusedError(Errors.INVALID_CONFIG, message)
        refusal = _config_refusal(topic, name, value)
        if refusal is not None:
            raise refusal
        checked[name] = value
    _check_conflict(topic, checked, defaults)
    return checked


def topic_config_changes(
    wanted: AlterConfigsResource, current: Mapping[str, str], defaults: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the changes of a topic's overrides, None for those to remove; see ``altered``."""
    topic = wanted.resource_name
    changes = altered(
        f"topic {topic}",
        wanted.configs,
        current,
        replaces=wanted.replaces,
        settings=TOPIC_SETTINGS,
        defaults=defaults,
        problem=lambda name, value: _config_refusal(topic, name, value),
    )
    _check_conflict(topic, {**current, **changes}, defaults)
    return changes


def _config_refusal(topic: str, name: str, value: str) -> RefusedError | None:
    problem = topic_config_problem(name, value)
    if problem is None:
        return None
    return RefusedError(Errors.INVALID_CONFIG, f"topic {topic} config {name} {problem}")


def _check_conflict(
    topic: str, config: Mapping[str, str | None], defaults: Mapping[str, str]
) -> None:
    conflict = topic_config_conflict(config, defaults)
    if conflict is not None:
        raise RefusedError(Errors.INVALID_CONFIG, f"topic {topic} config: {conflict}")


# --- brokers -------------------------------------------------------------------------------------

ChangeConfig: TypeAlias = Callable[[Mapping[str, str]], Mapping[str, str | None]]
"""Returns the overrides to set, None for those to remove, for the present overrides."""


class BrokerConfigStore(Protocol):
    """The overrides of brokers. Implemented in ``zk.stores.config_store``."""

    def read_broker_configs(
        self, broker_ids: Iterable[BrokerId]
    ) -> Mapping[str, Mapping[str, str] | BadDataError]:
        """Read the overrides of brokers by id, and those of all brokers by ``<default>``."""
        ...

    def change_config(self, entity: str, change: ChangeConfig) -> Mapping[str, str]:
        """Change the overrides of ``brokers/N``, and notify brokers; return the new ones.

        ``change`` is called again when another client has changed the overrides meanwhile. Raises
        what it raises, and ``RegentError`` if the overrides cannot be read or written.
        """
        ...


class PasswordEncoder(Protocol):
    """Encodes the passwords of brokers. Implemented in ``zk.stores.broker_passwords``."""

    @property
    def is_on(self) -> bool:
        """Whether there is a secret."""
        ...

    def encode(self, password: str) -> str:
        """Return a password as it is stored."""
        ...

    def decoded(self, config: Mapping[str, str]) -> Mapping[str, str]:
        """Return overrides with their passwords, without those that cannot be decoded."""
        ...


class BrokerConfigAlteration(NamedTuple):
    """Changes of one broker's settings, or of all brokers' (``broker_id`` None).

    ``replaces``: all other settings in ZooKeeper are removed.
    """

    broker_id: BrokerId | None
    alterations: Sequence[AlterableConfig]
    replaces: bool = False


class BrokerConfigManager:
    """``settings``: all settings of brokers, by Kafka's names, with the values at the start.

    ``check`` raises ``RegentError`` for values that contradict each other. ``check_changed`` does
    so for values that cannot be used; it also gets the names of those that are written.
    """

    def __init__(
        self,
        store: BrokerConfigStore,
        settings: Mapping[str, Setting],
        static: Mapping[str, BrokerSetting],
        check: Callable[[Mapping[str, str]], object],
        check_changed: Callable[[Mapping[str, str], Collection[str]], object] = lambda *_: None,
        passwords: PasswordEncoder | None = None,
    ) -> None:
        self._store = store
        self._settings = {**settings, **{name: row.setting for name, row in static.items()}}
        self._defaults = {name: row.value for name, row in static.items() if row.value is not None}
        self._check = check
        self._check_changed = check_changed
        self._passwords = passwords if passwords is not None and passwords.is_on else None

    def alter(self, wanted: BrokerConfigAlteration, *, validate_only: bool = False) -> None:
        """Validate the changes, and write them unless ``validate_only``.

        Raises ``RefusedError``, or ``RegentError`` if ZooKeeper cannot be read or written.
        """
        broker_id = wanted.broker_id
        found = self._store.read_broker_configs([] if broker_id is None else [broker_id])
        of_all = _readable(found[DEFAULT_BROKER.partition("/")[2]])

        def change(current: Mapping[str, str]) -> Mapping[str, str | None]:
            changes = self._changes(wanted, current)
            config = {n: v for n, v in {**self._read(current), **changes}.items() if v is not None}
            self._refuse(config if broker_id is None else {**of_all, **config}, changes)
            return {name: self._stored(name, value) for name, value in changes.items()}

        if validate_only:
            change(of_all if broker_id is None else _readable(found[str(broker_id)]))
        else:
            entity = DEFAULT_BROKER if broker_id is None else f"brokers/{broker_id}"
            self._store.change_config(entity, change)

    def _changes(
        self, wanted: BrokerConfigAlteration, current: Mapping[str, str]
    ) -> dict[str, str | None]:
        owner = "brokers" if wanted.broker_id is None else f"broker {wanted.broker_id}"
        return altered(
            owner,
            wanted.alterations,
            current,
            replaces=wanted.replaces,
            settings=self._settings,
            defaults=self._defaults,
            problem=lambda name, value: self._refusal(owner, name, value, wanted.broker_id is None),
        )

    def _refusal(self, owner: str, name: str, value: str, of_all: bool) -> RefusedError | None:
        problem = broker_config_problem(name, value, self._settings, of_all=of_all)
        if problem is None and self._passwords is None and is_password(name, self._settings):
            problem = "cannot be stored: Password encoder secret not configured"
        if problem is None:
            return None
        return RefusedError(Errors.INVALID_REQUEST, f"{owner} config {name} {problem}")

    def _read(self, stored: Mapping[str, str]) -> Mapping[str, str]:
        """Return overrides with their passwords, without those that cannot be decoded."""
        if self._passwords is not None:
            return self._passwords.decoded(stored)
        return {
            name: text for name, text in stored.items() if not is_password(name, self._settings)
        }

    def _stored(self, name: str, value: str | None) -> str | None:
        if value is None or self._passwords is None or not is_password(name, self._settings):
            return value
        return self._passwords.encode(value)

    def _refuse(self, config: Mapping[str, str], changed: Collection[str]) -> None:
        try:
            self._check(config)
            self._check_changed(config, changed)
        except RegentError as error:
            raise RefusedError(Errors.INVALID_REQUEST, str(error)) from None


def _readable(config: Mapping[str, str] | BadDataError) -> Mapping[str, str]:
    if isinstance(config, BadDataError):
        raise config
    return config
