# SPDX-License-Identifier: Apache-2.0
"""The error URIs of the router."""

from typing import Final, NamedTuple

INVALID_URI: Final = "wamp.error.invalid_uri"
INVALID_ARGUMENT: Final = "wamp.error.invalid_argument"
NO_SUCH_SUBSCRIPTION: Final = "wamp.error.no_such_subscription"
NO_SUCH_REGISTRATION: Final = "wamp.error.no_such_registration"
NO_SUCH_PROCEDURE: Final = "wamp.error.no_such_procedure"
NO_SUCH_REALM: Final = "wamp.error.no_such_realm"
NOT_AUTHORIZED: Final = "wamp.error.not_authorized"
PROTOCOL_VIOLATION: Final = "wamp.error.protocol_violation"
NO_MATCHING_AUTH_METHOD: Final = "wamp.error.no_matching_auth_method"
AUTHENTICATION_REQUIRED: Final = "wamp.error.authentication_required"
AUTHENTICATION_DENIED: Final = "wamp.error.authentication_denied"
TOO_MANY: Final = "up.error.resource_exhausted"
"""Ours: WAMP has no URI for a limit that was reached."""
UNAVAILABLE: Final = "up.error.unavailable"
"""Ours: the streamer stops."""

GOODBYE_AND_OUT: Final = "wamp.close.goodbye_and_out"
SYSTEM_SHUTDOWN: Final = "wamp.close.system_shutdown"
KILLED: Final = "wamp.close.killed"
REVOKED: Final = "up.subscription.ended"
"""Ours: the reason of an unsolicited UNSUBSCRIBED."""


class WampRefusal(NamedTuple):
    """A refusal: a URI for programs, a sentence for people."""

    reason: str
    text: str
