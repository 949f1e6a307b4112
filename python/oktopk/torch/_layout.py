# SPDX-License-Identifier: Apache-2.0
"""Parameters in words, and their weights as hashes. Before their first exchange the ranks of every front-end compare
both: ranks with other parameters, or the same ones in another order, would sum values that do not belong together, and
ranks with other weights would never become equal.

COST: one pass over the weights where they lie and one number per parameter to the host, once; an allgather of a few
bytes per rank. The words travel only where they differ.
"""

from __future__ import annotations

from typing import Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import torch

from oktopk._core import UsageError
from oktopk.torch.flat import local

Named = Tuple[str, torch.Tensor]  # the name may be empty
Compare = Callable[[str, str], None]  # require_equal() of some ranks

_WHO = "oktopk: the parameters"
_WEIGHTS = "weights"
_CHUNK = 1 << 20  # values at a time: the pass needs 16 MiB
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_SPREAD, _MIX, _NEXT = -0x61C8864680B583EB, -0x40A7B892E31B1A47, 0x2545F4914F6CDD1D  # odd


class Start:
    """The parameters of one front-end on this rank, in their order, frozen and repeated ones included. weights: gives
    the tensors that must be equal on all ranks, one for each parameter that is neither (default: these parameters).
    with_frozen: the weights of frozen ones must be equal, too. settings: more that must be, in words."""

    def __init__(
        self,
        named: Iterable[Named],
        weights: Optional[Callable[[], Sequence[torch.Tensor]]] = None,
        *,
        with_frozen: bool = True,
        settings: Optional[Callable[[], str]] = None,
    ):
        self._named = list(named)
        self._weights = weights
        self._with_frozen = with_frozen
        self._settings = settings

    def words(self, with_weights: bool = True) -> str:
        """The list of all that must be equal, as require_equal() takes it."""
        items = [*_described(self._named), f"{len(self._named)} parameters"]
        if self._settings is not None:
            items.append(self._settings())
        if with_weights:
            compared = list(self._compared())
            hashes = hashes_of([tensor for _, tensor in compared])
            items += [f"{_WEIGHTS} {value:016x} of {label}" for (label, _), value in zip(compared, hashes)]
        return ", ".join(items)

    def _compared(self) -> Iterator[Named]:
        """The tensors that must be equal, each with the label of its parameter."""
        given = None if self._weights is None else iter(self._weights())
        for label, parameter, is_trained in _labelled(self._named):
            if is_trained:
                yield label, parameter if given is None else next(given)
            elif self._with_frozen and not parameter.requires_grad and _has_bits(parameter):
                yield label, parameter

    def compare(self, require_equal: Compare, with_weights: bool = True) -> None:
        """Collective: the same UsageError on every rank, which names the first difference and both ranks, unless all
        have the same parameters and weights."""
        words = self.words(with_weights)
        try:
            require_equal(_WHO, words)
        except UsageError as error:
            raise UsageError(_with_advice(str(error))) from None

    def require(self, theirs: str) -> None:
        """UsageError unless another rank's words are those of this one. Local."""
        for here, there in zip(self.words().split(", "), theirs.split(", ")):
            if here != there:
                raise UsageError(_with_advice(f"{_WHO}: this rank has {here}, the others have {there}"))


def _with_advice(found: str) -> str:
    if f" has {_WEIGHTS} " in found:
        return f"{found}: all ranks begin with the same weights, by one seed, one check-point, or a broadcast"
    if " parameter" in found.partition(" has ")[2]:
        return f"{found}: give all ranks the same parameters in the same order"
    return f"{found}: give all ranks the same"


def _labelled(named: Sequence[Named]) -> Iterator[Tuple[str, torch.Tensor, bool]]:
    """Each parameter with its label, and whether it is trained here: it is neither frozen nor a repeated one."""
    seen = set()
    for i, (name, parameter) in enumerate(named):
        quoted = f" '{name.replace(', ', ',')}'" if name else ""
        yield f"parameter {i}{quoted}", parameter, parameter.requires_grad and id(parameter) not in seen
        seen.add(id(parameter))


def _described(named: Sequence[Named]) -> Iterator[str]:
    first: Dict[int, str] = {}
    for label, parameter, _ in _labelled(named):
        if id(parameter) in first:
            yield f"{label} which is {first[id(parameter)]}"
            continue
        first[id(parameter)] = label
        part = local(parameter)
        shape = "x".join(str(size) for size in part.shape) or "scalar"
        strides = "" if part.is_contiguous() else f" with strides {' '.join(str(s) for s in part.stride())}"
        frozen = "" if parameter.requires_grad else " (frozen)"
        yield f"{label} {str(part.dtype).replace('torch.', '')} {shape}{strides} on {part.device.type}{frozen}"


@torch.no_grad()
def hashes_of(tensors: Sequence[torch.Tensor]) -> List[int]:
    """A number of 64 bits for each tensor, of all its bits in the order of its memory: the same on every device."""
    found = [_hash(_bits(local(tensor))) for tensor in tensors]
    if not found:
        return []
    numbers: List[int] = torch.stack([value.to(found[0].device) for value in found]).tolist()  # one wait for a GPU
    return [number % 2**64 for number in numbers]


def _has_bits(tensor: torch.Tensor) -> bool:
    """Whether the tensor holds its values itself: packed and quantised ones of other packages may not."""
    part = local(tensor)
    return type(part) is torch.Tensor and part.layout == torch.strided and not part.is_meta


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The values as integers, flat. A copy only where the tensor has gaps."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    flat = tensor.permute(order).reshape(-1)
    return flat.view(_BITS.get(flat.element_size(), torch.int64))


def _hash(bits: torch.Tensor) -> torch.Tensor:
    """A sum of products with odd numbers, modulo 2^64: it does not depend on the order in which a device adds. Each
    place of a chunk has a factor of its own, and so has each chunk."""
    if bits.device.type not in ("cpu", "cuda"):  # others need not have 64-bit integers
        bits = bits.cpu()
    place = torch.arange(min(bits.numel(), _CHUNK), device=bits.device)
    spread = place * _SPREAD
    factor = ((spread ^ (spread >> 29)) * _MIX) | 1
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for part in bits.split(_CHUNK):
        total = total * _NEXT + (part.to(torch.int64) * factor[: len(part)]).sum()
    return total
