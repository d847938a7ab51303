"""What ``broker`` does before the broker runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from regent.cli.broker import _log_to
from regent.config.settings import LoggingConfig

LOGGERS = ("", "state.change", "pykka")


@pytest.fixture(autouse=True)
def loggers_as_they_were() -> Iterator[None]:
    handlers = list(logging.root.handlers)
    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    yield
    for handler in set(logging.root.handlers) - set(handlers):
        logging.root.removeHandler(handler)
        handler.close()
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def test_the_log_has_the_levels_that_are_configured(tmp_path: Path) -> None:
    _log_to(tmp_path, LoggingConfig("WARNING", {"state.change": "DEBUG", "pykka": "ERROR"}))

    logging.getLogger("some.module").info("not wanted")
    logging.getLogger("some.module").warning("wanted")
    logging.getLogger("state.change").debug("payments-0")
    logging.getLogger("pykka").warning("not wanted either")

    lines = (tmp_path / "broker.log").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == [
        "WARNING wanted (some.module)",
        "DEBUG payments-0 (state.change)",
    ]
