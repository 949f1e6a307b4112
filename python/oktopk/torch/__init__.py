# SPDX-License-Identifier: Apache-2.0
"""oktopk for PyTorch: three lines in a DDP script.

    import oktopk.torch
    state = oktopk.torch.OkTopkState(density=0.01)
    ddp.register_comm_hook(state, oktopk.torch.oktopk_hook)

Everything works over torch.distributed process groups.
"""

from oktopk.torch.ddp import oktopk_hook
from oktopk.torch.fsdp import FsdpState, register_fsdp
from oktopk.torch.optim import SparseAdamW, SparseSGD
from oktopk.torch.outer import LocalSteps
from oktopk.torch.process_group import ProcessGroupTransport, communicator
from oktopk.torch.reducer import Reducer
from oktopk.torch.state import CompressionStats, OkTopkState

__all__ = [
    "CompressionStats",
    "FsdpState",
    "LocalSteps",
    "OkTopkState",
    "ProcessGroupTransport",
    "Reducer",
    "SparseAdamW",
    "SparseSGD",
    "communicator",
    "oktopk_hook",
    "register_fsdp",
]
