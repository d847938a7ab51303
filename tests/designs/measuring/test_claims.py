"""Claims, checked by made-up numbers."""

from __future__ import annotations

from dataclasses import replace

from regent.designs.measuring.claims import Claim, check_claims
from regent.designs.measuring.comparison import ComparisonSetting, DesignComparison
from regent.designs.measuring.measured_cluster import Believers
from tests.designs.measuring.results import WITH_CONTROLLER, WITH_LOCKS, both

SETTING = ComparisonSetting(brokers=3, partitions=1000, failures=2)


def claim_about(comparison: DesignComparison, words: str) -> Claim:
    (found,) = [claim for claim in check_claims(comparison) if claim.claim.startswith(words)]
    return found


def test_a_claim_has_the_numbers_of_the_designs_and_is_borne_out_by_them():
    herd = claim_about(both(SETTING), "Herd effect of a broker")
    assert herd.numbers == "watches that fire for one dead broker: v1-name 1,000, v3 2"
    assert herd.is_borne_out is True
    load = claim_about(both(SETTING), "Watch load")
    assert load.numbers == "watches for each partition: v1-name 3, v3 0"
    assert load.is_borne_out is True


def test_a_claim_that_the_numbers_contradict_is_not_borne_out():
    comparison = both(SETTING)
    controller = comparison.designs[WITH_CONTROLLER]
    wrong = replace(controller, believers=Believers(2, has_acknowledged=True))
    contradicted = DesignComparison(SETTING, {**comparison.designs, WITH_CONTROLLER: wrong})
    split = claim_about(contradicted, "Split brain")
    assert split.numbers == "acknowledged: v1-name yes, v3 yes"
    assert split.is_borne_out is False


def test_a_claim_about_a_design_that_was_not_measured_is_open():
    comparison = both(SETTING)
    alone = DesignComparison(SETTING, {WITH_LOCKS: comparison.designs[WITH_LOCKS]})
    assert claim_about(alone, "Herd effect of a broker").is_borne_out is None
    assert claim_about(alone, "With a controller, no more watches").is_borne_out is None
    six = claim_about(alone, "Six against one")
    assert six.numbers == "operations in ZooKeeper: not measured"
    assert six.is_borne_out is None


def test_the_cost_of_a_controller_is_a_claim_too():
    price = claim_about(both(SETTING), "The price of a controller")
    assert price.numbers == "znodes read, against the death of another broker: v3 100"
    assert price.is_borne_out is True
