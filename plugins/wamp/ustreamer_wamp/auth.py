# SPDX-License-Identifier: Apache-2.0
"""Authentication by anonymous, ticket, WAMP-CRA and cryptosign, without I/O: challenges and checks of their answers.

An unknown user receives the same challenge as some real user, chosen by the name. The login is then rejected as for a
wrong secret. So a client cannot enumerate users.
"""

import hashlib
import hmac
from base64 import b64encode
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from ustreamer_wamp import errors
from ustreamer_wamp.errors import WampRefusal
from ustreamer_wamp.users import Principal, User

PROVIDER: Final = "static"
_KEYLEN: Final = 32
_SIGNATURE: Final = 64
_FAILURE_WINDOW_NS: Final = 60 * 10**9
_MAX_TRACKED_PEERS: Final = 1024


_CraInput: TypeAlias = tuple[str, str, str, int]


class Challenge(NamedTuple):
    """A challenge, the principal for a valid answer, and the check of the answer."""

    method: str
    extra: Mapping[str, Any]
    principal: Principal
    is_right: Callable[[str], bool]


class AuthRequest(NamedTuple):
    """The HELLO of a client and the kind of its connection."""

    methods: tuple[str, ...]
    authid: str
    extra: Mapping[str, Any]
    session: int
    private: bool
    """Whether the connection cannot be eavesdropped: TLS, a Unix socket, or loopback."""


class LoginLimits(NamedTuple):
    """Failed logins in a minute, after which further ones are refused unchecked."""

    of_user: int = 10
    """Of one authid from one peer."""
    of_peer: int = 30


class _Failures:
    """The failed logins of one peer since `since_ns`, by authid: at most `LoginLimits.of_peer` names."""

    __slots__ = ("by_authid", "since_ns")

    def __init__(self, since_ns: int) -> None:
        self.since_ns = since_ns
        self.by_authid: Counter[str] = Counter()


class UserTable:
    """The users of a realm as one configuration has them. Not changed after its construction.

    Construction takes a second for each salted secret that `before`, an earlier table, does not have.
    """

    def __init__(
        self, users: Sequence[User], anonymous: Principal | None, before: "UserTable | None" = None
    ) -> None:
        self.anonymous = anonymous
        self.users = {user.authid: user for user in users}
        self.by_public_key = {key.lower(): user for user in users for key in user.public_keys}
        known: Mapping[_CraInput, bytes] = {} if before is None else before._cra_keys  # noqa: SLF001  # of this class
        self._cra_keys: dict[_CraInput, bytes] = {
            _cra_input(user): known.get(_cra_input(user)) or _cra_key(user)
            for user in users
            if user.has_secret
        }

    def cra_key(self, user: User) -> bytes:
        """The signing key of a user of this table that has a secret."""
        return self._cra_keys[_cra_input(user)]

    def renewed(self, principal: Principal, before: "UserTable") -> Principal | None:
        """The principal of a session that logged in by the table `before`; None: its login is not valid any more."""
        if principal.method == "anonymous":
            return self.anonymous
        old, new = before.users.get(principal.authid), self.users.get(principal.authid)
        if old is None or new is None or not _keeps_credential(old, new, principal.method):
            return None
        return _principal(new, principal.method)


