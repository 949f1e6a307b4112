# SPDX-License-Identifier: Apache-2.0
"""CIFAR-10 (https://www.cs.toronto.edu/~kriz/cifar.html) in the forms people have it:

    train/<class>/NNNN.jpg (or .png), test/<class>/...    in a zip, a tar or a folder; needs Pillow
    data_batch_1.bin ... test_batch.bin                   per image: label, red, green, blue
    data_batch_1 ... test_batch                           the same as Python pickles

each in a folder or an archive; the first that is found in `data` is read.
"""

import io
import pickle
from pathlib import Path

import torch

from common.data.archive import candidates, read_members
from common.data import DataError
from common.data.images import ImageData, Images, stand_in

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz")
SHAPE = (3, 32, 32)


def load(data: Path | None) -> ImageData:
    """CIFAR-10 from a folder or archive; without one, a stand-in."""
    if data is None:
        return stand_in("CIFAR-10", SHAPE, (4000, 1000))
    for place in candidates(data, ARCHIVES):
        members = read_members(place, _is_ours)
        for suffix, decode in [
            ((".jpg", ".png"), _pictures),
            ((".bin",), _binary),
            (("",), _pickles),
        ]:
            chosen = {name: raw for name, raw in members.items() if name.endswith(suffix)}
            if chosen:
                return decode(place, chosen)
    raise DataError(
        f"{data}: no CIFAR-10 in it: neither train/<class>/*.jpg nor data_batch_1.bin "
        f"nor data_batch_1, in the folder or an archive ({', '.join(ARCHIVES)})"
    )


def _is_ours(name: str) -> bool:
    parts = name.split("/")
    if name.endswith((".jpg", ".png")):
        return len(parts) >= 3 and parts[-3] in ("train", "test")
    return parts[-1].removesuffix(".bin") in {
        *(f"data_batch_{i}" for i in range(1, 6)),
        "test_batch",
    }


def _pictures(place: Path, members: dict[str, bytes]) -> ImageData:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise DataError(f"{place}: decoding pictures needs Pillow: pip install pillow") from error
    classes = sorted({name.split("/")[-2] for name in members})
    splits: dict[str, tuple[list[torch.Tensor], list[int]]] = {"train": ([], []), "test": ([], [])}
    for name, raw in members.items():
        try:
            picture = Image.open(io.BytesIO(raw)).convert("RGB")
        except (UnidentifiedImageError, OSError) as error:
            raise DataError(f"{place}: {name} is not a picture: {error}") from error
        if picture.size != SHAPE[1:]:
            raise DataError(f"{place}: {name} is {picture.width} x {picture.height}, not 32 x 32")
        images, labels = splits[name.split("/")[-3]]
        images.append(
            torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).reshape(32, 32, 3)
        )
        labels.append(classes.index(name.split("/")[-2]))
    for split, (images, _) in splits.items():
        if not images:
            raise DataError(f"{place}: no pictures under {split}/")
    train, test = (
        Images(torch.stack(images).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels))
        for images, labels in splits.values()
    )
    form = "JPEG" if any(name.endswith(".jpg") for name in members) else "PNG"
    return ImageData(
        f"CIFAR-10 ({form}, {_thousands(len(train.labels) + len(test.labels))})", train, test
    )


def _binary(place: Path, members: dict[str, bytes]) -> ImageData:
    def decode(name: str, raw: bytes) -> Images:
        if not raw or len(raw) % 3073:
            raise DataError(f"{place}: {name} has {len(raw)} bytes, not a multiple of 3073")
        rows = torch.frombuffer(bytearray(raw), dtype=torch.uint8).reshape(-1, 3073)
        return Images(rows[:, 1:].reshape(-1, *SHAPE), rows[:, 0].long())

    return _batches(place, {name: decode(name, raw) for name, raw in members.items()})


def _pickles(place: Path, members: dict[str, bytes]) -> ImageData:
    def decode(name: str, raw: bytes) -> Images:
        try:
            batch = _ArraysOnly(io.BytesIO(raw), encoding="bytes").load()
            images = torch.as_tensor(batch[b"data"]).reshape(-1, *SHAPE)
            return Images(images, torch.tensor(batch[b"labels"]))
        except (pickle.UnpicklingError, KeyError, TypeError, RuntimeError, EOFError) as error:
            raise DataError(f"{place}: {name} is not a batch of CIFAR-10: {error}") from error

    return _batches(place, {name: decode(name, raw) for name, raw in members.items()})


def _batches(place: Path, parts: dict[str, Images]) -> ImageData:
    train = [part for name, part in parts.items() if "data_batch" in name]
    test = [part for name, part in parts.items() if "test_batch" in name]
    if not train or not test:
        raise DataError(
            f"{place}: needs both data_batch_* and test_batch, holds {', '.join(parts)}"
        )
    return ImageData("CIFAR-10", _join(train), _join(test))


def _join(parts: list[Images]) -> Images:
    return Images(torch.cat([p.images for p in parts]), torch.cat([p.labels for p in parts]))


class _ArraysOnly(pickle.Unpickler):
    """Refuses everything but NumPy arrays: a pickle could otherwise run any code."""

    def find_class(self, module: str, name: str) -> object:
        if (module.split(".")[0], name) in {
            ("numpy", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in it")


def _thousands(count: int) -> str:
    return f"{count // 1000}k" if count >= 1000 else str(count)
