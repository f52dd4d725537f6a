# SPDX-License-Identifier: Apache-2.0
"""Identities as Zenoh's access control. tests/e2e/routing/test_identities.py has the effect on real sessions."""

from pathlib import Path
from typing import Any

import pytest

from ustreamer.transports.zenoh.access_control import access_control, router_access_control
from ustreamer.transports.zenoh.config import ZenohEndpoint, ZenohIdentity
from ustreamer.transports.zenoh.transport import zenoh_config
from ustreamer.uprotocol.ustatus import UStatusError

FLEET = ZenohIdentity(certificate="fleet", sources=("//cloud.eu/27001/1/FFFF",))
GUEST = ZenohIdentity(user="guest", sources=("//*/FFFFFFFF/FF/FFFF",))


def granted(control: dict[str, Any], subject: str) -> dict[str, set[str]]:
    """The keys that a subject may put or declare, by message."""
    rules = {each["id"]: each for each in control["rules"]}
    found: dict[str, set[str]] = {}
    for policy in control["policies"]:
        for rule in (rules[id] for id in policy["rules"] if subject in policy["subjects"]):
            for message in rule["messages"] if rule["flows"] == ["ingress"] else ():
                found.setdefault(message, set()).update(rule["key_exprs"])
    return found


def test_an_identity_may_put_from_its_sources_and_nothing_else() -> None:
    control = access_control([FLEET, GUEST])
    assert (control["enabled"], control["default_permission"]) == (True, "deny")
    assert control["subjects"] == [
        {"id": "fleet", "cert_common_names": ["fleet"]},
        {"id": "guest", "usernames": ["guest"]},
    ]
    assert granted(control, "fleet")["put"] == {
        "up/cloud.eu/7001/2/1/*/*/*/*/*/*",
        "up/cloud.eu/7001/2/1/*/{}/{}/{}/{}/{}",
        "up-receipts/1/cloud.eu/**",
    }
    assert granted(control, "fleet")["liveliness_token"] == {
        "up-streamer/1/*/*/cloud.eu/**",
        "up-receipts/1/cloud.eu/**",
    }
    assert "up/*/*/*/*/*/{}/{}/{}/{}/{}" in granted(control, "guest")["put"]
    assert "query" not in granted(control, "fleet")


def test_a_router_lets_the_streamer_send_everything() -> None:
    control = router_access_control([FLEET], "gateway")
    assert granted(control, "the streamer")["put"] == {"**"}
    assert granted(control, "fleet") == granted(access_control([FLEET]), "fleet")


@pytest.mark.parametrize(
    ("identity", "file", "text"),
    [
        (
            FLEET,
            "{}",
            "certificates are not required: set transport/link/tls/enable_mtls to true in the file",
        ),
        (GUEST, "{}", "users are not known: set transport/auth/usrpwd/dictionary_file in the file"),
        (
            FLEET,
            '{ transport: { link: { tls: { enable_mtls: true } } }, access_control: { enabled: true, default_permission: "allow" } }',
            "access_control of the file would be replaced: leave it out of the file",
        ),
    ],
)
def test_a_file_that_authenticates_no_sender_is_refused(
    tmp_path: Path, identity: ZenohIdentity, file: str, text: str
) -> None:
    path = tmp_path / "zenoh.json5"
    path.write_text(file, encoding="utf-8")
    section = ZenohEndpoint(
        transport="zenoh", authorities=("cloud",), config=path, listen=(), identities=(identity,)
    )
    with pytest.raises(UStatusError) as refused:
        zenoh_config(section, "cloud")
    assert refused.value.message == f"endpoint 'cloud': identities: {text}"
