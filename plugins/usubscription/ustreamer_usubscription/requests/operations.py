# SPDX-License-Identifier: Apache-2.0
"""The rules of subscribing, registering and declaring topics, common to both interface versions."""

import logging
from collections.abc import Callable
from typing import Final, TypeAlias

from google.protobuf.message import Message

from ustreamer.core.base.log_limit import limited
from ustreamer.core.routing.usubscription_codec import USUBSCRIPTION, Status
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid_argument
from ustreamer.uprotocol.uuri import ANY_INSTANCE, UUri
from ustreamer_usubscription.model.declared_topics import TopicState
from ustreamer_usubscription.model.subscription import Observer, SubscriptionRecord
from ustreamer_usubscription.requests.policy import is_producer
from ustreamer_usubscription.requests.requests import UNVERIFIED, CallContext
from ustreamer_usubscription.store.transaction import ServiceState, Transaction

MutationHandler: TypeAlias = Callable[[CallContext, Transaction], Message]
"""Applies a Request to the transaction; the response is valid after the commit. Raises UStatusError."""

QueryHandler: TypeAlias = Callable[[CallContext, ServiceState, int], Message]
"""Answers from the committed state, with a limited number of records. Raises UStatusError."""

log = logging.getLogger("ustreamer.usubscription")

MAX_AHEAD_MS: Final = 60_000
"""How far the clock of a caller of Reset may be ahead of the clock here."""


def subscribe(entry: SubscriptionRecord, call: CallContext, transaction: Transaction) -> tuple[Status, str]:
    """Set the caller's subscription to `entry`; the new status, and for people the reason if it is not SUBSCRIBED.

    A remote topic is SUBSCRIBE_PENDING until its own uSubscription has granted it; then further clients are
    SUBSCRIBED. Raises UStatusError: PERMISSION_DENIED, FAILED_PRECONDITION, NOT_FOUND, RESOURCE_EXHAUSTED.
    """
    topic = entry.topic
    peer = call.peer if call.policy.has_caller_levels else UNVERIFIED
    call.policy.check_permission_level(topic, call.permission_level or 0, call.caller, peer)
    if topic.authority_name in call.serves:  # topics of other devices are declared there (LIF-8)
        _check_declared(topic, call, transaction)
    if entry.is_expired(transaction.earliest_ms):
        # The rule of version 4; version 3 has none.
        reason = f"expire, {entry.expire_ms} ms, has passed"
        transaction.remove_subscription(entry.pair, reason)
        return Status.UNSUBSCRIBED, reason
    status = transaction.put_subscription(entry)
    return status, call.policy.pending_reason(topic) if status is Status.SUBSCRIBE_PENDING else ""


def register(observer: Observer, call: CallContext, transaction: Transaction) -> None:
    """Register an entity for changes. Raises UStatusError: PERMISSION_DENIED, RESOURCE_EXHAUSTED."""
    call.policy.check_observer(observer.entity, observer.topic)
    transaction.register_observer(observer)


def reset(call: CallContext, transaction: Transaction, reason: str) -> None:
    """End all subscriptions and all registrations, at the request of a uSubscription; `reason` is for people.

    A copy of an executed Reset succeeds without effect: a retransmission, or a replay by another host. An id that this
    process cannot know, from before its start or from the future, is ABORTED: its Reset may have been executed before.

    [impl->req~usubscription-reset~1]
    """
    made_ms, now_ms = call.id.time_ms, transaction.now_ms
    if not call.started_ms <= made_ms <= now_ms + MAX_AHEAD_MS:
        raise UStatusError(
            UCode.ABORTED,
            f"Reset {call.id} is {now_ms - made_ms} ms old by this clock, expected {-MAX_AHEAD_MS} to "
            f"{now_ms - call.started_ms}, the time since the start: it may have been executed; call again",
        )
    by = str(call.caller)
    if not transaction.reset_once(call.id, f"reset by {by}"):
        return
    log.warning("usubscription.reset_requested", extra={"by": by, "reason": reason, **limited(by)})


def check_reset_caller(call: CallContext, *, is_usubscription: bool) -> None:
    """PERMISSION_DENIED unless the caller is a uSubscription, of a device that the configuration names."""
    if not is_usubscription:
        reason = f"only a uSubscription, ue_id {USUBSCRIPTION}, may reset another"
    elif not call.policy.is_known_authority(call.caller.authority_name):
        reason = "only a device that the configuration names may reset this one"
    elif not call.policy.may_reset(call.caller, call.peer):
        reason = "may_reset of [plugins.usubscription] does not list it"
    else:
        return
    raise UStatusError(UCode.PERMISSION_DENIED, f"caller {call.caller}: {reason}")


# --- topic lifecycle --------------------------------------------------------------------------------------------------


def create_topic(topic: UUri, call: CallContext, transaction: Transaction) -> None:
    """Make the caller's topic ACTIVE.

    [impl->LIF-1] [impl->LIF-3]
    """
    _check_producer(topic, call)
    transaction.declare_topic(topic, TopicState.ACTIVE)


def deprecate_topic(topic: UUri, call: CallContext, transaction: Transaction) -> None:
    """Refuse new subscriptions of the caller's topic; existing ones stay, without an Update.

    [impl->LIF-6] NOT_FOUND in mode `enforce` if the topic was never created; `track` takes it as ACTIVE (X-14).
    """
    _check_producer(topic, call)
    if call.policy.lifecycle == "enforce" and transaction.declared_topics.find(topic) is None:
        raise _never_created(topic)
    transaction.declare_topic(topic, TopicState.DEPRECATED)


def _check_producer(topic: UUri, call: CallContext) -> None:
    """[impl->LIF-5] PERMISSION_DENIED unless the caller's authority, entity and version are the topic's."""
    if not is_producer(call.caller, topic):
        raise UStatusError(
            UCode.PERMISSION_DENIED, f"topic {topic}: the caller is {call.caller}, expected its producer"
        )
    if topic.authority_name not in call.serves:
        raise invalid_argument(
            f"topic {topic}: authority {topic.authority_name!r} has a uSubscription of its own to tell"
        )


def _check_declared(topic: UUri, call: CallContext, transaction: Transaction) -> None:
    """[impl->LIF-2] FAILED_PRECONDITION for a deprecated topic; NOT_FOUND, in `enforce`, for one never created (X-14).

    A topic of every instance may be subscribed while one instance may, even an undeclared one.
    """
    mode = call.policy.lifecycle
    if mode == "off":
        return
    states = transaction.declared_states(topic)
    if TopicState.ACTIVE in states:
        return
    if mode == "track" and (not states or topic.ue_instance == ANY_INSTANCE):
        return
    if not states:
        raise _never_created(topic)
    raise UStatusError(UCode.FAILED_PRECONDITION, f"topic {topic}: deprecated by its producer")


def _never_created(topic: UUri) -> UStatusError:
    return UStatusError(UCode.NOT_FOUND, f"topic {topic}: its producer has not called CreateTopic")
