# SPDX-License-Identifier: Apache-2.0
"""A case: a function with the ids of the rules that it judges, a subject, and a sentence (its docstring)."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

if TYPE_CHECKING:
    from uprotocol_tck.world import World

T = TypeVar("T")
Body = Callable[["World"], None]
Subject = Literal["usubscription", "streamer"]
SUBJECTS: Final[tuple[Subject, ...]] = ("usubscription", "streamer")


class Need(StrEnum):
    """What a case needs besides a uSubscription. The value is the reason for a skip."""

    VERSION_3 = "the subject speaks uSubscription version 3"
    VERSION_4 = "the subject speaks uSubscription version 4"
    LIFECYCLE = "the subject has CreateTopic and DeprecateTopic"
    OTHER = "--other names an authority of another device"
    OTHER_NETWORK = "--connect-other names the network of that authority"
    MAX_FREQUENCY = "--with max-frequency, because today's text has no such attribute"
    RESTART = "--restart has a command that restarts the subject"
    RESET = "--allow-reset, because Reset ends every subscription of the subject"
    SLOW = "--slow, because it takes more than 5 minutes"
    DEAD_LETTERS = "--dead-letters names the dead letter topic"
    WAMP = "--wamp has the address of a WAMP router"
    WAMP_LIMITED = "--wamp-denied names a topic that the WAMP client may not subscribe"


class CaseFailed(Exception):
    """The subject breaks the rule. The text has what was expected and what was there."""


class NotApplicable(Exception):
    """The case cannot judge this subject. The text is the reason."""


class NotJudged(Exception):
    """The kit cannot judge the rule in this run: it lacks a right, or the run ended. The text is the reason."""


class Case(NamedTuple):
    """One case of one version; `version` is 0 if it does not depend on a version of uSubscription."""

    name: str
    rules: tuple[str, ...]
    subject: Subject
    sentence: str
    body: Body
    needs: tuple[Need, ...]
    version: int
    alone: bool
    """It disturbs other cases, or its measurement would be disturbed by them."""
    disturbs: bool = False
    """It disturbs every client of the subject, also other runs of the kit."""

    @property
    def group(self) -> str:
        """The module of the case: a chapter of the report."""
        return self.body.__module__.rpartition(".")[2]


class _Registered(NamedTuple):
    body: Body
    rules: tuple[str, ...]
    subject: Subject
    needs: tuple[Need, ...]
    versions: tuple[int, ...]
    alone: bool
    disturbs: bool


_registered: list[_Registered] = []
_VERSION_NEEDS: Final = {0: (), 3: (Need.VERSION_3,), 4: (Need.VERSION_4,)}


def case(
    *rules: str,
    subject: Subject = "usubscription",
    needs: Iterable[Need] = (),
    versions: Iterable[int] = (0,),
    alone: bool = False,
    disturbs: bool = False,
) -> Callable[[Body], Body]:
    """Register a function as a case of these rules; with `versions`, one case for each of them.

    `alone` and `disturbs` are those of Case; a case that disturbs every client runs alone, too.
    """

    def register(body: Body) -> Body:
        _registered.append(
            _Registered(body, rules, subject, tuple(needs), tuple(versions), alone or disturbs, disturbs)
        )
        return body

    return register


def registered_cases() -> list[Case]:
    """All cases of the imported modules, in the order of their definition."""
    return [
        Case(
            name=each.body.__name__ + (f"[v{version}]" if version and len(each.versions) > 1 else ""),
            rules=each.rules,
            subject=each.subject,
            sentence=" ".join((each.body.__doc__ or "").split()),
            body=each.body,
            needs=(*_VERSION_NEEDS[version], *each.needs),
            version=version,
            alone=each.alone,
            disturbs=each.disturbs,
        )
        for each in _registered
        for version in each.versions
    ]


# --- judging ----------------------------------------------------------------------------------------------------------


def check(condition: object, expected: str) -> None:
    """The case fails with this sentence unless the condition holds."""
    if not condition:
        raise CaseFailed(expected)


def check_equal(found: T, expected: T, what: str) -> None:
    if found != expected:
        raise CaseFailed(f"{what}: {_shown(found)}, expected {_shown(expected)}")


def _shown(value: object) -> str:
    if isinstance(value, list | tuple | set | frozenset) and not hasattr(value, "_fields"):
        return f"[{', '.join(_shown(each) for each in value)}]"
    return getattr(value, "name", None) or str(value)


class Findings:
    """Collects the failures of the rows of a table, so that a report names all of them."""

    def __init__(self) -> None:
        self._found: list[str] = []

    @contextmanager
    def of(self, row: str) -> Iterator[None]:
        try:
            yield
        except CaseFailed as failed:
            self._found.append(f"{row}: {failed}")

    def judge(self) -> None:
        """Fails if a row has failed."""
        if self._found:
            raise CaseFailed("; ".join(self._found))
