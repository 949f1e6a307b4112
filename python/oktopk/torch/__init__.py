# SPDX-License-Identifier: Apache-2.0
"""oktopk for PyTorch: everything works over torch.distributed process groups."""

from oktopk.torch.fsdp import FsdpState as FsdpState
from oktopk.torch.fsdp import register_fsdp as register_fsdp
from oktopk.torch.outer import LocalSteps as LocalSteps
from oktopk.torch.reducer import Reducer as Reducer
