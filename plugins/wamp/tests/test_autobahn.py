# SPDX-License-Identifier: Apache-2.0
"""A client that is not ours: autobahn-python, over every serializer and framing, with every way to log in."""

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ustreamer_wamp.config import WampConfig
from ustreamer_wamp.router import WampRouter

from ustreamer.host.runtime.clock import SYSTEM_CLOCK

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # warnings of autobahn and its dependencies at import
    import txaio

    txaio.use_asyncio()
    from autobahn.asyncio.rawsocket import WampRawSocketClientFactory
    from autobahn.asyncio.wamp import ApplicationSession
    from autobahn.asyncio.websocket import WampWebSocketClientFactory
    from autobahn.wamp.auth import compute_wcs, derive_key
    from autobahn.wamp.exception import ApplicationError
    from autobahn.wamp.request import Handler, Subscription
    from autobahn.wamp.serializer import CBORSerializer, JsonSerializer, MsgPackSerializer
    from autobahn.wamp.types import ComponentConfig, PublishOptions, SubscribeOptions

DEADLINE_S = 30.0
PIPES: list[asyncio.BaseTransport] = []
"""Open resources of the clients of a test; autobahn leaves closing to the garbage collector."""
SERIALIZERS = {"json": JsonSerializer, "msgpack": MsgPackSerializer, "cbor": CBORSerializer}
TICKET = {"authmethods": ["ticket"], "authid": "tick"}


@contextmanager
def running(listen: str) -> Iterator[WampRouter]:
    section = {
        "listen": listen,
        "anonymous": {"meta_api": True},
        "users": [
            {"authid": "tick", "ticket": "t1cket", "publish": [""]},
            {"authid": "cra", "secret": "s3cret", "salt": "s4lt"},
        ],
    }
    router = WampRouter(msgspec.convert(section, WampConfig), SYSTEM_CLOCK)
    router.server.open()
    try:
        yield router
    finally:
        router.server.close()


class Session(ApplicationSession):  # type: ignore[misc]  # autobahn has no types
    """A session that reports its outcome by futures, and answers challenges."""

    def __init__(self, **login: Any) -> None:
        super().__init__(ComponentConfig("realm1"))
        loop = asyncio.get_running_loop()
        self.login = login
        self.joined: asyncio.Future[Any] = loop.create_future()
        self.over: asyncio.Future[Any] = loop.create_future()

    def onConnect(self) -> None:  # noqa: N802  # autobahn's name, and the others
        self.join("realm1", **self.login)

    def onChallenge(self, challenge: Any) -> Any:  # noqa: N802
        if challenge.method == "ticket":
            return "t1cket"
        extra = challenge.extra
        key = derive_key("s3cret", extra["salt"], extra["iterations"], extra["keylen"])
        return compute_wcs(key, extra["challenge"])

    def onJoin(self, details: Any) -> None:  # noqa: N802
        self.joined.set_result(details)

    def onLeave(self, details: Any) -> None:  # noqa: N802
        if not self.joined.done():
            self.joined.set_result(details)
        self.over.set_result(details.reason)
        self.disconnect()

    def onDisconnect(self) -> None:  # noqa: N802
        """Nothing more is to be done."""


async def connected(router: WampRouter, serializer: str, **login: Any) -> Session:
    """A session over the framing that the router listens with."""
    loop = asyncio.get_running_loop()
    session = Session(**login)
    where = router.server.urls[0]
    made = SERIALIZERS[serializer]()
    if where.startswith("ws"):
        factory = WampWebSocketClientFactory(lambda: session, url=where, serializers=[made], loop=loop)
        host, port = where.removeprefix("ws://").removesuffix("/ws").split(":")
        pipe, _ = await loop.create_connection(factory, host, int(port))
    else:
        factory = WampRawSocketClientFactory(lambda: session, serializer=made)
        if "unix" in where:
            pipe, _ = await loop.create_unix_connection(factory, where.partition("://")[2])
        else:
            host, port = where.removeprefix("rs://").split(":")
            pipe, _ = await loop.create_connection(factory, host, int(port))
    PIPES.append(pipe)
    await asyncio.wait_for(session.joined, DEADLINE_S)
    return session


async def left(*sessions: Session) -> None:
    for session in sessions:
        session.leave()
        await asyncio.wait_for(session.over, DEADLINE_S)


async def hung_up() -> None:
    while PIPES:
        PIPES.pop().abort()  # type: ignore[attr-defined]  # of a stream
    for _ in range(3):
        await asyncio.sleep(0)


def with_router(listen: str, story: Callable[[WampRouter], Awaitable[None]]) -> None:
    async def notified(router: WampRouter) -> None:
        await asyncio.wait_for(story(router), 3 * DEADLINE_S)
        await hung_up()

    with running(listen) as router:
        asyncio.run(notified(router))
        assert not router.realm.broker._by_id


