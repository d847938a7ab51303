"""Defects in how brokers follow changes of configuration: they test the simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

from regent.core.admin.dynamic_config_manager import ConfigChange, DynamicConfigManager


def throttles_read_without_a_sync() -> Any:
    """Replicas are copied under the throttles of a ZooKeeper server that lags."""
    catch_up = DynamicConfigManager.catch_up

    def without_sync(self: DynamicConfigManager, *, sync: bool = False) -> Any:
        return catch_up(self)

    return patch.object(DynamicConfigManager, "catch_up", without_sync)


def notifications_deleted_when_read() -> Any:
    """The first reader of a configuration change deletes its notification."""

    def purge(self: DynamicConfigManager, changes: Sequence[ConfigChange]) -> None:
        if changes:
            self._store.delete_changes([change.name for change in changes])

    return patch.object(DynamicConfigManager, "_purge", purge)


SEARCH_FROM: dict[Callable[[], Any], int] = {
    throttles_read_without_a_sync: 894,
    notifications_deleted_when_read: 7,
}
