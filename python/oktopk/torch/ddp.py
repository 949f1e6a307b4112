# SPDX-License-Identifier: Apache-2.0
"""The hook for DistributedDataParallel: a plain function, as DDP wants it. The annotations are part of DDP's contract,
so this file does not postpone them."""

import torch
import torch.distributed as dist

from oktopk.torch.state import OkTopkState


def oktopk_hook(state: OkTopkState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Synchronises a bucket of gradients sparsely.

        state = oktopk.torch.OkTopkState(density=0.01)
        ddp.register_comm_hook(state, oktopk.torch.oktopk_hook)

    Errors are raised by backward(): oktopk.UsageError, oktopk.CommError, or what the callback raised.
    """
    return state.synchronise(bucket)
