# SPDX-License-Identifier: Apache-2.0
"""oktopk for PyTorch: three lines in a DDP script.

    state = oktopk.torch.OkTopkState(total_steps=10_000)
    ddp.register_comm_hook(state, oktopk.torch.oktopk_hook)
    optimiser = oktopk.torch.SparseAdamW(model.parameters(), state, lr=1e-3)    # replaces AdamW

Everything works over torch.distributed process groups.
"""

from oktopk import _requirements

_requirements.require_module("torch", "oktopk.torch", least="2.0")

from oktopk.torch.ddp import oktopk_hook  # noqa: E402
from oktopk.torch.elastic import Change, ElasticWorld  # noqa: E402
from oktopk.torch.fsdp import FsdpState, register_fsdp  # noqa: E402
from oktopk.torch.optim import SparseAdamW, SparseSGD  # noqa: E402
from oktopk.torch.outer import LocalSteps  # noqa: E402
from oktopk.torch.process_group import ProcessGroupTransport, communicator  # noqa: E402
from oktopk.torch.reducer import Reducer  # noqa: E402
from oktopk.torch.state import CompressionStats, OkTopkState  # noqa: E402

# The reference has this order.
__all__ = [
    "OkTopkState", "oktopk_hook", "SparseAdamW", "SparseSGD", "CompressionStats", "FsdpState", "register_fsdp",
    "LocalSteps", "Reducer", "ElasticWorld", "Change", "communicator", "ProcessGroupTransport",
]
