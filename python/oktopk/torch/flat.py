# SPDX-License-Identifier: Apache-2.0
"""Parameters as one flat vector of float32: where each lies, and the copies in and out. The vector lies on the GPU of
the parameters, or in host memory. All ranks have the same layout, whichever gradients are missing on one of them.

A parameter lies there in the order of its own memory, as in DDP's buckets and as the optimisers count. A DTensor
(tensor parallelism, fully_shard) counts as this rank's shard of it.
COST: n floats of memory, one pass over them in each direction.

And parameters in words, and their weights as hashes. Before their first exchange the ranks of every front-end compare
both: ranks with other parameters, or the same ones in another order, would sum values that do not belong together, and
ranks with other weights would never become equal.
COST: one pass over the weights where they lie and one number per parameter to the host, once; an allgather of a few
bytes per rank. The words travel only where they differ.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple, Union

import torch
import torch.distributed as dist

from oktopk._core import UsageError
from oktopk.torch._gpu import FLOATS, require_reachable

Parameters = Iterable[Union[torch.Tensor, Tuple[str, torch.Tensor]]]  # with names, as named_parameters() gives them


def check_tensor(tensor: torch.Tensor, what: str, host_staging: bool) -> None:
    """UsageError unless the tensor is of a kind that can be synchronised."""
    if tensor.layout != torch.strided:
        raise UsageError(f"oktopk: {what} has the layout {tensor.layout}, but it must be dense")
    if tensor.dtype not in FLOATS:
        raise UsageError(
            f"oktopk: {what} is of type {tensor.dtype}, but it must be float32, bfloat16 or "
            "float16: sums are made in float32, convert it with .float()"
        )
    require_reachable(tensor.device, f"{what} is", host_staging)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a DTensor, in its own memory; any other tensor as it is."""
    to_local = getattr(tensor, "to_local", None)
    if to_local is None:
        return tensor.detach()
    with torch.no_grad():
        return to_local()


