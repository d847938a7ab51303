"""The examples in ``config/`` are true: they load, state the defaults, and leave nothing out."""

from __future__ import annotations

import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest

import regent.config
from regent.config.settings import Settings, load_settings

DIRECTORY = Path(regent.config.__file__).parent


@pytest.mark.parametrize("name", ["broker.toml", "cluster.toml"])
def test_an_example_states_the_defaults(name: str) -> None:
    assert load_settings(DIRECTORY / name, {}) == Settings()


def test_the_example_for_a_broker_has_every_setting() -> None:
    assert tomllib.loads((DIRECTORY / "broker.toml").read_text()) == asdict(Settings())
