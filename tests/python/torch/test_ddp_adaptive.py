# SPDX-License-Identifier: Apache-2.0
"""The DDP hook with a density that follows a target within a budget."""

import numpy as np
from models import flat, make_ddp, train
from ranks import in_processes


def densities_of(rank, P, options, steps):
    seen = []
    names = ("iteration", "bucket", "n", "k")
    model, _ = make_ddp(callback=lambda m: seen.append([m[name] for name in names]), **options)
    train(model, rank, steps)
    return flat(model), seen


def test_adaptive_density_is_the_same_on_all_ranks_and_within_its_budget():
    options = {"adaptive_share": 0.9, "adaptive_budget": 0.06, "adaptive_interval": 4}
    results = in_processes(3, densities_of, options, 60)
    for weights, seen in results:
        assert np.array_equal(weights, results[0][0])
        assert seen == results[0][1]
    sent, allowed = {}, {}  # DDP built its buckets anew in the dense steps before
    for _, bucket, n, k in results[0][1]:
        sent[bucket] = sent.get(bucket, 0) + k
        allowed[bucket] = allowed.get(bucket, 0) + max(1, 0.06 * n)
        assert sent[bucket] <= allowed[bucket] + 1e-6  # rounding of this sum
    assert sum(sent.values()) > 0.95 * sum(allowed.values())
