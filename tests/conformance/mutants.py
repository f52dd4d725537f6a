# SPDX-License-Identifier: Apache-2.0
"""Changes of one place of the streamer, each of which breaks a rule."""

from typing import Final, NamedTuple

_V3: Final = "plugins/usubscription/ustreamer_usubscription/requests/v3.py"
_V4: Final = "plugins/usubscription/ustreamer_usubscription/requests/v4.py"
_REQUESTS: Final = "plugins/usubscription/ustreamer_usubscription/requests/requests.py"
_OPERATIONS: Final = "plugins/usubscription/ustreamer_usubscription/requests/operations.py"
_PLUGIN: Final = "plugins/usubscription/ustreamer_usubscription/plugin.py"
_UPDATES: Final = "plugins/usubscription/ustreamer_usubscription/requests/updates.py"
_LIFECYCLE: Final = "plugins/usubscription/ustreamer_usubscription/model/lifecycle.py"
_RECORDS: Final = "plugins/usubscription/ustreamer_usubscription/store/records.py"
_COMMITTER: Final = "plugins/usubscription/ustreamer_usubscription/store/committer.py"
_OBSERVERS: Final = "plugins/usubscription/ustreamer_usubscription/model/observers.py"
_DIRECTORY: Final = "plugins/usubscription/ustreamer_usubscription/directory.py"
_TRANSACTION: Final = "plugins/usubscription/ustreamer_usubscription/store/transaction.py"
_SERVICE: Final = "plugins/usubscription/ustreamer_usubscription/service.py"
_REMOTE: Final = "plugins/usubscription/ustreamer_usubscription/remote/remote_topics.py"
_CALLS: Final = "plugins/usubscription/ustreamer_usubscription/remote/remote_calls.py"
_DEAD_LETTER: Final = "ustreamer/core/egress/dead_letter.py"
_GATE: Final = "plugins/throttle/ustreamer_throttle/gate.py"
_THROTTLE: Final = "plugins/throttle/ustreamer_throttle/plugin.py"
_BROKER: Final = "plugins/wamp/ustreamer_wamp/broker.py"
_WAMP_SESSION: Final = "plugins/wamp/ustreamer_wamp/session.py"
_ZENOH: Final = "ustreamer/transports/zenoh"

_REMOTE_AT_START: Final = """\
            self._remote_topics.load_stored()
            # The configuration may have changed which topics are remote; a salvaged store may have lost one record of
            # two.
            self._topics_to_reconcile.update(
                self._state.remote_states, stored.topics_of_other_authorities(self._served_authorities)
            )
"""
"""A start requests the remote topics again."""


class Mutant(NamedTuple):
    """A change of one place: `old` becomes `new`. `unseen` is the reason why no message shows it."""

    name: str
    path: str
    old: str
    new: str
    unseen: str = ""


