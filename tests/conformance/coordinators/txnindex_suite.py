"""The suite ``txnindex``: the aborted transactions of a segment."""

from __future__ import annotations

from typing import Any

from regent.core.errors import BadDataError
from regent.storage.log.transaction_index import AbortedTransaction, TransactionIndex
from tests.conformance.coordinators.suite import ReadMapping, Step, Suite
from tests.conformance.fields import UnknownInCaseError


class TransactionIndexSuite(Suite):
    """One index."""

    def __init__(self, given: ReadMapping) -> None:
        super().__init__()
        self.index = TransactionIndex()

    def do(self, step: Step) -> None:
        match step["do"]:
            case "append":
                self.append(step)
            case "collect":
                found, is_complete = self.index.collect(step["from"], step["upper"])
                self.answer(step, found=[e.producer_id for e in found], complete=is_complete)
            case "truncate":
                self.index.truncate_to(step["offset"])
            case "reset":
                self.index = TransactionIndex()
            case "sanity":
                self.answer(step, sane=self.is_sane(step["base"]))
            case verb:
                raise UnknownInCaseError(verb)

    def append(self, step: Step) -> None:
        entry = AbortedTransaction(step["producer"], step["first"], step["last"], step["stable"])
        try:
            self.index.append(entry)
        except BadDataError:
            self.answer(step, error="refused", accepted=False)
        else:
            self.answer(step, accepted=True)

    def is_sane(self, base_offset: int) -> bool:
        try:
            TransactionIndex.decode(self.index.encode(), base_offset)
        except BadDataError:
            return False
        return True

    def see(self, key: str, expected: Any) -> Any:
        match key:
            case "entries":
                return [entry.producer_id for entry in self.index.entries]
            case "hex":
                return self.index.encode().hex()
            case _:
                return super().see(key, expected)
