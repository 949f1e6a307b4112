# SPDX-License-Identifier: Apache-2.0
"""oktopk for PyTorch: three lines in a DDP script.

    import oktopk.torch
    state = oktopk.torch.OkTopkState(density=0.01)
    ddp.register_comm_hook(state, oktopk.torch.oktopk_hook)
"""

from oktopk.torch.ddp import oktopk_hook
from oktopk.torch.process_group import ProcessGroupTransport, communicator
from oktopk.torch.state import CompressionStats, OkTopkState

__all__ = [
    "CompressionStats",
    "OkTopkState",
    "ProcessGroupTransport",
    "communicator",
    "oktopk_hook",
]
