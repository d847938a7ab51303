"""Defects in how controllers follow the addresses of brokers: they test the simulation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from regent.core.controller.brokers.broker_changes import BrokerChanges
from regent.core.model import BrokerId, BrokerInfo, BrokerRegistration


def changed_addresses_overlooked() -> Any:
    """The controller ignores new addresses of a broker that keeps its broker epoch."""
    take_over = BrokerChanges._take_over

    def but_addresses(
        self: BrokerChanges, known: BrokerRegistration, current: BrokerRegistration
    ) -> None:
        take_over(self, known, replace(current, info=known.info))

    return patch.object(BrokerChanges, "_take_over", but_addresses)


def channels_stay_at_former_addresses() -> Any:
    """Brokers learn the new address of a broker; the controller keeps using the former one."""
    take_over = BrokerChanges._take_over

    def only_brokers(self: BrokerChanges, *registrations: BrokerRegistration) -> None:
        with patch.object(self, "send_complete_state", lambda broker_id: None):
            take_over(self, *registrations)

    return patch.object(BrokerChanges, "_take_over", only_brokers)


def first_addresses_kept() -> Any:
    """A controller keeps using the first address that it knew of a broker."""
    connect = BrokerChanges._connect
    first: dict[tuple[int, BrokerId], BrokerInfo] = {}

    def where_it_was(self: BrokerChanges, registration: BrokerRegistration) -> None:
        key = self._context.epoch, registration.info.broker_id
        connect(self, replace(registration, info=first.setdefault(key, registration.info)))

    return patch.object(BrokerChanges, "_connect", where_it_was)


SEARCH_FROM = {
    changed_addresses_overlooked: 69,
    channels_stay_at_former_addresses: 138,
    first_addresses_kept: 860,
}
