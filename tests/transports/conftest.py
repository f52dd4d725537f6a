# SPDX-License-Identifier: Apache-2.0
import pytest

# Asserts of the shared suite show their values, as those of a test module do.
pytest.register_assert_rewrite("tests.transports.contract")
