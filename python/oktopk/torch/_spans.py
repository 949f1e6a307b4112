# SPDX-License-Identifier: Apache-2.0
"""Where parameters lie in flat gradients, and where the last mean arrived in them: what optimisers ask."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from oktopk.torch._sharded import AnyReducer
from oktopk.torch.coordinates import Arrived


class Span(NamedTuple):
    """A parameter's place: begin..end-1 of the flat gradient of a reducer."""

    reducer: AnyReducer
    begin: int
    end: int


def arrived_of(spans: Sequence[Optional[Span]], parameters: Sequence[torch.Tensor]) -> List[Arrived]:
    """Where the last mean arrived in each of the parameters, on their devices; None: everywhere, as where there is no
    span. COST: a few microseconds per parameter, one copy to a device per reducer.
    """
    arrived: List[Arrived] = [None] * len(spans)
    together: Dict[Tuple[AnyReducer, torch.device], List[int]] = {}
    bounds: Dict[int, Tuple[int, int]] = {}
    for i, span in enumerate(spans):
        if span is not None:
            bounds[i] = (span.begin, span.end)
            together.setdefault((span.reducer, parameters[i].device), []).append(i)
    for (reducer, device), places in together.items():
        for i, indices in zip(places, reducer.arrived([bounds[i] for i in places], device)):
            arrived[i] = indices
    return arrived
