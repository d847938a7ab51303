"""One random history: faults and admins act on a simulated cluster, then all faults end.

The same seed always makes the same picks. ``Invariants`` hold after every step;
``assert_converged`` holds when the cluster is at rest.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

from regent.core.controller import events
from regent.core.controller.request_batch import MAX_REQUEST_BYTES
from regent.core.controller.services import ControllerSettings
from regent.core.model import BrokerId
from regent.core.protocol.broker import FetchRequest
from regent.core.protocol.control import StopReplicaRequest
from regent.core.protocol.controller import AlterPartitionRequest, ControlledShutdownRequest
from regent.core.protocol.transactions import VerifyPartitionsRequest, WriteMarkersRequest
from regent.zk.client.operations import ConnectionLossError
from regent.zk.znodes import (
    ControllerFailuresZNode,
    DeleteTopicsTopicZNode,
    DeleteTopicsZNode,
    TopicsZNode,
)
from tests.simulation.addresses import Addresses
from tests.simulation.admins import Admins
from tests.simulation.application_topics import APPLICATION_TOPICS, TRANSACTION_TOPICS
from tests.simulation.bounds import Bounds
from tests.simulation.broker import PlantedError, SimulatedBroker
from tests.simulation.client_requests import ClientRequest, CoordinatorCall
from tests.simulation.clients import Clients
from tests.simulation.cluster import REPLICATION, Cluster, SimulatedCrashError, short_settings
from tests.simulation.configurations import Configurations, LoweredMinIsrs
from tests.simulation.convergence import assert_converged
from tests.simulation.damage import Damage
from tests.simulation.denials import Denials
from tests.simulation.disk import Disk
from tests.simulation.ensemble import Ensemble
from tests.simulation.file_disk import FileDisks
from tests.simulation.forgeries import ForgedOrders, Forgeries
from tests.simulation.group_server import GroupWorld
from tests.simulation.groups import Groups, group_world
from tests.simulation.invariants import Invariants
from tests.simulation.kafka_kinds import KafkaKinds
from tests.simulation.kafka_protocol import KafkaCall
from tests.simulation.log_convergence import assert_logs_converged
from tests.simulation.network import Fate, Packet, RequestBody, usual_fate
from tests.simulation.odds import (
    BROKEN_START_AT_A_BAD_MOMENT,
    BROKEN_START_PROBABILITY,
    BROKERS,
    CALM_PROBABILITY,
    FAILOVER_PROBABILITY,
    FAILOVER_STEPS,
    FILES_PROBABILITY,
    HIDING_HISTORIES,
    HIDING_PROBABILITY,
    KEPT_CONTROLLERS_PROBABILITY,
    LAST_MEMBER_PROBABILITY,
    LEADERS_WRITE_PROBABILITY,
    LOST_ISR_ANSWER_PROBABILITY,
    MAX_DELAY_MS,
    MAX_FIRST_RECORDS,
    MAX_FIRST_TOPICS,
    MAX_JUMP_MS,
    MAX_LEADER_EPOCHS,
    MAX_LEADER_EPOCHS_WITHOUT_FAULTS,
    MAX_NESTED_STALLS,
    MAX_STEPS_TO_FAULT,
    PROBING_PROBABILITY,
    SAME_DISK_PROBABILITY,
    SETTLED_MS,
    SETTLED_PROBABILITY,
    SMALL_INBOX_PROBABILITY,
    SMALL_REQUEST_PROBABILITY,
    STALL_STEPS,
    STEPS,
    THREADS_PROBABILITY,
    UNEXPECTED_ERROR_PROBABILITY,
    UNEXPECTED_ERRORS_PROBABILITY,
    Menu,
    Odds,
)
from tests.simulation.poison import Poison
from tests.simulation.records import past_all_guards
from tests.simulation.situations import Situation
from tests.simulation.tampering import Tampering
from tests.simulation.tokens import TokenClients, assert_tokens_converged, has_tokens
from tests.simulation.transaction_server import TransactionWorld
from tests.simulation.transactions import Transactions, positions_world, transaction_world
from tests.simulation.undeletions import Undeletions
from tests.support.fake_zookeeper import Call, Hook, Moment

READS = ("get", "get_many", "children", "children_many")
FIRST_WITH_LATE_ENDS = 10_000_000  # earlier seeds are kept: they find planted defects


class _Worlds(NamedTuple):
    """What the coordinators of all brokers share; None: there are none of these.

    ``positions``: of group coordinators without consumers, for transactions.
    """

    groups: GroupWorld | None
    transactions: TransactionWorld | None
    positions: GroupWorld | None

    @classmethod
    def draw(cls, seed: int) -> _Worlds:
        """Return those of one history."""
        groups, transactions = group_world(seed), transaction_world(seed)
        has_positions = transactions is not None and groups is None
        return cls(groups, transactions, positions_world(seed) if has_positions else None)


class Simulation:
    """Picks what happens next with a seeded generator."""

    stop_at: int | None = None
    """The debugger begins before this line of ``history``; the first is 0."""

    def __init__(self, seed: int) -> None:  # noqa: PLR0915 - the order of the draws
        self.random = random.Random(seed)
        self._boot_dice, self._thread_dice = (
            random.Random(f"{seed}, {which}") for which in ("boots", "threads")
        )
        self.history: list[str] = []
        self._kinds = KafkaKinds(seed, self._note)
        self._draw_rare_conditions(seed)
        self._leaders_write_isrs = self.random.random() < LEADERS_WRITE_PROBABILITY
        self._is_rebalancing = self.random.random() < 0.5
        self._odds = Odds.draw(self.random)
        self._files = self._draw_files(seed)
        # Without ends of controllers: a new one would repair what the former one missed.
        draw = self.random.random()
        self._is_calm = draw < CALM_PROBABILITY  # no broker ends at all
        self._keeps_controllers = draw < KEPT_CONTROLLERS_PROBABILITY
        disk_for = self._files.make if self._files is not None else Disk
        worlds = _Worlds(None, None, None) if self._kinds.is_on else _Worlds.draw(seed)
        self._worlds = worlds
        self.cluster = Cluster(
            0,
            self._settings,
            REPLICATION,
            disk_for,
            worlds.groups or worlds.positions,
            worlds.transactions,
        )
        if seed >= FIRST_WITH_LATE_ENDS:
            late = random.Random(f"{seed}, ends of sessions")
            self.cluster.closing_logs_ms = late.choice((0, 200, 2_000))
        self._kinds.watch(self.cluster)
        self._ensemble = Ensemble(self.cluster.zookeeper, seed)
        self.cluster.hook_for = self._hook_for
        self.cluster.network.fate = self._fate
        self.cluster.network.delay_ms = self._delay_ms
        self._limit_queues(seed)
        self.cluster.lose_isr_answers(self._is_isr_answer_lost)
        self._faults_are_on = True
        self._stalls = 0
        self._ports: dict[int, int] = {}  # broker -> the port of its last process
        self._forgotten_sessions: list[int] = []  # of killed brokers, not yet expired
        self._missing: int | None = None  # the broker that stays down until all is at rest
        for broker_id in range(BROKERS):
            self._ports[broker_id] = self.cluster.start(broker_id).port
        self.invariants = Invariants(self.cluster)
        self.situations = self.invariants.situations
        self.invariants.history.leaders_write_isrs = self._leaders_write_isrs
        self.clients = Clients(self.cluster, self.random, self.invariants.records, self._note)
        self._admins = Admins(
            self.cluster, BROKERS, self.random, self.invariants.history, self._note
        )
        self._bounds = Bounds(self.cluster, self.invariants.history)
        self._poison = Poison(self.cluster, seed, self.invariants.history, self._note)
        self._forged_orders = ForgedOrders(self.cluster, seed, self._note)
        self._undeletions = Undeletions(
            self.cluster, seed, self._note, self._restart_without_a_directory
        )
        self._addresses = Addresses(self.cluster, seed, self.situations, self._note)
        self.cluster.before_rest = self._before_rest
        self._configurations = Configurations(self.cluster, BROKERS, seed, self._note)
        self._lowered = LoweredMinIsrs(self.cluster, seed, self._note)
        self._damage = Damage(self.cluster, self.random, self._note)
        self._applications = self._begin_applications(seed)
        self._add_removals_and_forgeries()
        self._faults = Menu(self.random)
        self._add_faults_of_the_world()
        self._tampering = Tampering(
            self.cluster, seed, self.invariants.history, self._note, self._step
        )
        self._denials = Denials(
            self.cluster,
            seed,
            self.invariants.history,
            self.situations,
            self._note,
            self._bounce_within_a_session,
            keeps_controllers=self._keeps_controllers,
        )
        if not self._is_calm:
            self._add_faults_of_processes()
        if not self._keeps_controllers:
            self._faults.add(self._back_off)
            self._faults.add(self._depose_with_requests_in_flight)
            self._admins.menu.add_all(self._admins.mistakes)
        self._cut_off: set[str] = set()  # endpoints that no packet reaches

    def _begin_applications(self, seed: int) -> list[Groups | Transactions]:
        self._token_clients = TokenClients(self.cluster, seed, self._note)
        groups, transactions, positions = self._worlds
        rest = seed, self.invariants, self._note
        found: list[Groups | Transactions] = []
        if groups is not None:
            found.append(Groups(self.cluster, groups, *rest))
        if transactions is not None:
            found.append(Transactions(self.cluster, transactions, *rest, positions))
        return found

    def _add_removals_and_forgeries(self) -> None:
        # A broker of Kafka keeps the log of a topic removed by hand, and refuses the next one.
        if (
            not self._leaders_write_isrs and not self._kinds.is_on
        ):  # their version conditions do not tell topics apart
            self._admins.menu.add(self._admins.remove_topic_by_hand)
        self._admins.menu.add(Forgeries(self.cluster, self.random, self._note).propose, 2)

    def _add_faults_of_the_world(self) -> None:
        """Add faults of disks, networks, clocks and the scheduler."""
        self._faults.add(self._damage_a_log, 2)
        self._faults.add(self._pause)
        self._faults.add(self._resume, 2, is_remedy=True)
        self._faults.add(self._cut_and_restore_a_connection)
        self._faults.add(self._let_time_pass)
        self._faults.add(self._set_a_clock)
        self._faults.add(self._partition_the_network)
        self._faults.add(self._hold_packets_in_flight, 2)

    def _add_faults_of_processes(self) -> None:
        """Add crashes, starts and failures of brokers."""
        self._faults.add(self._kill)
        self._faults.add(self._bounce_a_broker, 2)
        self._faults.add(self._cut_the_power, 0.4)
        self._faults.add(self._start, 3, is_remedy=True)
        self._faults.add(self._expire_a_session)
        self._faults.add(self._expire_a_dead_session, 2, is_remedy=True)
        self._faults.add(self._shut_down)
        self._faults.add(self._ask_for_a_shutdown_and_stay)
        self._faults.add(self._fail_a_log_directory)

    def _draw_rare_conditions(self, seed: int) -> None:
        """Draw rare conditions of controllers, with random numbers of their own."""
        self._rare_dice = random.Random(f"surprises of {seed}")
        self._has_tokens = has_tokens(seed) and not self._kinds.is_on
        self._hiding_dice = random.Random(f"{seed}, hidden logs")
        self._hides_logs = self._hiding_dice.random() < HIDING_HISTORIES
        self._isr_dice = random.Random(f"{seed}, isr answers")
        self._restarting: list[BrokerId] = []  # members of an ISR whose answer was lost
        self._last_member_dice = random.Random(f"{seed}, last members")
        self._has_unexpected_errors = self._rare_dice.random() < UNEXPECTED_ERRORS_PROBABILITY
        is_probing = self._rare_dice.random() < PROBING_PROBABILITY
        self._broker_answer_timeout_ms = 6_000 if is_probing else 0
        is_split = self._rare_dice.random() < SMALL_REQUEST_PROBABILITY
        self._max_request_bytes = 1_000 if is_split else MAX_REQUEST_BYTES

    def _limit_queues(self, seed: int) -> None:
        """Limit the events queued for controllers, and the requests under way to brokers."""
        if self._rare_dice.random() < SMALL_INBOX_PROBABILITY:
            self.cluster.bound_inboxes(self._rare_dice.randint(1, 4))
        if seed % 2 == 0:
            self.cluster.send_one_at_a_time()

    def _draw_files(self, seed: int) -> FileDisks | None:
        """Return disks with the files of ``storage``; None: the logs are in memory."""
        if random.Random(f"{seed}, files").random() >= FILES_PROBABILITY or self._kinds.is_on:
            return None
        self._odds.favour_records()
        return FileDisks(seed)

    @property
    def has_files(self) -> bool:
        """Whether its logs are files of ``storage``."""
        return self._files is not None

    def run(self, steps: int = STEPS) -> None:
        """Take ``steps`` steps with faults, then end the faults and converge."""
        with self._files.used() if self._files is not None else nullcontext():
            self._run(steps)

    def _run(self, steps: int) -> None:
        if self.random.random() < SETTLED_PROBABILITY or self.has_files or self._applications:
            self._settle()
        for _ in range(steps):
            self._advance()
        self._heal()
        self._kinds.observe()
        self._converge()
        if self._missing is not None:
            self._boot(self._missing)
            self._note("start %d, which was missing", self._missing)
            self._converge()
        elif self.random.random() < self._odds.afterwards:
            bounds = Bounds(self.cluster, self.invariants.history)
            bounds.begin()
            self._act_without_faults()
            self._converge()
            bounds.check(MAX_LEADER_EPOCHS_WITHOUT_FAULTS)
        if self._poison.is_due:
            self._poison.act()
            self._converge()

    def _settle(self) -> None:
        """Begin with a working cluster, so that most steps have one."""
        self._faults_are_on = False
        self.cluster.network.fate = usual_fate
        for _ in range(self.random.randint(1, MAX_FIRST_TOPICS)):
            self._admins.create_topic()
        for application in self._applications:
            application.begin()
        self.cluster.run_for(SETTLED_MS)
        for _ in range(self.random.randint(0, MAX_FIRST_RECORDS)):
            self.clients.act()
        self.cluster.run_for(SETTLED_MS)
        self.cluster.network.fate = self._fate
        if self._thread_dice.random() < THREADS_PROBABILITY:
            self.cluster.let_threads_act()
        self._faults_are_on = True
        self._note("settled")

    def _act_without_faults(self) -> None:
        """Do one thing without faults, which would hide what the controller forgets."""
        self.random.choice(self._admins.works)()
        if self.random.random() < FAILOVER_PROBABILITY:
            for _ in range(self.random.randrange(FAILOVER_STEPS)):
                self._step()
            for controller in self.cluster.active_controllers[:1]:
                self._note("%d is deposed", controller.broker_id)
                self.cluster.expire(controller.session.session_id)

    def _converge(self) -> None:
        self._rest()
        restored = self._damage.restore_lost_records()
        if restored is not None:
            self._restart(restored)
            self._rest()
        self.clients.finish()
        for application in self._applications:
            application.finish()
        assert_converged(self.cluster)
        assert_logs_converged(self.cluster, self.invariants.records)
        assert_tokens_converged(self.cluster)

    def _rest(self) -> None:
        self._bounds.begin()
        self.cluster.run_until_quiet()
        self._bounds.check(MAX_LEADER_EPOCHS)

    def _before_rest(self) -> None:
        """Let time-dependent events happen that go on without faults."""
        self._bounds.look()
        self._undeletions.act_at_rest()
        self._kinds.rest()
        self.cluster.zookeeper.catch_up()
        if not self._kinds.is_on:
            self._addresses.follow()

    def _advance(self) -> None:
        dice = self.random.random()
        odds = self._odds
        if dice < odds.fault:
            self._faults.act()
        elif dice < odds.fault + odds.admin:
            self._admins.menu.act()
        elif dice < odds.fault + odds.admin + odds.client:
            self.clients.act()
        else:
            self._step()
        self._kinds.act()
        is_with_kafka = self._kinds.is_on
        if self._faults_are_on and not self._keeps_controllers and not is_with_kafka:
            self._tampering.act()
        if self._faults_are_on and not self._tampering.is_replaced and not is_with_kafka:
            self._denials.act()
        self._undeletions.act()
        self._ensemble.act()
        for application in self._applications if self._faults_are_on else ():
            application.act_at_times()
        if self._faults_are_on:
            self._hide_logs_to_be_deleted()
            self._end_a_last_member()
            self._restart_proposed_members()
            self._lower_min_insync_replicas()
            self._configurations.act()
            self._token_clients.act()
            if not is_with_kafka:
                self._addresses.act()
                self._forged_orders.act()
        self.invariants.check()

    def _settings(self) -> ControllerSettings:
        settings = short_settings()
        settings.max_request_bytes = self._max_request_bytes
        settings.broker_answer_timeout_ms = self._broker_answer_timeout_ms
        settings.auto_leader_rebalance_enable = self._is_rebalancing
        settings.isr_changes_through_zookeeper = self._leaders_write_isrs
        settings.delegation_tokens_are_on = self._has_tokens
        return settings

    def _step(self) -> None:
        if self.random.random() < 0.3:
            self.cluster.time.advance(self.random.randrange(1, 150))
        steps = self.cluster.steps()
        if not steps:
            self.cluster.time.advance(self.random.randrange(1, 1_000))
            return
        kind, number = step = self.random.choice(steps)
        if kind == "deliver":
            self._note("%s", self.cluster.network.packets[number])
        else:
            inbox = self.cluster.brokers[number].inbox
            self._note("%s %d %s", kind, number, inbox[0] if kind == "event" else "")
        self.cluster.take(step)

    def _heal(self) -> None:
        self._kinds.end_moves()
        self._faults_are_on = False
        self.cluster.bound_inboxes()
        self.cluster.widen_channels()
        self._broker_answer_timeout_ms = 0  # a controller that probes is never at rest
        for probing in self.cluster.brokers.values():
            probing.settings.broker_answer_timeout_ms = 0
        self._cut_off.clear()
        is_anyone_missing = self.random.random() < self._odds.missing_broker
        victim = self._pick_a_victim() if is_anyone_missing else None
        if victim is not None and self._kinds.is_last_of_ours(victim.broker_id):
            victim = None  # it must rule
        self._missing = None if victim is None else victim.broker_id
        self._note("heal, but for %s", self._missing)
        for application in self._applications:
            application.rest()
        self.cluster.network.fate = self._fate_without_faults
        for number in self.cluster.network.packets:
            self.cluster.network.hold(number, 0)
        for broker_id in range(BROKERS):
            broker = self.cluster.brokers.get(broker_id)
            is_missing = broker_id == self._missing
            if broker is not None and (broker.disk.has_failed or broker.is_leaving or is_missing):
                self._end(broker)
                broker = None
            if is_missing:
                continue
            if broker is None:
                self._boot(broker_id)
            else:
                broker.is_paused = False
                self.cluster.zookeeper.reconnect(broker.session.session_id)
        for session_id in self._forgotten_sessions:
            self.cluster.expire(session_id)
        self._denials.allow_all()
        self._admins.restore_all()
        self._configurations.settle()
        self.cluster.zookeeper.remove(ControllerFailuresZNode.PATH)  # retry quarantined events

    def _restart(self, broker_ids: Collection[BrokerId]) -> None:
        """Restart brokers that accept something only when they start."""
        for broker_id in sorted(broker_ids):
            session_id = self.cluster.brokers[broker_id].session.session_id
            self.cluster.kill(broker_id)
            self.cluster.expire(session_id)
            self._boot(broker_id)

    def _boot(self, broker_id: BrokerId, *, port: int | None = None) -> SimulatedBroker:
        """Start a broker, which may find damaged logs when it opens them."""
        disk = self.cluster.disks[broker_id]
        had_failed = disk.has_failed
        dice = self._boot_dice.random()
        being_deleted = set(self.cluster.zookeeper.children_of("/admin/delete_topics"))
        is_bad_moment = any(name.topic in being_deleted for name in disk.fragile())
        broken = BROKEN_START_AT_A_BAD_MOMENT if is_bad_moment else BROKEN_START_PROBABILITY
        if self._faults_are_on and dice < broken:
            self._note("a log directory of %d cannot be read", broker_id)
            self._delete_while_unreachable({name.topic for name in disk.fragile()})
            disk = disk.start_broken()
            while self._forgotten_sessions:  # so that it can register at once
                self._expire_a_dead_session()
        else:
            disk = disk.repair(has_its_data=dice < SAME_DISK_PROBABILITY)
        self.cluster.disks[broker_id] = disk
        if self._faults_are_on:
            disk = self.cluster.disks[broker_id] = self._damage.change_files(disk)
        if had_failed or disk.has_failed:
            self.invariants.handled_requests.on_directory_lost(broker_id)
        disk.check_damaged_logs(lambda: self.random.random() < self._odds.refusal)
        return self.cluster.start(broker_id, port=port)

    def _delete_while_unreachable(self, topics: Collection[str]) -> None:
        """Delete topics while replicas of them are out of reach."""
        if topics and self._faults_are_on and self.random.random() < self._odds.bad_moment:
            self._admins.delete_topic(topics)

    # --- faults of the network ---

    def _fate(self, packet: Packet) -> Fate:
        if self._faults_are_on and packet.answer is None and _deletes(packet.exchange.request):
            self._fail_the_disk_at(packet.exchange.endpoint)
        dice = self.random.random()
        if packet.exchange.endpoint in self._cut_off or dice < self._odds.packet_loss:
            return Fate.LOST
        if self._is_held(packet):
            self.cluster.network.hold(packet.number, self.random.randrange(MAX_DELAY_MS))
            return Fate.LATER
        if isinstance(packet.exchange.request, FetchRequest | ClientRequest):
            return Fate.LATER if dice < self._odds.fetch_delay else Fate.AT_ONCE
        if isinstance(packet.exchange.request, KafkaCall):
            return Fate.LATER  # no second copy: it is on a TCP connection
        if isinstance(packet.exchange.request, WriteMarkersRequest | VerifyPartitionsRequest):
            return Fate.LATER  # no second copy: it could end the next transaction (KIP-890)
        is_proposal = isinstance(packet.exchange.request, AlterPartitionRequest)
        doubled = self._odds.proposal_duplicate if is_proposal else self._odds.packet_duplicate
        return Fate.TWICE if dice < self._odds.packet_loss + doubled else Fate.LATER

    def _is_held(self, packet: Packet) -> bool:
        """Whether a request arrives much later, after requests that are sent later."""
        if not self._faults_are_on or packet.answer is not None:
            return False
        request = packet.exchange.request
        is_first = isinstance(request, FetchRequest) and not request.is_incremental
        is_rare = is_first or isinstance(request, StopReplicaRequest)
        is_held = self.random.random() < self._odds.packet_hold * (8 if is_rare else 1)
        sender = packet.exchange.sender
        may_depose = (
            is_held and isinstance(request, StopReplicaRequest) and not self._keeps_controllers
        )
        if may_depose and isinstance(sender, SimulatedBroker) and self.random.random() < 0.5:
            self._note("%d is deposed while it stops replicas", sender.broker_id)
            self.cluster.expire(sender.session.session_id)
        return is_held

    def _fail_the_disk_at(self, endpoint: str) -> None:
        """Fail a log directory at a special moment: while a topic in it is being deleted."""
        for broker in self.cluster.brokers.values():
            is_it = broker.control_endpoint == endpoint and not broker.disk.has_failed
            is_it = is_it and not (self._keeps_controllers and broker.controller.is_active)
            if is_it and self.random.random() < self._odds.disk_failure:
                self._fail_a_log_directory_of(broker)

    def _fate_without_faults(self, packet: Packet) -> Fate:
        """Lose no packet; duplicates and delays must have no effect."""
        if isinstance(packet.exchange.request, CoordinatorCall):
            return Fate.AT_ONCE
        fate = self._fate(packet)
        return usual_fate(packet) if fate is Fate.LOST else fate

    def _delay_ms(self) -> int:
        return self.random.choice((0, self.random.randrange(MAX_DELAY_MS)))

    def _partition_the_network(self) -> None:
        """Cut the connections to some endpoints, or restore all."""
        broker = self._pick()
        if self._cut_off or broker is None:
            self._note("restore the network")
            self._cut_off.clear()
            return
        endpoints = [broker.control_endpoint, broker.replication_endpoint]
        if self._kinds.is_on:
            endpoints = [broker.control_endpoint, broker.kafka_endpoint]
        self._cut_off.update(self.random.sample(endpoints, self.random.randint(1, 2)))
        self._note("cut off %s", sorted(self._cut_off))

    def _hold_packets_in_flight(self) -> None:
        """Delay what a broker has sent behind what it sends from now on."""
        broker = self._pick()
        if broker is not None:
            self._hold(broker)

    def _depose_with_requests_in_flight(self) -> None:
        """Elect another controller while requests of the present one are in flight."""
        active = self.cluster.active_controllers
        if active and active[0].broker_id not in self.cluster.in_call:
            self._hold(active[0])
            self._note("%d is deposed", active[0].broker_id)
            self.cluster.expire(active[0].session.session_id)

    def _hold(self, sender: SimulatedBroker) -> None:
        held = self.cluster.network.sent_by(sender)
        self._note("hold %d packets of %d", len(held), sender.broker_id)
        for number in held:
            self.cluster.network.hold(number, self.random.randrange(MAX_DELAY_MS))

    # --- faults inside a call ---

    def _hook_for(self, broker: SimulatedBroker) -> Hook:
        return partial(self._interrupt, broker)

    @past_all_guards
    def _interrupt(self, broker: SimulatedBroker, call: Call) -> None:
        self._poison.end_controller(broker)
        if not self._faults_are_on or self._tampering.is_replaced:
            return
        is_read = call.method in READS
        if is_read and broker.controller.is_active and broker.session.is_behind:
            self.situations.meet(Situation.STALE_READ)
        if self._has_unexpected_errors and broker.is_handling and broker.controller.is_active:
            self._raise_unexpected_error(broker, call)
        is_write = not is_read and call.moment is Moment.BEFORE
        if is_write and self.random.random() < self._odds.race:
            is_topic = self._admins.write_first(call.paths)
            self.situations.meet_if(is_topic, Situation.TOPIC_CHANGED_UNDER_WRITE)
        if is_write and self._has_tokens:
            self._token_clients.write_first(call.paths)
        probability = self._odds.call_fault * (3 if self._is_calm else 1)
        if self.random.random() >= probability:
            return
        fault = self.random.choice((1, 3)) if self._keeps_controllers else self.random.randrange(4)
        if fault == 0:
            self._note("  %d crashes %s %s", broker.broker_id, call.moment.value, call.method)
            self._forgotten_sessions.append(broker.session.session_id)
            self.invariants.history.check()  # while the reasons are known
            raise SimulatedCrashError
        if fault == 1:
            self._note("  %d loses %s %s", broker.broker_id, call.moment.value, call.method)
            raise ConnectionLossError("simulated")
        if self._stalls < MAX_NESTED_STALLS:
            self._stall(broker, call, expire=fault == 2)

    def _raise_unexpected_error(self, broker: SimulatedBroker, call: Call) -> None:
        """Raise an unexpected error in the middle of a handler."""
        if self._rare_dice.random() < UNEXPECTED_ERROR_PROBABILITY:
            self._note(
                "  %d raises an unexpected error %s %s",
                broker.broker_id,
                call.moment.value,
                call.method,
            )
            self.invariants.history.check()  # while the reasons are known
            raise PlantedError

    def _stall(self, broker: SimulatedBroker, call: Call, *, expire: bool) -> None:
        self._note("  %d stalls %s %s", broker.broker_id, call.moment.value, call.method)
        if expire and not (call.method in READS and call.moment is Moment.BETWEEN):
            self.cluster.expire(broker.session.session_id)
        may_depose = not expire and not self._keeps_controllers and broker.controller.is_active
        if may_depose and self.random.random() < self._odds.bad_moment:
            self._admins.delete_controller_znode()
        self._stalls += 1
        try:
            for _ in range(self.random.randrange(STALL_STEPS)):
                self._advance()
        finally:
            self._stalls -= 1
        self._note("  %d continues", broker.broker_id)

    # --- faults of processes ---

    def _pick(self, *, paused: bool | None = None) -> SimulatedBroker | None:
        brokers = [
            broker
            for broker_id, broker in sorted(self.cluster.brokers.items())
            if paused in (None, broker.is_paused) and broker_id not in self.cluster.in_call
        ]
        return self.random.choice(brokers) if brokers else None

    def _pick_a_victim(self, *, paused: bool | None = None) -> SimulatedBroker | None:
        broker = self._pick(paused=paused)
        is_active = broker is not None and broker.controller.is_active
        return None if is_active and self._keeps_controllers else broker

    def _damage_a_log(self) -> None:
        """Flip a bit, which is found soon or much later."""
        if self._kinds.is_on:
            return  # Kafka's brokers do not look for damage
        broker_id, topic = self._damage.flip_a_bit() or (-1, "")
        if broker_id in self.cluster.brokers and self.random.random() < self._odds.bad_moment:
            self.cluster.brokers[broker_id].verify_logs()
            for _ in range(self.random.randrange(MAX_STEPS_TO_FAULT)):
                self._step()
            self._delete_while_unreachable({topic})

    def _kill(self) -> None:
        broker = self._pick_a_victim()
        if broker is not None:
            self._note("kill %d", broker.broker_id)
            self._delete_while_unreachable({name.topic for name in broker.disk.hosted()})
            self._end(broker, loses_power=self.random.random() < self._odds.power_loss)

    def _let_controllers_act(self) -> None:
        """Let the controller handle all its events before anything else happens."""
        for controller in self.cluster.active_controllers:
            step = ("event", controller.broker_id)
            for _ in range(len(controller.inbox)):
                if step in self.cluster.steps():
                    self.cluster.take(step)

    def _lower_min_insync_replicas(self) -> None:
        """Sometimes let a leader commit what eligible replicas lack, and end it."""
        if self._is_calm or self._kinds.is_on or self._stalls or self.has_files:
            return

        def meanwhile() -> None:
            self.clients.act()
            self._step()

        leader = self._lowered.act(meanwhile)
        if leader is None or self._is_in_call(leader):
            return
        if not (self._keeps_controllers and leader.controller.is_active):
            self._note("kill %d, the leader", leader.broker_id)
            self._end(leader)
            self.cluster.expire(self._forgotten_sessions.pop())

    def _is_isr_answer_lost(self, request: AlterPartitionRequest) -> bool:
        """Whether a leader does not learn that its ISR is written; its members restart then."""
        if not self._faults_are_on or self._is_calm or self._kinds.is_on:
            return False
        if self._isr_dice.random() >= LOST_ISR_ANSWER_PROBABILITY:
            return False
        self._note("  %d loses the answer to its ISRs", request.broker_id)
        members = {m for row in request.partitions for m in row.new_isr} - {request.broker_id}
        self._restarting += sorted(members)
        return True

    def _restart_proposed_members(self) -> None:
        """Restart the proposed members of ISRs whose leaders do not know that they are written."""
        restarting, self._restarting = self._restarting, []
        for broker_id in restarting:
            broker = self.cluster.brokers.get(broker_id)
            if broker is None or self._is_in_call(broker):
                continue
            if not (self._keeps_controllers and broker.controller.is_active):
                self._bounce(broker)

    def _end_a_last_member(self) -> None:
        """Sometimes end the last in-sync replica while an eligible one has lost its log."""
        if self._is_calm or self._kinds.is_on or self._stalls:
            return
        active = self.cluster.active_controllers
        for broker_id in self._damage.last_members():
            broker = self.cluster.brokers.get(broker_id)
            dice = self._last_member_dice.random()
            if broker is None or (self._keeps_controllers and broker in active):
                continue
            if dice < LAST_MEMBER_PROBABILITY and not self._is_in_call(broker):
                self._note("kill %d, the last in-sync replica", broker_id)
                self._end(broker)
                self.cluster.expire(self._forgotten_sessions.pop())
                self._let_controllers_act()

    def _hide_logs_to_be_deleted(self) -> None:
        """Sometimes start a broker without a directory whose logs are to be deleted."""
        if (
            not self._hides_logs
            or self._kinds.is_on
            or self._hiding_dice.random() >= HIDING_PROBABILITY
        ):
            return
        active = self.cluster.active_controllers
        names = set(self.cluster.zookeeper.children_of(TopicsZNode.PATH))
        names -= set(self.cluster.zookeeper.children_of(DeleteTopicsZNode.PATH))
        names -= TRANSACTION_TOPICS if self._worlds.positions is None else APPLICATION_TOPICS
        victims = [
            (broker, topic)
            for _, broker in sorted(self.cluster.brokers.items())
            if broker not in active and not self._is_in_call(broker) and not broker.disk.has_failed
            for topic in sorted(names & {name.topic for name in broker.disk.fragile()})
        ]
        if victims:
            broker, topic = self._hiding_dice.choice(victims)
            self._note("%d starts without its logs of %s", broker.broker_id, topic)
            self._end(broker)
            self.cluster.expire(self._forgotten_sessions.pop())
            self.cluster.zookeeper.put(DeleteTopicsTopicZNode.path(topic))
            self._start_without_a_directory(broker.broker_id)

    def _restart_without_a_directory(self, broker_id: BrokerId) -> None:
        """Let a broker end and start again, and the controller know of it."""
        broker = self.cluster.brokers[broker_id]
        is_off = not self._faults_are_on or self._kinds.is_on or self._is_in_call(broker)
        if is_off or broker.disk.has_failed or broker in self.cluster.active_controllers:
            return
        self._note("%d starts again without a directory", broker_id)
        self._end(broker)
        self.cluster.expire(self._forgotten_sessions.pop())
        self._start_without_a_directory(broker_id)

    def _start_without_a_directory(self, broker_id: BrokerId) -> None:
        self.cluster.disks[broker_id] = self.cluster.disks[broker_id].start_broken()
        self._ports[broker_id] = self.cluster.start(broker_id).port
        self.cluster.run_for(SETTLED_MS)

    def _cut_the_power(self) -> None:
        """Cut the power of all machines at once, or of all but one; some restart at once."""
        powered = self._pick() if self.random.random() < 0.5 else None
        failing = [
            broker
            for broker in self.cluster.brokers.values()
            if broker is not powered and not self._is_in_call(broker)
            if not (self._keeps_controllers and broker.controller.is_active)
        ]
        for broker in failing:
            self._note("kill %d", broker.broker_id)
            self._end(broker, loses_power=True)
        for _ in failing:
            if self.random.random() < self._odds.quick_restart:
                self._expire_a_dead_session()
                self._start()

    def _bounce_a_broker(self) -> None:
        """Kill a broker and start it at once, while its packets are in flight."""
        victim = self._pick_a_victim()
        if victim is not None:
            self._bounce(victim)

    def _bounce_within_a_session(self, broker_id: BrokerId) -> None:
        """Cut the power of a machine and start it again before its session expires."""
        broker = self.cluster.brokers.get(broker_id)
        if broker is None or self._is_calm or self._is_in_call(broker):
            return
        if not (self._keeps_controllers and broker.controller.is_active):
            self._bounce(broker, power_loss=1.0)

    def _bounce(self, broker: SimulatedBroker, power_loss: float | None = None) -> None:
        self._hold(broker)
        self._note("bounce %d", broker.broker_id)
        probability = self._odds.power_loss if power_loss is None else power_loss
        self._end(broker, loses_power=self.random.random() < probability)
        self.cluster.expire(self._forgotten_sessions.pop())
        started = self._boot(broker.broker_id)
        self._ports[broker.broker_id] = started.port
        if self.random.random() < self._odds.quick_restart:
            self._note("  it is back, and its earlier answers arrive")
            for number in self.cluster.network.answers_of(broker.control_endpoint):
                self.cluster.network.deliver(number)
            self.cluster.take(("event", broker.broker_id))

    def _bounce_a_successor(self) -> None:
        """Kill a new leader before the former one may stop, if that is soon."""
        for _ in range(MAX_STEPS_TO_FAULT):
            self._step()
            awaited = self._awaited()
            if awaited:
                self._bounce(self.random.choice(awaited))
                return

    def _awaited(self) -> list[SimulatedBroker]:
        """Return the new leaders that a controlled shutdown waits for, if they may be killed."""
        owed = [
            e
            for controller in self.cluster.active_controllers
            for e in controller.unanswered.values()
        ]
        leaving = [e.request for e in owed if isinstance(e.request, ControlledShutdownRequest)]
        history = self.invariants.history
        ids = {
            leader
            for request in leaving
            for _, (leader, _, _) in history.successors(request.broker_id)
        }
        successors = [self.cluster.brokers[i] for i in sorted(ids & self.cluster.brokers.keys())]
        is_kept = self._keeps_controllers
        return [
            broker
            for broker in successors
            if not self._is_in_call(broker) and not (is_kept and broker.controller.is_active)
        ]

    def _is_in_call(self, broker: SimulatedBroker) -> bool:
        return broker.broker_id in self.cluster.in_call

    def _end(self, broker: SimulatedBroker, *, loses_power: bool = False) -> None:
        self._forgotten_sessions.append(broker.session.session_id)
        if loses_power:
            self._note("  and its machine")
        lost_batches = (lambda: self.random.randrange(3)) if loses_power else None
        self.cluster.kill(broker.broker_id, lost_batches=lost_batches)

    def _start(self) -> None:
        missing = [b for b in range(BROKERS) if b not in self.cluster.brokers]
        if missing:
            broker_id = self.random.choice(missing)
            is_same = self.random.random() < self._odds.same_port
            port = self._ports[broker_id] if is_same else None
            self._ports[broker_id] = self._boot(broker_id, port=port).port
            self._note("start %d on port %d", broker_id, self._ports[broker_id])

    def _pause(self) -> None:
        broker = self._pick(paused=False)
        if broker is not None:
            self._note("pause %d", broker.broker_id)
            broker.is_paused = True

    def _resume(self) -> None:
        broker = self._pick(paused=True)
        if broker is not None:
            self._note("resume %d", broker.broker_id)
            broker.is_paused = False

    def _expire_a_session(self) -> None:
        broker = self._pick_a_victim()
        if broker is not None:
            self._note("expire the session of %d", broker.broker_id)
            self.cluster.expire(broker.session.session_id)

    def _expire_a_dead_session(self) -> None:
        if self._forgotten_sessions:
            session_id = self._forgotten_sessions.pop(0)
            self._note("expire dead session %d", session_id)
            self.cluster.expire(session_id)

    def _cut_and_restore_a_connection(self) -> None:
        broker = self._pick()
        if broker is None:
            return
        self._note("cut and restore the connection of %d", broker.broker_id)
        session_id = broker.session.session_id
        self.cluster.zookeeper.disconnect(session_id)
        broker.is_paused, was_paused = True, broker.is_paused
        for _ in range(self.random.randrange(10)):
            self._step()
        broker.is_paused = was_paused
        self.cluster.zookeeper.reconnect(session_id)

    def _let_time_pass(self) -> None:
        self._note("let time pass")
        self.cluster.time.advance(self.random.randrange(1_000, 8_000))

    def _set_a_clock(self) -> None:
        """Let a wall clock jump, as after a typing error; monotonic clocks do not jump."""
        disk = self.cluster.disks[self.random.randrange(BROKERS)]
        disk.wall_clock_ahead_ms = self.random.randrange(-MAX_JUMP_MS, MAX_JUMP_MS)
        self._note("the clock of %d is %d ms ahead", disk.broker_id, disk.wall_clock_ahead_ms)

    def _shut_down(self) -> None:
        broker = self._pick_a_victim(paused=False)
        if broker is not None and not broker.is_leaving:
            self._note("%d asks to shut down", broker.broker_id)
            broker.shut_down()
            if self.random.random() < self._odds.bad_moment and not self._is_calm:
                self._bounce_a_successor()

    def _ask_for_a_shutdown_and_stay(self) -> None:
        """Request a controlled shutdown without stopping: later the broker is used again."""
        broker = self._pick(paused=False)
        controller = None if broker is None else broker.cache.snapshot.controller
        if broker is not None and controller is not None and broker.broker_epoch >= 0:
            self._note("%d asks to shut down and stays", broker.broker_id)
            broker.ask_to_leave_and_stay()

    def _back_off(self) -> None:
        active = self.cluster.active_controllers
        if active and self.random.random() < 0.2:
            self._note("%d backs off", active[0].broker_id)
            active[0].tell(events.Resign("simulated"))

    def _fail_a_log_directory(self) -> None:
        broker = self._pick_a_victim(paused=False)
        if broker is not None and not broker.disk.has_failed:
            self._fail_a_log_directory_of(broker)

    def _fail_a_log_directory_of(self, broker: SimulatedBroker) -> None:
        self._note("a log directory of %d fails", broker.broker_id)
        broker.notice_failed_directory(self.random.randrange(2))

    def _note(self, template: str, *args: object) -> None:
        if len(self.history) == self.stop_at:
            breakpoint()
        self.history.append(f"{self.cluster.now_ms:6d} {template % args}")


def _deletes(request: RequestBody) -> bool:
    return isinstance(request, StopReplicaRequest) and any(
        stop.delete_partition for _, stop in request.partitions()
    )
