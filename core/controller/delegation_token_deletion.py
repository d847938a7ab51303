"""The active controller deletes the delegation tokens that have expired.

Mirrors ``KafkaController``'s task ``delete-expired-tokens``. A token that is renewed meanwhile has
another version, and stays. Its deletion and the notification of brokers are one fenced write, so a
former controller deletes nothing.
"""

from __future__ import annotations

from typing import Final

from regent.core.controller.events import DeleteExpiredTokens
from regent.core.controller.services import ControllerServices
from regent.core.errors import UnreadableError

TOKENS_AT_ONCE: Final = 1_000
"""The tokens that one event looks at."""


class DelegationTokenDeletion:
    """Looks for expired tokens at the beginning of a term and then at regular intervals.

    One event looks at a part of many tokens, and the next event follows at once, so that other
    events need not wait long.
    """

    def __init__(self, services: ControllerServices) -> None:
        self._services = services
        self._log = services.log(__name__)
        self._after = ""  # the last id of the part that was looked at

    def begin_checks(self) -> None:
        """Schedule the first look of a term, if brokers have delegation tokens."""
        self._after = ""
        if self._services.settings.delegation_tokens_are_on:
            self._schedule(0)

    def delete_expired(self) -> None:
        """Delete the expired ones of the next tokens, and schedule the next look."""
        store, context = self._services.store, self._services.context
        try:
            tokens, last = store.read_delegation_tokens(self._after, TOKENS_AT_ONCE)
        except UnreadableError as unreadable:
            self._log.error("expired delegation tokens are not deleted: %s", unreadable)
            self.check_later()
            return
        expired = [stored for stored in tokens if stored.token.is_expired(context.now_ms)]
        if expired:
            store.delete_delegation_tokens(expired, context.epoch_zk_version)
            self._services.outbox.note("delegation tokens: %d expired", len(expired))
            self._log.info("%d delegation tokens have expired", len(expired))
        if last is None:
            self.check_later()
        else:
            self._after = last
            self._schedule(0)

    def check_later(self) -> None:
        """Schedule the next look at all tokens."""
        self._after = ""
        self._schedule(self._services.settings.delegation_token_expiry_check_interval_ms)

    def _schedule(self, after_ms: int) -> None:
        self._services.schedule(after_ms, DeleteExpiredTokens(self._services.context.epoch))
