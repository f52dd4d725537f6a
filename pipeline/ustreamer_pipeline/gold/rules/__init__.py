# SPDX-License-Identifier: Apache-2.0
"""The rules of the audit, each a class with its promise.

run.py has what a rule gets: the rows of one run in order, and its small tables. A rule is exact: a value at the limit
is no violation. Rows that the recording itself lacks (announced gaps, deleted segments, the last flush before a kill)
are no violation. A rule on whole sequences skips sequences with unknown parts.
"""

from collections.abc import Mapping
from typing import Final

from ustreamer_pipeline.gold.rules.addresses import Echo, Valid
from ustreamer_pipeline.gold.rules.answers import Answers
from ustreamer_pipeline.gold.rules.dead_letters import DeadLetters, MissingDeadLetters
from ustreamer_pipeline.gold.rules.decisions import Decisions
from ustreamer_pipeline.gold.rules.expiry import Early, Expired
from ustreamer_pipeline.gold.rules.fields import Consistent
from ustreamer_pipeline.gold.rules.ledger import LedgerLaw
from ustreamer_pipeline.gold.rules.numbers import Changes, Segments, SequenceNumbers
from ustreamer_pipeline.gold.rules.order import Order
from ustreamer_pipeline.gold.rules.places import OnePlace
from ustreamer_pipeline.gold.rules.rates import NeverThrottled, Rate
from ustreamer_pipeline.gold.rules.run import RunRule
from ustreamer_pipeline.gold.rules.targets import PublicationTargets

RUN_RULES: Final[tuple[type[RunRule], ...]] = (
    *(Rate, NeverThrottled, Order, Expired, Echo, Valid, DeadLetters, Answers, SequenceNumbers, LedgerLaw),
    *(Consistent, OnePlace, PublicationTargets, MissingDeadLetters, Early, Segments, Changes),
)

PROMISES: Final[Mapping[str, str]] = {
    **{name: promise for rule in RUN_RULES for name, promise in rule.PROMISES.items()},
    **Decisions.PROMISES,
}
"""The promise of each rule on the rows of a gateway, by name."""