@pytest.mark.parametrize("framing", ["ws", "rs", "unix"])
@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_a_complete_session_from_hello_to_goodbye(serializer: str, framing: str, tmp_path: Path) -> None:
    async def story(router: WampRouter) -> None:
        subscriber = await connected(router, serializer)
        publisher = await connected(router, "cbor", **TICKET)
        events: asyncio.Queue[Any] = asyncio.Queue()

        def received(*args: Any, **kwargs: Any) -> None:
            events.put_nowait((args, kwargs))

        first = await subscriber.subscribe(received, "com.news")
        again = await subscriber.subscribe(received, "com.news")
        assert first.id == again.id
        pattern = await subscriber.subscribe(received, "com..x", SubscribeOptions(match="wildcard"))
        assert pattern.id != first.id
        done = await publisher.publish(
            "com.news", 1, "zwei", b"\x00\xff", k=[None, 2.5], options=PublishOptions(acknowledge=True)
        )
        assert done.id
        for _ in range(2):  # autobahn has two handlers on one subscription
            args, kwargs = await asyncio.wait_for(events.get(), DEADLINE_S)
            assert args == (1, "zwei", b"\x00\xff")
            assert kwargs == {"k": [None, 2.5]}
        publisher.publish("com.any.x", 5)
        assert (await asyncio.wait_for(events.get(), DEADLINE_S))[0] == (5,)
        for handler in (first, again):
            await handler.unsubscribe()
        publisher.publish("com.news", "missed")
        publisher.publish("com.any.x", "last")
        assert (await asyncio.wait_for(events.get(), DEADLINE_S))[0] == ("last",)
        with pytest.raises(ApplicationError) as caught:
            await publisher.publish("wamp.own", 1, options=PublishOptions(acknowledge=True))
        assert caught.value.error == "wamp.error.invalid_uri"
        with pytest.raises(ApplicationError) as caught:
            await subscriber.publish("com.news", 1, options=PublishOptions(acknowledge=True))
        assert caught.value.error == "wamp.error.not_authorized"
        assert await subscriber.call("wamp.subscription.count_subscribers", pattern.id) == 1
        for topic in ("a..b", ".a", ""):
            with pytest.raises(ApplicationError) as caught:
                await subscriber.subscribe(received, topic)
            assert caught.value.error == "wamp.error.invalid_uri"
        unknown = Subscription(4711, "com.strange", subscriber, Handler(None, received))
        subscriber._subscriptions[4711] = [unknown]  # otherwise autobahn would not request its end
        with pytest.raises(ApplicationError) as caught:
            await unknown.unsubscribe()
        assert caught.value.error == "wamp.error.no_such_subscription"
        ended = await subscriber.subscribe(received, "com.ended")
        (member,) = router.realm.broker.find("com.ended", "exact").subscribers  # type: ignore[union-attr]
        router.server.run_on_loop(member.on_subscription_revoked, "com.ended", "because")
        # It announces the feature, but would drop the connection: so the router does not notify it.
        assert await subscriber.call("wamp.subscription.count_subscribers", ended.id) == 1
        await ended.unsubscribe()
        await left(subscriber, publisher)

    listen = {
        "ws": "ws://127.0.0.1:0/ws",
        "rs": "rs://127.0.0.1:0",
        "unix": f"rs+unix://{tmp_path}/wamp.sock",
    }[framing]
    with_router(listen, story)


@pytest.mark.parametrize(
    ("login", "reason"),
    [
        ({"authmethods": ["anonymous"]}, None),
        ({"authmethods": ["ticket"], "authid": "tick"}, None),
        ({"authmethods": ["wampcra"], "authid": "cra"}, None),
        ({"authmethods": ["ticket", "wampcra"], "authid": "unknown"}, "wamp.error.authentication_denied"),
        ({"authmethods": ["scram"], "authid": "cra"}, "wamp.error.no_matching_auth_method"),
    ],
)
def test_every_way_to_log_in(login: dict[str, Any], reason: str | None) -> None:
    async def story(router: WampRouter) -> None:
        session = await connected(router, "json", **login)
        if reason is None:
            assert session.joined.result().authmethod == login["authmethods"][0]
            await left(session)
        else:
            assert session.joined.result().reason == reason

    with_router("ws://127.0.0.1:0/ws", story)


def test_a_client_reconnects_after_a_restart_of_the_router() -> None:
    async def story(listen: str) -> tuple[str, bool]:
        with running(listen) as router:
            session = await connected(router, "msgpack")
            before = await session.subscribe(lambda: None, "com.news")
            assert before.id
            await asyncio.to_thread(router.server.close)
            reason = await asyncio.wait_for(session.over, DEADLINE_S)
            listen = router.server.urls[0]
        with running(listen) as router:  # at the same port
            session = await connected(router, "msgpack")
            events: asyncio.Queue[Any] = asyncio.Queue()
            await session.subscribe(events.put_nowait, "com.news")
            publisher = await connected(router, "json", **TICKET)
            publisher.publish("com.news", "again")
            received = await asyncio.wait_for(events.get(), DEADLINE_S)
            await left(session, publisher)
            await hung_up()
        return reason, received == "again"

    assert asyncio.run(story("ws://127.0.0.1:0/ws")) == ("wamp.close.system_shutdown", True)