def inner(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a DTensor, the very object; any other tensor as it is."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


def order_of(own: torch.Tensor) -> List[int]:
    """The dimensions as they lie in memory, widest stride first."""
    return sorted(range(own.dim()), key=own.stride, reverse=True)


def place_gradient(parameter: torch.Tensor) -> None:
    """Gives the gradient of a DTensor the placements of its parameter. Sequence parallelism leaves partial sums where
    the parameter is replicated: their local parts are no gradients. Collective over the mesh, where they differ."""
    wanted, gradient = getattr(parameter, "placements", None), parameter.grad
    if wanted is not None and gradient is not None and gradient.placements != wanted:  # type: ignore[attr-defined]
        parameter.grad = gradient.redistribute(placements=wanted)  # type: ignore[attr-defined]


def refuse_mixed(named: Iterable[Tuple[str, torch.Tensor]], own: str) -> None:
    """UsageError where one parameter is sharded over ranks that all hold another one. These ranks select from different
    vectors, so the mean of the latter would arrive on one rank and not on another. own: keeps the latter apart."""
    first: Optional[Tuple[str, Set[Tuple[int, ...]]]] = None
    for i, (name, parameter) in enumerate(named):
        if not parameter.requires_grad:
            continue
        label, over = f"parameter {i}{f' {name!r}' if name else ''}", _sharded_over(parameter)
        if first is None:
            first = label, over
        if over != first[1]:
            raise UsageError(
                f"oktopk: {first[0]} is sharded over {_told(first[1])}, {label} over {_told(over)}: these ranks would "
                f"take different coordinates of a parameter that they all hold: give such parameters {own}"
            )


def _sharded_over(parameter: torch.Tensor) -> Set[Tuple[int, ...]]:
    """The groups of ranks among which a DTensor is divided; none for a tensor that is whole."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None:
        return set()
    placements = parameter.placements  # type: ignore[attr-defined]
    divided = [i for i, one in enumerate(placements) if not one.is_replicate() and mesh.size(i) > 1]
    return {tuple(dist.get_process_group_ranks(mesh.get_group(i))) for i in divided}


def _told(over: Set[Tuple[int, ...]]) -> str:
    return " and ".join(f"ranks {', '.join(map(str, ranks))}" for ranks in sorted(over)) or "no ranks"


def plain_name(name: str) -> str:
    """A name in a model, whether torch.compile() wraps the model or a part of it, or not."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


class Layout:
    """The trainable ones of some parameters, one after the other."""

    def __init__(self, parameters: Parameters, host_staging: bool):
        if isinstance(parameters, torch.Tensor):
            raise UsageError("oktopk: one tensor instead of parameters: put it in a list")
        self.given: List[Tuple[str, torch.Tensor]] = []  # all of them, with their names or empty ones
        self.parameters: List[torch.Tensor] = []
        self._names: List[str] = []  # of these
        self._orders: Optional[List[List[int]]] = None  # of their dimensions in the vector, from its first use on
        self.spans: List[Tuple[int, int]] = []
        self._place: Dict[int, int] = {}  # by id: tensors compare by value
        self._host_staging = host_staging
        end = 0
        for i, item in enumerate(parameters):
            name, parameter = item if isinstance(item, tuple) and len(item) == 2 else ("", item)
            if not isinstance(parameter, torch.Tensor):
                raise UsageError(f"oktopk: parameter {i} is a {type(parameter).__name__}, no tensor")
            self.given.append((plain_name(str(name)), parameter))
            if not parameter.requires_grad or id(parameter) in self._place:
                continue
            part = local(parameter)
            check_tensor(part, f"parameter {i}", host_staging)
            self._place[id(parameter)] = len(self.parameters)
            self.parameters.append(parameter)
            self._names.append(self.given[-1][0])
            self.spans.append((end, end + part.numel()))
            end += part.numel()
        self.n = end
        if end == 0:
            raise UsageError("oktopk: no parameters, or none that requires a gradient")

    def refuse_mixed(self) -> None:
        """UsageError unless all parameters can be selected from together."""
        refuse_mixed(self.given, "a Reducer of their own, with preset='dense'")

    def refuse_thawed(self) -> None:
        """UsageError where a parameter that was frozen when this was made is trained now: it has no place here."""
        for i, (name, parameter) in enumerate(self.given):
            if parameter.requires_grad and id(parameter) not in self._place:
                raise UsageError(
                    f"oktopk: parameter {i}{f' {name!r}' if name else ''} was frozen before, and its gradients would "
                    "not be synchronised: thaw it on all ranks before this object is made"
                )

    def span(self, parameter: torch.Tensor) -> Tuple[int, int]:
        """First and one past the last index of a parameter."""
        place = self._place.get(id(parameter))
        if place is None:
            raise UsageError(
                f"oktopk: a parameter of shape {tuple(parameter.shape)} that this object was not "
                "given, or that was frozen then"
            )
        return self.spans[place]

    @property
    def device(self) -> torch.device:
        """The device of all parameters; the host where they are on several devices."""
        devices = {local(p).device for p in self.parameters}
        return devices.pop() if len(devices) == 1 else torch.device("cpu")

    @property
    def home(self) -> torch.device:
        """Where a flat vector lies: on the one GPU of all parameters unless host_staging is True; else on the host."""
        device = self.device
        return device if device.type == "cuda" and not self._host_staging else torch.device("cpu")

    def new_vector(self) -> torch.Tensor:
        """n floats, at home; pinned where the host is not the device of the parameters."""
        home = self.home
        pinned = home.type == "cpu" and any(local(p).device.type == "cuda" for p in self.parameters)
        return torch.empty(self.n, dtype=torch.float32, device=home, pin_memory=pinned)

    @torch.no_grad()
    def weights(self) -> torch.Tensor:
        """A copy of all parameters, as a flat vector."""
        vector = self.new_vector()
        for parameter, part in zip(self.parameters, self.views(vector)):
            part.copy_(local(parameter))
        return vector

    def views(self, vector: torch.Tensor) -> List[torch.Tensor]:
        """Each parameter's part of a flat vector, in the parameter's shape. Values keep their places in the vector when
        the memory format of a parameter changes later."""
        self._orders = orders = self._current_orders()
        whole = zip(self.parameters, self.spans, orders)
        return [_shaped(vector[begin:end], local(p).shape, order) for p, (begin, end), order in whole]

    def _current_orders(self) -> List[List[int]]:
        return self._orders or [order_of(local(p)) for p in self.parameters]

    def to_save(self) -> List[Tuple[str, List[int], List[int]]]:
        """Name, shape and order of dimensions of each parameter, for a saved state. A dimension of size 1 has no place
        in the order."""
        whole = zip(self._names, [local(p).shape for p in self.parameters], self._current_orders())
        return [(name, list(shape), [d for d in order if shape[d] != 1]) for name, shape, order in whole]

    def check_saved(self, saved: Optional[Sequence[Any]]) -> None:
        """UsageError unless a state was saved with these parameters in this order. None: it does not say, as those of
        version 1.0. Names are compared where both runs gave them."""
        for i, (there, here) in enumerate(zip_longest(map(tuple, saved or ()), self.to_save() if saved else ())):
            is_named = there is not None and here is not None and there[0] != "" and here[0] != ""
            if there is None or here is None or there[0 if is_named else 1 :] != here[0 if is_named else 1 :]:
                raise UsageError(
                    f"oktopk: the state was saved with {_told_saved(there)} as parameter {i}, but here it is "
                    f"{_told_saved(here)}: give the parameters in the order and memory format of the run that saved"
                )


def _told_saved(one: Optional[Tuple[Any, ...]]) -> str:
    if one is None:
        return "nothing"
    name, shape, order = one
    format_ = "" if order == sorted(order) else f" with dimensions in the order {order}"
    return f"{f'{name!r} ' if name else ''}of shape {tuple(shape)}{format_}"


def _shaped(part: torch.Tensor, shape: Sequence[int], order: List[int]) -> torch.Tensor:
    """A flat part as a view in this shape, its elements in this order of dimensions."""
    back = sorted(range(len(order)), key=order.__getitem__)
    return part.view([shape[d] for d in order]).permute(back)


def state_to_tensor(state: bytes) -> torch.Tensor:
    """Bytes as torch.save() stores them best, and torch.load(weights_only=True) reads them."""
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def state_to_bytes(state: Any) -> bytes:
    if not isinstance(state, torch.Tensor) or state.dtype != torch.uint8:
        raise UsageError("oktopk: not a state: its bytes are missing")
    return state.cpu().numpy().tobytes()


def load_states(core: Any, states: List[bytes]) -> None:
    """Collective: one state of this rank's own, or those of all ranks of an earlier run."""
    if len(states) > 1:
        core.load_all(states)
        return
    try:
        core.load(states[0])
    except UsageError as error:  # in the words of this layer
        raise UsageError(str(error).replace("load_all()", "load_state_dicts()")) from None


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
    flat = tensor.permute(order_of(tensor)).reshape(-1)
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
