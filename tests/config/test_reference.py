"""What is generated from the table of settings is in the checkout as it would be generated now."""

from __future__ import annotations

import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest

from regent.broker.broker_settings import broker_settings
from regent.config.reference import (
    broker_toml,
    cluster_toml,
    configuration_page,
    kafka_properties_page,
)
from regent.config.settings import Settings, rows
from regent.config.settings_file import load_settings
from regent.core.admin.topic_settings import TOPIC_SETTINGS
from regent.core.log_config import BROKER_NAMES
from regent.core.setting import text_of

ROOT = Path(__file__).parents[2]
AGAIN = "generate it again: python -m regent.config.reference"
FILES = {
    "config/broker.toml": broker_toml,
    "config/cluster.toml": cluster_toml,
    "docs/configuration.md": configuration_page,
    "docs/kafka-properties.md": kafka_properties_page,
}


@pytest.mark.parametrize("name", FILES)
def test_a_generated_file_is_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == FILES[name](), AGAIN


@pytest.mark.parametrize("name", ["config/broker.toml", "config/cluster.toml"])
def test_an_example_states_the_defaults(name: str) -> None:
    assert load_settings(ROOT / name, {}) == Settings()


def test_the_example_for_a_broker_has_every_setting() -> None:
    defaults = asdict(Settings())
    del defaults["given"], defaults["listener_name"]
    assert tomllib.loads((ROOT / "config/broker.toml").read_text()) == defaults


def test_every_default_is_a_valid_value() -> None:
    for _, row in rows():
        assert row.problem(row.default) is None
    for row in TOPIC_SETTINGS.values():
        assert row.text_problem(text_of(row.default)) is None


def test_every_topic_setting_has_a_default_among_the_settings_of_brokers() -> None:
    assert broker_settings(Settings(), 0).keys() >= set(BROKER_NAMES.values())
