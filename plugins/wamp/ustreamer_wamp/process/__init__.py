# SPDX-License-Identifier: Apache-2.0
"""The sessions in a process of their own, so that clients take CPU time and memory from that process only.

    streamer (parent.py, feed.py)                            child (child.py)
    inbox --- Event, Addressed, DroppedEvents, SeenTopic --> Sessions --> clients
    dispatch <- SessionMessage - patterns <- PatternChange - Sessions <-- clients
    counters, log <-- Report, ForwardedLog ----------------- Sessions
    a reload --- ChangeUsers ------------------------------> Sessions
    a stop --- StopAccepting, later Close -----------------> Sessions
    a stop <-- PublicationsEnded --------------------------- Sessions

Between them is a socket pair with small buffers, and the frames of `frames`. A child that does not read makes messages
wait in the inbox of the endpoint, which is bounded and counts what it drops (`ustreamer_wamp.transport`). The end of
either process closes the socket, and so ends the other side: a child without a streamer exits, and a streamer without a
child starts another one. Read frames.py first.
"""
