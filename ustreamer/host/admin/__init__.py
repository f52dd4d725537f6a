# SPDX-License-Identifier: Apache-2.0
"""What a running streamer shows and does for commands and uProtocol clients.

Read server.py first: the admin socket; ustreamer_service.py is the uEntity.
"""
