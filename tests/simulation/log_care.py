"""What a broker does about logs that fail it, as ``broker.broker_storage`` and the notifier do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regent.core.errors import RegentError
from regent.zk.stores.notification_store import notify_log_dir_failure

if TYPE_CHECKING:
    from tests.simulation.broker import SimulatedBroker

VERIFICATION_INTERVAL_MS = 3_000
SOON_MS = 1


class LogCare:
    """Looks for damage, and has the controller ask what is out of service."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self._broker = broker
        self._time = broker.world.time
        self._is_due = False  # the controller is to be told, as soon as there is a session
        broker.disk.on_condemned = self._on_condemned

    def verify_again_and_again(self) -> None:
        """Read everything there is, and do what else a disk needs now and then."""
        self._time.schedule(self._broker, VERIFICATION_INTERVAL_MS, self.verify_again_and_again)
        self.verify()
        self._broker.disk.look_after(self._broker.replica_manager.is_known_topic)

    def verify(self) -> None:
        """Read everything there is."""
        for name, error in self._broker.disk.find_damage().items():
            self._broker.replica_manager.on_records_damaged(name, error)

    def _on_condemned(self) -> None:
        # Whoever condemned it is in the middle of something.
        self._time.schedule(self._broker, SOON_MS, self.give_up_offline_replicas)

    def give_up_offline_replicas(self) -> None:
        """Take out of service what cannot be used any more, and tell."""
        self._broker.replica_manager.on_log_directory_failed()
        self._broker.acted()
        self.announce()

    def announce_replaceable_logs(self) -> None:
        """Tell once more when others do without a damaged log."""
        if self._broker.replica_manager.replaceable_logs():
            self.announce()

    def announce(self) -> None:
        """Notify the controller, now or in the next session."""
        self._is_due = True
        self.announce_what_is_due()

    def announce_what_is_due(self) -> None:
        """Notify the controller of what could not be told before."""
        if not self._is_due:
            return
        # Another thread than the controller's: what befalls that one in a call is not for this.
        session = self._broker.session
        hook, session.hook = session.hook, None
        try:
            notify_log_dir_failure(session, self._broker.broker_id)
            self._is_due = False
        except RegentError:
            pass
        finally:
            session.hook = hook
