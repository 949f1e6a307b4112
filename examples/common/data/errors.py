# SPDX-License-Identifier: Apache-2.0
"""What a reader raises when a file is not there, or is not what it should be."""


class DataError(Exception):
    """Names the file and what is wrong with it; shown to the user as it is."""
