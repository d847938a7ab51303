"""Defects in how controllers follow the addresses of brokers: they test the simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias
from unittest.mock import patch

from core.controller.broker_membership import BrokerMembership
from core.model import BrokerId, BrokerInfo, BrokerRegistration

Defect: TypeAlias = Callable[[], Any]


def changed_addresses_overlooked() -> Any:
    """Only another life of a broker has other addresses."""
    modified = BrokerMembership.on_broker_modifications

    def by_epoch(self: BrokerMembership, broker_id: BrokerId) -> None:
        known = self._context.registrations.get(broker_id)
        current = self._term.store.read_broker(broker_id)
        if known is not None and isinstance(current, BrokerRegistration):
            current = replace(current, info=known.info)
        if current != known:
            modified(self, broker_id)

    return patch.object(BrokerMembership, "on_broker_modifications", by_epoch)


def channels_stay_at_former_addresses() -> Any:
    """Others are told where a broker is now, and the controller goes on where it was."""
    modified = BrokerMembership.on_broker_modifications

    def told_only(self: BrokerMembership, broker_id: BrokerId) -> None:
        with patch.object(self, "tell_everything", lambda broker_id: None):
            modified(self, broker_id)

    return patch.object(BrokerMembership, "on_broker_modifications", told_only)


def addresses_of_earlier_lives_kept() -> Any:
    """A controller that has known a broker looks for it where it was in its first life."""
    connect = BrokerMembership._connect
    first: dict[tuple[int, BrokerId], BrokerInfo] = {}

    def where_it_was(self: BrokerMembership, registration: BrokerRegistration) -> None:
        key = self._context.epoch, registration.info.broker_id
        connect(self, replace(registration, info=first.setdefault(key, registration.info)))

    return patch.object(BrokerMembership, "_connect", where_it_was)


ADDRESS_DEFECTS: tuple[Defect, ...] = (
    changed_addresses_overlooked,
    channels_stay_at_former_addresses,
    addresses_of_earlier_lives_kept,
)
