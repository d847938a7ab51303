"""Whole clusters, step by step: ControllerIntegrationTest, DeleteTopicTest and others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.conformance.actions import Actions
from tests.conformance.expectations import Expectations
from tests.conformance.fields import Case, Fields, UnknownInCaseError, check_words
from tests.conformance.stage import MovedLog, Stage

_IBP = (
    "every broker brokers controller ibp latest rest only 2.6 2.7 2.8"
    " 2.6-iv0 2.7-iv0 2.7-iv1 2.7-iv2"
)


def end_to_end(case: Case) -> None:
    brokers, steps = case.take("brokers"), case.take("steps")
    with case.nested("config") as config:
        variants = [_variant(sentence) for sentence in config.take("also_true_when", [])]
        settings = config.rest()
    for variant in [{}, *(v for v in variants if v is not None)]:
        run(brokers, settings, steps, **variant)


deletion_scenario = end_to_end


def _variant(sentence: str) -> dict[str, bool] | None:
    """Return how a variant is run; None if it does not differ here."""
    if "znode" in sentence:
        check_words(sentence, "also true when", "submitted through znode instead api requested")
        return {"reassigns_by_znode": True}
    if "IBP" in sentence:  # versions of the inter-broker protocol do not exist here
        check_words(sentence, "also true when", _IBP)
        return None
    raise UnknownInCaseError(f"also true when {sentence!r}")


def run(
    brokers: Sequence[Any],
    settings: Mapping[str, Any],
    steps: Sequence[Mapping[str, Any]],
    **variant: bool,
) -> Actions:
    """Run the steps on a new cluster."""
    with MovedLog() as log:
        with Fields(settings, "config") as config:
            starts_itself = any(step.get("op") == "start" for step in steps)
            stage = Stage(list(brokers), config, log, starts_itself=starts_itself)
        actions = Actions(stage, **variant)
        _play(actions, steps)
    return actions


def _play(actions: Actions, steps: Sequence[Mapping[str, Any]]) -> None:
    expectations = Expectations(actions)
    for number, step in enumerate(steps, 1):
        with Fields(step, f"step {number}") as fields:
            op = fields.take("op")
            perform = actions.by_op.get(op) or expectations.by_op.get(op)
            if perform is None:
                raise UnknownInCaseError(f"op {op!r}")
            perform(fields)
