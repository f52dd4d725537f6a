# SPDX-License-Identifier: Apache-2.0
"""Files that survive a restart: the mechanisms under the spool, the dead letters and the subscriptions.

A store has one owner at a time, and a damaged file must not end the streamer. This package has each mechanism once:
the path to create and open a store, version and checksum of a record, the verify process, quarantine, reserved space,
and the errors of a full or read-only disk. The three stores keep only their record layouts and their limits. It is
the one package of the core that does I/O, because plugins may import the core and not the host. No other package of
the core imports it.

In: the directory of a store, records to write, limits. Out: a held lock, records that passed their checksum, errors.
Read lmdb_store.py first.
"""
