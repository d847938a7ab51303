"""The table ``[logging]``: what is written to ``broker.log``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from regent.core.setting import setting

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@dataclass(frozen=True)
class LoggingConfig:
    """The table ``[logging]``."""

    level: str = setting(
        "INFO",
        "The lowest level of the lines in broker.log.",
        choices=_LEVELS,
        ours=True,
        prefix="logging.",
    )
    levels: Mapping[str, str] = setting(
        {"kazoo": "WARNING", "pykka": "WARNING"},
        'The level of single loggers. "state.change" at DEBUG has a line for each partition and'
        ' replica; the others are modules, such as "regent.core.controller". Tools that change the'
        " levels of a running broker (KIP-412) may use Kafka's names:"
        " kafka.controller.KafkaController and so on.",
        choices=_LEVELS,
        ours=True,
        prefix="logging.",
    )
