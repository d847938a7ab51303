"""The delegation tokens in ``/delegation_token``: brokers write them, the controller deletes them.

A token and its notification are written in one transaction. Mirrors the methods for tokens of
``kafka.zk.KafkaZkClient``, which writes one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from regent.core.errors import BadDataError, Errors
from regent.core.ports import StoredToken
from regent.core.security.delegation_token_manager import (
    Decide,
    DelegationToken,
    TokenChange,
    TokenRefusedError,
)
from regent.zk.client.operations import (
    ANY_VERSION,
    Create,
    Delete,
    Operation,
    Refused,
    SetData,
    UnreadableZnode,
    ZkError,
    Znode,
    why_uncreated,
)
from regent.zk.client.requests import RequestRefusedError
from regent.zk.codecs.admin_znodes import sequence_number
from regent.zk.stores.fenced_writes import Write, apply, change_znodes, write_unfenced
from regent.zk.stores.znode_store import WatchingStore, decode_each
from regent.zk.znodes import (
    TOKEN_PATHS,
    DelegationTokenChangeNotificationSequenceZNode,
    DelegationTokenChangeNotificationZNode,
    DelegationTokenInfoZNode,
    DelegationTokensZNode,
)

log = logging.getLogger(__name__)

_CHANGES = DelegationTokenChangeNotificationZNode.PATH


class ZkDelegationTokenStore(WatchingStore):
    """Implements ``DelegationTokenStore`` of ``core.security`` over one ZooKeeper session."""

    def prepare(self) -> None:
        """Create what is missing above the tokens."""
        for path, node in zip(TOKEN_PATHS, self._zookeeper.get_many(TOKEN_PATHS), strict=True):
            if node is None:
                made = apply(self._zookeeper, [Create(path)])
                if isinstance(made, Refused) and made.error is not ZkError.NODE_EXISTS:
                    raise RequestRefusedError(why_uncreated(path, made.error))

    def exchange_secret_check(self, check: str) -> bool:
        """Write the check of the secret; return whether there was a different one."""
        path = DelegationTokensZNode.PATH
        found: set[str] = set()

        def decide() -> tuple[bool, list[Operation]]:
            node = self._zookeeper.get(path)
            earlier = None if node is None else _check_in(node)
            if earlier is not None:
                found.add(earlier)
            has_changed = bool(found - {check})
            if node is None or earlier == check:
                return has_changed, []
            data = DelegationTokensZNode.encode(check)
            return has_changed, [SetData(path, data, node.stat.version)]

        return change_znodes(self._zookeeper, decide, f"{path}: other brokers keep writing it")

    def sync(self) -> None:
        """Make later reads see every change that was acknowledged before this call."""
        self._zookeeper.sync()

    def read_changes(self) -> Sequence[TokenChange]:
        """Read all notifications, oldest first, and watch for new ones.

        Raises ``UnreadableError``.
        """
        names = self._watch_children(_CHANGES)
        nodes = self._zookeeper.get_many([f"{_CHANGES}/{name}" for name in names])
        changes = [
            _change(name, node)
            for name, node in zip(names, nodes, strict=True)
            if node is not None  # another broker has deleted it
        ]
        return sorted(changes, key=lambda change: change.sequence)

    def read_token_ids(self) -> Collection[str]:
        """List all tokens. Raises ``UnreadableError``."""
        return self._zookeeper.children(DelegationTokensZNode.PATH) or ()

    def read_tokens(
        self, token_ids: Collection[str]
    ) -> Mapping[str, DelegationToken | BadDataError]:
        """Read tokens; absent ones are missing, and those that cannot be read are the error."""
        nodes = self._zookeeper.get_many([DelegationTokenInfoZNode.path(i) for i in token_ids])
        return decode_each(token_ids, nodes, _token)

    def delete_changes(self, names: Collection[str]) -> None:
        """Delete notifications; absent ones are skipped."""
        deletions = [[Delete(f"{_CHANGES}/{name}", ANY_VERSION)] for name in names]
        write_unfenced(self._zookeeper, deletions)

    def create_token(self, token: DelegationToken) -> None:
        """Write a new token and its notification.

        The transaction is repeated after a lost answer. Nobody else writes a token with this id: if
        the repetition finds it, the first attempt was applied.
        """
        path = DelegationTokenInfoZNode.path(token.token_id)
        write = Create(path, DelegationTokenInfoZNode.encode(token))
        result = apply(self._zookeeper, [write, _notification(token.token_id)])
        if isinstance(result, Refused) and result.error is not ZkError.NODE_EXISTS:
            raise RequestRefusedError(why_uncreated(path, result.error))

    def change_token(self, token_id: str, decide: Decide) -> DelegationToken | None:
        """Replace or delete a token by what ``decide`` says of what is in ZooKeeper now.

        It reads after a sync, because no write checks that a refusal was right. After a lost answer
        it reads again: if the token is what the write made of it, it is not written again.
        """
        path = DelegationTokenInfoZNode.path(token_id)
        self._zookeeper.sync()
        written: list[DelegationToken | None] = []

        def change() -> tuple[DelegationToken | None, list[Operation]]:
            node = self._zookeeper.get(path)
            token = None if node is None else DelegationTokenInfoZNode.decode(node.data, token_id)
            if token in written:
                return token, []
            if token is None or node is None:
                raise TokenRefusedError(Errors.DELEGATION_TOKEN_NOT_FOUND)
            changed = decide(token)
            if changed == token:
                return token, []
            written.append(changed)
            version = node.stat.version
            if changed is None:
                return None, [Delete(path, version), _notification(token_id)]
            data = DelegationTokenInfoZNode.encode(changed)
            return changed, [SetData(path, data, version), _notification(token_id)]

        contested = f"{path}: other brokers keep changing the delegation token"
        return change_znodes(self._zookeeper, change, contested)


class ZkDelegationTokenDeletions(WatchingStore):
    """The part of ``core.ports.ControllerStore`` that is about delegation tokens."""

    def read_delegation_tokens(
        self, after: str, limit: int
    ) -> tuple[Sequence[StoredToken], str | None]:
        """Read some tokens in the sequence of their ids, and return where to go on."""
        names = sorted(self._zookeeper.children(DelegationTokensZNode.PATH) or ())
        names = [name for name in names if name > after][: limit + 1]
        more, names = len(names) > limit, names[:limit]
        nodes = self._zookeeper.get_many([DelegationTokenInfoZNode.path(name) for name in names])
        versions = {
            name: node.stat.version
            for name, node in zip(names, nodes, strict=True)
            if node is not None and not isinstance(node, UnreadableZnode)
        }
        found: list[StoredToken] = []
        for name, token in decode_each(names, nodes, _token).items():
            if isinstance(token, BadDataError):
                log.error("the delegation token %s is not valid: %s", name, token)
            else:
                found.append(StoredToken(token, versions[name]))
        return found, names[-1] if more else None

    def delete_delegation_tokens(
        self, tokens: Collection[StoredToken], epoch_zk_version: int
    ) -> None:
        """Delete tokens that nobody has written since they were read, with notifications."""
        writes: list[Write] = [
            [
                Delete(DelegationTokenInfoZNode.path(token.token_id), version),
                _notification(token.token_id),
            ]
            for token, version in tokens
        ]
        self._write_fenced(writes, epoch_zk_version)


def _check_in(node: Znode) -> str | None:
    try:
        return DelegationTokensZNode.decode(node.data)
    except BadDataError as error:
        log.error("%s; it is written again", error)
        return None


def _notification(token_id: str) -> Create:
    change = DelegationTokenChangeNotificationSequenceZNode
    return Create(change.PATH_PREFIX, change.encode(token_id), sequential=True)


def _token(token_id: str, node: Znode) -> DelegationToken:
    return DelegationTokenInfoZNode.decode(node.data, token_id)


def _change(name: str, node: Znode) -> TokenChange:
    sequence, token_id = -1, None
    try:
        sequence = sequence_number(name)
        token_id = DelegationTokenChangeNotificationSequenceZNode.decode(node.data)
    except BadDataError as error:
        log.error("all delegation tokens are read, because a notification cannot be: %s", error)
    is_readable = not isinstance(node, UnreadableZnode)
    return TokenChange(name, sequence, token_id, node.stat.ctime_ms if is_readable else None)
