"""How the simulated log of a coordinator answers appends, and the steps of a case about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from regent.core.errors import Errors
from tests.conformance.coordinators.suite import Step, Suite
from tests.conformance.fields import UnknownInCaseError


class SimulatedAppends:
    """Appends succeed unless told otherwise."""

    def __init__(self) -> None:
        self._results: list[tuple[Errors, int | None]] = []
        self._holds = False
        self._refusal: Errors | None = None
        self._held: list[Callable[[Errors], None]] = []

    def answer(self, finish: Callable[[Errors], None]) -> None:
        """Call ``finish`` with the outcome, now or when the case lets go."""
        if self._refusal is not None:
            finish(self._refusal)
        elif self._holds:
            self._held.append(finish)
        else:
            finish(self._next_result())

    def will_answer(self, error: Errors, times: int | None) -> None:
        """The next appends have this outcome; ``times`` None: all."""
        if self._results and self._results[-1][1] is None:
            del self._results[-1]
        self._results.append((error, times))

    @contextmanager
    def refusing(self, error: Errors) -> Iterator[None]:
        """Let appends fail at once, whatever else the case says."""
        self._refusal = error
        yield
        self._refusal = None

    def hold(self) -> None:
        """Leave appends unanswered."""
        self._holds = True

    def finish(self, error: Errors) -> None:
        """Answer those that are held, in order, and hold no more."""
        self._holds = False
        held, self._held = self._held, []
        for finish in held:
            finish(error)

    def finish_one(self, index: int, error: Errors) -> None:
        """Answer one that is held."""
        self._held.pop(index)(error)

    def _next_result(self) -> Errors:
        if not self._results:
            return Errors.NONE
        error, times = self._results[0]
        if times is not None:
            self._results[0] = (error, times - 1)
            if times <= 1:
                del self._results[0]
        return error


class CoordinatorSuite(Suite):
    """A coordinator over a simulated ``log``; the method of a step has its name, behind ``do_``."""

    log: SimulatedAppends

    def do(self, step: Step) -> None:
        self.ask(step)
        verb = getattr(self, f"do_{step['do']}", None)
        if verb is None:
            raise UnknownInCaseError(step["do"])
        verb(step)

    def do_appends(self, step: Step) -> None:
        self.log.will_answer(Errors[step["result"]], step.get("times"))

    def do_hold(self, step: Step) -> None:
        self.log.hold()

    def do_finish(self, step: Step) -> None:
        self.log.finish(Errors[step["result"]])

    def do_finish_one(self, step: Step) -> None:
        self.log.finish_one(step["index"], Errors[step["result"]])
