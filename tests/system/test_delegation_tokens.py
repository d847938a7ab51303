"""Delegation tokens in a cluster: a listener without login has none, the controller cleans up."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from kazoo.exceptions import NoAuthError

from regent.config.private_files import write_private
from regent.testing import RegentCluster
from regent.testing.waits import eventually
from regent.zk.stores.delegation_token_store import ZkDelegationTokenStore
from tests.support.token_world import TOKENS, a_token
from tests.system.test_zookeeper_login import run, stranger

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

SECRET = "a secret of all brokers"


def test_expired_tokens_are_deleted_and_nobody_gets_one_without_a_login(
    tmp_path: Path,
) -> None:
    write_private(tmp_path / "secret", SECRET)
    (tmp_path / "cluster.toml").write_text(
        f"""
        [delegation_tokens]
        delegation_token_secret_key_file = "{tmp_path / "secret"}"
        delegation_token_expiry_check_interval_ms = 100
        """
    )
    options = (
        *("--brokers", "2", "--no-placement-service", "--no-internal-topics"),
        *("--config", str(tmp_path / "cluster.toml")),
    )
    with RegentCluster(tmp_path / "data", *options) as cluster:
        now_ms = time.time_ns() // 1_000_000
        store = ZkDelegationTokenStore(cluster.zookeeper)
        day_ms = 86_400_000
        store.create_token(a_token("valid", expiry_ms=now_ms + day_ms, max_ms=now_ms + day_ms))
        store.create_token(a_token("expired", expiry_ms=now_ms - 1, max_ms=now_ms + day_ms))
        eventually(lambda: list(store.read_token_ids()) == ["valid"], "the token is deleted")
        assert [c.token_id for c in store.read_changes()] == ["valid", "expired", "expired"]
        with stranger(cluster.description["zookeeper"]) as client, pytest.raises(NoAuthError):
            client.get(f"{TOKENS}/valid")
        refused = run("tokens", "describe", "--data-dir", tmp_path / "data")
        assert refused.returncode == 1
        assert "the broker does not know who asks" in refused.stderr
        for log in (tmp_path / "data").rglob("*.log"):
            assert SECRET not in log.read_text(errors="replace")
