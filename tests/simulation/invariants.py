"""What must hold after every step; the letters are those of the modules it is made of."""

from __future__ import annotations

from tests.simulation.acceptance import Acceptance
from tests.simulation.answers import Answers
from tests.simulation.cluster import Cluster
from tests.simulation.leadership_history import LeadershipHistory
from tests.simulation.obedience import Obedience
from tests.simulation.orders_told import OrdersTold
from tests.simulation.record_history import RecordHistory
from tests.simulation.registrations import Registrations
from tests.simulation.situations import Situations
from tests.simulation.terms import Terms


class Invariants:
    """Watches a cluster from now on: every step, every order, every request; raises
    ``AssertionError`` out of the step that breaks one.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.situations = Situations()
        self.history = LeadershipHistory(cluster, self.situations)
        self._terms = Terms(cluster, self.history)
        self._registrations = Registrations(cluster)
        obedience = Obedience(cluster, self.history, self.situations)
        self.records = RecordHistory(cluster, self.history, self.situations)
        self.history.on_wish = self.records.on_wish
        self.history.on_topic_lost = self.records.on_topic_lost
        self.history.on_given_up = self.records.on_given_up
        self.history.on_unclean_election = self.records.on_unclean_election
        self.history.on_state = self.records.on_state
        cluster.observe(self.records)
        cluster.network.on_sent = self.history.note_sent
        cluster.network.on_answered = Answers(cluster, self.history).check
        cluster.obey = obedience.obey
        cluster.handle = Acceptance(cluster, self.history, self.situations).handle
        cluster.on_order = OrdersTold(self.history).on_order
        cluster.after_step = self.check

    def check(self) -> None:
        """Check everything that happened since the last time."""
        self.history.check()
        self._terms.check()
        self._registrations.check()
