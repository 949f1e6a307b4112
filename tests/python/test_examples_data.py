# SPDX-License-Identifier: Apache-2.0
"""The examples' readers, on tiny files in the true formats, and on files that are not."""

import gzip
import io
import pickle
import struct
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from common.data import DataError, an4, cifar, mnist, text  # noqa: E402

ARCHIVES = ["folder", "zip", "tar.xz", "tar.gz"]


def pack(folder: Path, form: str, members: dict[str, bytes]) -> Path:
    """The members as a folder or an archive; what a user would name with --data."""
    if form == "folder":
        for name, raw in members.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(raw)
    elif form == "zip":
        with zipfile.ZipFile(folder / "data.zip", "w") as archive:
            for name, raw in members.items():
                archive.writestr(name, raw)
    else:
        with tarfile.open(folder / f"data.{form}", f"w:{form.split('.')[1]}") as archive:
            for name, raw in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(raw)
                archive.addfile(info, io.BytesIO(raw))
    return folder


# --- MNIST ---


def idx(values: "numpy.ndarray") -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return header + values.astype(numpy.uint8).tobytes()


def write_mnist(folder: Path, compress: bool) -> tuple["numpy.ndarray", "numpy.ndarray"]:
    images = numpy.random.default_rng(0).integers(0, 256, (5, 28, 28))
    labels = numpy.array([3, 1, 4, 1, 5])
    for split in ("train", "t10k"):
        for name, values in [("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)]:
            raw = idx(values)
            path = folder / f"{split}-{name}{'.gz' if compress else ''}"
            path.write_bytes(gzip.compress(raw) if compress else raw)
    return images, labels


@pytest.mark.parametrize("compress", [False, True])
def test_mnist_reads_idx_files(tmp_path, compress):
    images, labels = write_mnist(tmp_path, compress)
    data = mnist.load(tmp_path)
    assert not data.stand_in
    assert data.train.images.shape == (5, 1, 28, 28)
    assert data.train.images[:, 0].tolist() == images.tolist()
    assert data.test.labels.tolist() == labels.tolist()


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"\x89PNG", "not an idx file"),
        (idx(numpy.zeros((2, 3)))[:-1], "announces 6 bytes, 5 follow"),
        (b"\0\0\x08\x03\0\0", "ends inside its header"),
        (b"\x1f\x8bnot gzip at all", "cannot be read"),
    ],
)
def test_mnist_refuses_what_is_no_idx_file(tmp_path, raw, complaint):
    path = tmp_path / "x"
    path.write_bytes(raw)
    with pytest.raises(DataError, match=complaint):
        mnist.read_idx(path)


def test_mnist_names_the_missing_file(tmp_path):
    with pytest.raises(DataError, match="train-images-idx3-ubyte"):
        mnist.load(tmp_path)


# --- CIFAR-10 ---


def jpeg(red: int, size: int = 32) -> bytes:
    image = pytest.importorskip("PIL.Image").new("RGB", (size, size), (red, 0, 0))
    stream = io.BytesIO()
    image.save(stream, "JPEG")
    return stream.getvalue()


@pytest.mark.parametrize("form", ARCHIVES)
def test_cifar_reads_pictures(tmp_path, form):
    members = {
        f"{split}/{name}/{i:04}.jpg": jpeg(40 * (i + 1))
        for split in ("train", "test")
        for name in ("cat", "airplane")
        for i in range(2)
    }
    data = cifar.load(pack(tmp_path, form, members))
    assert data.train.images.shape == (4, 3, 32, 32)
    assert data.train.labels.tolist() == [0, 0, 1, 1]  # classes by name, files by name
    red = data.train.images[:, 0].float().mean((1, 2)).tolist()
    assert red == pytest.approx([40, 80, 40, 80], abs=3)  # JPEG is lossy
    assert "JPEG" in data.name


def test_cifar_refuses_a_picture_of_another_size(tmp_path):
    members = {f"{split}/cat/0000.jpg": jpeg(9, 31) for split in ("train", "test")}
    with pytest.raises(DataError, match="31 x 31, not 32 x 32"):
        cifar.load(pack(tmp_path, "zip", members))


def batch(labels: list[int]) -> "numpy.ndarray":
    return numpy.random.default_rng(len(labels)).integers(0, 256, (len(labels), 3072), numpy.uint8)


@pytest.mark.parametrize("form", ARCHIVES)
@pytest.mark.parametrize("kind", ["bin", "py"])
def test_cifar_reads_batches(tmp_path, form, kind):
    members = {}
    for name, labels in [
        ("data_batch_1", [7, 8]),
        ("data_batch_2", [9]),
        ("test_batch", [1, 2, 3]),
    ]:
        pixels = batch(labels)
        if kind == "bin":
            rows = [
                bytes([label]) + row.tobytes() for label, row in zip(labels, pixels, strict=True)
            ]
            members[f"cifar-10-batches-bin/{name}.bin"] = b"".join(rows)
        else:
            content = {b"data": pixels, b"labels": labels}
            members[f"cifar-10-batches-py/{name}"] = pickle.dumps(content, protocol=2)
    data = cifar.load(pack(tmp_path, form, members))
    assert data.train.labels.tolist() == [7, 8, 9]
    assert data.train.images[2].flatten().tolist() == batch([9])[0].tolist()
    assert data.test.images.shape == (3, 3, 32, 32)


class Evil:
    def __reduce__(self):
        return (print, ("this must not run",))


def test_cifar_runs_no_code_out_of_a_pickle(tmp_path, capsys):
    members = {f"b/{name}": pickle.dumps(Evil()) for name in ("data_batch_1", "test_batch")}
    with pytest.raises(DataError, match=r"builtins.print has no place"):
        cifar.load(pack(tmp_path, "folder", members))
    assert capsys.readouterr().out == ""


