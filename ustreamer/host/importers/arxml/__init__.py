# SPDX-License-Identifier: Apache-2.0
"""`ustreamer import arxml`: converts AUTOSAR files to a SOME/IP endpoint and descriptions of its payloads.

The library autosar-data (MIT or Apache-2.0) parses and checks the files. Read importer.py first. adaptive.py reads the
manifests of the Adaptive Platform, classic.py the system description of the Classic Platform, types.py the data types,
elements.py has the accessors of both. `importers/catalogue.py` makes the endpoint.
"""
