"""A topic that was deleted by mistake comes back with its records, from a shell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count

import pytest
from click.testing import CliRunner, Result

from regent.cli.main import cli
from regent.cli.remote_actors import actor_at, controller_of
from regent.client.undeletion import NotUndeletedError, undelete
from regent.testing.regent_cluster import RegentCluster, unique_topic
from regent.testing.waits import eventually
from regent.transport.control.remote_ref import RemoteActorRef
from regent.zk.stores.admin_store import ZkAdminStore

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

PARTITIONS = 4
RECORDS = 200


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegentCluster]:
    """Three brokers that are started again when they end."""
    directory = tmp_path_factory.mktemp("undelete")
    with RegentCluster(directory, "--no-placement-service", "--restart") as cluster:
        yield cluster


def run(cluster: RegentCluster, *arguments: str, stdin: bytes = b"", exit_code: int = 0) -> Result:
    where = ("--data-dir", str(cluster.data_dir))
    result = CliRunner().invoke(cli, [*arguments, *where], input=stdin)
    assert result.exit_code == exit_code, result.output
    return result


def values(cluster: RegentCluster, topic: str) -> list[int]:
    lines = run(cluster, "consume", topic, "-o", "json", "--from-beginning").stdout.splitlines()
    return sorted(int(json.loads(line)["value"]) for line in lines)


def produce(cluster: RegentCluster, topic: str, numbers: range) -> None:
    """Write records; the command waits until all replicas in sync have them."""
    run(cluster, "produce", topic, stdin=b"".join(b"%d\n" % number for number in numbers))


def described(cluster: RegentCluster, topic: str) -> dict[str, object]:
    stored = cluster.zookeeper.get(f"/brokers/topics/{topic}")
    assert stored is not None
    config = run(cluster, "topics", "config", topic, "-o", "json").stdout
    return {"topic": json.loads(stored.data), "config": json.loads(config)}


@pytest.mark.parametrize("between", ["nothing", "the controller dies", "another broker restarts"])
def test_all_acknowledged_records_are_there_again(cluster: RegentCluster, between: str) -> None:
    topic = unique_topic("mistake")
    cluster.create_topic(topic, PARTITIONS, 3, {"retention.ms": "-1"})
    produce(cluster, topic, range(RECORDS))
    before = described(cluster, topic)

    run(cluster, "topics", "delete", topic, "--wait")
    assert topic in [row["topic"] for row in listed(cluster)]
    controller = cluster.await_controller()
    if between == "the controller dies":
        cluster.kill(controller)
        eventually(lambda: cluster.controller() not in (None, controller), "another is elected")
    elif between == "another broker restarts":
        cluster.restart((controller + 1) % 3)

    result = run(cluster, "topics", "undelete", topic)
    assert result.stdout == f"Topic {topic} is back ({PARTITIONS} partitions).\n"
    assert described(cluster, topic) == before
    assert values(cluster, topic) == list(range(RECORDS))
    assert topic not in [row["topic"] for row in listed(cluster)]
    cluster.await_isr(topic, {0, 1, 2})
    produce(cluster, topic, range(RECORDS, 2 * RECORDS))
    assert values(cluster, topic) == list(range(2 * RECORDS))


def test_brokers_that_are_killed_when_they_were_asked_have_the_records_of_their_topic(
    cluster: RegentCluster,
) -> None:
    topic, brokers = unique_topic("killed"), count()
    cluster.create_topic(topic, PARTITIONS, 3)
    produce(cluster, topic, range(RECORDS))
    run(cluster, "topics", "delete", topic, "--wait")

    @contextmanager
    def until_killed(endpoint: str) -> Iterator[RemoteActorRef]:
        with actor_at(endpoint) as actor:
            yield actor
        cluster.kill(next(brokers))

    admin = ZkAdminStore(cluster.zookeeper)
    with controller_of(admin) as controller, suppress(NotUndeletedError):
        undelete(admin, controller, until_killed, topic, timeout_s=30.0)
    assert next(brokers) == 3
    if topic in [row["topic"] for row in listed(cluster)]:  # no answer counted, as a rule
        cluster.await_ready()
        run(cluster, "topics", "undelete", topic)
    cluster.await_isr(topic, {0, 1, 2})
    assert values(cluster, topic) == list(range(RECORDS))


def listed(cluster: RegentCluster) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(
        run(cluster, "topics", "undelete", "-o", "json").stdout
    )
    return found


def test_a_topic_comes_back_after_a_client_has_created_its_name_again(
    cluster: RegentCluster,
) -> None:
    topic = unique_topic("taken")
    cluster.create_topic(topic)
    produce(cluster, topic, range(3))
    run(cluster, "topics", "delete", topic, "--wait")
    first = next(row["topic_id"] for row in listed(cluster) if row["topic"] == topic)
    cluster.create_topic(topic)
    error = run(cluster, "topics", "undelete", topic, exit_code=1).stderr
    assert "exists: delete it before" in error
    assert values(cluster, topic) == []
    run(cluster, "topics", "delete", topic, "--wait")
    run(cluster, "topics", "undelete", topic, "--topic-id", str(first))
    assert values(cluster, topic) == [0, 1, 2]
