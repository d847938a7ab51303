"""Changes the settings of brokers in ZooKeeper, which running brokers follow.

Mirrors ``kafka.server.ConfigAdminManager.validateBrokerConfigChange`` and
``ZkAdminManager.alterBrokerConfigs``. As in Kafka, unknown names can be set, and what is not valid
is INVALID_REQUEST (KAFKA-13609).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from regent.core.admin.config_alterations import RefusedError, altered
from regent.core.admin.config_changes import DEFAULT_BROKER
from regent.core.admin.config_descriptions import BrokerSetting
from regent.core.admin.config_problems import broker_config_problem
from regent.core.errors import BadDataError, Errors, RegentError
from regent.core.model import BrokerId
from regent.core.protocol.messages.configs import AlterableConfig
from regent.core.setting import Setting

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


class BrokerConfigAlteration(NamedTuple):
    """Changes of one broker's settings, or of all brokers' (``broker_id`` None).

    ``replaces``: all other settings in ZooKeeper are removed.
    """

    broker_id: BrokerId | None
    alterations: Sequence[AlterableConfig]
    replaces: bool = False


class BrokerConfigManager:
    """``settings``: all settings of brokers, by Kafka's names, with the values at the start.

    ``check`` raises ``RegentError`` for values that contradict each other.
    """

    def __init__(
        self,
        store: BrokerConfigStore,
        settings: Mapping[str, Setting],
        static: Mapping[str, BrokerSetting],
        check: Callable[[Mapping[str, str]], object],
    ) -> None:
        self._store = store
        self._settings = {**settings, **{name: row.setting for name, row in static.items()}}
        self._defaults = {name: row.value for name, row in static.items() if row.value is not None}
        self._check = check

    def alter(self, wanted: BrokerConfigAlteration, *, validate_only: bool = False) -> None:
        """Validate the changes, and write them unless ``validate_only``.

        Raises ``RefusedError``, or ``RegentError`` if ZooKeeper cannot be read or written.
        """
        broker_id = wanted.broker_id
        found = self._store.read_broker_configs([] if broker_id is None else [broker_id])
        of_all = _readable(found[DEFAULT_BROKER.partition("/")[2]])

        def change(current: Mapping[str, str]) -> Mapping[str, str | None]:
            changes = self._changes(wanted, current)
            config = {n: v for n, v in {**current, **changes}.items() if v is not None}
            self._refuse_conflicts(config if broker_id is None else {**of_all, **config})
            return changes

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
        if problem is None:
            return None
        return RefusedError(Errors.INVALID_REQUEST, f"{owner} config {name} {problem}")

    def _refuse_conflicts(self, config: Mapping[str, str]) -> None:
        try:
            self._check(config)
        except RegentError as error:
            raise RefusedError(Errors.INVALID_REQUEST, str(error)) from None


def _readable(config: Mapping[str, str] | BadDataError) -> Mapping[str, str]:
    if isinstance(config, BadDataError):
        raise config
    return config
