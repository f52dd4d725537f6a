# SPDX-License-Identifier: Apache-2.0
"""Where a message goes: attributes in, targets or the reason for none out.

Read router.py first: `decide` is the one question; sublist.py matches topics to subscriptions.
"""
