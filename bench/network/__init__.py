# SPDX-License-Identifier: Apache-2.0
"""The parts of bench/slow_network.py: ranks in network namespaces behind links with a limit."""
