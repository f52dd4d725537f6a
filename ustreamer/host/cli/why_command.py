# SPDX-License-Identifier: Apache-2.0
"""`ustreamer why`: why messages of a topic, to a method or for a subscriber do not flow.

In: an address and a configuration. Out: a paragraph: what is wrong, since when, what to do. The running
streamer makes the diagnosis. Without one, the configuration and the files of the streamer are judged alone.
"""

import argparse
import json
from pathlib import Path
from typing import Final

import msgspec

from ustreamer.host.admin.server import NoAnswerError, PluginsRequest, WhyRequest, send_request
from ustreamer.host.cli.admin_commands import state_dir_of
from ustreamer.host.diagnosis.diagnosis import Diagnosis, diagnose, kind_of, paragraph
from ustreamer.host.diagnosis.findings import HEALTHY, DiagnosisFinding
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

_OK: Final = 0
_PROBLEM: Final = 1
_ANSWER_S: Final = 1.2
"""Without an answer to the simplest request for this time, the streamer hangs."""


def run_why(arguments: argparse.Namespace) -> int:
    """Run the command; the exit code is 1 if anything is wrong."""
    subject, source = UUri.parse(arguments.subject), arguments.source
    if not subject.authority_name or not subject.is_specific:
        arguments.usage_error(
            f"{arguments.subject}: expected an address with an authority and without wildcards"
        )
    state_dir = state_dir_of(arguments.config)
    wanted = WhyRequest(str(subject), source, str(arguments.config.absolute()), arguments.sample)
    try:
        send_request(state_dir, PluginsRequest(), _ANSWER_S)  # a diagnosis takes longer
        diagnosis = msgspec.convert(send_request(state_dir, wanted), Diagnosis)
    except NoAnswerError as error:
        diagnosis = _without_answer(subject, error)
    except UStatusError as error:
        if error.code is not UCode.UNAVAILABLE:
            raise
        diagnosis = _diagnose_files(arguments.config, subject, None if source is None else UUri.parse(source))
    if arguments.json:
        print(json.dumps(msgspec.to_builtins(diagnosis), indent=2))
    else:
        print(paragraph(diagnosis, SYSTEM_CLOCK.wall_ms(), str(state_dir)))
    return _OK if diagnosis.running and diagnosis.cause.cause == HEALTHY else _PROBLEM


def _without_answer(subject: UUri, error: NoAnswerError) -> Diagnosis:
    finding = DiagnosisFinding(
        "streamer_silent",
        f"The streamer does not answer: {error.state}.",
        None,
        "Wait if it starts or stops. Send it SIGCONT if a signal has stopped it, or restart it; the watchdog of the"
        " systemd unit restarts it.",
    )
    return Diagnosis(str(subject), kind_of(subject), True, (finding,))


def _diagnose_files(config: Path, subject: UUri, source: UUri | None) -> Diagnosis:
    """The diagnosis of a streamer that does not run."""
    from ustreamer.host.cli.explain_command import stored_router
    from ustreamer.host.runtime import process
    from ustreamer.host.runtime.evidence import collect_evidence
    from ustreamer.host.runtime.plugins import PluginError

    try:
        streamer = process.load(config).streamer()
    except (UStatusError, ValueError) as error:
        raise PluginError(f"{config}: {error}") from error
    router, _ = stored_router(streamer)
    return diagnose(collect_evidence(streamer.diagnosis_sources(router=router), subject, source, 0.0))
