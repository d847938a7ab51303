"""Znodes of brokers and of the controller are changed by hand, and a guardian dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from confluent_kafka import Producer

from regent.core.model import NO_CONTROLLER_EPOCH_LEFT, BrokerId
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually, scaled
from regent.zk.client.operations import ANY_VERSION, Delete, Operation, SetData
from tests.support.guardians import guardian_of

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

BROKERS = {0, 1, 2}
LONG_SESSION_MS = 60_000  # what happens sooner is not caused by a session timeout
EPOCH = "/controller_epoch"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegentCluster]:
    with RegentCluster(
        tmp_path_factory.mktemp("cluster"),
        "--no-placement-service",
        "--session-timeout-ms",
        str(LONG_SESSION_MS),
    ) as cluster:
        cluster.create_topic("payments", 6)
        cluster.await_isr("payments", BROKERS)
        yield cluster


def await_greater(look: Callable[[], int | None], than: int) -> None:
    eventually(lambda: (look() or 0) > than, f"it is greater than {than}")


def write(cluster: RegentCluster, *operations: Operation) -> None:
    cluster.zookeeper.multi(operations)


def move_the_controller(cluster: RegentCluster, *before: Operation) -> None:
    write(cluster, *before, Delete("/controller", ANY_VERSION))


def assert_controller_accepted(cluster: RegentCluster, topic: str) -> None:
    """Check that all brokers accept the controller's requests: a new topic has leaders."""
    cluster.create_topic(topic, 3)
    cluster.await_isr(topic, BROKERS)
    cluster.await_agreement(sorted(BROKERS), topic)


def produce(cluster: RegentCluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    for number in range(30):
        producer.produce("payments", b"%d" % number)
    assert producer.flush(scaled(30)) == 0


@pytest.mark.nightly
def test_a_registration_deleted_by_hand_is_made_again_at_once(cluster: RegentCluster) -> None:
    for broker_id in sorted(BROKERS):
        before = cluster.broker_epoch(broker_id)
        assert before is not None
        write(cluster, Delete(f"/brokers/ids/{broker_id}", ANY_VERSION))
        await_greater(partial(cluster.broker_epoch, broker_id), before)
        cluster.await_isr("payments", BROKERS)
    produce(cluster)
    cluster.await_agreement(sorted(BROKERS), "payments")


def test_a_registration_overwritten_by_hand_is_written_again_with_the_same_broker_epoch(
    cluster: RegentCluster,
) -> None:
    before = {broker_id: cluster.broker_epoch(broker_id) for broker_id in BROKERS}
    ids = [f"/brokers/ids/{broker_id}" for broker_id in sorted(BROKERS)]
    move_the_controller(cluster, *[SetData(path, b"garbage", ANY_VERSION) for path in ids])
    assert_controller_accepted(cluster, "after-they-were-overwritten")
    assert {broker_id: cluster.broker_epoch(broker_id) for broker_id in BROKERS} == before


@pytest.mark.parametrize("way", ["set back", "deleted", "overwritten"])
def test_a_changed_controller_epoch_is_repaired(cluster: RegentCluster, way: str) -> None:
    for _ in range(2):
        epoch = cluster.controller_epoch()
        move_the_controller(cluster)
        await_greater(cluster.controller_epoch, epoch)
    epoch = cluster.controller_epoch()
    cluster.await_agreement(sorted(BROKERS), "payments", epoch)  # all have seen it
    tampered: dict[str, Operation] = {
        "set back": SetData(EPOCH, b"1", ANY_VERSION),
        "deleted": Delete(EPOCH, ANY_VERSION),
        "overwritten": SetData(EPOCH, b"garbage", ANY_VERSION),
    }
    move_the_controller(cluster, tampered[way])
    await_greater(cluster.controller_epoch, epoch)
    assert_controller_accepted(cluster, f"after-it-was-{way.replace(' ', '-')}")


def test_no_controller_is_elected_after_the_highest_epoch_until_it_is_set_back(
    cluster: RegentCluster,
) -> None:
    epoch = cluster.controller_epoch()
    move_the_controller(cluster, SetData(EPOCH, b"2147483647", ANY_VERSION))
    logs = [cluster.data_dir / f"broker-{b}" / "broker.log" for b in BROKERS]
    remedy = NO_CONTROLLER_EPOCH_LEFT
    eventually(lambda: all(remedy in log.read_text() for log in logs), "all log the remedy")
    produce(cluster)
    assert cluster.controller() is None
    assert cluster.controller_epoch() == 2147483647
    assert all(log.read_text().count(remedy) == 1 for log in logs), "once a minute is enough"
    write(cluster, SetData(EPOCH, b"%d" % epoch, ANY_VERSION))
    eventually(lambda: cluster.controller_epoch() == epoch + 1, "a controller is elected")
    assert_controller_accepted(cluster, "after-the-highest")


def test_a_guardian_that_dies_is_replaced_and_its_successor_sees_a_crash_at_once(
    cluster: RegentCluster,
) -> None:
    broker_id: BrokerId = next(b for b in sorted(BROKERS) if b != cluster.controller())
    pid = cluster.pid(broker_id)
    former = guardian_of(pid)
    os.kill(former, signal.SIGKILL)
    eventually(lambda: guardian_of(pid) != former, "it is replaced")
    metrics = cluster.metrics(broker_id)
    assert metrics["regent_guardian_up"] == 1
    assert metrics["regent_guardian_replacements_total"] == 1
    cluster.signal(broker_id, signal.SIGKILL)
    eventually(lambda: cluster.broker_epoch(broker_id) is None, "its session is closed")
