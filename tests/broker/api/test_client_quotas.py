"""The APIs of quotas and of the credentials of users."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    AlterUserScramCredentialsRequest,
    DescribeClientQuotasRequest,
    DescribeUserScramCredentialsRequest,
)

from regent.broker.api.client_quotas import client_quota_apis
from regent.broker.api.scram_credentials import scram_credential_apis
from regent.core.errors import Errors, SessionExpiredError
from regent.core.security.scram import ScramMechanism, credential_of, parsed_credential
from regent.transport.kafka.api import KafkaApi
from regent.zk.client.operations import ConnectionLossError
from regent.zk.stores.config_store import ZkConfigStore
from regent.zk.znodes import PERSISTENT_PATHS, ConfigEntityZNode
from tests.support.fake_zookeeper import Call, FakeZooKeeper, FakeZooKeeperServer, Moment
from tests.transport.kafka.wire import ask

VERSIONS = (0, 1)
CREDENTIAL = "salt=c2FsdA==,stored_key=eA==,server_key=eQ==,iterations=4096"
SALTED = bytes(range(32))
OK = "NONE", None
Names = Sequence[tuple[str, str | None]]
Operations = Sequence[tuple[str, float, bool]]


class Broker:
    """The APIs of a broker over a fake ZooKeeper."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self.server = FakeZooKeeperServer()
        for path in PERSISTENT_PATHS:
            self.server.put(path)
        self.zookeeper = FakeZooKeeper(self.server)
        configs = ZkConfigStore(self.zookeeper)
        change = ZkConfigStore(self.zookeeper).change_config
        self._apis: Sequence[KafkaApi] = [
            *client_quota_apis(configs.read_client_quotas, change, executor),
            *scram_credential_apis(
                configs.read_configs, configs.read_client_quotas, change, executor
            ),
        ]

    def put(self, path: str, config: dict[str, str]) -> None:
        self.server.put(f"/config/{path}", ConfigEntityZNode.encode(config))

    def config(self, path: str) -> Any:
        return json.loads(self.server.snapshot()[f"/config/{path}"].data)["config"]

    def alter(
        self, *entries: tuple[Names, Operations], validate_only: bool = False, version: int = 1
    ) -> list[tuple[Any, Errors, str | None]]:
        entry = AlterClientQuotasRequest.EntryData
        request = AlterClientQuotasRequest(
            entries=[
                entry(
                    entity=[entry.EntityData(entity_type=t, entity_name=n) for t, n in names],
                    ops=[entry.OpData(key=k, value=v, remove=r) for k, v, r in operations],
                )
                for names, operations in entries
            ],
            validate_only=validate_only,
        )
        return [
            (
                [(part.entity_type, part.entity_name) for part in row.entity],
                Errors(row.error_code),
                row.error_message,
            )
            for row in ask(self._apis, request, version).entries
        ]

    def describe(
        self, *filters: tuple[str, int, str | None], strict: bool = False, version: int = 1
    ) -> Any:
        component = DescribeClientQuotasRequest.ComponentData
        components = [component(entity_type=t, match_type=m, match=n) for t, m, n in filters]
        request = DescribeClientQuotasRequest(components=components, strict=strict)
        return ask(self._apis, request, version)

    def alter_credentials(
        self, *rows: tuple[str, int] | tuple[str, int, int], salted: bytes = SALTED
    ) -> list[tuple[str, str, str | None]]:
        """Remove credentials ``(user, mechanism)``, and set those with iterations."""
        request = AlterUserScramCredentialsRequest
        asked = request(
            deletions=[
                request.ScramCredentialDeletion(name=row[0], mechanism=row[1])
                for row in rows
                if len(row) == 2
            ],
            upsertions=[
                request.ScramCredentialUpsertion(
                    name=row[0],
                    mechanism=row[1],
                    iterations=row[2],
                    salt=b"salt",
                    salted_password=salted,
                )
                for row in rows
                if len(row) == 3
            ],
        )
        return [
            (row.user, Errors(row.error_code).name, row.error_message)
            for row in ask(self._apis, asked, 0).results
        ]

    def credentials(self, *users: str) -> dict[str, Any]:
        rows = [DescribeUserScramCredentialsRequest.UserName(name=user) for user in users]
        answer = ask(self._apis, DescribeUserScramCredentialsRequest(users=rows or None), 0)
        assert answer.error_code == 0
        return {
            row.user: Errors(row.error_code).name
            if row.error_code
            else [(info.mechanism, info.iterations) for info in row.credential_infos]
            for row in answer.results
        }


