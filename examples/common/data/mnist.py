# SPDX-License-Identifier: Apache-2.0
"""MNIST's idx files (https://yann.lecun.com/exdb/mnist/), plain or gzip: two zero bytes, a type
byte (8 = unsigned byte), the number of
dimensions, each dimension as a big-endian 32-bit integer, then the values."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import torch

from common.data import DataError
from common.data.images import ImageData, Images, stand_in


def load(data: Path | None) -> ImageData:
    """MNIST from the folder `data`; without one, a stand-in."""
    if data is None:
        return stand_in("MNIST", (1, 28, 28), (8000, 2000))
    return ImageData("MNIST", _split(data, "train"), _split(data, "t10k"))


def read_idx(path: Path) -> torch.Tensor:
    """The unsigned bytes of one idx file, in its shape."""
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise DataError(
            f"{path}: not an idx file of unsigned bytes: it starts with "
            f"{raw[:4].hex(' ')}, not 00 00 08"
        )
    start = 4 + 4 * raw[3]
    if len(raw) < start:
        raise DataError(f"{path}: ends inside its header")
    shape = struct.unpack_from(f">{raw[3]}I", raw, 4)
    if len(raw) - start != math.prod(shape):
        raise DataError(
            f"{path}: the header announces {math.prod(shape)} bytes, {len(raw) - start} follow"
        )
    return torch.frombuffer(bytearray(raw[start:]), dtype=torch.uint8).reshape(shape)


def _split(data: Path, name: str) -> Images:
    images, labels = (
        read_idx(_find(data, f"{name}-{kind}"))
        for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    if images.dim() != 3 or labels.dim() != 1 or len(images) != len(labels):
        raise DataError(
            f"{data}: {name} has images of shape {list(images.shape)} "
            f"and labels of shape {list(labels.shape)}"
        )
    return Images(images[:, None], labels.long())


def _find(data: Path, name: str) -> Path:
    for path in (data / name, data / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(f"{data}: holds neither {name} nor {name}.gz")
