"""The secure cluster on three machines of docs/security.md: its commands, in network namespaces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from regent.testing.waits import eventually, scaled
from tests.support.secure_machines import (
    PASSWORD,
    TIMEOUT_S,
    Machines,
    consumed,
    produced,
    secure_machines,
)

pytestmark = [pytest.mark.nightly, pytest.mark.system, pytest.mark.zookeeper]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with secure_machines(tmp_path) as made:
        yield made


def test_the_commands_of_the_page_make_a_secure_cluster(machines: Machines) -> None:
    assert "0 problems, 3 warnings" in machines.set_up()
    admin = machines.settings("admin", PASSWORD)
    client = AdminClient(admin)
    client.create_topics([NewTopic("orders", 3, 3)])["orders"].result(TIMEOUT_S)
    values = [str(number) for number in range(20)]
    assert produced(admin, values) == []
    assert consumed(admin, "one", 20) == sorted(values)
    where = f"--bootstrap-server {machines.first.name}:9092 --command-config admin.properties"
    events = machines.on_first(f"regent events {where} --keys broker-0/keys --broker 0")
    assert "broker started" in events
    machines.kill_broker(1)
    assert produced(admin, ["after"]) == []
    assert consumed(admin, "two", 21) == sorted([*values, "after"])

    users, acls = machines.of_clients.strip().splitlines()
    (machines.first / "alice.password").write_text("of alice")
    (machines.first / "alice.password").chmod(0o600)
    machines.on_first(f"{users} --password-file alice.password")
    alice = machines.settings("alice", "of alice")

    def is_denied() -> bool:
        return produced(alice, ["no"]) == ["TOPIC_AUTHORIZATION_FAILED"]

    eventually(is_denied, "alice can log in and may not write", TIMEOUT_S)
    machines.on_first(acls)
    eventually(lambda: produced(alice, ["yes"]) == [], "alice may write", TIMEOUT_S)
    stranger = AdminClient(machines.settings("admin", "wrong"))
    with pytest.raises(KafkaException, match=r"_TRANSPORT|_AUTHENTICATION"):
        stranger.list_topics(timeout=scaled(5.0))
