"""Over which time the rates of quotas are measured.

Mirrors ``org.apache.kafka.server.config.QuotaConfigs`` and ``ClientQuotaManagerConfig``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from regent.core.setting import INT_MAX, setting

_SAMPLES = (2, 1_000)
_SECONDS = (1, INT_MAX // 1_000)


class QuotaWindow(NamedTuple):
    """A rate is the sum of the last ``samples`` samples of ``sample_ms`` each, over their time."""

    samples: int
    sample_ms: int


@dataclass(frozen=True)
class QuotaConfig:
    """The table ``[quotas]``; the quotas themselves are in ZooKeeper."""

    quota_window_num: int = setting(
        11,
        "Over how many samples the rate of a client is measured. With more, a client may use more"
        " at once.",
        limits=_SAMPLES,
    )
    quota_window_size_seconds: int = setting(
        1, "The time of one sample of quota_window_num, in seconds.", limits=_SECONDS
    )
    controller_quota_window_num: int = setting(
        11,
        "For how many samples a client may create or delete the partitions at once that"
        " controller_mutation_rate allows.",
        limits=_SAMPLES,
    )
    controller_quota_window_size_seconds: int = setting(
        1, "The time of one sample of controller_quota_window_num, in seconds.", limits=_SECONDS
    )

    @property
    def window(self) -> QuotaWindow:
        """The window of bytes, requests and connections."""
        return QuotaWindow(self.quota_window_num, self.quota_window_size_seconds * 1_000)

    @property
    def controller_window(self) -> QuotaWindow:
        """The window of controller mutations."""
        seconds = self.controller_quota_window_size_seconds
        return QuotaWindow(self.controller_quota_window_num, seconds * 1_000)
