"""How a broker handles failing logs, as ``broker.broker_storage`` and the notifier do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regent.core.errors import RegentError
from regent.zk.stores.request_store import notify_log_dir_failure

if TYPE_CHECKING:
    from tests.simulation.broker import SimulatedBroker

VERIFICATION_INTERVAL_MS = 3_000
SOON_MS = 1


class LogCare:
    """Finds damage and notifies the controller of logs that are out of service."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self._broker = broker
        self._time = broker.world.time
        self._is_due = False  # notify the controller as soon as there is a session
        broker.disk.on_out_of_service = self._on_out_of_service

    def verify_again_and_again(self) -> None:
        """Read all logs, run the disk's periodic tasks, and schedule the next time."""
        self._time.schedule(self._broker, VERIFICATION_INTERVAL_MS, self.verify_again_and_again)
        self.verify()
        self._broker.disk.start_maintenance(self._broker.replica_manager)

    def verify(self) -> None:
        """Read all logs."""
        for name, error in self._broker.disk.find_damage().items():
            self._broker.replica_manager.on_records_damaged(name, error)

    def _on_out_of_service(self) -> None:
        # Not now: the caller is in the middle of something.
        self._time.schedule(self._broker, SOON_MS, self.give_up_offline_replicas)

    def give_up_offline_replicas(self) -> None:
        """Take failed replicas out of service and notify the controller."""
        self._broker.replica_manager.on_log_directory_failed()
        self._broker.acted()
        self.announce()

    def announce_replaceable_logs(self) -> None:
        """Notify the controller again when a damaged log can be replaced."""
        if self._broker.replica_manager.replaceable_logs():
            self.announce()

    def announce(self) -> None:
        """Notify the controller, now or in the next session."""
        self._is_due = True
        self.announce_if_due()

    def announce_if_due(self) -> None:
        """Notify the controller, if that is pending and there is a session."""
        if not self._is_due:
            return
        # It stands for another thread: faults in the controller's calls do not happen in it.
        session = self._broker.session
        hook, session.hook = session.hook, None
        try:
            notify_log_dir_failure(session, self._broker.broker_id)
            self._is_due = False
        except RegentError:
            pass
        finally:
            session.hook = hook
