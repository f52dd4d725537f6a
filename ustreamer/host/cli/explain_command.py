# SPDX-License-Identifier: Apache-2.0
"""`ustreamer explain`: shows the routing decision for a message, made by the router's own code from files alone.

In: a configuration and the subscriptions on disk; a streamer may run with them at the same time. Out: the
steps of the decision. Nothing is changed.
"""

import argparse
import json
from typing import Any, Final

from ustreamer.core.dispatch.explain import Explanation, explain, rate_text
from ustreamer.core.routing.forwarding import Target
from ustreamer.core.routing.router import SELF, Router
from ustreamer.host.runtime import process
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.host.runtime.plugins import PluginError
from ustreamer.host.runtime.streamer import Streamer
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import notification, publish, request, response
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

_TTL_MS: Final = 10_000
_OK: Final = 0


def run_explain(arguments: argparse.Namespace) -> int:
    """Run the command."""
    loaded = process.load(arguments.config)
    try:
        streamer = loaded.streamer()
    except (UStatusError, PluginError, ValueError) as error:
        raise PluginError(f"{arguments.config}: {error}") from error
    own = loaded.config.authority
    source = _absolute_address(arguments.source, own)
    sink = None if arguments.sink is None else _absolute_address(arguments.sink, own)
    kind = arguments.type or message_kind(source, sink)
    if kind != "publish" and sink is None:
        arguments.usage_error(f"a {kind} needs --sink")
    ends = (SELF, *loaded.config.endpoints)
    if arguments.at is not None and arguments.at not in ends:
        arguments.usage_error(f"--at {arguments.at}: no such endpoint (have: {', '.join(ends)})")
    router, notes = stored_router(streamer)
    ingress = (
        arguments.at
        or router.authority_table.endpoint_of(source)
        or next(iter(loaded.config.endpoints), SELF)
    )
    explanation = explain(router, ingress, attributes_for(kind, source, sink))
    if arguments.json:
        print(json.dumps(_to_json(kind, source, sink, explanation, notes), indent=2))
    else:
        print("\n".join(_format_explanation(kind, source, sink, explanation, notes)))
    return _OK


def stored_router(streamer: Streamer) -> tuple[Router, list[str]]:
    """A router of the unstarted `streamer` with the subscriptions on disk, and notes about missing knowledge."""
    hook = streamer.plugins.hook
    stored = hook.ustreamer_stored_subscriptions()
    storing_plugins = {each.plugin_name for each in hook.ustreamer_stored_subscriptions.get_hookimpls()}
    unstored_plugins = sorted(
        each.plugin_name
        for each in hook.ustreamer_subscription_directory.get_hookimpls()
        if each.plugin_name not in storing_plugins
    )
    notes = [
        f"plugin {name}: its subscriptions are known to a running streamer only" for name in unstored_plugins
    ]
    return streamer.router_with(stored), notes


def message_kind(source: UUri, sink: UUri | None) -> str:
    """The possible types of a message from `source` to `sink`, by their resource ids."""
    if sink is None:
        return "publish"
    if sink.is_method:
        return "request"
    return "response" if source.is_method else "notification"


def attributes_for(kind: str, source: UUri, sink: UUri | None) -> UAttributes:
    """The header of such a message, with the fields that its type requires."""
    id = UuidSource(SYSTEM_CLOCK.wall_ms).next()
    if kind == "publish" or sink is None:
        return publish(id, source).attributes
    if kind == "notification":
        return notification(id, source, sink).attributes
    if kind == "request":
        return request(id, source, sink, ttl=_TTL_MS).attributes
    return response(id, request(id, sink, source, ttl=_TTL_MS)).attributes


def _absolute_address(text: str, own: str) -> UUri:
    address = UUri.parse(text)
    return address if address.authority_name else address.with_authority(own)


def _to_json(
    kind: str, source: UUri, sink: UUri | None, explanation: Explanation, notes: list[str]
) -> dict[str, Any]:
    return {
        "type": kind,
        "source": str(source),
        "sink": None if sink is None else str(sink),
        "ingress": explanation.ingress,
        "steps": [
            {"rule": each.rule, "passed": each.passed, "text": each.text} for each in explanation.steps
        ],
        "verdict": explanation.verdict,
        "targets": [
            {
                "endpoint": each.endpoint,
                "subscriber": None if each.subscriber is None else str(each.subscriber),
                "period_ns": each.period_ns,
            }
            for each in explanation.targets
        ],
        "notes": notes,
    }


def _format_explanation(
    kind: str, source: UUri, sink: UUri | None, explanation: Explanation, notes: list[str]
) -> list[str]:
    to = "" if sink is None else f" to {sink}"
    return [
        f"{kind} from {source}{to}, coming in at {explanation.ingress}",
        *(f"  {'yes' if each.passed else 'no ':<4}{each.rule:<12} {each.text}" for each in explanation.steps),
        f"{explanation.verdict}"
        + ("" if not explanation.targets else ", unless it expires or is throttled on the way:"),
        *(f"  -> {_format_target(each)}" for each in explanation.targets),
        *(f"note: {each}" for each in notes),
    ]


def _format_target(target: Target) -> str:
    subscriber = "" if target.subscriber is None else f" for {target.subscriber}"
    return f"{target.endpoint}{subscriber}, {rate_text(target.period_ns)}"
