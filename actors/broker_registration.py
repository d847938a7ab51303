"""Registers a broker, waiting for what is left of its former life."""

from __future__ import annotations

import logging
import threading
import time

from core.errors import BrokerIdInUseError, SessionExpiredError
from core.model import BrokerInfo
from zk.session import SessionKeeper
from zk.store import ZkControllerStore

logger = logging.getLogger(__name__)

_RETRY_S = 0.2


def register(
    info: BrokerInfo,
    keeper: SessionKeeper,
    store: ZkControllerStore,
    session_timeout_ms: int,
    stop_requested: threading.Event,
) -> tuple[int, int]:
    """Return the broker epoch and the id of the session that registered.

    A former life's session expires sooner or later. Raises ``BrokerIdInUseError`` when it does not,
    or ``SessionExpiredError``; either at once when a stop is requested.
    """
    deadline = time.monotonic() + 1.5 * session_timeout_ms / 1000 + 1
    while True:
        try:
            session_id = keeper.session_id
            return store.register_broker(info), session_id
        except (BrokerIdInUseError, SessionExpiredError) as error:
            if time.monotonic() > deadline or stop_requested.is_set():
                raise
            logger.info("%s; trying again", error)
            stop_requested.wait(_RETRY_S)
