# SPDX-License-Identifier: Apache-2.0
"""A WAMP session, without I/O: messages in, replies and events out through a `FrameSink`.

    NEW         HELLO --> ESTABLISHED, or CHALLENGED, or ABORT
    CHALLENGED  AUTHENTICATE --> ESTABLISHED, or ABORT
    ESTABLISHED SUBSCRIBE, UNSUBSCRIBE, PUBLISH, CALL, REGISTER, UNREGISTER; GOODBYE --> CLOSED
    CLOSING     (the router sent GOODBYE) everything but the echo is ignored --> CLOSED
    CLOSED      nothing is read any more

`_HANDLERS` has the expected messages of each state and their handlers. Any other message is a violation of the
protocol: ABORT, and the session ends with all its subscriptions.
"""

import logging
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

from ustreamer.core.base.log_limit import limited
from ustreamer_wamp import errors, uri
from ustreamer_wamp.auth import AuthRequest, Challenge, UserTable
from ustreamer_wamp.codec import BINARY_MARK, Malformed, Serializer
from ustreamer_wamp.errors import WampRefusal
from ustreamer_wamp.events import Publication
from ustreamer_wamp.messages import Code, ProtocolViolation, parse
from ustreamer_wamp.meta_api import PROCEDURES
from ustreamer_wamp.options import eligibility_filter, min_period_ns, wants_revocation
from ustreamer_wamp.realm import FrameSink, Realm
from ustreamer_wamp.users import Principal

log = logging.getLogger("ustreamer.wamp")

NORMAL: Final = 1000
PROTOCOL_ERROR: Final = 1002
POLICY: Final = 1008
GOING_AWAY: Final = 1001

AGENT: Final = "uStreamer"
FEATURES: Final = {
    "event_retention": True,
    "pattern_based_subscription": True,
    "publisher_exclusion": True,
    "publisher_identification": True,
    "subscriber_blackwhite_listing": True,
    "subscription_meta_api": True,
    "subscription_revocation": True,
}
_RESULT: Final = 50
_MAX_REASON_CHARS: Final = 400  # characters of a reason in a message


class SessionState(Enum):
    NEW = "new"
    CHALLENGED = "challenged"
    ESTABLISHED = "established"
    CLOSING = "closing"
    CLOSED = "closed"


