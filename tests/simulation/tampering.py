"""What befalls the znodes that brokers and controllers live by, at the hands of those who may."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.simulation.cluster import Cluster
from tests.simulation.leadership_history import LeadershipHistory
from tests.support.fake_zookeeper import SavedData
from zk.znodes import BrokerIdsZNode, BrokerIdZNode, ControllerEpochZNode

TAMPERING_PROBABILITY = 0.25  # of a history
ACTION_PROBABILITY = 0.02
EPOCHS_RAISED = 1000
STEPS_WITHOUT_DATA = 40


class Tampering:
    """Deletes registrations, changes the controller epoch, puts other data in ZooKeeper's place.

    Its dice are its own, so that histories without it are as they would be.
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
        self._is_replaced = False
        self._actions = (
            self._delete_a_registration,
            self._delete_a_registration,
            self._change_the_controller_epoch,
            self._change_the_controller_epoch,
            self._replace_the_data,
        )

    def act(self) -> None:
        """Do something now and then."""
        is_due = self._random.random() < ACTION_PROBABILITY
        if self.is_on and is_due and not self._is_replaced:
            self._random.choice(self._actions)()

    def _delete_a_registration(self) -> None:
        registered = self._zookeeper.children_of(BrokerIdsZNode.PATH)
        if registered:
            broker_id = int(self._random.choice(registered))
            self._note("delete the registration of %d", broker_id)
            self._zookeeper.remove(BrokerIdZNode.path(broker_id))

    def _change_the_controller_epoch(self) -> None:
        present = self._history.controller_epoch
        epoch = self._random.choice(
            (None, self._random.randrange(present + 1), present + EPOCHS_RAISED)
        )
        self._note("the controller epoch is %s instead of %d", epoch, present)
        self._history.is_epoch_tampered_with = True
        if epoch is None:
            self._zookeeper.remove(ControllerEpochZNode.PATH)
        else:
            self._zookeeper.put(ControllerEpochZNode.PATH, ControllerEpochZNode.encode(epoch))

    def _replace_the_data(self) -> None:
        """Have ZooKeeper lose its data, or go back to older ones, until somebody notices."""
        if self._older is None and self._random.random() < 0.5:
            self._note("somebody copies ZooKeeper's data")
            self._older = self._zookeeper.save()
            return
        running = [broker.disk for broker in self._cluster.brokers.values()]
        # Sessions that end let older data get on, too: who is overtaken cannot tell the difference.
        reached = 0 if self._older is None else self._older.zxid + 2 * STEPS_WITHOUT_DATA
        if self._older and not all(disk.seen.zxid > reached for disk in running):
            return
        self._note("ZooKeeper has %s data", "lost its" if self._older is None else "older")
        self._zookeeper.expire_all()
        self._history.check()
        newest = self._zookeeper.save()
        self._zookeeper.replace(self._older)
        written = len(self._zookeeper.transactions)
        self._is_replaced = True
        for _ in range(self._random.randrange(STEPS_WITHOUT_DATA)):
            self._take_a_step()
        self._is_replaced = False
        foreign = [t for t in self._zookeeper.transactions[written:] if t.operations]
        assert not foreign, f"a broker wrote into data that are not its cluster's: {foreign[0]}"
        self._zookeeper.expire_all()
        self._zookeeper.replace(newest)
        self._note("ZooKeeper has its data again")