class Authenticator:
    """The users of a realm, and who has failed to log in."""

    def __init__(
        self,
        users: UserTable,
        random_bytes: Callable[[int], bytes],
        wall_ms: Callable[[], int],
        limits: LoginLimits = LoginLimits(),  # noqa: B008  # immutable
    ) -> None:
        self.users = users
        """A challenge is valid only while this table stays."""
        self._random_bytes = random_bytes
        self._wall_ms = wall_ms
        self._decoy_secret = random_bytes(32)
        self._limits = limits
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def begin_authentication(self, request: AuthRequest) -> Principal | Challenge | WampRefusal:
        """Admit, challenge or refuse a client: by the first of its methods that is possible."""
        methods = request.methods or ("anonymous",)
        known = self._find_user(request)
        user = known or self._decoy_user(request.authid)
        for method in methods:
            if method == "anonymous" and self.users.anonymous is not None:
                return self.users.anonymous
            begin = _METHODS.get(method)
            challenge = begin(self, user, known is not None, request) if begin and user is not None else None
            if challenge is not None:
                return challenge
        if set(methods) == {"anonymous"}:
            return WampRefusal(errors.AUTHENTICATION_REQUIRED, "anonymous sessions are not allowed here")
        offered = ", ".join(methods)
        return WampRefusal(errors.NO_MATCHING_AUTH_METHOD, f"none of {offered[:200]} is possible here")

    def _find_user(self, request: AuthRequest) -> User | None:
        if request.authid:
            return self.users.users.get(request.authid)
        key = request.extra.get("pubkey")
        return self.users.by_public_key.get(key.lower()) if isinstance(key, str) else None

    def _decoy_user(self, authid: str) -> User | None:
        """A stable decoy user: an unknown authid gets the methods and salt of this one."""
        if not self.users.users:
            return None
        digest = hmac.digest(self._decoy_secret, authid.encode(), "sha256")
        users = list(self.users.users.values())
        user = users[int.from_bytes(digest[:8], "big") % len(users)]
        return msgspec.structs.replace(user, authid=authid, salt=user.salt and digest.hex()[:16])

    # --- methods --------------------------------------------------------------------------------------------

    def _ticket(self, user: User, known: bool, request: AuthRequest) -> Challenge | None:
        if not user.has_ticket or not request.private:
            return None
        expected = _ticket_hash(user)

        def is_right(signature: str) -> bool:
            return hmac.compare_digest(expected, sha256(_encoded(signature)).digest()) and known

        return Challenge("ticket", {}, _principal(user, "ticket"), is_right)

    def _wampcra(self, user: User, known: bool, request: AuthRequest) -> Challenge | None:
        if not user.has_secret:
            return None
        principal = _principal(user, "wampcra")
        question = {
            "authid": user.authid,
            "authrole": user.role,
            "authmethod": "wampcra",
            "authprovider": PROVIDER,
            "nonce": self._random_bytes(16).hex(),
            "timestamp": datetime.fromtimestamp(self._wall_ms() / 1000, UTC).isoformat(),
            "session": request.session,
        }
        challenge = msgspec.json.encode(question).decode()
        extra: dict[str, Any] = {"challenge": challenge}
        if user.salt:
            extra |= {"salt": user.salt, "keylen": _KEYLEN, "iterations": user.iterations}
        key = self.users.cra_key(user) if known else self._decoy_secret
        expected = b64encode(hmac.digest(key, challenge.encode(), "sha256"))

        def is_right(signature: str) -> bool:
            return hmac.compare_digest(expected, _encoded(signature)) and known

        return Challenge("wampcra", extra, principal, is_right)

    def _cryptosign(self, user: User, known: bool, request: AuthRequest) -> Challenge | None:
        key = request.extra.get("pubkey")
        if not user.public_keys or not isinstance(key, str):
            return None
        trusted = known and key.lower() in {each.lower() for each in user.public_keys}
        challenge = self._random_bytes(32)

        def is_right(signature: str) -> bool:
            return _is_signed(user.public_keys[0] if not trusted else key, challenge, signature) and trusted

        # Without channel binding: a client that requests it receives null, and can close the session.
        extra = {"challenge": challenge.hex(), "channel_binding": None}
        return Challenge("cryptosign", extra, _principal(user, "cryptosign"), is_right)

    # --- repeated failures ----------------------------------------------------------------------------------

    def is_blocked(self, peer: str, authid: str, now_ns: int) -> bool:
        """Whether `peer` has failed so often in the last minute that its next answer is refused unchecked.

        Asked at HELLO and again at AUTHENTICATE: sessions in parallel get their challenges before the first failure.
        """
        found = self._failures.get(peer)
        if found is None or now_ns - found.since_ns >= _FAILURE_WINDOW_NS:
            return False
        limits, failures = self._limits, found.by_authid
        return failures[authid] >= limits.of_user or failures.total() >= limits.of_peer

    def record_failure(self, peer: str, authid: str, now_ns: int) -> None:
        """Count a failed authentication of `authid` from `peer`."""
        found = self._failures.pop(peer, None)
        if found is None or now_ns - found.since_ns >= _FAILURE_WINDOW_NS:
            found = _Failures(now_ns)
        found.by_authid[authid] += 1
        self._failures[peer] = found
        if len(self._failures) > _MAX_TRACKED_PEERS:
            self._failures.popitem(last=False)


_Method = Callable[[Authenticator, User, bool, AuthRequest], Challenge | None]
_METHODS: Final[Mapping[str, _Method]] = {
    "ticket": Authenticator._ticket,  # noqa: SLF001  # the table of this module's class
    "wampcra": Authenticator._wampcra,  # noqa: SLF001
    "cryptosign": Authenticator._cryptosign,  # noqa: SLF001
}


def _principal(user: User, method: str) -> Principal:
    return Principal(user.authid, user.role, method, PROVIDER, user.subscribe, user.publish, user.meta_api)


def _keeps_credential(old: User, new: User, method: str) -> bool:
    """Whether all that a session of this method can have logged in with is still valid."""
    match method:
        case "ticket":
            return new.has_ticket and _ticket_hash(old) == _ticket_hash(new)
        case "wampcra":
            return _cra_input(old) == _cra_input(new)
    return set(map(str.lower, old.public_keys)) <= set(map(str.lower, new.public_keys))


def _encoded(text: str) -> bytes:
    """For `compare_digest`, which takes no string with other than ASCII characters."""
    return text.encode("utf-8", "surrogatepass")


def _ticket_hash(user: User) -> bytes:
    return bytes.fromhex(user.ticket_sha256) if user.ticket_sha256 else sha256(user.ticket.encode()).digest()


def _cra_input(user: User) -> _CraInput:
    """All that the signing key of WAMP-CRA depends on."""
    return user.secret, user.derived_key, user.salt, user.iterations


def _cra_key(user: User) -> bytes:
    """The signing key of a client: the secret or, if it is salted, the Base64 text of the key derived from it."""
    if user.derived_key:
        return user.derived_key.encode()
    secret = user.secret.encode()
    if not user.salt:
        return secret
    return b64encode(hashlib.pbkdf2_hmac("sha256", secret, user.salt.encode(), user.iterations, _KEYLEN))


def _is_signed(public_key: str, challenge: bytes, signature: str) -> bool:
    """Whether `signature` (hexadecimal; 64 bytes, then what was signed) is of `challenge` by the owner of the key."""
    from cryptography.exceptions import InvalidSignature  # an optional dependency, for public_keys only
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        signed = bytes.fromhex(signature)
        # The signed bytes must be this challenge: an answer cannot be replayed.
        if len(signed) != _SIGNATURE + len(challenge) or signed[_SIGNATURE:] != challenge:
            return False
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(signed[:_SIGNATURE], challenge)
    except (ValueError, InvalidSignature):
        return False
    return True
