# SPDX-License-Identifier: Apache-2.0
"""The processes of an attack: the copy that does not start, the probe that receives nothing."""

from pathlib import Path

import pytest

from tests.host.attack.test_config_copy import ROOT, loaded
from ustreamer.host.attack import probe, probe_process
from ustreamer.host.attack.streamer_copy import StreamerCopy
from ustreamer.host.attack.target import read_target
from ustreamer.host.config.config import ConfigError
from ustreamer.uprotocol.ustatus import UCode, UStatusError


def test_the_plan_of_a_probe_names_both_ends_of_the_vehicle_path(tmp_path: Path) -> None:
    target = read_target(loaded((ROOT / "configs/vehicle.toml").read_text(), tmp_path))
    plan = probe.plan(target)
    assert (plan.topic, plan.event) == (str(probe.probe_topic(target)), (0x1234, 0x8001, 1))
    assert plan.ecu in plan.ecus
    assert plan.streamer == target.event.streamer if target.event else False


def test_a_probe_without_a_streamer_names_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Here the addresses of the ECUs are not of this machine."""
    target = read_target(
        loaded(
            (ROOT / "configs/vehicle.toml").read_text().replace("127.0.0.1:305", "192.0.2.1:305"), tmp_path
        )
    )
    plan = probe.plan(target)
    with pytest.raises(OSError, match="assign requested address"):
        probe_process.Probe(
            probe.ProbePlan(plan.topic, plan.usubscription, plan.home, (("192.0.2.1", 30_501),))
        )


def test_an_invalid_configuration_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    config = tmp_path / "car.toml"
    config.write_text('authority = "hpc"\n[endpoints.a]\ntransport = "zenho"\nauthorities = ["hpc"]\n')
    with pytest.raises(ConfigError, match="did you mean 'zenoh'"):
        StreamerCopy(config)


def test_a_copy_that_does_not_start_shows_its_log() -> None:
    copy = StreamerCopy(ROOT / "configs/minimal.toml")
    assert copy.path.stat().st_mode & 0o077 == 0
    copy.path.write_text("authority = 1\n")
    with pytest.raises(UStatusError, match="did not start") as refused:
        copy.__enter__()
    assert refused.value.code is UCode.UNAVAILABLE
    assert "authority" in refused.value.message
    assert not copy.path.parent.exists()
