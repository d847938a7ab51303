"""Automatic creation as the handlers of clients' requests see it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping

from regent.core.admin.admin_requests import RespondToCreation
from regent.core.errors import ApiError


class Creations:
    """Takes requests to create topics, and answers from a thread with refusals."""

    def __init__(
        self,
        refused: Mapping[str, ApiError] | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """``meanwhile`` is called before the answer."""
        self.wanted: list[str] = []
        self._refused = refused or {}
        self._meanwhile = meanwhile

    def __call__(self, topics: Collection[str], respond: RespondToCreation) -> None:
        """See ``TopicService.create_missing``."""
        self.wanted += topics

        def answer() -> None:
            self._meanwhile()
            respond(self._refused)

        threading.Thread(target=answer).start()


def explain(topic: str, error: ApiError) -> str:
    """Return a reason why an internal topic does not exist."""
    return f"no {topic}: {error.message}"
