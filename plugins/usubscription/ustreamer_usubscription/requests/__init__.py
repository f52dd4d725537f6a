# SPDX-License-Identifier: Apache-2.0
"""The messages of uSubscription v3 and v4, and what each request does.

Read operations.py first; v3.py and v4.py are the two wire forms.
"""