@pytest.fixture
def broker() -> Iterator[Broker]:
    with ThreadPoolExecutor(1) as executor:
        yield Broker(executor)


def quotas(answer: Any) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_quotas_are_set_described_and_removed(broker: Broker, version: int):
    pair: Names = [("user", "CN=a b"), ("client-id", None)]
    outcomes = broker.alter(
        (pair, [("producer_byte_rate", 1024.0, False), ("request_percentage", 12.5, False)]),
        ([("ip", "127.0.0.1")], [("connection_creation_rate", 3.0, False)]),
        version=version,
    )
    assert outcomes == [(pair, Errors.NONE, None), ([("ip", "127.0.0.1")], Errors.NONE, None)]
    path = "users/CN%3Da%20b/clients/<default>"
    assert broker.config(path) == {"producer_byte_rate": "1024", "request_percentage": "12.5"}
    assert quotas(broker.describe(version=version)) == {
        tuple(pair): {"producer_byte_rate": 1024.0, "request_percentage": 12.5},
        (("ip", "127.0.0.1"),): {"connection_creation_rate": 3.0},
    }
    broker.alter((pair, [("producer_byte_rate", 0.0, True)]), version=version)
    assert broker.config(path) == {"request_percentage": "12.5"}


def test_an_error_of_one_entity_does_not_affect_others(broker: Broker):
    rate: Operations = [("producer_byte_rate", 5.0, False)]
    outcomes = broker.alter(([("user", "")], rate), ([("user", "u")], rate))
    assert [(error, message) for _, error, message in outcomes] == [
        (Errors.INVALID_REQUEST, "the user of a quota must not be empty"),
        (Errors.NONE, None),
    ]
    assert broker.config("users/u") == {"producer_byte_rate": "5"}


def test_credentials_of_a_user_are_kept(broker: Broker):
    broker.put("users/u", {"SCRAM-SHA-256": CREDENTIAL})
    broker.alter(([("user", "u")], [("producer_byte_rate", 5.0, False)]))
    assert broker.config("users/u") == {"SCRAM-SHA-256": CREDENTIAL, "producer_byte_rate": "5"}


def test_validation_writes_nothing(broker: Broker):
    before = broker.server.snapshot()
    rate: Operations = [("producer_byte_rate", 5.0, False)]
    (outcome,) = broker.alter(([("user", "u")], rate), validate_only=True)
    assert outcome[1] is Errors.NONE
    assert broker.server.snapshot() == before


def test_an_impossible_filter_has_no_entries(broker: Broker):
    answer = broker.describe(("group", 2, None))
    assert (answer.error_code, answer.entries) == (Errors.UNSUPPORTED_VERSION, None)
    assert answer.error_message.startswith("there are no quotas of 'group'")


def test_a_session_that_ends_is_a_timeout(broker: Broker):
    def expire(call: Call) -> None:
        raise SessionExpiredError("the session ended")

    broker.zookeeper.hook = expire
    (outcome,) = broker.alter(([("user", "u")], [("producer_byte_rate", 5.0, False)]))
    assert outcome[1:] == (Errors.REQUEST_TIMED_OUT, "the session ended")
    assert broker.describe().error_code == Errors.REQUEST_TIMED_OUT


