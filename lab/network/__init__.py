# SPDX-License-Identifier: Apache-2.0
"""Ranks in network namespaces behind links with a limit. slow_network.py trains there; transports.py times messages."""
