# SPDX-License-Identifier: Apache-2.0
"""Delivery of one message to one target: filters, verdicts, expiry and the counts behind them.

In: a message with its arrival time, from the ingress of the dispatcher. Each target has one `Delivery`.
Out: the message to the egress of the target's endpoint, and one verdict per delivery to the ledger and the taps.

ports.py          interfaces that plugins, the host and transports implement: Filter, Tap, Egress, SendOne, SendBatch
delivery.py       the filter chain of one target, and the single place where a delivery is settled; read it first
ledger.py         the verdicts and the ledger law
expiry.py         decides if the ttl of a message is over, also after a clock step
outgoing_batch.py the messages of one received batch for one target
plugin_errors.py  counts and logs plugin exceptions, disables failing taps
"""
