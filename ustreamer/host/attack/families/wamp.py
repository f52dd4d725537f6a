# SPDX-License-Identifier: Apache-2.0
"""WAMP clients without a password: silent, unfinished, guessing, curious, slow."""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from threading import Thread
from typing import Final

from ustreamer.host.attack.attack import Attack, Need
from ustreamer.host.attack.clients.wamp_socket import (
    AUTHENTICATE,
    CALL,
    CHALLENGE,
    PING,
    PUBLISH,
    PUBLISHED,
    REGISTER,
    REGISTERED,
    RESULT,
    SUBSCRIBE,
    TEXT,
    WELCOME,
    WampSocket,
)
from ustreamer.host.attack.scene import Scene

FAMILY: Final = "WAMP"
_NEEDS: Final = (Need.WAMP,)
_ANONYMOUS: Final = (Need.WAMP, Need.WAMP_ANONYMOUS)
_ATTACKER: Final = "127.0.66.1"
_HONEST: Final = "127.0.67.1"
_GUESSERS: Final = 8
_MOST_GUESSES: Final = 60
"""Guesses of one address that may be judged in a window: the limits are below that for a minute."""


def _refused(scene: Scene) -> str:
    """The effect if another host gets no WebSocket; "" if it does."""
    try:
        with WampSocket(scene.wamp, _HONEST) as honest:
            status = honest.upgrade()
    except (OSError, IndexError) as error:
        return f"a host that does nothing else gets no WAMP connection: {error}"
    return "" if " 101 " in status else f"a host that does nothing else gets {status}"


def _open(scene: Scene, stack: ExitStack, number: int, act: Callable[[WampSocket], object]) -> None:
    """Open connections and act in each, as long as the streamer lets it."""
    for _ in range(number):
        with suppress(OSError, IndexError):
            act(stack.enter_context(WampSocket(scene.wamp, _ATTACKER)))


def _held(number: int, act: Callable[[WampSocket], object]) -> Callable[[Scene], str]:
    """An attack of open connections; another host must still get one."""

    def run(scene: Scene) -> str:
        with ExitStack() as stack:
            _open(scene, stack, number, act)
            scene.hold()
            return _refused(scene)

    return run


def silent(client: WampSocket) -> None:
    """Nothing is sent."""


def half_request(client: WampSocket) -> None:
    client.socket.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nX: ")


def unfinished_message(client: WampSocket) -> None:
    """All but the last byte of a frame before HELLO."""
    client.upgrade()
    client.send_frame(TEXT, bytes(30_000), length=30_001)


def huge_frame(client: WampSocket) -> None:
    client.upgrade()
    client.send_frame(TEXT, bytes(1_000), length=1 << 40)


def fragments(client: WampSocket) -> None:
    """A message in pieces that never ends."""
    client.upgrade()
    for _ in range(200):
        client.send_frame(TEXT if _ == 0 else 0, bytes(100), final=False)


def _in_one(
    act: Callable[[Scene, WampSocket, int], object], rate: float, *, joined: bool = False
) -> Callable[[Scene], str]:
    """An attack in one connection at a rate; a new one when the streamer closes it."""

    def run(scene: Scene) -> str:
        client: WampSocket | None = None
        for number in scene.paced(rate):
            try:
                if client is None:
                    client = WampSocket(scene.wamp, _ATTACKER)
                    _ = client.join() if joined else client.upgrade()
                act(scene, client, number)
            except (OSError, IndexError, ValueError):
                if client is not None:
                    client.socket.close()
                client = None
        if client is not None:
            client.socket.close()
        return _refused(scene)

    return run


def ping(scene: Scene, client: WampSocket, number: int) -> None:
    client.send_frame(PING, b"x" * 100)


def random_frame(scene: Scene, client: WampSocket, number: int) -> None:
    client.socket.sendall(scene.rng.randbytes(200))


def random_message(scene: Scene, client: WampSocket, number: int) -> None:
    client.send_frame(TEXT, b"[" * (number % 5_000))


def subscribe(scene: Scene, client: WampSocket, number: int) -> None:
    client.send(
        SUBSCRIBE, number + 1, {"match": ("exact", "prefix", "wildcard")[number % 3]}, f"up.{number}..x"
    )


# --- what is not theirs -----------------------------------------------------------------------------------------------


