# SPDX-License-Identifier: Apache-2.0
"""The error for a data file that is missing or damaged."""


class DataError(Exception):
    """Names the file and what is wrong with it; shown to the user as it is."""
