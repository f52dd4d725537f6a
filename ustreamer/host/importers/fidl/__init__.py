# SPDX-License-Identifier: Apache-2.0
"""`ustreamer import fidl`: converts Franca interfaces and their SOME/IP deployment.

Read importer.py first. tokens.py splits a file, interfaces.py parses .fidl and deployments.py .fdepl files, types.py
describes payloads. Only what an endpoint needs is understood; the rest must be well-formed and is skipped.
"""