def test_cifar_says_what_it_looked_for(tmp_path):
    with pytest.raises(DataError, match="no CIFAR-10 in it"):
        cifar.load(tmp_path)
    with pytest.raises(DataError, match="3072 bytes, not a multiple of 3073"):
        cifar.load(pack(tmp_path, "folder", {"data_batch_1.bin": b"x" * 3072}))


# --- AN4 ---


def mfc(frames: int, first: float = 0.0) -> bytes:
    values = [first + i for i in range(13 * frames)]
    return struct.pack(f">i{len(values)}f", len(values), *values)


def an4_members() -> dict[str, bytes]:
    return {
        "an4/etc/an4_train.fileids": b"an4_clstk/fash/a-b\nan4_clstk/fash/c-d\n",
        "an4/etc/an4_train.transcription": b"<s> YES  NO </s> (a-b)\nO'ER (c-d)\n",
        "an4/etc/an4_test.fileids": b"an4test_clstk/f/e-f\n",
        "an4/etc/an4_test.transcription": b"B (e-f)\n",
        "an4/feat/an4_clstk/fash/a-b.mfc": mfc(4),
        "an4/feat/an4_clstk/fash/c-d.mfc": mfc(7),
        "an4/feat/an4test_clstk/f/e-f.mfc": mfc(3),
    }


@pytest.mark.parametrize("form", ARCHIVES)
def test_an4_reads_frames_and_transcripts(tmp_path, form):
    data = an4.load(pack(tmp_path, form, an4_members()))
    assert data.train.frame_counts.tolist() == [4, 7]
    assert data.train.frames.shape == (2, 7, 13)
    spelt = [
        "".join(an4.ALPHABET[i] for i in row[:count])
        for row, count in zip(data.train.labels, data.train.label_counts, strict=True)
    ]
    assert spelt == ["YES NO", "O'ER"]
    assert data.train.frames[0, 4:].abs().sum() == 0  # padding
    assert data.train.frames[0, :4].mean(0).abs().max() < 1e-5  # each coefficient has mean 0
    assert data.test.frames.shape == (1, 3, 13)


def test_an4_frames_are_big_endian():
    assert an4.read_mfc("x", mfc(2, 0.5)).flatten().tolist() == [0.5 + i for i in range(26)]


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"", "first 4 bytes"),
        (struct.pack("<i13f", 13, *range(13)), "first 4 bytes"),  # little-endian
        (mfc(2)[:-4], "first 4 bytes"),
        (struct.pack(">i12f", 12, *range(12)), "12 values are not frames of 13"),
    ],
)
def test_an4_refuses_what_is_no_mfc_file(raw, complaint):
    with pytest.raises(DataError, match=complaint):
        an4.read_mfc("some.mfc", raw)


@pytest.mark.parametrize(
    ("name", "raw", "complaint"),
    [
        ("an4/feat/an4_clstk/fash/c-d.mfc", None, "no c-d.mfc"),
        ("an4/etc/an4_test.fileids", None, "no etc/an4_test.fileids"),
        ("an4/etc/an4_train.transcription", b"YES (a-b)\n", "2 fileids, 1 transcriptions"),
        ("an4/etc/an4_train.transcription", b"NO (c-d)\nYES (a-b)\n", "transcription of a-b reads"),
    ],
)
def test_an4_says_what_is_missing(tmp_path, name, raw, complaint):
    members = {**an4_members(), name: raw}
    with pytest.raises(DataError, match=complaint):
        an4.load(pack(tmp_path, "tar.xz", {k: v for k, v in members.items() if v is not None}))


# --- Text ---


def test_text_is_cut_into_pieces_without_loss(tmp_path):
    content = "To be, or not to be: that is the question.\n" * 40 + "Größe 是\t\tonce\n"
    (tmp_path / "a.txt").write_text(content, encoding="utf-8")
    data = text.load(tmp_path, length=8, vocabulary=300)
    tokens = data.vocabulary.encode(content)
    assert data.vocabulary.decode(tokens) == content
    assert len(data.vocabulary) <= 300
    assert int(tokens.max()) < len(data.vocabulary) and int(tokens.min()) > text.MASK
    assert data.train.shape[1] == data.test.shape[1] == 8
    assert torch.equal(torch.cat([data.train, data.test]).flatten(), tokens[: len(tokens) // 8 * 8])


def test_text_says_what_is_wrong(tmp_path):
    with pytest.raises(DataError, match=r"0 \.txt files"):
        text.load(tmp_path, 8, 300)
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not a text in UTF-8"):
        text.load(tmp_path, 8, 300)
    (tmp_path / "a.txt").write_text("short")
    with pytest.raises(DataError, match="too few"):
        text.load(tmp_path, 8, 300)
    with pytest.raises(DataError, match="at least 257"):
        text.load(None, 8, 100)


# --- Stand-ins and archives ---


def test_stand_ins_say_so_and_stay_the_same():
    for load in (mnist.load, cifar.load, an4.load, lambda path: text.load(path, 16, 400)):
        data = load(None)
        assert data.stand_in and "stand-in" in data.name
    first, second = mnist.load(None), mnist.load(None)
    assert torch.equal(first.train.images, second.train.images)
    assert sorted(set(first.test.labels.tolist())) == list(range(10))


def test_archives_that_are_broken_are_named(tmp_path):
    path = tmp_path / "data.zip"
    path.write_bytes(b"not a zip")
    with pytest.raises(DataError, match=r"data\.zip: neither a folder nor a zip nor a tar"):
        cifar.load(path)
    with pytest.raises(DataError, match="no such file"):
        an4.load(tmp_path / "nowhere")
