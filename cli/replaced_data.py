"""Checks whether ZooKeeper has the data of the cluster that local brokers belong to."""

from __future__ import annotations

from pathlib import Path

from regent.core.errors import ForeignDirectoryError, StorageError
from regent.storage.log_directory import LogDirectory
from regent.zk.stores.admin_store import ZkAdminStore


def replaced_data(admin: ZkAdminStore, data_dir: Path) -> list[str]:
    """Return why the brokers of ``data_dir`` refuse ZooKeeper's data: one line, or none.

    The reason of the first broker is enough. Raises ``BadDataError`` when ``/cluster/id`` is
    unreadable.
    """
    cluster_id, zxid, mark = admin.read_cluster_id(), admin.latest_zxid(), admin.read_mark()
    for meta in sorted(data_dir.glob("broker-*/*/meta.properties")):
        directory = LogDirectory(meta.parent)
        try:
            directory.look()
            directory.check_cluster(cluster_id)
            directory.check_not_older(zxid, mark, directory.read_seen())
        except ForeignDirectoryError as error:
            return [str(error)]
        except StorageError:
            continue  # its broker reports that
    return []
