# SPDX-License-Identifier: Apache-2.0
"""core.usubscription: who subscribed what, kept in LMDB, and the directory that the core routes by."""