MUTANTS: Final = (
    # --- subscribing --------------------------------------------------------------------------------------------------
    Mutant(
        "Unsubscribe of version 3 ends nothing",
        _V3,
        "    transaction.remove_subscription((topic, call.caller))\n",
        "",
    ),
    Mutant(
        "the response to Subscribe is always SUBSCRIBED",
        _V3,
        "status=pb.SubscriptionStatus(state=int(status), message=reason)",
        "status=pb.SubscriptionStatus(state=2, message=reason)",
    ),
    Mutant(
        "expired subscriptions stay",
        _DIRECTORY,
        "found = map(self.find, self._deadlines.pop_all_due(now_ms - 1))",
        "found = map(self.find, ())",
    ),
    Mutant(
        "an expiration of version 4 loses its milliseconds",
        _V4,
        'expire_ms = expire_ms_of(request.expiration) if request.HasField("expiration") else None',
        'expire_ms = (\n        request.expiration.seconds * 1000 if request.HasField("expiration") else None\n    )',
    ),
    Mutant(
        "another Subscribe does not change the subscription",
        _TRANSACTION,
        "self.subscriptions.set_value(entry.pair, entry)",
        "self.subscriptions.set_value(entry.pair, before or entry)",
    ),
    Mutant(
        "an expiration in the past is accepted",
        _OPERATIONS,
        "if entry.is_expired(transaction.earliest_ms):",
        "if False:",
    ),
    Mutant(
        "a topic of version 3 may have wildcards",
        _REQUESTS,
        "    if part is not None:\n",
        "    if False:\n",
    ),
    Mutant(
        "a topic of version 4 may have an empty authority",
        _V4,
        "    if not topic.authority_name:\n",
        "    if False:\n",
    ),
    Mutant(
        "a topic of every instance is refused",
        _V4,
        "    part = one_instance.wildcard()\n",
        "    part = topic.wildcard()\n",
    ),
    Mutant(
        "a resource below 8000 is a topic",
        _REQUESTS,
        "    if not topic.is_topic:\n",
        "    if False:\n",
    ),
    Mutant(
        "a Subscribe without an expiration keeps the earlier one",
        _TRANSACTION,
        "        self.subscriptions.set_value(entry.pair, entry)",
        "        if before is not None and entry.expire_ms is None:\n"
        "            entry = replace(entry, expire_ms=before.expire_ms)\n"
        "        self.subscriptions.set_value(entry.pair, entry)",
    ),
    # --- lists --------------------------------------------------------------------------------------------------------
    Mutant(
        "an offset skips one entry too few",
        _V3,
        "rest = iter(islice(entries, offset, None))",
        "rest = iter(islice(entries, max(0, offset - 1), None))",
    ),
    Mutant(
        "a complete list announces more records",
        _V3,
        "return page, True if next(rest, None) is not None else None",
        "return page, True",
    ),
    Mutant(
        "a list of subscribers has a random order",
        _V3,
        "subscribers=[_subscriber_info(subscriber) for subscriber in subscribers]",
        'subscribers=__import__("random").sample([_subscriber_info(each) for each in subscribers], len(subscribers))',
    ),
    Mutant(
        "a filter for subscribers is ignored",
        _V4,
        "if topics.matches(each.topic) and subscribers.matches(each.subscriber)",
        "if topics.matches(each.topic)",
    ),
    Mutant(
        "filters with wildcards find nothing",
        _V4,
        "        return directory.subscribed_by(subscribers)\n    return directory\n",
        "        return directory.subscribed_by(subscribers)\n    return ()\n",
    ),
    Mutant(
        "a list ends after 20 entries and announces no more records",
        _V3,
        "return page, True if next(rest, None) is not None else None",
        "return page[:20], None",
    ),
    Mutant(
        "a list of subscriptions ignores the authority and the version of the subscriber",
        _DIRECTORY,
        "return sorted(self._by_subscriber.get(subscriber, {}).values(), key=_topic_text)",
        "found = [found for each, found in self._by_subscriber.items() if each.ue_id == subscriber.ue_id]\n"
        "        return sorted((entry for each in found for entry in each.values()), key=_topic_text)",
    ),
    Mutant(
        "a list of subscribers has none of other devices",
        _V3,
        "        entry.subscriber for entry in state.directory.subscribers(_requested_topic(request, call))\n",
        "        entry.subscriber\n"
        "        for entry in state.directory.subscribers(_requested_topic(request, call))\n"
        "        if entry.subscriber.authority_name in call.serves\n",
    ),
    # --- changes ------------------------------------------------------------------------------------------------------
    Mutant(
        "the subscriber is not notified",
        _UPDATES,
        "if change.notifies_subscriber and change.entry.version == version:",
        "if False:",
    ),
    Mutant(
        "a change comes from another resource",
        _UPDATES,
        "return UUri(authority, USUBSCRIPTION, version, CHANGE_RESOURCE)",
        "return UUri(authority, USUBSCRIPTION, version, CHANGE_RESOURCE + 1)",
    ),
    Mutant(
        "changes are not published",
        _UPDATES,
        "        yield publish(next_id(), source, payload, UPayloadFormat.PROTOBUF, priority=UPriority.CS2)\n",
        "",
    ),
    Mutant(
        "changes are published to subscribers of their topic only",
        _PLUGIN,
        "return change_topics(self._context.authority) if self._external is None else ()",
        "return ()",
    ),
    Mutant(
        "a registration for every topic is forgotten",
        _OBSERVERS,
        "return (*self._by_topic.get(topic, {}).values(), *self._by_topic.get(ANY, {}).values())",
        "return (*self._by_topic.get(topic, {}).values(),)",
    ),
    Mutant(
        "UnregisterForNotifications of version 3 ends nothing",
        _V3,
        "    transaction.unregister_observer((topic, call.caller))\n",
        "",
    ),
    Mutant(
        "subscribers of other devices are not notified",
        _UPDATES,
        "if change.notifies_subscriber and change.entry.version == version:",
        "if (\n            change.notifies_subscriber\n            and change.entry.version == version\n"
        "            and change.entry.subscriber.authority_name == authority\n        ):",
    ),
    Mutant(
        "the entity that unsubscribes in version 3 is not notified",
        _V3,
        "    transaction.remove_subscription((topic, call.caller))\n",
        "    transaction.remove_subscription((topic, call.caller), notifies_subscriber=False)\n",
    ),
    Mutant(
        "Unsubscribe of version 3 ends the registration of its caller",
        _V3,
        "    transaction.remove_subscription((topic, call.caller))\n",
        "    transaction.remove_subscription((topic, call.caller))\n"
        "    transaction.unregister_observer((topic, call.caller))\n",
    ),
    Mutant(
        "registered entities are not notified of the end at an expiration",
        _SERVICE,
        "SubscriptionStatusChange(entry, Status.UNSUBSCRIBED, observers_of(entry.topic), reason)",
        "SubscriptionStatusChange(entry, Status.UNSUBSCRIBED, (), reason)",
    ),
    # --- remote topics ------------------------------------------------------------------------------------------------
    Mutant(
        "a forwarded call may take 30 seconds",
        _CALLS,
        "CALL_TIMEOUT_MS: Final = 300_000",
        "CALL_TIMEOUT_MS: Final = 30_000",
    ),
    Mutant(
        "a refused remote topic stays subscribed",
        _LIFECYCLE,
        "    (_SUB, LifecycleEvent.REMOTE_REFUSED): _U,\n",
        "    (_SUB, LifecycleEvent.REMOTE_REFUSED): _S,\n",
    ),
    Mutant(
        "the end of a pending subscription is not forwarded",
        _LIFECYCLE,
        "    (_SUB, LifecycleEvent.LAST_CLIENT_LEFT): _UNSUB,\n",
        "    (_SUB, LifecycleEvent.LAST_CLIENT_LEFT): _U,\n",
    ),
    Mutant(
        "the last Unsubscribe is not forwarded",
        _TRANSACTION,
        "        if not self._client_counts.get(entry.topic, 1):\n",
        "        if False:\n",
    ),
    Mutant(
        "the rate is not forwarded",
        _REMOTE,
        "_upstream_period_ns(fastest_period(entry.period_ns for entry in entries)),",
        "0,",
    ),
    Mutant(
        "the rate of the slowest subscriber is forwarded",
        _REMOTE,
        "fastest_period(entry.period_ns for entry in entries)",
        "max(entry.period_ns for entry in entries)",
    ),
    Mutant(
        "the expiration of the first subscriber that ends is forwarded",
        _REMOTE,
        "max(end for end in ends if end is not None)",
        "min(end for end in ends if end is not None)",
    ),
    Mutant(
        "any entity of the other device answers a forwarded call",
        _REMOTE,
        "return attributes.source.ue_id == USUBSCRIPTION or attributes.commstatus in NOT_DELIVERED",
        "return True",
    ),
    Mutant(
        "a forwarded call that expired on the path has failed",
        _REMOTE,
        "    if code in NOT_DELIVERED:\n        return RemoteReply(None)",
        "    if code in NOT_DELIVERED - {UCode.DEADLINE_EXCEEDED}:\n        return RemoteReply(None)",
    ),
    Mutant(
        "a remote topic whose Subscribe is answered SUBSCRIBE_PENDING counts as SUBSCRIBED",
        _REMOTE,
        "    Status.SUBSCRIBE_PENDING: LifecycleEvent.REMOTE_PENDING,\n    Status.UNSUBSCRIBED",
        "    Status.SUBSCRIBE_PENDING: LifecycleEvent.REMOTE_SUBSCRIBED,\n    Status.UNSUBSCRIBED",
    ),
    Mutant(
        "an Unsubscribe that was not delivered is not repeated",
        _REMOTE,
        "                self._calls.on_failure(remote_call, now_ns, _jitter(reqid))\n        self._responses.clear()",
        "                if method_of(remote_call) is UsubscriptionMethod.UNSUBSCRIBE:\n"
        "                    self._forget(remote_call.key)\n"
        "                else:\n"
        "                    self._calls.on_failure(remote_call, now_ns, _jitter(reqid))\n"
        "        self._responses.clear()",
    ),
    Mutant(
        "a remote topic stays subscribed after its last subscription expired",
        _SERVICE,
        """        self._topics_to_reconcile.update(
            entry.topic for entry, _ in ended if self._state.is_remote(entry.topic)
        )
""",
        "",
    ),
    # --- lifecycle, reset and restart ---------------------------------------------------------------------------------
    Mutant(
        "any entity may create and deprecate a topic",
        _OPERATIONS,
        "    if not is_producer(call.caller, topic):\n",
        "    if False:\n",
    ),
    Mutant(
        "a foreign producer is refused with INVALID_ARGUMENT",
        _OPERATIONS,
        '            UCode.PERMISSION_DENIED, f"topic {topic}: the caller is',
        '            UCode.INVALID_ARGUMENT, f"topic {topic}: the caller is',
    ),
    Mutant(
        "Reset is not refused by the type of its caller",
        _OPERATIONS,
        "    if not is_usubscription:\n",
        "    if False:\n",
        unseen="The list `may_reset` of the configuration refuses the same callers.",
    ),
    Mutant(
        "Reset leaves the registrations",
        _TRANSACTION,
        "            self.unregister_observer(pair)\n",
        "            pass\n",
    ),
    Mutant(
        "a restart forgets the subscriptions",
        _SERVICE,
        "            self._directory.load_stored(stored)\n",
        "",
    ),
    Mutant(
        "Reset leaves the stored subscriptions",
        _COMMITTER,
        "    subscriptions = dict.fromkeys(pending_deletes) | transaction.subscriptions.changes\n",
        "    changes = {} if transaction.executed_resets else transaction.subscriptions.changes\n"
        "    subscriptions = dict.fromkeys(pending_deletes) | changes\n",
    ),
    Mutant(
        "a restart forgets the rate of a subscription",
        _RECORDS,
        "key, _encode(SubscriptionBody(entry.expire_ms, entry.period_ns, entry.details, entry.version))",
        "key, _encode(SubscriptionBody(entry.expire_ms, 0, entry.details, entry.version))",
    ),
    Mutant(
        "a restart forgets when subscriptions expire",
        _DIRECTORY,
        "self._deadlines = DeadlineQueue(_expiries(compact.expiring()))",
        "self._deadlines = DeadlineQueue(())",
    ),
    Mutant(
        "remote topics are not requested again after a restart",
        _SERVICE,
        _REMOTE_AT_START,
        "",
    ),
    Mutant(
        "remote topics are not unsubscribed again after a restart",
        _SERVICE,
        _REMOTE_AT_START,
        "            self._topics_to_reconcile.update(\n"
        "                topic\n"
        "                for topic in self._state.remote_states\n"
        "                if self._state.remote_states.find(topic) is not Status.UNSUBSCRIBE_PENDING\n"
        "            )\n",
    ),
    Mutant(
        "a commit does not wait for the disk",
        "ustreamer/core/storage/environment.py",
        "sync=True, metasync=True",
        "sync=False, metasync=False",
        unseen="Only a power cut shows it: after a kill the pages are in the memory of the kernel.",
    ),
    Mutant(
        "an unknown method is refused with NOT_FOUND",
        _SERVICE,
        "return UStatusError(UCode.UNIMPLEMENTED, text)",
        "return UStatusError(UCode.NOT_FOUND, text)",
    ),
    # --- messages -----------------------------------------------------------------------------------------------------
    Mutant(
        "a response has the priority CS4",
        "ustreamer/uprotocol/umessage.py",
        "priority=max(request_attributes.priority, UPriority.CS4),",
        "priority=UPriority.CS4,",
    ),
    Mutant(
        "priority CS2 is sent as CS1",
        f"{_ZENOH}/route_publishers.py",
        "UPriority.CS2: zenoh.Priority.DATA,",
        "UPriority.CS2: zenoh.Priority.DATA_LOW,",
    ),
    Mutant(
        "a message never expires",
        "ustreamer/core/delivery/expiry.py",
        "return self._wall_ms() > created_ms + ttl and self._remaining_ms(created_ms, ttl) < 0",
        "return False",
    ),
    Mutant(
        "a Request that cannot be dispatched has no response",
        "ustreamer/core/dispatch/dispatcher.py",
        "        if _is_answerable_request(message):\n            self._local.respond_error",
        "        if False:\n            self._local.respond_error",
    ),
    Mutant(
        "a source of another device is accepted",
        "ustreamer/core/routing/router.py",
        "        if home != ingress:\n",
        "        if False:\n",
    ),
    Mutant(
        "dead letters are not published",
        "ustreamer/core/dispatch/dispatcher.py",
        "            self._local.publish_dead_letter(letter)\n",
        "            pass\n",
    ),
    Mutant(
        "a dead letter has no reason",
        _DEAD_LETTER,
        """        entry.status.code = int(self.status.code)
        entry.status.message = self.status.message
""",
        "",
    ),
    # --- throttling and WAMP ------------------------------------------------------------------------------------------
    Mutant(
        "the rate is that of the usual limiter, from message to message",
        _GATE,
        "            self._due += self._period\n        else:\n            # Less",
        "            self._due = now_ns + self._period\n        else:\n            # Less",
    ),
    Mutant(
        "a message that is early by a hundredth of the period more passes",
        "plugins/throttle/ustreamer_throttle/gate.py",
        "        early = int(self._tolerance * period_ns)\n",
        "        early = int(self._tolerance * period_ns * 1.1)\n",
        unseen="The rate stays the same, and the gap of two messages is inside the bound that the rule permits.",
    ),
    Mutant(
        "a maximum frequency is rounded up to whole Hz",
        "ustreamer/core/routing/usubscription_codec.py",
        "    return max(sampled, period_of(hertz))",
        "    return max(sampled, period_of(-(-hertz // 1)))",
    ),
    Mutant(
        "an UNSUBSCRIBE of WAMP ends the subscriptions of all sessions",
        _BROKER,
        "        if not subscription.subscribers:\n            self._remove(subscription)\n        return subscription",
        "        subscription.subscribers.clear()\n        self._remove(subscription)\n        return subscription",
    ),
    Mutant(
        "each SUBSCRIBE of WAMP has a new id",
        _BROKER,
        "        subscription = self.find(topic, match)\n",
        "        subscription = None\n",
    ),
    Mutant(
        "an UNSUBSCRIBE of an unknown id succeeds",
        _WAMP_SESSION,
        "        if not realm.unsubscribe(self, subscription, unsubscribed):\n",
        "        if not realm.unsubscribe(self, subscription, unsubscribed):\n            unsubscribed()\n"
        "            return\n",
    ),
)
"""In the order of the report."""
