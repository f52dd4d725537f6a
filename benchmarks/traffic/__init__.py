# SPDX-License-Identifier: Apache-2.0
"""Traffic of benchmarks: generators, sinks, and bare forwarders to compare with."""
