"""Results of a measurement, made up."""

from __future__ import annotations

from regent.designs.measuring.comparison import (
    ComparisonSetting,
    DesignComparison,
    DesignResult,
)
from regent.designs.measuring.failure import FailureCase, FailureResult, RestLoad
from regent.designs.measuring.measured_cluster import Believers, LeaderTimes, StateChangeCost
from regent.designs.measuring.zookeeper_counts import LoggedCounts, ZooKeeperActivity

WITH_LOCKS = "v1-name"
WITH_CONTROLLER = "v3"


def failure(
    case: FailureCase, *, fired: int, watches: int, znodes_read: int = 10, write_requests: int = 1
) -> FailureResult:
    return FailureResult(
        case,
        RestLoad(watches, watches // 2, 3, 1.234, 6.0),
        LeaderTimes(50 + case.partitions, 100 + case.partitions),
        case.partitions,
        ZooKeeperActivity(
            read_requests=5,
            znodes_read=znodes_read,
            write_requests=write_requests,
            znodes_written=case.partitions,
            ephemerals_deleted=1,
            watches_set=fired - 1,
            watches_fired=fired,
            packets=4 * fired,
            pings=7,
            by_log=LoggedCounts(3, case.partitions + 1),
            by_mntr=LoggedCounts(3, case.partitions + 1),
        ),
        broker_requests=8,
        listeners_called=None,
    )


def locks(setting: ComparisonSetting) -> DesignResult:
    """A design in which each replica watches."""

    def of(case: FailureCase) -> FailureResult:
        count = case.partitions
        return failure(case, fired=2 * count, watches=3 * count, write_requests=count)

    many = FailureCase(setting.partitions, setting.failures)
    return DesignResult(
        of(FailureCase(1)),
        of(many),
        None,
        Believers(2, has_acknowledged=True),
        None,
        [of(FailureCase(count, setting.failures)) for count in setting.growth],
    )


def controller(setting: ComparisonSetting) -> DesignResult:
    """A design in which only the controller watches."""

    def of(case: FailureCase, znodes_read: int = 10) -> FailureResult:
        return failure(case, fired=2 * case.failures, watches=20, znodes_read=znodes_read)

    many = FailureCase(setting.partitions, setting.failures)
    with_controller = FailureCase(setting.partitions, setting.failures, includes_controller=True)
    return DesignResult(
        of(FailureCase(1)),
        of(many),
        of(with_controller, znodes_read=setting.partitions),
        Believers(2, has_acknowledged=False),
        StateChangeCost(0, 1),
        [of(FailureCase(count, setting.failures)) for count in setting.growth],
    )


def both(setting: ComparisonSetting) -> DesignComparison:
    """Return the results of both designs."""
    return DesignComparison(
        setting, {WITH_LOCKS: locks(setting), WITH_CONTROLLER: controller(setting)}
    )
