# SPDX-License-Identifier: Apache-2.0
"""uProtocol over Zenoh: every message type is a plain put (`up-transport-zenoh` of uProtocol's up-l1).

In: Zenoh samples of the subscribed keys. Out: messages to the listeners, and puts of the messages that are sent.

transport.py     the endpoint: one session, its listeners, its statistics; read it first
keys.py          key expressions of messages and filters
decoder.py       sample to UMessage            subscriber.py   receiving threads and listener calls
publisher.py     UMessage to put; its parts are route_publishers.py, encoded_headers.py and early_declarations.py
possible_losses.py what may not have arrived; it uses retransmit.py, sent_keeper.py and receipts/
link_monitor.py  connected nodes, lost data; connected_node.py and tcp_info.py are one node and the kernel's state of it
receipts         between streamers: givers, and the puts without a receipt
tokens           announcements of peer streamers as liveliness tokens
config.py        the `[endpoints.<name>]` keys; imports no Zenoh. locators.py, private_files.py and access_control.py
                 read their parts
foreign_keys.py  counts samples whose keys are not of this protocol version    errors.py   errors of Zenoh as text
"""
