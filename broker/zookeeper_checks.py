"""Checks of ZooKeeper every ten seconds, for changes that no watch reports.

* Record the newest zxid, so that the broker can refuse older ZooKeeper data later.
* ZooKeeper sends no watch event about a znode to a session that may not read it. While a znode is
  unreadable, and once afterwards, the controller reads everything again. So does the broker with
  configurations.
* If there is no controller, this broker takes part in an election: the last one may have ended
  while its znode was unreadable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from regent.actors.scheduler import RepeatingTimer, Scheduler
from regent.core.controller.events import ControllerEvent, LookAgain, Reelect
from regent.core.errors import SessionExpiredError
from regent.core.replica_logs import ClusterNotes
from regent.zk.client.operations import ConnectionLossError, UnreadableZnode, Znode
from regent.zk.client.session import SessionKeeper
from regent.zk.stores.admin_store import WATCHED_PATHS
from regent.zk.stores.cluster_identity import PROGRESS_MARK, mark_of, read_mark, write_mark
from regent.zk.znodes import ControllerZNode

logger = logging.getLogger(__name__)

_INTERVAL_MS = 10_000
_FIRST_AFTER_MS = 5_000  # soon, because a broker may run only briefly


class ZooKeeperChecks:
    """Runs from its construction to ``stop``, on its own thread, because ZooKeeper may be slow.

    ``tell_controller`` sends an event to the controller of this broker. ``is_controller`` returns
    whether that one is active: only the active controller writes the mark. ``on_checked`` gets
    whether watches may be missing.
    """

    def __init__(
        self,
        keeper: SessionKeeper,
        notes: ClusterNotes,
        tell_controller: Callable[[ControllerEvent], None],
        is_controller: Callable[[], bool],
        on_checked: Callable[[bool], object] = lambda _: None,
    ) -> None:
        self._keeper = keeper
        self._notes = notes
        self._tell_controller = tell_controller
        self._is_controller = is_controller
        self._on_checked = on_checked
        self._was_denied = False
        self._scheduler = Scheduler("zookeeper-checks")
        RepeatingTimer(self._scheduler, _INTERVAL_MS, self.check, first_after_ms=_FIRST_AFTER_MS)

    def check(self) -> None:
        """Check now; without a connection do nothing."""
        paths = (PROGRESS_MARK, *WATCHED_PATHS)
        try:
            node, *watched = self._keeper.get_many(paths)
            mark = mark_of(node) or 0
            # If the mark was the last write of all, no older data can differ from these.
            if self._is_controller() and self._keeper.newest_zxid > mark:
                write_mark(self._keeper)
                mark = read_mark(self._keeper) or 0
            self._note_progress(mark)
        except (ConnectionLossError, SessionExpiredError) as error:
            logger.debug("the check failed: %s", error)
        else:
            self._on_checked(self._look_for_denied(dict(zip(paths[1:], watched, strict=True))))

    def stop(self) -> None:
        """Stop checking."""
        self._scheduler.shutdown()

    def _note_progress(self, mark: int) -> None:
        self._notes.note_seen(zxid=self._keeper.newest_zxid, mark=mark)
        self._keeper.client.require_write(PROGRESS_MARK, mark)

    def _look_for_denied(self, watched: Mapping[str, Znode | None]) -> bool:
        """Return whether a znode is unreadable, or was at the last check."""
        is_denied = any(isinstance(node, UnreadableZnode) for node in watched.values())
        must_look = is_denied or self._was_denied
        if must_look:
            self._tell_controller(LookAgain())
        elif watched[ControllerZNode.PATH] is None:
            self._tell_controller(Reelect())
        self._was_denied = is_denied
        return must_look
