"""The machine of a broker with files: its state after a loss of power, or a failed disk."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from regent.core.log_config import LogConfig
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.control import TopicId
from regent.storage.log_names import log_of_directory
from regent.storage.recovery.suspect_logs import SUSPECT_LOGS, boot_id
from tests.support.durable_files import DurableFiles
from tests.support.record_batches import TIMESTAMP_MS

WALL_CLOCK_SPEED = 20


class Machine:
    """State beyond the processes of one broker: its files, which data are flushed, its clocks.

    ``hidden`` are the unreadable directories and their present paths, ``hidden_ids`` the topic ids
    of their logs. ``superseded`` are stray logs, until they are used: their replica was created
    anew while they were hidden, or a loss of power brought them back after their deletion.
    ``let_go`` closes what the present process has open.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        root: Path,
        durable: DurableFiles,
        defaults: LogConfig,
        dice: random.Random,
        moving_dice: random.Random,
        now_ms: Callable[[], int],
    ) -> None:
        self.broker_id = broker_id
        self.defaults = defaults
        self.dice = dice
        self.moving_dice = moving_dice
        self.directories = [root / f"{broker_id}-{name}" for name in ("one", "two")]
        self.hidden: dict[int, Path] = {}
        self.hidden_ids: dict[TopicPartition, TopicId | None] = {}
        self.superseded: set[TopicPartition] = set()
        self.let_go: Callable[[], None] = lambda: None
        self._durable = durable
        self._now_ms = now_ms

    def wall_clock_ms(self) -> int:
        """The time of a wall clock that runs fast."""
        return TIMESTAMP_MS + self._now_ms() * WALL_CLOCK_SPEED

    def hide(self, directory: int, ids: Mapping[TopicPartition, TopicId | None]) -> None:
        """Replace a directory by something unusable; ``ids`` are those of its logs."""
        self.hidden_ids = {name: ids[name] for name in ids if name not in self.superseded}
        path = self.directories[directory]
        self.hidden[directory] = path.rename(path.with_name(f"{path.name}-hidden"))
        path.touch()

    def lose_power(self) -> None:
        """Keep the flushed data, and perhaps more."""
        kind = self.dice.randrange(3)
        known = self._logs()
        for directory, path in enumerate(self.directories):
            before = self.hidden.get(directory, path)
            after = before.with_name(f"{before.name}-after")
            if kind == 0:
                self._durable.restore(before, after)
            else:
                self._durable.restore_torn(before, after, self.dice, is_garbled=kind == 1)
            shutil.rmtree(before)
            after.rename(before)
            _forget_this_boot(before / SUSPECT_LOGS)
            self._durable.note_all(before)
        self.superseded |= self._logs() - known  # as in Kafka, their new names were not flushed

    def _logs(self) -> set[TopicPartition]:
        paths = [self.hidden.get(directory, p) for directory, p in enumerate(self.directories)]
        return {log for path in paths for p in path.iterdir() if (log := log_of_directory(p.name))}


def _forget_this_boot(path: Path) -> None:
    """Make a directory look as if it was in use in an earlier boot of the machine."""
    if path.exists():
        path.write_text(path.read_text().replace(boot_id() or "unknown", "an-earlier-boot"))
