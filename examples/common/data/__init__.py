# SPDX-License-Identifier: Apache-2.0
"""Readers of public data formats, each with a generated stand-in for where there is no data.

    mnist.py        idx files, plain or gzip
    cifar.py        CIFAR-10 as JPEGs in a zip or folder, or its binary or Python batches
    an4.py          AN4 speech: MFCC frames and transcripts
    text.py         any text file; a vocabulary of words and bytes
    images.py       what mnist.py and cifar.py return
    archive.py      a folder, zip or tar seen as named bytes

load(path) reads; load(None) is the stand-in, and its name says so.
"""


class DataError(Exception):
    """A data file is missing or damaged. Names the file and the fault; shown to the user as it is."""
