# SPDX-License-Identifier: Apache-2.0
"""A folder, a zip or a tar (any compression) as a dictionary from member name to bytes; nothing is
unpacked to disk."""

import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from common.data import DataError


def read_members(path: Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """The members of `path` whose name (with / and relative to `path`) is wanted, sorted by
    name."""
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    try:
        return dict(sorted(_members(path, wanted)))
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def candidates(data: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Where data may be: `data` itself, and the archives in it when it is a folder."""
    if not data.is_dir():
        return [data]
    files = (p for p in data.iterdir() if p.is_file() and p.name.endswith(suffixes))
    return [data, *sorted(files)]


def _members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        for file in path.rglob("*"):
            name = file.relative_to(path).as_posix()
            if wanted(name) and file.is_file():
                yield name, file.read_bytes()
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in filter(wanted, archive.namelist()):
                yield name, archive.read(name)
    elif tarfile.is_tarfile(path):
        with tarfile.open(path) as archive:
            for member in archive:
                if wanted(member.name) and (stream := archive.extractfile(member)):
                    yield member.name, stream.read()
    else:
        raise DataError(f"{path}: neither a folder nor a zip nor a tar")
