# SPDX-License-Identifier: Apache-2.0
"""The parts the examples share: recipes, the order of samples, masking, counting."""

import argparse
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import bert_mlm  # noqa: E402
import lstm_an4  # noqa: E402
from common.classify import shift_and_mirror  # noqa: E402
from common.exchange import ring_bytes  # noqa: E402
from common.order import Order  # noqa: E402
from common.recipes import parse_recipes  # noqa: E402
from common.report import gap, human_bytes  # noqa: E402
from common.train import Run  # noqa: E402

ARGS = argparse.Namespace(density=0.01, codec="", warmup_steps=20)


def test_recipes_take_options_and_defaults():
    dense, power, sparse = parse_recipes(
        "dense, powersgd:rank=4 ,"
        "circulant:density=0.05:codec=elias_fano+bf16:optimiser=plain:seed=3",
        ARGS,
    )
    assert not dense.is_sparse and dense.warmup == 20
    assert power.matrix_rank == 4
    assert sparse.is_sparse and sparse.method == "circulant" and sparse.plain_optimiser
    assert (sparse.density, sparse.codec, sparse.extra) == (0.05, "elias_fano+bf16", {"seed": 3})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "names nothing"),
        ("dense,dense", "names one twice"),
        ("circulant:density", "'density' is not key=value"),
        ("circulant:density=2", r"density 2.0 is not in \(0, 1\]"),
        ("circulant:density=x", "could not convert"),
        ("circulant:optimiser=adam", "neither sparse nor plain"),
        ("dense:foo=1", "dense has no option foo"),
        ("powersgd:rank=0", "rank 0 >= 1"),
    ],
)
def test_recipes_that_make_no_sense_are_refused(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_recipes(text, ARGS)


@pytest.mark.parametrize(("count", "batch", "size"), [(10, 2, 3), (7, 3, 5), (3, 8, 2)])
def test_order_gives_every_sample_its_turn(count, batch, size):
    orders = [Order(count, batch, rank, size, seed=1) for rank in range(size)]
    steps = 4 * count
    seen = torch.cat([order.indices(step) for step in range(steps) for order in orders])
    assert len(seen) == steps * batch * size
    for epoch in seen[: len(seen) // count * count].reshape(-1, count):
        assert sorted(epoch.tolist()) == list(range(count))
    again = Order(count, batch, 1, size, seed=1)
    assert torch.equal(again.indices(steps - 1), orders[1].indices(steps - 1))


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [
        ("", "", 0),
        ("", "abc", 3),
        ("abc", "", 3),
        ("kitten", "sitting", 3),
        ("abc", "abc", 0),
        ("ab", "ba", 2),
    ],
)
def test_edit_distance(a, b, distance):
    assert lstm_an4.edit_distance([ord(c) for c in a], [ord(c) for c in b]) == distance


def test_images_are_moved_and_mirrored_but_not_changed():
    torch.manual_seed(0)
    images = torch.zeros(400, 1, 16, 16, dtype=torch.uint8)
    images[:, 0, 8, 5] = 7
    moved = shift_and_mirror(images, reach=2)
    assert moved.shape == images.shape and moved.dtype == images.dtype
    places = moved[:, 0].nonzero()
    assert len(places) == 400 and moved.sum() == 7 * 400
    assert sorted(set(places[:, 1].tolist())) == [6, 7, 8, 9, 10]
    assert sorted(set(places[:, 2].tolist())) == [3, 4, 5, 6, 7, 8, 9, 10, 11, 12]  # 5 and, mirrored, 10


def test_masking_is_fifteen_percent_of_which_most_are_hidden():
    torch.manual_seed(0)
    tokens = torch.randint(1, 500, (600, 40))
    shown, places = bert_mlm.mask(tokens, 500)
    assert places.shape == (600, 6)
    assert all(len(set(row)) == 6 for row in places[:20].tolist())
    untouched = torch.ones_like(tokens, dtype=torch.bool).scatter(1, places, False)
    assert torch.equal(shown[untouched], tokens[untouched])
    guessed, original = shown.gather(1, places), tokens.gather(1, places)
    hidden, left = (guessed == 0).float().mean(), (guessed == original).float().mean()
    assert hidden == pytest.approx(0.8, abs=0.03) and left == pytest.approx(0.1, abs=0.03)


def test_spelling_merges_repeats_and_drops_blanks():
    best = torch.tensor([[3, 3, 0, 3, 4, 4, 9], [0, 0, 5, 5, 9, 9, 9]])
    scores = torch.nn.functional.one_hot(best, len(lstm_an4.an4.ALPHABET)).float()
    assert lstm_an4.spell(scores, torch.tensor([6, 4])) == [[3, 3, 4], [5]]


def test_both_ways_is_a_bidirectional_lstm_of_packed_sequences():
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    torch.manual_seed(0)
    ours, theirs = lstm_an4.BothWays(5, 7), torch.nn.LSTM(5, 7, batch_first=True, bidirectional=True)
    for name, weights in theirs.named_parameters():
        way = ours.backwards if name.endswith("_reverse") else ours.forwards
        weights.data.copy_(getattr(way, name.removesuffix("_reverse")))
    counts = torch.tensor([9, 1, 4])
    x = torch.randn(3, 9, 5)
    turned = torch.tensor([[max(c - 1 - t, 0) for t in range(9)] for c in counts])
    packed = pack_padded_sequence(x, counts, batch_first=True, enforce_sorted=False)
    expected, _ = pad_packed_sequence(theirs(packed)[0], batch_first=True)
    for row, other, count in zip(ours(x, turned[..., None]), expected, counts, strict=True):
        torch.testing.assert_close(row[:count], other[:count])


def test_padding_does_not_change_what_the_lstm_hears():
    torch.manual_seed(0)
    model = lstm_an4.Speller(hidden=8, layers=2, stack=3, dropout=0.0).eval()
    frames = torch.randn(2, 20, 13)
    frames[1, 11:] = 0
    together, times = model(frames, torch.tensor([20, 11]))
    alone, _ = model(frames[1:], torch.tensor([11]))
    assert times.tolist() == [7, 4]
    assert torch.allclose(together[1, :4], alone[0, :4], atol=1e-6)


def test_bytes_of_a_ring():
    assert ring_bytes(400, 4) == 600 and ring_bytes(400, 1) == 0
    shown = ["0 B", "1023 B", "2 KiB", "3.5 MiB", "2.00 GiB"]
    assert [human_bytes(n) for n in (0, 1023, 2048, 3.5 * 2**20, 2**31)] == shown


def test_gap_is_relative_to_dense():
    dense, sparse = parse_recipes("dense,circulant", ARGS)
    runs = [Run(dense, "SGD", loss=2.0), Run(sparse, "SparseSGD", loss=2.1)]
    assert gap(runs[1], runs) == pytest.approx(0.05)
    assert gap(runs[0], runs) is None and gap(runs[1], runs[1:]) is None
