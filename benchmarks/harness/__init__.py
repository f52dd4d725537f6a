# SPDX-License-Identifier: Apache-2.0
"""What benchmarks share: processes, test beds, measurements, reports."""
