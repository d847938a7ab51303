"""Hooks of the fake ZooKeeper that act a limited number of times."""

from __future__ import annotations

from collections.abc import Callable

from regent.zk.client.operations import ConnectionLossError
from tests.support.fake_zookeeper import Call, Hook, Moment


def once(
    moment: Moment,
    act: Callable[[], object],
    *,
    method: str = "multi",
    path: str | None = None,
    times: int = 1,
) -> Hook:
    """Return a hook that acts at the first such moment, or several ``times``.

    It acts in calls whose method begins with ``method`` and whose paths include ``path``.
    """
    pending = [act] * times

    def hook(call: Call) -> None:
        is_call = call.method.startswith(method) and (path is None or path in call.paths)
        if pending and is_call and call.moment is moment:
            pending.pop()()

    return hook


def lose_connection() -> None:
    """Lose the request (before it is sent) or its answer (afterwards)."""
    raise ConnectionLossError("lost")
