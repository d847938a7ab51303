"""Registers a broker, waiting for what is left of its former life."""

from __future__ import annotations

import logging
import threading
import time

from core.errors import BrokerIdInUseError, SessionExpiredError
from core.model import BrokerInfo
from zk.operations import ZooKeeper
from zk.store import ZkControllerStore

logger = logging.getLogger(__name__)

_RETRY_S = 0.2


def register(
    info: BrokerInfo,
    zookeeper: ZooKeeper,
    store: ZkControllerStore,
    session_timeout_ms: int,
    stop_requested: threading.Event,
) -> tuple[int, int]:
    """Return the broker epoch and the id of the session that registered.

    A former life's session expires sooner or later. Raises ``BrokerIdInUseError`` when it does not,
    or ``SessionExpiredError``; either at once when a stop is requested.
    """
    deadline = time.monotonic() + 1.5 * session_timeout_ms / 1000 + 1
    said = ""
    while True:
        try:
            session_id = zookeeper.session_id
            return store.register_broker(info), session_id
        except (BrokerIdInUseError, SessionExpiredError) as error:
            if time.monotonic() > deadline or stop_requested.is_set():
                raise
            if str(error) != said:
                said = str(error)
                logger.info("%s; trying again every %.1f s", error, _RETRY_S)
            stop_requested.wait(_RETRY_S)