class Session:
    """One client. `peer` is its address; `private`: the connection cannot be eavesdropped."""

    def __init__(
        self,
        realms: Mapping[str, Realm],
        serializer: Serializer,
        frame_sink: FrameSink,
        now_ns: int,
        *,
        peer: str = "",
        private: bool = True,
    ) -> None:
        """`realms` by name, at least one; all share one `Env`."""
        self.frame_sink = frame_sink
        self.state = SessionState.NEW
        self.principal: Principal | None = None
        self._realms = realms
        self._env = next(iter(realms.values())).env
        self._decode = serializer.decode
        self._peer = peer
        self._private = private
        self.id = self._env.random_bits(53) + 1
        self._realm: Realm | None = None
        self._challenge: Challenge | None = None
        self._challenged_users: UserTable | None = None  # by which the challenge was made
        self._wants_revocation = False
        self._pending_subscribes = 0  # SUBSCRIBEs that are not answered yet
        self._next_request = 1
        self._message_size = 0  # bytes of the message that is being taken
        self._is_text = serializer.is_text
        self._binary = True  # whether there may be bytes in it
        self.deadline_ns: int | None = now_ns + self._env.limits.hello_timeout_ns

    # --- input ----------------------------------------------------------------------------------------------

    def on_message(self, data: bytes) -> None:
        """Take one message of arbitrary bytes. Never raises."""
        if self.state is SessionState.CLOSED:
            return
        self._message_size = len(data)
        self._binary = not self._is_text or BINARY_MARK in data
        try:
            message = parse(self._decode(data))
            handler = _HANDLERS[self.state].get(message.code)
            if handler is None:
                if self.state is SessionState.CLOSING:
                    return
                expected = ", ".join(code.name for code in _HANDLERS[self.state])
                raise ProtocolViolation(
                    f"{message.code.name} in a session that is {self.state.value}: expected {expected}"
                )
            handler(self, *message.fields)
        except (ProtocolViolation, Malformed) as error:
            self.abort_protocol_violation(str(error))

    def abort_protocol_violation(self, text: str) -> None:
        """Answer a violation of the protocol with ABORT and end the session."""
        self._abort(errors.PROTOCOL_VIOLATION, text, PROTOCOL_ERROR)

    def kill(self, reason: str, text: str) -> None:
        """End the session for a reason of the router's own."""
        self._abort(reason, text, POLICY)

    def on_connection_lost(self) -> None:
        """The connection is lost: end the session without a message."""
        self._end()

    def tick(self, now_ns: int) -> None:
        """End a session whose HELLO, AUTHENTICATE or GOODBYE is overdue."""
        if self.deadline_ns is None or now_ns < self.deadline_ns:
            return
        if self.state is SessionState.CLOSING:
            self._end()
            self.frame_sink.close(NORMAL, "")
        elif self.state is not SessionState.CLOSED:
            awaited = "HELLO" if self.state is SessionState.NEW else "AUTHENTICATE"
            self._abort(errors.PROTOCOL_VIOLATION, f"no {awaited} in time", POLICY)

    def send_goodbye(self, reason: str, text: str = "") -> None:
        """Send GOODBYE and wait for the echo; before ESTABLISHED, end."""
        if self.state is not SessionState.ESTABLISHED:
            self._abort(reason, "the router stops", GOING_AWAY)
            return
        self.frame_sink.send_reply([int(Code.GOODBYE), {"message": text} if text else {}, reason])
        self._leave_realm()
        self.state = SessionState.CLOSING
        self.deadline_ns = self._env.monotonic_ns() + self._env.limits.goodbye_timeout_ns

    # --- the end --------------------------------------------------------------------------------------------

    def _abort(self, reason: str, text: str, code: int) -> None:
        if self.state is SessionState.CLOSED:
            return
        self.frame_sink.send_reply([int(Code.ABORT), {"message": text[:_MAX_REASON_CHARS]}, reason])
        self._end()
        self.frame_sink.close(code, reason)

    def _on_abort(self, details: dict[str, Any], reason: str, *_: Any) -> None:
        """ABORT is never answered."""
        self._end()
        self.frame_sink.close(NORMAL, "")

    def _end(self) -> None:
        self.state = SessionState.CLOSED
        self.deadline_ns = None
        self._leave_realm()

    def _leave_realm(self) -> None:
        if self._realm is not None:
            self._realm.remove_session(self)

    def _on_goodbye(self, details: dict[str, Any], reason: str) -> None:
        self.frame_sink.send_reply([int(Code.GOODBYE), {}, errors.GOODBYE_AND_OUT])
        self._end()
        self.frame_sink.close(NORMAL, reason[:100])

    def _on_goodbye_echo(self, details: dict[str, Any], reason: str) -> None:
        self._end()
        self.frame_sink.close(NORMAL, "")

    # --- the beginning --------------------------------------------------------------------------------------

    def _on_hello(self, name: str, details: dict[str, Any]) -> None:
        if "roles" not in details:
            raise ProtocolViolation("HELLO.Details.roles is missing: expected a dict with at least one role")
        if trouble := uri.problem(name):
            self._abort(errors.INVALID_URI, f"realm: {trouble}", POLICY)
            return
        realm = self._realms.get(name)
        if realm is None:
            self._abort(errors.NO_SUCH_REALM, f"there is no realm {name!r}", POLICY)
            return
        auth_request = AuthRequest(
            methods=tuple(details.get("authmethods", ())),
            authid=details.get("authid", ""),
            extra=details.get("authextra", {}),
            session=self.id,
            private=self._private,
        )
        self._realm = realm
        self._wants_revocation = wants_revocation(details["roles"])
        begun = realm.authenticator.begin_authentication(auth_request)
        if isinstance(begun, Principal):
            self._send_welcome(begun)
        elif isinstance(begun, WampRefusal):
            self._abort(begun.reason, begun.text, POLICY)
        elif not self._refuse_blocked_login(realm, begun.principal.authid):
            self._challenge, self._challenged_users = begun, realm.authenticator.users
            self.state = SessionState.CHALLENGED
            self.deadline_ns = self._env.monotonic_ns() + self._env.limits.hello_timeout_ns
            self.frame_sink.send_reply([int(Code.CHALLENGE), begun.method, dict(begun.extra)])

    def _on_authenticate(self, signature: str, extra: dict[str, Any]) -> None:
        assert self._challenge is not None  # CHALLENGED is entered with one
        assert self._realm is not None
        principal = self._challenge.principal
        if self._refuse_blocked_login(self._realm, principal.authid):
            return
        if self._challenged_users is not self._realm.authenticator.users:
            self._abort(errors.AUTHENTICATION_DENIED, "the users have changed: log in again", POLICY)
            return
        if self._challenge.is_right(signature):
            self._send_welcome(principal)
            return
        self._realm.authenticator.record_failure(self._peer, principal.authid, self._env.monotonic_ns())
        self._realm.counts["authentications_denied"] += 1
        self._realm.refusals.add("login_failed", self._peer)
        extra = {"peer": self._peer, "authid": principal.authid, "method": principal.method}
        log.info("wamp.login_failed", extra={**extra, **limited(self._peer)})
        self._abort(
            errors.AUTHENTICATION_DENIED,
            f"{self._challenge.method}: wrong answer, or no such user",
            POLICY,
        )

    def _refuse_blocked_login(self, realm: Realm, authid: str) -> bool:
        """Abort the session if its peer has failed too often to log in; whether it has."""
        if not realm.authenticator.is_blocked(self._peer, authid, self._env.monotonic_ns()):
            return False
        realm.counts["refused_login_limit"] += 1
        realm.refusals.add("login_limit", self._peer)
        log.warning("wamp.login_limit", extra={"peer": self._peer, **limited(self._peer)})
        self._abort(errors.AUTHENTICATION_DENIED, "too many failures: try again in a minute", POLICY)
        return True

    def _send_welcome(self, principal: Principal) -> None:
        assert self._realm is not None
        self.principal = principal
        self._challenge = self._challenged_users = None
        self.deadline_ns = None
        self.state = SessionState.ESTABLISHED
        self._realm.add_session(self)
        details = {
            "realm": self._realm.name,
            "authid": principal.authid,
            "authrole": principal.role,
            "authmethod": principal.method,
            "authprovider": principal.provider,
            "agent": AGENT,
            "roles": {"broker": {"features": FEATURES}},
        }
        self.frame_sink.send_reply([int(Code.WELCOME), self.id, details])

    def on_users_changed(self, principal: Principal | None) -> None:
        """Continue with another principal, or end if it does not permit what this session is or has subscribed."""
        if principal == self.principal:
            return
        realm, before = self._established()
        text = self._revocation(principal)
        if not text:
            self.principal = principal
            return
        realm.counts["sessions_revoked"] += 1
        extra = {"peer": self._peer, "authid": before.authid, "reason": text}
        log.warning("wamp.session_revoked", extra={**extra, **limited(self._peer, before.authid)})
        self.send_goodbye(errors.KILLED, text)

    def _revocation(self, principal: Principal | None) -> str:
        """Why this session ends when it gets another principal; "" if it continues."""
        realm, before = self._established()
        if principal is None:
            return "its login is not valid any more"
        if principal.role != before.role:
            return f"its role is {principal.role!r} now"
        held = realm.broker.subscriptions_of(self).values()
        lost = next((each for each in held if not _may_hold(principal, each.topic, each.match)), None)
        if lost is not None:
            return f"it may not subscribe {lost.topic!r} any more"
        if self._pending_subscribes and not _permits(principal, before):
            return "its permissions have changed"
        return ""

    # --- requests -------------------------------------------------------------------------------------------

    def _check_request_id(self, request: int) -> None:
        """Where ids must be in sequence (1, 2, ...), check this one."""
        if self._env.limits.sequential_ids:
            if request != self._next_request:
                raise ProtocolViolation(
                    f"Request {request}: expected {self._next_request}, the next in sequence"
                )
            self._next_request = request % 2**53 + 1

    def _send_error(self, code: Code, request: int, refusal: WampRefusal) -> None:
        details = {"message": refusal.text[:_MAX_REASON_CHARS]}
        self.frame_sink.send_reply([int(Code.ERROR), int(code), request, details, refusal.reason])

    def _on_subscribe(self, request: int, options: dict[str, Any], topic: str) -> None:
        self._check_request_id(request)
        realm, match = self._established()[0], options.get("match", "exact")
        try:
            period_ns = min_period_ns(options)
        except ValueError as error:
            self._send_error(Code.SUBSCRIBE, request, WampRefusal(errors.INVALID_ARGUMENT, str(error)))
            return
        refusal = self._subscribe_refusal(topic, match)
        if refusal is not None:
            self._send_error(Code.SUBSCRIBE, request, refusal)
            return
        get_retained = options.get("get_retained", False)
        self._pending_subscribes += 1

        def done(refusal: WampRefusal | None) -> None:
            self._pending_subscribes -= 1
            if self.state is not SessionState.ESTABLISHED:
                return  # closed meanwhile; the backend has the close event
            if refusal is not None:
                self._send_error(Code.SUBSCRIBE, request, refusal)
            else:
                # In one step: no event precedes the answer, none is missed after it.
                realm.subscribe(self, topic, match, subscribed, get_retained=get_retained)

        def subscribed(id: int) -> None:
            self.frame_sink.send_reply([int(Code.SUBSCRIBED), request, id])

        realm.env.backend.open_subscription(self, topic, match, period_ns, done)

    def _subscribe_refusal(self, topic: str, match: uri.Match) -> WampRefusal | None:
        """Why this session may not subscribe a topic; None if it may."""
        realm, principal = self._established()
        if trouble := uri.problem(topic, match):
            return WampRefusal(errors.INVALID_URI, trouble)
        if uri.is_reserved(topic) and not principal.meta_api:
            return _meta_api_refusal(topic, principal)
        if not principal.may_subscribe(topic, match):
            allowed = ", ".join(map(repr, principal.subscribe)) or "nothing"
            text = f"{match} {topic!r}: role {principal.role!r} may subscribe what begins with {allowed}"
            return WampRefusal(errors.NOT_AUTHORIZED, text)
        held, most = realm.broker.subscriptions_of(self), realm.env.limits.subscriptions
        if len(held) + self._pending_subscribes >= most:
            subscription = realm.broker.find(topic, match)
            if subscription is None or subscription.id not in held or self._pending_subscribes >= most:
                return WampRefusal(errors.TOO_MANY, f"{most} subscriptions are the most of one session")
        return None

    def _on_unsubscribe(self, request: int, subscription: int) -> None:
        self._check_request_id(request)
        realm, _ = self._established()

        def unsubscribed() -> None:
            self.frame_sink.send_reply([int(Code.UNSUBSCRIBED), request])

        if not realm.unsubscribe(self, subscription, unsubscribed):
            text = f"this session has no subscription {subscription}"
            self._send_error(Code.UNSUBSCRIBE, request, WampRefusal(errors.NO_SUCH_SUBSCRIPTION, text))

    def on_subscription_revoked(self, topic: str, why: str) -> None:
        """Notify a client that supports revocation of the end of an exact subscription in the vehicle.

        For another client, the subscription stays without events: an unsolicited UNSUBSCRIBED would be a violation of
        the protocol. Another SUBSCRIBE requests it from the vehicle again.
        """
        if self.state is not SessionState.ESTABLISHED:
            return
        realm, _ = self._established()
        realm.drop_live_value(topic)  # the next event renews it for other subscribers
        if not self._wants_revocation:
            return
        subscription = realm.broker.find(topic, "exact")
        if subscription is None:
            return
        details = {
            "subscription": subscription.id,
            "reason": errors.REVOKED,
            "message": why[:_MAX_REASON_CHARS],
        }
        realm.unsubscribe(
            self, subscription.id, lambda: self.frame_sink.send_reply([int(Code.UNSUBSCRIBED), 0, details])
        )

    def _on_publish(
        self,
        request: int,
        options: dict[str, Any],
        topic: str,
        args: list[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        self._check_request_id(request)
        realm, principal = self._established()
        refusal = self._publish_refusal(topic) or realm.env.backend.publish(topic, args or [], kwargs or {})
        if refusal is not None:
            if options.get("acknowledge"):  # without it, not even an error is sent
                self._send_error(Code.PUBLISH, request, refusal)
            return
        details: dict[str, Any] = {}
        if options.get("disclose_me"):
            details = {
                "publisher": self.id,
                "publisher_authid": principal.authid,
                "publisher_authrole": principal.role,
            }
        size = self._message_size + 256
        publication = Publication(
            realm.new_id(), topic, args or [], kwargs or {}, details, size, binary=self._binary
        )
        if options.get("retain"):
            realm.retained.retain(publication)
        without = self if options.get("exclude_me", True) else None
        realm.fan_out(publication, without, eligibility_filter(options))
        if options.get("acknowledge"):
            self.frame_sink.send_reply([int(Code.PUBLISHED), request, publication.id])

    def _publish_refusal(self, topic: str) -> WampRefusal | None:
        _, principal = self._established()
        if trouble := uri.problem(topic):
            return WampRefusal(errors.INVALID_URI, trouble)
        if uri.is_reserved(topic):
            return WampRefusal(errors.INVALID_URI, f"{topic!r}: topics of 'wamp' are the router's own")
        if not principal.may_publish(topic):
            allowed = ", ".join(map(repr, principal.publish)) or "nothing"
            text = f"{topic!r}: role {principal.role!r} may publish what begins with {allowed}"
            return WampRefusal(errors.NOT_AUTHORIZED, text)
        return None

    def _on_call(
        self,
        request: int,
        options: dict[str, Any],
        procedure: str,
        args: list[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        """The procedures of the subscription meta API; the router is no Dealer otherwise."""
        self._check_request_id(request)
        realm, principal = self._established()
        called = PROCEDURES.get(procedure)
        if called is None:
            have = ", ".join(PROCEDURES)
            refusal = WampRefusal(errors.NO_SUCH_PROCEDURE, f"{procedure[:200]!r} (have: {have})")
            self._send_error(Code.CALL, request, refusal)
            return
        if not principal.meta_api:
            realm.counts["refused_meta_api"] += 1
            realm.refusals.add("meta_api", self._peer)
            self._send_error(Code.CALL, request, _meta_api_refusal(procedure, principal))
            return
        found = called(realm.broker, args or [])
        if isinstance(found, WampRefusal):
            self._send_error(Code.CALL, request, found)
        else:
            self.frame_sink.send_reply([_RESULT, request, {}, [found]])

    def _on_register(self, request: int, options: dict[str, Any], procedure: str) -> None:
        self._check_request_id(request)
        text = f"{procedure[:200]!r}: this router is a Broker and no Dealer"
        self._send_error(Code.REGISTER, request, WampRefusal(errors.NOT_AUTHORIZED, text))

    def _on_unregister(self, request: int, registration: int) -> None:
        self._check_request_id(request)
        text = f"this session has no registration {registration}"
        self._send_error(Code.UNREGISTER, request, WampRefusal(errors.NO_SUCH_REGISTRATION, text))

    def _established(self) -> tuple[Realm, Principal]:
        assert self._realm is not None  # the table leads here from ESTABLISHED only
        assert self.principal is not None
        return self._realm, self.principal


def _may_hold(principal: Principal, topic: str, match: uri.Match) -> bool:
    return principal.may_subscribe(topic, match) and (principal.meta_api or not uri.is_reserved(topic))


def _permits(principal: Principal, before: Principal) -> bool:
    """Whether a principal may subscribe all that another one may."""
    return all(each.startswith(principal.subscribe) for each in before.subscribe) and (
        principal.meta_api or not before.meta_api
    )


def _meta_api_refusal(subject: str, principal: Principal) -> WampRefusal:
    return WampRefusal(
        errors.NOT_AUTHORIZED, f"{subject!r}: role {principal.role!r} has no permission `meta_api`"
    )


_Handler = Callable[..., None]
_HANDLERS: Final[Mapping[SessionState, Mapping[Code, _Handler]]] = {
    SessionState.NEW: {Code.HELLO: Session._on_hello, Code.ABORT: Session._on_abort},  # noqa: SLF001  # of this class
    SessionState.CHALLENGED: {
        Code.AUTHENTICATE: Session._on_authenticate,  # noqa: SLF001
        Code.ABORT: Session._on_abort,  # noqa: SLF001
    },
    SessionState.ESTABLISHED: {
        Code.SUBSCRIBE: Session._on_subscribe,  # noqa: SLF001
        Code.UNSUBSCRIBE: Session._on_unsubscribe,  # noqa: SLF001
        Code.PUBLISH: Session._on_publish,  # noqa: SLF001
        Code.CALL: Session._on_call,  # noqa: SLF001
        Code.REGISTER: Session._on_register,  # noqa: SLF001
        Code.UNREGISTER: Session._on_unregister,  # noqa: SLF001
        Code.GOODBYE: Session._on_goodbye,  # noqa: SLF001
        Code.ABORT: Session._on_abort,  # noqa: SLF001
    },
    SessionState.CLOSING: {Code.GOODBYE: Session._on_goodbye_echo, Code.ABORT: Session._on_abort},  # noqa: SLF001
    SessionState.CLOSED: {},
}
