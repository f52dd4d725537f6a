# SPDX-License-Identifier: Apache-2.0
"""A black-box test kit of Eclipse uProtocol's standard. It shares no code with any product."""
