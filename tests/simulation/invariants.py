"""What must hold after every step; the numbers are those of the modules that check it."""

from __future__ import annotations

from tests.simulation.acceptance import Acceptance
from tests.simulation.answers import Answers
from tests.simulation.cluster import Cluster
from tests.simulation.handled_requests import HandledRequests
from tests.simulation.leadership_history import LeadershipHistory
from tests.simulation.record_history import RecordHistory
from tests.simulation.registrations import Registrations
from tests.simulation.sent_requests import SentRequests
from tests.simulation.situations import Situations
from tests.simulation.terms import Terms
from tests.simulation.tokens import TokenHistory


class Invariants:
    """Checks a cluster from now on: every step and every request; raises
    ``AssertionError`` in the step that breaks an invariant.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.situations = Situations()
        self.history = LeadershipHistory(cluster, self.situations)
        self._terms = Terms(cluster, self.history)
        self._registrations = Registrations(cluster)
        self._tokens = TokenHistory(cluster)
        self.handled_requests = HandledRequests(cluster, self.history, self.situations)
        self.records = RecordHistory(cluster, self.history, self.situations)
        self.history.on_deletion_requested = self.records.on_deletion_requested
        self.history.on_operation = self.records.on_operation
        self.history.on_topic_lost = self.records.on_topic_lost
        self.history.on_given_up = self.records.on_given_up
        self.history.on_unclean_election = self.records.on_unclean_election
        self.history.on_state = self.records.on_state
        cluster.observe(self.records)
        cluster.network.on_sent = self.history.note_sent
        cluster.network.on_answered = Answers(cluster, self.history).check
        cluster.handle_control_request = self.handled_requests.handle_control_request
        cluster.on_obeyed = self.handled_requests.check_broker_of_kafka
        cluster.handle = Acceptance(cluster, self.history, self.situations).handle
        cluster.on_control_request = SentRequests(self.history).on_control_request
        cluster.after_step = self.check

    def check(self) -> None:
        """Check everything that happened since the last call."""
        self.history.check()
        self._terms.check()
        self._registrations.check()
        self._tokens.check()
