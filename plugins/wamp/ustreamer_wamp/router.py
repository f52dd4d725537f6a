# SPDX-License-Identifier: Apache-2.0
"""A router as its section describes it: the realm, its users, the counters and the listeners."""

import random
import secrets
from collections import Counter
from collections.abc import Callable

from ustreamer.core.base.clock import Clock
from ustreamer_wamp.auth import Authenticator, LoginLimits, UserTable
from ustreamer_wamp.config import WampConfig
from ustreamer_wamp.connections.page import pages
from ustreamer_wamp.connections.server import WampServer
from ustreamer_wamp.realm import Backend, Env, NullBackend, Realm, SessionLimits

_NS_PER_S = 10**9


class WampRouter:
    """Construction touches nothing; `server.open` does."""

    def __init__(
        self,
        config: WampConfig,
        clock: Clock,
        backend: Backend | None = None,
        counts: Counter[str] | None = None,
        tick: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`gate` is the way into the vehicle; without one the realm is a broker and nothing else.

        `tick` is called four times a second with the monotonic time, on the loop's thread.
        """
        self.counts: Counter[str] = Counter() if counts is None else counts
        limits = SessionLimits(
            subscriptions=config.max_subscriptions,
            hello_timeout_ns=config.hello_timeout_s * _NS_PER_S,
            sequential_ids=config.request_ids == "sequential",
        )
        # Ids of publications are not secret: one seed, and no system call for each.
        id_bits = random.Random().getrandbits  # noqa: S311
        env = Env(
            clock.monotonic_ns, clock.wall_ms, secrets.randbits, limits, backend or NullBackend(), id_bits
        )
        logins = LoginLimits(config.max_login_failures, config.max_login_failures_per_address)
        users = UserTable(config.users, config.anonymous_principal)
        authenticator = Authenticator(users, secrets.token_bytes, clock.wall_ms, logins)
        self.realm = Realm(config.realm, authenticator, env, self.counts)
        shown = pages(config.realm) if config.page else lambda _: {}
        self.server = WampServer(
            config, {config.realm: self.realm}, clock.monotonic_ns, self.counts, shown, tick
        )

    def change_users(self, config: WampConfig) -> None:
        """Take the users of another section; sessions that they do not permit end. On any thread but the loop's."""
        users = UserTable(config.users, config.anonymous_principal, self.realm.authenticator.users)
        self.server.run_on_loop(self.realm.change_users, users)
