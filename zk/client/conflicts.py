"""How often a conditional write is tried while others keep writing the same nodes."""

from __future__ import annotations

from regent.core.errors import RegentError

MAX_ATTEMPTS = 10


class ConflictError(RegentError):
    """Somebody else changed the same nodes again and again."""
