# SPDX-License-Identifier: Apache-2.0
"""The rows R1 to R28: a promise, the tests that measure it, and the limit of their figures.

Most rows run tests that `make test` or `make soak` has too. The modules of this folder measure the others. Pytest
collects them by their path only, so no other target runs them.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from tests.mqtt_rig import MOSQUITTO

TIERS: Final = ("P", "N", "R")
"""Pull request, nightly, release. A row without a tier of its own runs the shorter one."""

_USUB: Final = "plugins/usubscription/tests"
_E2E: Final = "tests/e2e"
_ADMIN: Final = f"{_E2E}/operations/test_admin.py"
_DISK: Final = f"{_E2E}/operations/test_full_disk.py"
_RESTART: Final = f"{_E2E}/operations/test_restart.py"
_OWN: Final = "tests/scorecard"


class Run(NamedTuple):
    """Tests of one tier, and the number of trials for those that take one."""

    tests: tuple[str, ...]
    trials: int = 0


class Row(NamedTuple):
    """One row. `unit` is the figure that counts its trials; without it, the passed tests are counted."""

    promise: str
    limit: str
    control: str
    """How the row shows that its fault was real."""
    runs: Mapping[str, Run]
    unit: str = "tests"
    seeded: bool = False
    """Whether `--seed` changes the input."""
    timed: bool = False
    """Whether other rows next to it would change its figures."""

    def run_of(self, tier: str) -> Run:
        """The run of the longest tier up to this one."""
        *_, found = (self.runs[each] for each in TIERS[: TIERS.index(tier) + 1] if each in self.runs)
        return found


_KILLS: Final = f"{_USUB}/test_survival.py::test_a_kill_loses_and_resurrects_nothing_that_was_acknowledged"
_CUTS: Final = (
    f"{_USUB}/store/test_power_cut.py::test_a_power_cut_loses_no_acknowledged_change_unless_sync_is_off"
)
_FLIPS: Final = f"{_USUB}/store/test_bit_rot.py::test_a_flipped_bit_gives_no_wrong_record_and_no_silent_loss"
_SPOOL_FLIPS: Final = "tests/host/storage/test_spool.py::test_a_flipped_bit_in_the_file_returns_no_wrong_message_and_the_spool_opens"
_FUZZ: Final = (
    f"{_OWN}/fuzzing.py",
    "tests/transports/someip/protocol/test_fuzz.py::test_the_inputs_reach_every_depth_of_the_parser",
    "tests/transports/zenoh/test_decoder.py::test_any_bytes_decode_to_a_message_or_a_refusal_by_both_paths",
    f"{_USUB}/requests/test_malformed_requests.py",
    "plugins/wamp/tests/test_hostile.py",
)
_PEERS: Final = f"{_E2E}/multi_streamer/test_peer_streamers.py"
_SOMEIP_PEERS: Final = f"{_E2E}/multi_streamer/test_someip_peer_streamers.py"
_MIXED: Final = "test_between_two_someip_networks_and_a_zenoh_network_every_message_arrives_once"
_LIVE: Final = "tests/host/runtime/test_live_ledger.py"
_SERVICE_MODEL: Final = f"{_USUB}/test_service_model.py"
_MQTT: Final = "plugins/mqtt/tests/test_streamer.py"
_BROKER: Final = (
    (f"{_MQTT}::test_a_durable_endpoint_loses_nothing_when_the_broker_is_killed",) if MOSQUITTO else ()
)
"""Where a broker is installed."""
_SURVIVAL: Final = f"{_RESTART}::test_subscriptions_survive_a_kill"

ROWS: Final[dict[str, Row]] = {
    "R1": Row(
        "An acknowledged change of a subscription survives kill -9",
        "lost=0 resurrected=0 ready_ms<=1000",
        "`acknowledged` changes before the kills",
        {
            "P": Run((f"{_KILLS}[5]", _SURVIVAL)),
            "N": Run((f"{_KILLS}[1000]", _SURVIVAL, "tests/host/egress/test_durable_queue_kills.py")),
        },
        "kills",
        timed=True,
    ),
    "R2": Row(
        "An acknowledged change of a subscription survives a power cut",
        "lost=0 unopenable=0 control_bad_percent>=90",
        "the same cuts without sync: `control_bad_percent`",
        {"P": Run((f"{_CUTS}[some]",)), "N": Run((f"{_CUTS}[many]",))},
        "images",
    ),
    "R3": Row(
        "A flipped bit in a store is detected and never fatal",
        "wrong_data_accepted=0",
        "`detected` flips",
        {
            "P": Run((f"{_FLIPS}[some]", f"{_SPOOL_FLIPS}[12]")),
            "N": Run((f"{_FLIPS}[many]", f"{_SPOOL_FLIPS}[1000]")),
        },
        "flips",
    ),
    "R4": Row(
        "A full, failing or read-only disk ends nothing, and each refusal is reported",
        "",
        "each trial checks that the disk refused",
        {
            "P": Run(
                (
                    f"{_DISK}::test_a_full_disk_costs_no_other_traffic_and_is_reported",
                    f"{_DISK}::test_a_disk_that_fails_is_a_full_one[running]",
                    f"{_DISK}::test_a_disk_that_becomes_read_only_is_a_full_one",
                )
            ),
            "N": Run((_DISK,)),
        },
    ),
    "R5": Row(
        "An egress outage loses nothing and keeps the order",
        "unaccounted=0 lost=0 duplicates_percent<=1 reordered=0 control_lost>=1",
        "the same outage without a retransmit window: `control_lost`",
        {
            "P": Run((f"{_OWN}/outages.py::test_an_outage_loses_nothing",), 30),
            "N": Run((f"{_OWN}/outages.py::test_an_outage_loses_nothing",), 300),
        },
        "outages",
    ),
    "R6": Row(
        "What does not fit into a queue is a dead letter with a reason, and each caller gets a status",
        "dead_letters=9000 responses=3000 recursion=0",
        "9 000 of 10 000 messages do not fit",
        {"P": Run((f"{_E2E}/delivery/test_overflow.py",))},
        "offered",
    ),
    "R7": Row(
        "A stalled egress delays no other endpoint",
        "healthy_p99_ratio<=1.5 healthy_max_added_ms<=50 healthy_lost=0 control_p99_ratio>=20",
        "the same stall with one endpoint for all: `control_p99_ratio`",
        {"P": Run((f"{_OWN}/stalls.py",), 4), "N": Run((f"{_OWN}/stalls.py",), 15)},
        "rounds",
        timed=True,
    ),
    "R8": Row(
        "A router that is killed loses nothing",
        "lost=0 reordered=0",
        "`retransmitted` messages",
        {
            "P": Run((f"{_OWN}/outages.py::test_a_router_that_is_killed_loses_nothing", *_BROKER), 3),
            "N": Run((f"{_OWN}/outages.py::test_a_router_that_is_killed_loses_nothing", *_BROKER), 100),
        },
        "kills",
        seeded=True,
    ),
    "R9": Row(
        "Each reboot of a SOME/IP peer is detected once",
        "undetected=0 false=0 resubscribe_s<=1",
        "real kills and link losses; the model's second life is a reboot",
        {
            "P": Run((f"{_OWN}/reboots.py",), 120),
            "N": Run((f"{_OWN}/reboots.py",), 480),
        },
        "reboots",
        seeded=True,
    ),
    "R10": Row(
        "A thin, lossy or cut link costs only the datagrams that the link dropped",
        "tcp_lost=0 tcp_reordered=0 udp_lost_beyond=0 udp_twice=0 sd_recover_s<=1 "
        "udp_injected>=1 packets_dropped>=1 sd_pending>=1",
        "packets dropped by the link: `udp_injected`, `packets_dropped`, `sd_dropped`",
        {"P": Run((f"{_OWN}/thin_links.py",), 2), "N": Run((f"{_OWN}/thin_links.py",), 30)},
        "links",
    ),
    "R11": Row(
        "Clock steps expire nothing wrongly and keep nothing too long",
        "wrongly_expired=0 never_expired=0 sub_expiry_error_s<=1",
        "each test checks that the step arrived",
        {
            "P": Run(
                (
                    "tests/core/delivery/test_expiry.py",
                    "tests/uprotocol/test_uuid.py",
                    f"{_USUB}/test_service.py",
                    f"{_E2E}/operations/test_clock_steps.py",
                )
            )
        },
    ),
    "R12": Row(
        "Hostile bytes are decoded or refused with a type of their own, in a bounded time",
        "untyped=0 slow=0 targets>=26",
        "`test_the_inputs_reach_every_depth_of_the_parser`",
        {
            "P": Run(_FUZZ, 20_000),
            "N": Run(_FUZZ, 500_000),
            "R": Run(_FUZZ, 10_000_000),
        },
        "inputs",
        seeded=True,
    ),
    "R13": Row(
        "Hostile packets at the live ports change nothing",
        "probes_failed=0 forwarded=0 state_changed=0 log_lines_per_s<=1 grown_mb<=4 dropped_percent<=1 "
        "log_suppressed>=1",
        "`read` counts the datagrams that the streamer took, `log_suppressed` the lines that it left out",
        {
            "P": Run((f"{_OWN}/hostile_packets.py",), 20_000),
            "N": Run((f"{_OWN}/hostile_packets.py", f"{_E2E}/discovery/test_hostile_ecus.py"), 1_000_000),
        },
        "datagrams",
        seeded=True,
    ),
    "R14": Row(
        "Hostile segments take a bounded memory",
        "peak_kb<=1000",
        "`refused` segments",
        {
            "P": Run(
                (
                    "tests/transports/someip/protocol/test_tp.py::test_hostile_segments_take_less_than_a_megabyte",
                    "tests/transports/someip/protocol/test_tp.py::test_limits_hold_and_counters_balance_for_any_segments",
                )
            )
        },
        "segments",
    ),
    "R15": Row(
        "Memory is bounded under overload, and each message that is shed is reported",
        "served_lost=0 disordered=0 unreported=0 oom=0 rss_max_of_mean_percent<=115 shed>=1",
        "`shed` messages, and `waits` of the fast publisher",
        {"P": Run((f"{_OWN}/overload.py",), 60_000), "N": Run((f"{_OWN}/overload.py",), 5_000_000)},
        "offered",
        timed=True,
    ),
    "R16": Row(
        "No message with the source of another network is forwarded",
        "forwarded=0 uncounted=0 rpc_denied_percent=100 answered_twice=0",
        "the same topics from their true sources arrive",
        {"P": Run((f"{_OWN}/spoofing.py",), 2_000), "N": Run((f"{_OWN}/spoofing.py",), 5_000)},
        "spoofed",
    ),
    "R17": Row(
        "Reset and other privileged calls are denied to all but the right caller at the right network",
        "not_denied=0 store_changed=0 allowed=1 replayed_elsewhere=0 replayed_at_home=0",
        "the right caller is `allowed`",
        {"P": Run((f"{_OWN}/privileged_calls.py",), 2_000)},
        "calls",
    ),
    "R18": Row(
        "Two streamers, or a ring of three, neither loop nor multiply messages",
        "received_twice=0 received_never=0 growth=0",
        "without peer detection the same topologies double and loop",
        {
            "P": Run(
                (
                    f"{_OWN}/loops.py",
                    f"{_PEERS}::test_in_a_ring_of_three_that_name_each_other_each_message_arrives_once",
                    f"{_PEERS}::test_two_streamers_without_peer_detection_both_forward_everything",
                    f"{_SOMEIP_PEERS}::test_in_a_ring_no_event_loops",
                    f"{_SOMEIP_PEERS}::test_in_a_ring_without_peer_detection_an_event_loops",
                    f"{_SOMEIP_PEERS}::{_MIXED}",
                ),
                2_000,
            ),
            "N": Run((f"{_OWN}/loops.py", f"{_E2E}/multi_streamer"), 10_000),
        },
        "published",
    ),
    "R19": Row(
        "A stop under load sends, or reports, all that was accepted",
        "accepted_lost=0 stop_s<=5",
        "the drain limit is hit in one test: exit code 75 and a count",
        {
            "P": Run(
                (
                    f"{_ADMIN}::test_a_stop_under_load_delivers_or_counts_all_that_was_accepted",
                    f"{_ADMIN}::test_a_stop_that_hits_the_drain_limit_reports_the_unsent_messages",
                    f"{_E2E}/discovery/test_discovery.py::test_a_subscribed_ecu_receives_events_until_its_stop",
                )
            )
        },
        "stops",
    ),
    "R20": Row(
        "A reload under load loses nothing and sends nothing twice; an invalid one changes nothing",
        "lost=0 duplicates=0",
        "every second reload is invalid and refused",
        {"P": Run((f"{_ADMIN}::test_reloads_under_load_lose_nothing_and_send_nothing_twice",))},
        "reloads",
    ),
    "R21": Row(
        "A plugin that raises, blocks or returns junk costs its own messages only",
        "",
        "each test checks that the error was counted",
        {
            "P": Run(
                (
                    "tests/core/delivery/test_plugin_errors.py",
                    f"{_LIVE}::test_a_dispatch_that_never_ends_blocks_neither_a_reading_nor_a_stop",
                    "tests/host/runtime/test_streamer_hooks.py",
                )
            )
        },
    ),
    "R22": Row(
        "A throttled subscriber gets its rate, never more, and the first message",
        "",
        "a limiter that is in use elsewhere fails the same table",
        {"P": Run(("plugins/throttle/tests", f"{_E2E}/subscriptions/test_rates.py"))},
        seeded=True,
        timed=True,
    ),
    "R23": Row(
        "WAMP clients that stop reading delay no other and take a bounded memory",
        "lost=0 stalled_dropped>=1000 rss_delta_mb<=5 others_p99_ratio<=1.2",
        "`stalled_dropped` events of the clients that do not read",
        {
            "P": Run(
                (
                    "plugins/wamp/tests/connections/test_slow_clients.py",
                    "tests/benchmarks/test_wamp.py::test_ten_clients_that_do_not_read_do_not_delay_the_others",
                )
            )
        },
        timed=True,
    ),
    "R24": Row(
        "Hours of traffic lose nothing and leave nothing behind",
        "lost=0 disordered=0 unanswered=0 unaccounted=0 threads=0 rss_growth_mb<=2",
        "`switches` of subscriptions while messages flow",
        {
            "P": Run((f"{_OWN}/soak.py",), 400),
            "N": Run((f"{_OWN}/soak.py",), 800),
            "R": Run((f"{_OWN}/soak.py",), 3_600),
        },
        "messages",
        timed=True,
    ),
    "R25": Row(
        "The start order of router, ECU, streamer and subscriber does not matter",
        "unconverged=0 p95_s<=5",
        "the participants find nothing at their start: `first_*` counts the first of each order",
        {"P": Run((f"{_OWN}/start_orders.py",), 4), "N": Run((f"{_OWN}/start_orders.py",), 50)},
        "starts",
        seeded=True,
    ),
    "R26": Row(
        "The uSubscription equals a dict model for any sequence of requests, restarts and expiries",
        "divergences=0",
        "the model's own tests, and `make simulate` with mutated code",
        {
            "P": Run((f"{_SERVICE_MODEL}::test_the_service_matches_a_dict",)),
            "N": Run((f"{_SERVICE_MODEL}::test_the_service_matches_a_dict_for_many_steps",)),
        },
        "steps",
        seeded=True,
    ),
    "R27": Row(
        "A call of the operating system that fails breaks no promise, whichever it is",
        "invariant_breaks=0 refused>=1",
        "`refused` changes",
        {"P": Run((f"{_OWN}/failing_io.py",), 2), "N": Run((f"{_OWN}/failing_io.py",), 30)},
        "calls_failed",
    ),
    "R28": Row(
        "A store of each earlier layout opens; a later one is refused and unchanged",
        "",
        "the later layouts are refused",
        {
            "P": Run(
                (
                    "tests/host/storage/test_golden_stores.py",
                    f"{_USUB}/store/test_migration.py",
                    "tests/host/storage/test_spool.py::test_a_spool_of_a_later_layout_is_refused_and_unchanged",
                    "tests/core/storage/test_lmdb_store.py::test_a_store_of_a_later_layout_is_refused_and_unchanged",
                    "plugins/recorder/tests/test_layout.py",
                )
            )
        },
    ),
}
