"""``brokers config``: shows and changes the settings of brokers that running brokers follow."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

import click

from regent.cli.config_options import changes_options, check_removed, config_changes, show_config
from regent.cli.output import examples, note, output_option
from regent.cli.watching import complete_brokers
from regent.client.cluster_connection import Cluster, pass_cluster
from regent.config.settings import KAFKA_SETTINGS
from regent.core.admin.config_alterations import (
    BrokerConfigAlteration,
    BrokerConfigManager,
    RefusedError,
)
from regent.core.admin.config_problems import base_name, unusable_in_broker
from regent.core.errors import BadDataError, RegentError
from regent.core.model import BrokerId
from regent.core.protocol.messages.configs import AlterOperation
from regent.core.setting import Scope
from regent.zk.codecs.admin_znodes import DEFAULT_ENTITY_NAME
from regent.zk.stores.admin_store import ZkAdminStore

_NAMES = sorted(
    name
    for name, row in KAFKA_SETTINGS.items()
    if row.scope is not Scope.READ_ONLY and row.has_effect
)


class BrokerConfigError(RegentError):
    """A setting that brokers cannot get."""


@click.command(
    epilog=examples(
        "brokers config 1",
        "brokers config 1 --set leader.replication.throttled.rate=10000000",
        "brokers config --default --set log.retention.ms=86400000 --unset log.segment.bytes",
    )
    + f"\n\nSettings: {', '.join(_NAMES)}."
)
@click.argument(
    "broker_id",
    metavar="[ID]",
    type=click.IntRange(min=0),
    required=False,
    shell_complete=complete_brokers,
)
@click.option(
    "--broker",
    "option_id",
    metavar="ID",
    shell_complete=complete_brokers,
    type=click.IntRange(min=0),
    hidden=True,
)
@click.option(
    "--default", "--broker-defaults", "of_all", is_flag=True, help="The settings of all brokers."
)
@changes_options
@output_option
@pass_cluster
def config(
    cluster: Cluster,
    /,
    broker_id: BrokerId | None,
    option_id: BrokerId | None,
    of_all: bool,
    settings: Sequence[str],
    removed: Sequence[str],
    output: str,
) -> None:
    """Change the settings in ZooKeeper of one broker or of all, and show them.

    They count before those of the broker's file and command line. Running brokers follow.
    """
    given = [number for number in (broker_id, option_id) if number is not None]
    if len(given) + of_all != 1:
        raise click.UsageError("which broker? Give an id, or --default for all brokers")
    wanted = BrokerConfigAlteration(None if of_all else given[0], config_changes(settings, removed))
    with cluster.admin() as admin:
        admin.topics.check_cluster()
        current = _read(admin, wanted.broker_id)
        if wanted.alterations:
            owner = "brokers" if of_all else f"broker {wanted.broker_id}"
            check_removed(owner, current, removed)
            _alter(admin, wanted)
            current = _read(admin, wanted.broker_id)
    unusable = unusable_in_broker(current, KAFKA_SETTINGS, of_all=of_all)
    show_config("broker", "default" if of_all else given[0], current, unusable, output)


def _alter(admin: ZkAdminStore, wanted: BrokerConfigAlteration) -> None:
    for row in wanted.alterations:
        name = row.name
        if row.config_operation == AlterOperation.SET and base_name(name) not in KAFKA_SETTINGS:
            similar = "".join(f"; did you mean {n}?" for n in get_close_matches(name, _NAMES, n=1))
            note(f"{name} is no setting of Regent or Kafka, and nothing here reads it{similar}")
    manager = BrokerConfigManager(admin.configs, KAFKA_SETTINGS, {}, lambda _: None)
    try:
        manager.alter(wanted)
    except RefusedError as refused:
        raise BrokerConfigError(str(refused)) from None


def _read(admin: ZkAdminStore, broker_id: BrokerId | None) -> dict[str, str]:
    name = DEFAULT_ENTITY_NAME if broker_id is None else str(broker_id)
    current = admin.configs.read_broker_configs([] if broker_id is None else [broker_id])[name]
    if isinstance(current, BadDataError):
        raise current
    return current
