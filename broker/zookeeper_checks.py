"""What a broker looks at in ZooKeeper every ten seconds, because no watch tells of it.

How far the cluster has come is noted, so that older data are refused when ZooKeeper is given some.
And ZooKeeper sends no event about a znode to those who may not read it: while something may not be
read, and once afterwards, the controller looks again at all there is. When there is no controller,
this broker stands for election: the one there was may have ended while nobody could read its znode.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from regent.actors.scheduler import Scheduler
from regent.actors.timer import RepeatingTimer
from regent.core.controller.events import ControllerEvent, LookAgain, Reelect
from regent.core.errors import SessionExpiredError
from regent.core.replica_logs import ClusterNotes
from regent.zk.client.operations import ConnectionLossError
from regent.zk.client.session import SessionKeeper
from regent.zk.codecs.znodes import ControllerZNode
from regent.zk.stores.admin_store import ZkAdminStore
from regent.zk.stores.progress_mark import PATH, read_mark, write_mark

logger = logging.getLogger(__name__)

_INTERVAL_MS = 10_000
_FIRST_AFTER_MS = 5_000  # a broker may not live for long


class ZooKeeperChecks:
    """Runs from its making to ``stop``, on a thread of its own: an answer may take a while.

    ``tell_controller`` tells the controller of this broker, and ``is_controller`` says whether that
    one rules: it writes the mark.
    """

    def __init__(
        self,
        keeper: SessionKeeper,
        notes: ClusterNotes,
        tell_controller: Callable[[ControllerEvent], None],
        is_controller: Callable[[], bool],
    ) -> None:
        self._keeper = keeper
        self._notes = notes
        self._tell_controller = tell_controller
        self._is_controller = is_controller
        self._was_denied = False
        self._scheduler = Scheduler("zookeeper-checks")
        RepeatingTimer(self._scheduler, _INTERVAL_MS, self.look, first_after_ms=_FIRST_AFTER_MS)

    def look(self) -> None:
        """Do it now; without a connection it is left to the next time."""
        try:
            self._note_progress()
            self._look_for_denied()
        except (ConnectionLossError, SessionExpiredError) as error:
            logger.debug("looked in vain: %s", error)

    def stop(self) -> None:
        """Look no more."""
        self._scheduler.shutdown()

    def _note_progress(self) -> None:
        if self._is_controller():
            write_mark(self._keeper)
        mark = read_mark(self._keeper) or 0
        self._notes.note_seen(zxid=self._keeper.newest_zxid, mark=mark)
        self._keeper.require_write(PATH, mark)

    def _look_for_denied(self) -> None:
        denied = ZkAdminStore(self._keeper).read_denied()
        if denied or self._was_denied:
            self._tell_controller(LookAgain())
        elif self._keeper.get(ControllerZNode.PATH) is None:
            self._tell_controller(Reelect())
        self._was_denied = bool(denied)
