# SPDX-License-Identifier: Apache-2.0
"""The parts of scripts/docs_site.py: pages, navigation, API reference, links and code blocks of the documentation."""
