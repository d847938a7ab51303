"""Admins and tools that change registrations, the controller epoch, or ZooKeeper's data."""

from __future__ import annotations

import random
from collections.abc import Callable

from regent.zk.znodes import (
    BrokerIdsZNode,
    BrokerIdZNode,
    ControllerEpochZNode,
    ControllerTermsZNode,
    ControllerZNode,
)
from tests.simulation.cluster import Cluster
from tests.simulation.leadership_history import LeadershipHistory
from tests.support.fake_zookeeper import SavedData

TAMPERING_PROBABILITY = 0.3  # of a history
ACTION_PROBABILITY = 0.03
AFTER_ELECTION_PROBABILITY = 0.3
EPOCHS_RAISED = 1000
STEPS_WITHOUT_DATA = 40
TRANSACTIONS_OF_SESSIONS = 10


class Tampering:
    """Changes registrations and the controller epoch, and replaces ZooKeeper's data.

    It has random numbers of its own: histories without it do not change.
    """

    def __init__(
        self,
        cluster: Cluster,
        seed: int,
        history: LeadershipHistory,
        note: Callable[..., None],
        take_a_step: Callable[[], None],
    ) -> None:
        self._random = random.Random(f"tampering with {seed}")
        self.is_on = self._random.random() < TAMPERING_PROBABILITY
        self._cluster = cluster
        self._zookeeper = cluster.zookeeper
        self._history = history
        self._note = note
        self._take_a_step = take_a_step
        self._older: SavedData | None = None
        self.is_replaced = False
        self._epoch = 0  # at the last call
        self._actions = self._random.choice(  # repetitions of one kind find more
            (
                (self._delete_a_registration, self._overwrite_a_registration),
                (
                    self._change_the_controller_epoch,
                    self._delete_controller_and_epoch,
                    self._delete_the_term,
                ),
                (self._copy_the_data, self._replace_the_data, self._replace_the_data),
            )
        )

    def act(self) -> None:
        """Sometimes change something, more often after an election of a controller."""
        is_new = self._epoch != self._history.controller_epoch
        self._epoch = self._history.controller_epoch
        odds = AFTER_ELECTION_PROBABILITY if is_new else ACTION_PROBABILITY
        is_due = self._random.random() < odds
        if self.is_on and is_due and not self.is_replaced:
            self._random.choice(self._actions)()

    def _delete_a_registration(self) -> None:
        registered = self._zookeeper.children_of(BrokerIdsZNode.PATH)
        if registered:
            broker_id = int(self._random.choice(registered))
            self._note("delete the registration of %d", broker_id)
            self._zookeeper.remove(BrokerIdZNode.path(broker_id))

    def _overwrite_a_registration(self) -> None:
        """Make a registration unreadable, sometimes just before a new controller starts."""
        registered = self._zookeeper.children_of(BrokerIdsZNode.PATH)
        if registered:
            broker_id = int(self._random.choice(registered))
            self._note("overwrite the registration of %d", broker_id)
            self._zookeeper.put(BrokerIdZNode.path(broker_id), b"garbage")
            if self._random.random() < 0.5:
                self._zookeeper.remove(ControllerZNode.PATH)

    def _change_the_controller_epoch(self) -> None:
        present = self._history.controller_epoch
        epoch = self._random.choice(
            (
                None,
                self._random.randrange(present + 1),
                max(present - 1, 0),
                max(present - 1, 0),
                present + EPOCHS_RAISED,
            )
        )
        self._note("the controller epoch is %s instead of %d", epoch, present)
        self._history.is_epoch_tampered_with = True
        if epoch is None:
            self._zookeeper.remove(ControllerEpochZNode.PATH)
        else:
            self._zookeeper.put(ControllerEpochZNode.PATH, ControllerEpochZNode.encode(epoch))
        if self._random.random() < 0.5:
            self._zookeeper.remove(ControllerZNode.PATH)

    def _delete_controller_and_epoch(self) -> None:
        """Let the next controller be elected with a znode version that an earlier one had."""
        self._note("delete /controller and /controller_epoch")
        self._history.is_epoch_tampered_with = True
        self._zookeeper.remove(ControllerEpochZNode.PATH)
        self._zookeeper.remove(ControllerZNode.PATH)

    def _delete_the_term(self) -> None:
        for name in self._zookeeper.children_of(ControllerTermsZNode.PATH):
            self._note("delete the term %s", name)
            self._zookeeper.remove(f"{ControllerTermsZNode.PATH}/{name}")

    def _copy_the_data(self) -> None:
        self._note("copy ZooKeeper's data")
        self._older = self._zookeeper.save()

    def _replace_the_data(self) -> None:
        """Let ZooKeeper lose its data, or return to older data, for a while."""
        noted = [broker.disk.seen.zxid for broker in self._cluster.brokers.values()]
        # A broker recognizes older data only after it noted a later zxid; its sessions make
        # transactions in the older data too.
        is_older = self._older is not None and all(
            zxid > self._older.zxid + TRANSACTIONS_OF_SESSIONS for zxid in noted
        )
        data = self._older if is_older else None
        self._note("ZooKeeper %s", "has older data" if is_older else "has lost its data")
        self._zookeeper.expire_all()
        self._history.check()
        newest = self._zookeeper.save()
        self._zookeeper.replace(data)
        written = len(self._zookeeper.transactions)
        self.is_replaced = True
        for _ in range(self._random.randrange(STEPS_WITHOUT_DATA)):
            self._take_a_step()
        self.is_replaced = False
        foreign = [t for t in self._zookeeper.transactions[written:] if t.operations]
        assert not foreign, f"a broker wrote into the data of another cluster: {foreign[0]}"
        self._zookeeper.expire_all()
        self._zookeeper.replace(newest)
        self._note("ZooKeeper has its data again")
