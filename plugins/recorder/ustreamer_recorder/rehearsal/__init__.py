# SPDX-License-Identifier: Apache-2.0
"""`ustreamer test NEW.toml --recording DIR`: what another configuration would have decided about a recorded run.

In: the rows and subscription changes of one run, and a configuration file. Out: the deliveries that change.

    recorded_traffic.py the rows as messages, in order of arrival
    subscriptions.py   the recorded subscriptions, as a directory for the router
    offline_ingress.py an ingress on recorded time, whose messages reach no network
    rehearsal.py       sends each message into the ingresses, compares both decisions
    command.py         the command, and its output
"""
