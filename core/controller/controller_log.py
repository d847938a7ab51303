"""The log of a controller: Kafka's prefix on every line, and one line for many partitions.

Only at DEBUG there is a line for each partition and replica, where Kafka has them at TRACE.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

from regent.core.controller.context import ControllerContext
from regent.core.model import BrokerId


class ControllerLog(logging.LoggerAdapter[logging.Logger]):
    """Writes ``[Controller id=1 epoch=7]`` before each line, as Kafka's ``LogContext`` does.

    Without the epoch while the broker is not the active controller.
    """

    def __init__(self, name: str, broker_id: BrokerId, context: ControllerContext) -> None:
        super().__init__(logging.getLogger(name), None)
        self._broker_id = broker_id
        self._context = context

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[str, Any]:
        """Return the line with its prefix."""
        epoch = f" epoch={self._context.epoch}" if self._context.epoch else ""
        return f"[Controller id={self._broker_id}{epoch}] {msg}", kwargs

    def each(self, template: str, rows: Iterable[tuple[object, ...]]) -> None:
        """Write a line for each row at DEBUG; at a higher level ``rows`` are not even computed."""
        if self.isEnabledFor(logging.DEBUG):
            for row in rows:
                self.debug(template, *row)

    def failures(self, template: str, failures: Mapping[Any, object], *args: object) -> None:
        """Warn how many failed, as the first argument of ``template``, and show the first failure.

        One line for many partitions; none when nothing failed.
        """
        if failures:
            first = next(iter(failures.values()))
            self.warning(f"{template}, the first: %s", len(failures), *args, first)
