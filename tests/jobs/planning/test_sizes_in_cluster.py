"""A broker that does not describe its log directories is named."""

import pytest

from regent.core.errors import RegentError
from regent.jobs.planning.partition_sizes import sizes_in_cluster
from regent.zk.stores.admin_store import ZkAdminStore
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_zookeeper import FakeZooKeeper


def test_a_broker_that_does_not_answer_is_named():
    cluster = FakeCluster()
    cluster.add_broker(5, port=1)
    with pytest.raises(RegentError, match=r"--sizes: broker 5 does not describe .*refused"):
        sizes_in_cluster(ZkAdminStore(FakeZooKeeper(cluster.zookeeper)))
    cluster.close()
