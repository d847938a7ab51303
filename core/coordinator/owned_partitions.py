"""Which partitions of its topic a coordinator owns.

It owns those that its broker leads, once it has read them. A *term* is the leader epoch with which
a leadership began. Only the loading that belongs to the present term makes a partition owned.
"""

from __future__ import annotations

from regent.core.errors import Errors


class OwnedPartitions:
    """The partitions, with the terms of their leaderships."""

    def __init__(self) -> None:
        self._terms: dict[int, int] = {}
        self._loading: dict[int, int] = {}
        self._epochs: dict[int, int] = {}  # the leader epochs of partitions led by this broker

    @property
    def is_loading(self) -> bool:
        """Whether a partition is being read."""
        return bool(self._loading)

    def term(self, partition: int) -> int | None:
        """Return the term of an owned partition; None: it is not owned."""
        return self._terms.get(partition)

    def leader_epoch(self, partition: int) -> int:
        """Return the present leader epoch of a partition that this broker leads, else -1."""
        return self._epochs.get(partition, -1)

    def problem(self, partition: int) -> Errors:
        """Return why requests for a partition cannot be answered; NONE: they can."""
        if partition in self._loading:
            return Errors.COORDINATOR_LOAD_IN_PROGRESS
        return Errors.NONE if partition in self._terms else Errors.NOT_COORDINATOR

    def on_elected(self, partition: int, epoch: int, term: int) -> bool:
        """This broker leads a partition; return whether it is to be read now.

        ``epoch``: its leader epoch, which may be greater than ``term``: it grows also while the
        leader stays.
        """
        if epoch < self.leader_epoch(partition):
            return False
        self._epochs[partition] = epoch
        if term in (self._terms.get(partition), self._loading.get(partition)):
            return False
        self._terms.pop(partition, None)
        self._loading[partition] = term
        return True

    def is_awaited(self, partition: int, term: int) -> bool:
        """Whether a partition is being read, and the leadership has not ended."""
        return self._loading.get(partition) == term

    def on_loaded(self, partition: int, term: int, *, is_read: bool) -> bool:
        """A partition was read; return whether it is owned now.

        One that could not be read is still awaited: it must be read again.
        """
        if not is_read or not self.is_awaited(partition, term):
            return False
        del self._loading[partition]
        self._terms[partition] = term
        return True

    def on_resigned(self, partition: int, epoch: int | None) -> bool:
        """This broker does not lead a partition; return False if this is old news.

        ``epoch`` None: its replica was deleted. A topic that is created again has lower epochs.
        """
        if epoch is not None and epoch < self.leader_epoch(partition):
            return False
        # It is not told when a replica that does not lead is deleted: forget the epoch here.
        self._epochs.pop(partition, None)
        self._terms.pop(partition, None)
        self._loading.pop(partition, None)
        return True
