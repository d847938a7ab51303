"""v1, v2 and our own brokers in real processes, over a real ZooKeeper."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from regent.core.model import BrokerId, TopicPartition
from regent.designs.design_process import DESIGNS
from regent.designs.mail import AppendRecords, Peer
from regent.designs.measuring.comparison import CLUSTERS, Failure, measure_cluster
from regent.designs.measuring.earlier_cluster import EarlierCluster
from regent.designs.measuring.measured_cluster import TOPIC
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually, pause_process, scaled
from tests.support.kafka_questions import KafkaQuestions

pytestmark = [pytest.mark.nightly, pytest.mark.system]

PARTITIONS = 6
WATCHES_OF_A_PARTITION = {"v1-name": 6, "v1-sequential": 5, "v2": 3}
SHORT_SESSION_MS = 3_000
TIMEOUT_S = 60.0
FIRST = TopicPartition(TOPIC, 0)


def failure_of(design: str, folder: Path) -> dict[str, float]:
    """Let the leader of a partition die in a small cluster; return what was measured."""
    failure = Failure(3, PARTITIONS, 1, design == "v3-controller")
    with closing(CLUSTERS[design](folder, 3)) as cluster:
        found = measure_cluster(cluster, failure, rest_s=0.5)
    assert 0 < found["ms until led"] <= found["ms until known to all"]
    return dict(found)


@pytest.mark.parametrize("design", DESIGNS)
def test_replicas_have_watches_and_others_lead_after_kill_9(design: str, tmp_path: Path):
    found = failure_of(design, tmp_path)
    assert found["watches at rest"] >= WATCHES_OF_A_PARTITION[design] * PARTITIONS
    assert found["listeners called"] > 2 * found["partitions that the dead led"] > 0
    assert found["requests between brokers"] == 0


def test_in_v3_a_failure_costs_what_the_controller_writes_and_what_its_watches_tell(
    tmp_path: Path,
):
    found = failure_of("v3", tmp_path)
    assert found["watches at rest"] == 20
    assert found["watches fired"] == 2  # the children of /brokers/ids, and the broker's own
    assert found["znodes written"] >= PARTITIONS + 1  # the dead broker was in every ISR
    assert found["requests between brokers"] >= 4  # LeaderAndIsr and UpdateMetadata for each


def test_in_v3_the_next_controller_reads_what_the_former_one_knew(tmp_path: Path):
    assert failure_of("v3-controller", tmp_path)["znodes read"] > 2 * PARTITIONS


# --- a leader that is stopped until another one leads ---------------------------------------------


@contextmanager
def held(*pids: int) -> Iterator[None]:
    """Let processes stand still for the block."""
    with ExitStack() as stack:
        for pid in pids:
            pause_process(pid)
            stack.callback(os.kill, pid, signal.SIGCONT)
        yield


@pytest.mark.parametrize(
    ("design", "acknowledges"), [("v1-name", True), ("v2", False)], ids=["v1-name", "v2"]
)
def test_a_former_leader_believes_that_it_leads_and_in_v1_it_acknowledges(
    design: str, acknowledges: bool, tmp_path: Path
):
    """A record waits in the socket of the stopped leader: nobody else can have that one.

    When it continues, ZooKeeper stands still, and cannot tell that the session is over until the
    leader asks to remove the followers from the ISR.
    """
    with closing(EarlierCluster(design, tmp_path, 3, SHORT_SESSION_MS)) as cluster:
        cluster.create_partitions(1)
        former = cluster.leaders()[0]
        others = [broker_id for broker_id in cluster.brokers if broker_id != former]
        producer, writes = Peer(cluster.peers[former].endpoint), cluster.describe(former).writes
        with ExitStack() as zookeeper_held:
            with held(cluster.pid(former)):
                producer.send(AppendRecords(FIRST, ("a record",)), scaled(TIMEOUT_S))
                eventually(
                    lambda: all(not cluster.describe(b, [former]).without_leader for b in others),
                    "the others know another leader",
                )
                zookeeper_held.enter_context(held(cluster.zookeeper.pid))
            leading = [b for b in cluster.brokers if cluster.describe(b).leads == (0,)]
            assert former in leading
            assert len(leading) == 2
            eventually(
                lambda: cluster.describe(former).writes > writes, "the former leader writes the ISR"
            )
        assert producer.receive() == acknowledges
        producer.close()


def test_in_v3_a_stopped_leader_says_that_it_leads_but_acknowledges_nothing(tmp_path: Path):
    """The followers stand still while the leader gets a record, so that it waits for them.

    Then the leader stands still until another one says that it leads. Kafka clients ask it whether
    it leads, and send another record, which waits in its socket. The others stand still again until
    it has answered, so that nobody can tell it of the new leader before. They may have got the
    first record in the answer to a fetch that waited: then it may be acknowledged.
    """
    options = ("--no-placement-service", "--no-internal-topics")
    with RegentCluster(tmp_path, *options) as cluster, ExitStack() as stack:
        cluster.create_topic(TOPIC)
        former = cluster.await_leader(TOPIC)
        others = [cluster.pid(broker_id) for broker_id in cluster.brokers if broker_id != former]
        producer = stack.enter_context(client_of(cluster, former))
        former_held = stack.enter_context(ExitStack())
        with held(*others):
            producer.produce()
            eventually(lambda: log_end_offset(cluster, former) == 1, "a record has come")
            former_held.enter_context(held(cluster.pid(former)))
        leader = cluster.await_leader(TOPIC, other_than=former)
        eventually(lambda: says_that_it_leads(cluster, leader), "the new leader says that it leads")
        kept = log_end_offset(cluster, leader)
        asker = stack.enter_context(client_of(cluster, former))
        asker.ask_whether_it_leads()
        producer.produce()
        with held(*others):
            former_held.close()
            assert asker.is_answered_without_error()
        assert producer.is_answered_without_error() <= (kept == 1)
        assert not producer.is_answered_without_error()


def client_of(cluster: RegentCluster, broker_id: BrokerId) -> closing[KafkaQuestions]:
    host, _, port = cluster.bootstrap_server(broker_id).partition(":")
    return closing(KafkaQuestions(host, int(port), TOPIC))


def says_that_it_leads(cluster: RegentCluster, broker_id: BrokerId) -> bool:
    """A new leader does not until it knows how much of its log is committed (KIP-207)."""
    with client_of(cluster, broker_id) as client:
        client.ask_whether_it_leads()
        return client.is_answered_without_error()


def log_end_offset(cluster: RegentCluster, broker_id: BrokerId) -> float:
    metrics = cluster.metrics(broker_id)
    return metrics[f'kafka_log_log_logendoffset{{topic="{TOPIC}",partition="0"}}']
