"""``/regent/controller_terms``: whose term it is; ours alone, no tool of Kafka looks.

Somebody deletes ``/controller``: another broker is elected, and the former controller, which is
paused, keeps its session. The version of ``/controller_epoch`` alone does not stop its writes: it
begins at 0 again when somebody deletes that znode as well, and some elections later it is what the
former controller checks for. So every election creates a znode whose path never comes again,
because the epochs of a session only grow, and deletes those of all earlier elections.
"""

from __future__ import annotations

TERMS = "/regent/controller_terms"


class ControllerTermZNode:
    """``/regent/controller_terms/<session>-<epoch>``, ephemeral and empty."""

    @staticmethod
    def path(session_id: int, epoch: int) -> str:
        """Return the path for an election of this session to this epoch."""
        return f"{TERMS}/{session_id:x}-{epoch}"
