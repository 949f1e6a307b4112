# SPDX-License-Identifier: Apache-2.0
"""Code blocks of README and docs that are not run or compiled as they stand, each with its reason.

The key is the page and the beginning of the block's first line. Everything else is run (Python), compiled
(C++) or parsed, with every option and file that it names checked (shell): scripts/docsite/blocks.py and
tests/python/torch/test_docs_blocks.py.
"""

PYTHON = {
    ("README.md", "import torch"): "run on two nodes by tests/python/frontends/test_clusters.py",
    ("docs/pytorch.md", "import os"): "run, and started again on other ranks, by tests/python/torch/test_docs.py",
    ("docs/pytorch.md", "def save(folder):"): "run by tests/python/torch/test_docs.py",
    ("docs/elastic_pytorch.md", "world = oktopk.torch.ElasticWorld(on_change=print)"):
        "needs an arbiter; tests/python/torch/test_elastic_processes.py runs such a loop",
    ("docs/elastic_pytorch.md", "from oktopk.torch.torchft import ManagedWorld, ProcessGroup"):
        "needs a lighthouse; tests/python/torch/test_torchft.py runs such a loop",
    ("docs/frontends.md", "import lightning"): "tests/python/frontends/test_lightning.py trains with these calls",
    ("docs/frontends.md", "import oktopk.accelerate"):
        "tests/python/frontends/test_accelerate.py trains with these calls",
    ("docs/frontends.md", "import oktopk.transformers"):
        "tests/python/frontends/test_transformers.py trains with these calls",
    ("docs/gpu.md", 'dist.init_process_group("nccl")'):
        "needs a GPU; tests/python/torch/test_gpu_resident.py has these calls",
    ("docs/pytorch_fsdp.md", "mesh = init_device_mesh("):
        "needs several ranks; docs/tutorials/fsdp.md has a whole script, which a test runs",
}
CPP = {}
