# SPDX-License-Identifier: Apache-2.0
"""Messages that survive a restart: the spool of each durable endpoint, and the dead letters.

In: messages that a durable endpoint accepted, dead letters of the dispatcher, the limits of both. Out: stored messages
in their order after a restart, dead letters by number, counters. Also the lock of the state directory.

The mechanisms (verify process, quarantine, frames, disk-full behaviour) are in `ustreamer.core.storage`; the modules
here have the record layouts and the limits. Read spool.py first, then spool_records.py for its bytes.
"""