def test_credentials_are_described_without_their_secrets(broker: Broker):
    broker.put("users/u", {"SCRAM-SHA-256": CREDENTIAL, "producer_byte_rate": "5"})
    broker.put("users/a%20b", {"SCRAM-SHA-512": CREDENTIAL, "SCRAM-SHA-256": CREDENTIAL})
    broker.put("users/none", {"producer_byte_rate": "5"})
    broker.put("users/odd", {"SCRAM-SHA-256": "iterations=many"})
    known = {"a b": [(1, 4096), (2, 4096)], "odd": "UNKNOWN_SERVER_ERROR", "u": [(1, 4096)]}
    assert broker.credentials() == known
    assert broker.credentials("u", "none", "nobody", "u2", "", "u2") == {
        "u": [(1, 4096)],
        "none": "RESOURCE_NOT_FOUND",
        "nobody": "RESOURCE_NOT_FOUND",
        "u2": "DUPLICATE_RESOURCE",
        "": "RESOURCE_NOT_FOUND",
    }


# --- credentials are altered ----------------------------------------------------------------------


def test_a_credential_is_derived_from_the_salted_password(broker: Broker):
    broker.put("users/a%20b", {"producer_byte_rate": "5"})
    assert broker.alter_credentials(("a b", 1, 4096)) == [("a b", *OK)]
    config = broker.config("users/a%20b")
    mechanism = ScramMechanism.SCRAM_SHA_256
    credential = credential_of(mechanism, SALTED, b"salt", 4096)
    assert config == {"producer_byte_rate": "5", "SCRAM-SHA-256": credential.text}
    assert parsed_credential(mechanism, config["SCRAM-SHA-256"]) == credential
    changes = [n.data for p, n in broker.server.snapshot().items() if "config_change_" in p]
    assert [json.loads(data) for data in changes] == [{"version": 2, "entity_path": "users/a%20b"}]


def test_credentials_are_set_and_removed_together(broker: Broker):
    broker.alter_credentials(("u", 1, 4096))
    assert broker.alter_credentials(("u", 1), ("u", 2, 16384), ("v", 1, 8192)) == [
        ("u", *OK),
        ("v", *OK),
    ]
    assert broker.credentials() == {"u": [(2, 16384)], "v": [(1, 8192)]}


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([("", 1, 4096)], "UNACCEPTABLE_CREDENTIAL", "Username must not be empty"),
        ([("", 1)], "UNACCEPTABLE_CREDENTIAL", "Username must not be empty"),
        ([("u", 0, 4096)], "UNSUPPORTED_SASL_MECHANISM", "Unknown SCRAM mechanism"),
        ([("u", 3)], "UNSUPPORTED_SASL_MECHANISM", "Unknown SCRAM mechanism"),
        ([("u", 1, 4095)], "UNACCEPTABLE_CREDENTIAL", "Too few iterations"),
        ([("u", 2, 16385)], "UNACCEPTABLE_CREDENTIAL", "Too many iterations"),
        ([("u", 1, 4096), ("u", 1)], "DUPLICATE_RESOURCE", "altered twice"),
        ([("u", 1, 4096), ("u", 1, 4097)], "DUPLICATE_RESOURCE", "altered twice"),
        ([("u", 1)], "RESOURCE_NOT_FOUND", "does not exist"),
        ([("u", 1), ("u", 2, 4096)], "RESOURCE_NOT_FOUND", "does not exist"),
    ],
)
def test_an_error_fails_all_changes_of_its_user_and_of_no_other(
    broker: Broker, rows: list[Any], error: str, message: str
):
    outcomes = {
        user: (code, text) for user, code, text in broker.alter_credentials(*rows, ("v", 1, 4096))
    }
    code, text = outcomes[rows[0][0]]
    assert (code, message in (text or "")) == (error, True)
    assert outcomes["v"] == OK
    assert broker.credentials() == {"v": [(1, 4096)]}


def test_an_empty_salted_password_is_refused(broker: Broker):
    ((_, error, _),) = broker.alter_credentials(("u", 1, 4096), salted=b"")
    assert error == "UNACCEPTABLE_CREDENTIAL"


def test_a_removal_whose_answer_is_lost_succeeds(broker: Broker):
    broker.alter_credentials(("u", 1, 4096))

    def lose(call: Call) -> None:
        if call.moment is Moment.AFTER and call.method == "multi":
            broker.zookeeper.hook = None
            raise ConnectionLossError

    broker.zookeeper.hook = lose
    assert broker.alter_credentials(("u", 1)) == [("u", *OK)]
    assert broker.credentials() == {}