def guess_passwords(scene: Scene) -> str:
    """Tickets of a user, guessed in parallel from one address. A judged guess is one that got as far as a challenge."""
    judged = [0] * _GUESSERS

    def guess(slot: int) -> None:
        for number in scene.paced(50):
            with suppress(OSError, IndexError), WampSocket(scene.wamp, _ATTACKER) as client:
                details = {"authmethods": ["ticket"], "authid": scene.wamp.ticket_user}
                if client.join(**details)[0] == CHALLENGE:
                    client.ask(AUTHENTICATE, f"guess {slot} {number}", {})
                    judged[slot] += 1

    threads = [Thread(target=guess, args=(slot,)) for slot in range(_GUESSERS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    found = sum(judged)
    return f"{found} passwords were tried within {scene.seconds:g} s" if found > _MOST_GUESSES else ""


def _as_anonymous(scene: Scene, accepted: int, effect: str, *message: object) -> str:
    try:
        with WampSocket(scene.wamp, _ATTACKER) as client:
            if client.join()[0] == WELCOME and client.ask(*message)[0] == accepted:
                return effect
    except (OSError, IndexError):
        return ""
    return ""


def read_meta(scene: Scene) -> str:
    effect = "an anonymous client read the subscriptions of others"
    return _as_anonymous(scene, RESULT, effect, CALL, 1, {}, "wamp.subscription.list")


def publish(scene: Scene) -> str:
    topic = f"up.wamp_2e{scene.target.authority.replace('.', '_2e')}.1.0.1.8001"
    return _as_anonymous(
        scene, PUBLISHED, "an anonymous client published", PUBLISH, 1, {"acknowledge": True}, topic
    )


def register(scene: Scene) -> str:
    return _as_anonymous(
        scene, REGISTERED, "an anonymous client registered a procedure", REGISTER, 1, {}, "com.evil"
    )


def other_origin(scene: Scene) -> str:
    """A page of another site in the browser of a user."""
    try:
        with WampSocket(scene.wamp, _ATTACKER) as client:
            status = client.upgrade("https://evil.example")
    except (OSError, IndexError):
        return ""
    return "a page of another site may connect" if " 101 " in status else ""


def slow_reader(scene: Scene) -> str:
    """Sessions that subscribe everything and read nothing."""
    with ExitStack() as stack:
        for _ in range(20):
            with suppress(OSError, IndexError):
                client = stack.enter_context(WampSocket(scene.wamp, _ATTACKER))
                client.join()
                client.send(SUBSCRIBE, 1, {"match": "prefix"}, "up.")
        scene.hold()
        return _refused(scene)


ATTACKS: Final = (
    Attack("wamp-silent", FAMILY, "hold connections and send nothing", _NEEDS, _held(400, silent)),
    Attack("wamp-half-request", FAMILY, "never end the HTTP request", _NEEDS, _held(200, half_request)),
    Attack("wamp-unfinished", FAMILY, "never end the first message", _NEEDS, _held(100, unfinished_message)),
    Attack("wamp-huge-frame", FAMILY, "announce a message of 1 TB", _NEEDS, _held(50, huge_frame)),
    Attack("wamp-fragments", FAMILY, "send fragments without an end", _NEEDS, _held(50, fragments)),
    Attack("wamp-pings", FAMILY, "send pings before HELLO", _NEEDS, _in_one(ping, 3_000)),
    Attack(
        "wamp-random-frames",
        FAMILY,
        "send random bytes after the handshake",
        _NEEDS,
        _in_one(random_frame, 100),
    ),
    Attack("wamp-deep-json", FAMILY, "send deeply nested JSON", _NEEDS, _in_one(random_message, 100)),
    Attack(
        "wamp-guesses", FAMILY, "guess a password in parallel", (Need.WAMP, Need.WAMP_USERS), guess_passwords
    ),
    Attack("wamp-meta", FAMILY, "read the subscriptions of others without a login", _ANONYMOUS, read_meta),
    Attack("wamp-publish", FAMILY, "publish without a login", _ANONYMOUS, publish),
    Attack("wamp-register", FAMILY, "register a procedure without a login", _ANONYMOUS, register),
    Attack("wamp-origin", FAMILY, "connect from a page of another site", _NEEDS, other_origin),
    Attack(
        "wamp-subscriptions",
        FAMILY,
        "subscribe topics without end",
        _ANONYMOUS,
        _in_one(subscribe, 2_000, joined=True),
    ),
    Attack("wamp-slow-readers", FAMILY, "subscribe everything and read nothing", _ANONYMOUS, slow_reader),
)
