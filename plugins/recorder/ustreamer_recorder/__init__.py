# SPDX-License-Identifier: Apache-2.0
"""The plugin that records the dispatcher's verdict on every message for every target, with its times.

In: verdicts (by taps), subscription changes, rate changes, the configuration. Out: segment files in the directory of
recordings; docs/recordings.md defines their bytes.

The path of messages appends notes to a queue (note_queue.py). A writer thread (recorder.py) turns notes into records
(journal.py, encoder.py) and writes files (segments.py). reader.py reads them back. Read note_queue.py first.
"""
