# SPDX-License-Identifier: Apache-2.0
"""AN4, CMU's alphanumeric speech (http://www.speech.cs.cmu.edu/databases/an4/), as MFCC frames:

    .../etc/an4_{train,test}.fileids         an4_clstk/fash/an251-fash-b
    .../etc/an4_{train,test}.transcription   [<s>] YES [</s>] (an251-fash-b)
    .../feat/<fileid>.mfc                    big-endian: a 32-bit count, then so many float32

in a folder, a zip or a tar. Everything is padded into tensors once, each utterance's coefficients
brought to mean 0 and variance 1.
"""

import re
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from torch.nn.utils.rnn import pad_sequence

from common.data.archive import candidates, read_members
from common.data import DataError

COEFFICIENTS = 13
ALPHABET = "_ 'ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # the first is CTC's blank
Utterance = tuple[torch.Tensor, str]


@dataclass
class Speech:
    """frames: float32 [count, longest, 13], zero-padded; labels: int64 [count, longest]. Lengths
    stay on the host, where packing needs them."""

    frames: torch.Tensor
    frame_counts: torch.Tensor
    labels: torch.Tensor
    label_counts: torch.Tensor

    def to(self, device: torch.device) -> "Speech":
        return Speech(
            self.frames.to(device), self.frame_counts, self.labels.to(device), self.label_counts
        )


@dataclass
class SpeechData:
    name: str
    train: Speech
    test: Speech
    stand_in: bool = False


def load(data: Path | None) -> SpeechData:
    """AN4 from a folder or archive; without one, a stand-in."""
    if data is None:
        return stand_in()
    for place in candidates(data, (".tar.xz", ".tar.gz", ".tgz", ".tar", ".zip")):
        members = read_members(place, _is_ours)
        if any(name.endswith("an4_train.fileids") for name in members):
            train, test = (_pad(_split(place, members, split)) for split in ("train", "test"))
            return SpeechData("AN4", train, test)
    raise DataError(f"{data}: no AN4 in it: no etc/an4_train.fileids, in the folder or an archive")


def read_mfc(name: str, raw: bytes) -> torch.Tensor:
    """The frames [count, 13] of one .mfc file."""
    values = (len(raw) - 4) // 4
    if len(raw) < 4 or struct.unpack_from(">i", raw)[0] != values or len(raw) % 4:
        raise DataError(
            f"{name}: the first 4 bytes (big-endian) are not the number of float32 "
            f"that follow ({max(values, 0)})"
        )
    if values == 0 or values % COEFFICIENTS:
        raise DataError(f"{name}: {values} values are not frames of {COEFFICIENTS}")
    frames = numpy.frombuffer(raw, ">f4", offset=4).astype(numpy.float32)
    return torch.from_numpy(frames).reshape(-1, COEFFICIENTS)


def stand_in() -> SpeechData:
    """Words spelt from a dozen letters; a letter is two sounds of 3-6 noisy frames each. Learnable;
    says nothing about real speech."""
    rng = torch.Generator().manual_seed(4)
    sounds = torch.randn(12, 2, COEFFICIENTS, generator=rng)

    def utterance() -> Utterance:
        letters = torch.randint(
            12, (int(torch.randint(3, 9, (), generator=rng)),), generator=rng
        ).tolist()
        spans = [
            sounds[letter, half].expand(int(torch.randint(3, 7, (), generator=rng)), -1)
            for letter in letters
            for half in (0, 1)
        ]
        frames = torch.cat(spans)
        return frames + 0.5 * torch.randn(frames.shape, generator=rng), "".join(
            ALPHABET[3 + letter] for letter in letters
        )

    train, test = (_pad([utterance() for _ in range(count)]) for count in (800, 160))
    return SpeechData("stand-in for AN4 (generated)", train, test, stand_in=True)


def _is_ours(name: str) -> bool:
    return name.endswith(".mfc") or bool(
        re.search(r"(^|/)an4_(train|test)\.(fileids|transcription)$", name)
    )


def _split(place: Path, members: dict[str, bytes], split: str) -> list[Utterance]:
    def lines(kind: str) -> list[str]:
        for name, raw in members.items():
            if name.endswith(f"an4_{split}.{kind}"):
                return [line.strip() for line in raw.decode("utf-8").splitlines() if line.strip()]
        raise DataError(f"{place}: no etc/an4_{split}.{kind}")

    features = {
        name.removesuffix(".mfc").split("/")[-1]: name for name in members if name.endswith(".mfc")
    }
    utterances = []
    for fileid, line in zip(ids := lines("fileids"), texts := lines("transcription"), strict=False):
        key = fileid.split("/")[-1]
        match = re.fullmatch(r"(.*?)\s*\((.+)\)", line)
        if not match or match[2].split("/")[-1] != key:
            raise DataError(f"{place}: {split}: the transcription of {key} reads {line!r}")
        if key not in features:
            raise DataError(f"{place}: no {key}.mfc")
        utterances.append(
            (read_mfc(f"{place}: {features[key]}", members[features[key]]), _clean(match[1]))
        )
    if len(ids) != len(texts) or not utterances:
        raise DataError(f"{place}: {split}: {len(ids)} fileids, {len(texts)} transcriptions")
    return utterances


def _clean(text: str) -> str:
    words = re.sub(r"</?s>|<sil>", " ", text).upper().split()
    return "".join(letter for letter in " ".join(words) if letter in ALPHABET[1:])


def _pad(utterances: list[Utterance]) -> Speech:
    frames = [(f - f.mean(0)) / (f.std(0, correction=0) + 1e-5) for f, _ in utterances]
    labels = [
        torch.tensor([ALPHABET.index(letter) for letter in text], dtype=torch.int64)
        for _, text in utterances
    ]
    return Speech(
        pad_sequence(frames, batch_first=True),
        torch.tensor([len(f) for f in frames]),
        pad_sequence(labels, batch_first=True),
        torch.tensor([len(t) for t in labels]),
    )
