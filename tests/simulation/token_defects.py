"""Defects in how delegation tokens are deleted and followed: they test the simulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from regent.core.controller.delegation_token_deletion import DelegationTokenDeletion
from regent.core.ports import StoredToken
from regent.zk.client.operations import ANY_VERSION, Delete, Operation
from regent.zk.stores.delegation_token_store import ZkDelegationTokenDeletions
from regent.zk.znodes import DelegationTokenInfoZNode
from tests.simulation.tokens import SOON_MS, TokenFollower


def renewed_tokens_deleted() -> Any:
    """A token that is renewed between the read and the deletion is deleted."""
    delete = ZkDelegationTokenDeletions.delete_delegation_tokens

    def without_condition(self: Any, tokens: Any, epoch_zk_version: int) -> None:
        anyway = [StoredToken(stored.token, ANY_VERSION) for stored in tokens]
        delete(self, anyway, epoch_zk_version)

    return patch.object(ZkDelegationTokenDeletions, "delete_delegation_tokens", without_condition)


def tokens_looked_at_by_the_first_controller_only() -> Any:
    """A controller that is elected later deletes no expired tokens."""
    begin = DelegationTokenDeletion.begin_checks

    def begin_once(self: DelegationTokenDeletion) -> None:
        if self._services.context.epoch == 1:
            begin(self)

    return patch.object(DelegationTokenDeletion, "begin_checks", begin_once)


def tokens_looked_at_once_in_a_term() -> Any:
    """Tokens that expire later in a term are not deleted."""
    return patch.object(DelegationTokenDeletion, "check_later", lambda self: None)


def deletions_of_tokens_not_announced() -> Any:
    """Brokers are not told which tokens the controller has deleted."""

    def delete(self: Any, tokens: Any, epoch_zk_version: int) -> None:
        writes: list[list[Operation]] = [
            [Delete(DelegationTokenInfoZNode.path(stored.token.token_id), stored.zk_version)]
            for stored in tokens
        ]
        self._write_fenced(writes, epoch_zk_version)

    return patch.object(ZkDelegationTokenDeletions, "delete_delegation_tokens", delete)


def changes_between_sessions_forgotten() -> Any:
    """A broker that has a new session reads no token before the next change."""

    def at_watches_only(self: TokenFollower, *, is_new_session: bool = False) -> None:
        if not is_new_session:
            self._broker.world.time.schedule(self._broker, SOON_MS, self._look)

    return patch.object(TokenFollower, "look_soon", at_watches_only)


SEARCH_FROM: dict[Callable[[], Any], int] = {
    renewed_tokens_deleted: 17,
    tokens_looked_at_by_the_first_controller_only: 8,
    tokens_looked_at_once_in_a_term: 29,
    deletions_of_tokens_not_announced: 8,
    changes_between_sessions_forgotten: 41,
}
