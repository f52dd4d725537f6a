# SPDX-License-Identifier: Apache-2.0
"""The egress queue of an endpoint with its threads, and its copy on disk.

Read endpoint_queue.py first; send_worker.py sends; durable_queue.py keeps on disk.
"""
