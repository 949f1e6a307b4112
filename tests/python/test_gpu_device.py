# SPDX-License-Identifier: Apache-2.0
"""A Reducer whose residual lies on a GPU: the bits of the one on the host, and no access from the host.

The GPU is a fake one (fake_cuda.cc), whose memory has no access rights outside its verbs, so these tests run anywhere.
torch/test_gpu_reducer.py does the same on a real one.
"""

import ctypes
import importlib.metadata
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from ranks import in_threads

import oktopk
from oktopk import _core

ROOT = Path(__file__).resolve().parent.parent.parent
N = 70_000
SHIPPED = Path(_core.__file__).parent / "liboktopk_cuda.so"
TYPES = {np.dtype(np.float32): 0, np.dtype(np.float16): 2}
PRESETS = ["topka", "oktopk", "circulant", "slots"]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no C++ compiler to build the fake GPU with")
    out = tmp_path_factory.mktemp("fake") / "liboktopk_cuda.so"
    flags = ["-std=c++20", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden", f"-I{ROOT}"]
    subprocess.run([compiler, *flags, str(ROOT / "tests/python/fake_cuda.cc"), "-o", str(out)], check=True)
    return str(out)


def gradient_of(rank, step, dtype=np.float32):
    generator = np.random.default_rng(100 * step + rank)
    return (generator.standard_normal(N) * generator.exponential(size=N)).astype(dtype)


def step_on_gpu(core, gradient, scale=1.0, stream=0):
    core.step_on_gpu(gradient.ctypes.data, len(gradient), TYPES[gradient.dtype], scale, stream)


def same_update(a, b):
    return np.array_equal(a.indices, b.indices) and a.values.tobytes() == b.values.tobytes()


def same_mass(a, b):
    (first, memory), (other_first, other_memory) = a.memory, b.memory
    return (
        a.residual.tobytes() == b.residual.tobytes()
        and first == other_first
        and memory.tobytes() == other_memory.tobytes()
        and a.unsent_norm == b.unsent_norm
    )


def in_step(comm, library, preset, dtype, first):
    """The residual moves after `first` steps on the host; a Reducer beside it stays on the host."""
    options = {"preset": preset, "density": 0.01}
    moves, stays = _core.Reducer(comm, N, options), _core.Reducer(comm, N, options)
    gpu = _core.CudaDevice(0, library)
    for step in range(first):
        moves.step(gradient_of(comm.rank, step, dtype))
        stays.step(gradient_of(comm.rank, step, dtype))
    moves.use_device(gpu)
    for step in range(first, 8):
        gradient = gradient_of(comm.rank, step, dtype)
        step_on_gpu(moves, gradient, 0.5, stream=step)
        stays.step(gradient, 0.5)
        assert same_update(moves, stays) and same_mass(moves, stays), step
    assert moves.steps == 8
    return moves.save() == stays.save()


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("preset", PRESETS)
def test_a_step_on_the_gpu_has_the_bits_of_the_host(library, preset, first):
    assert in_threads(3, in_step, library, preset, np.float32, first) == [True] * 3


def test_half_precision_gradients_are_widened_on_the_gpu(library):
    assert in_threads(2, in_step, library, "circulant", np.float16, 1) == [True] * 2


def across(comm, library):
    """Saved here, loaded there; given and taken; taken back."""
    options = {"preset": "circulant", "density": 0.02}
    made = [_core.Reducer(comm, N, options) for _ in range(4)]
    first, on_host, on_gpu, last = made
    gpu = _core.CudaDevice(0, library)
    for reducer in (first, on_gpu):
        reducer.use_device(gpu)  # shared
    for step in range(3):
        step_on_gpu(first, gradient_of(comm.rank, step))
    on_host.load(first.save())
    on_gpu.load(on_host.save())
    assert same_mass(on_host, on_gpu)
    gradient = gradient_of(comm.rank, 3)
    first.keep_snapshot()
    for _ in range(2):
        step_on_gpu(first, gradient)
        first.go_back()
    step_on_gpu(first, gradient)
    on_host.step(gradient)
    step_on_gpu(on_gpu, gradient)
    assert same_update(first, on_host) and same_update(first, on_gpu) and same_mass(first, on_gpu)
    last.load_all(comm_states(comm, first))
    taken = np.empty(N, np.float32)
    first.take_unsent(taken)
    assert not first.has_unsent and first.unsent_norm == 0
    last.forget()
    last.give_unsent(taken)
    last.use_device(gpu)
    return float(np.abs(last.residual - taken).max())


def comm_states(comm, reducer):
    """The states of all ranks, by way of a list that the threads share."""
    STATES[comm.rank] = reducer.save()
    oktopk.Reducer(comm, 1, preset="dense").step(np.zeros(1, np.float32))  # a barrier
    return [STATES[rank] for rank in range(comm.size)]


STATES = {}


def test_states_and_unsent_values_move_between_host_and_gpu(library):
    assert in_threads(3, across, library) == [0.0] * 3


def with_auto(comm, library):
    """The choice and the measured profile of preset auto move along."""
    reducer = _core.Reducer(comm, N, {"preset": "auto"})
    reducer.use_profile(oktopk.Profile())
    reducer.step(gradient_of(comm.rank, 0))
    reducer.use_device(_core.CudaDevice(0, library))
    step_on_gpu(reducer, gradient_of(comm.rank, 1))
    return reducer.steps, reducer.profile is not None


def test_preset_auto_keeps_its_choice(library):
    assert in_threads(2, with_auto, library) == [(2, True)] * 2


def test_every_step_names_its_stream(library):
    seen = ctypes.CDLL(library).fake_cuda_streams_seen
    (comm,) = oktopk.thread_world(1, 10.0)
    reducer = _core.Reducer(comm, N, {"preset": "topka"})
    reducer.use_device(_core.CudaDevice(0, library))
    before = seen()
    for stream in (7, 7, 8):
        step_on_gpu(reducer, gradient_of(0, stream), stream=stream)
    assert seen() - before == 2


def test_bad_use_is_refused(library):
    (comm,) = oktopk.thread_world(1, 10.0)
    reducer = _core.Reducer(comm, N, {"preset": "topka"})
    gradient = gradient_of(0, 0)
    with pytest.raises(oktopk.UsageError, match="use_device.. comes first"):
        step_on_gpu(reducer, gradient)
    reducer.use_device(_core.CudaDevice(0, library))
    with pytest.raises(oktopk.UsageError, match="type = 3, but it must be 0"):
        reducer.step_on_gpu(gradient.ctypes.data, N, 3, 1.0, 0)
    with pytest.raises(oktopk.UsageError, match=f"gradient.* 5 .*{N}|5 values"):
        reducer.step_on_gpu(gradient.ctypes.data, 5, 0, 1.0, 0)
    node = _core.Reducer(comm, N, {"preset": "topka", "group_size": 1})
    with pytest.raises(oktopk.UsageError, match="group_size needs the CPU"):
        node.use_device(_core.CudaDevice(0, library))
    with pytest.raises(oktopk.UsageError, match="ordinal = 1, but it must be in 0..0"):
        _core.CudaDevice(1, library)


def has_nvcc():
    """Whether CMake finds a compiler of CUDA 12 or newer."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return False
    said = subprocess.run([nvcc, "--version"], stdout=subprocess.PIPE, universal_newlines=True, timeout=60).stdout
    release = re.search(r"release (\d+)", said)
    return release is not None and int(release.group(1)) >= 12


def test_the_package_has_the_kernels_where_nvcc_was_found():
    try:
        files = {str(file) for file in importlib.metadata.files("oktopk") or []}
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("oktopk is not installed: PYTHONPATH has its sources")
    is_shipped = "oktopk/liboktopk_cuda.so" in files
    assert is_shipped == SHIPPED.exists()
    assert is_shipped or not has_nvcc()


def test_the_error_without_a_gpu_says_what_is_missing():
    """The import has worked without a GPU: only now the library is loaded, from beside the native module."""
    try:
        _core.CudaDevice(0)
    except oktopk.DeviceError as error:
        text = str(error)
    else:
        pytest.skip("there is a GPU")
    if SHIPPED.exists():
        assert "no GPU can be used" in text and "nvidia-smi" in text
    else:
        assert "build oktopk where nvcc is found" in text and str(SHIPPED) in text


def test_a_missing_library_is_named():
    with pytest.raises(oktopk.DeviceError, match="(?s)cannot be loaded.*/nowhere/liboktopk_cuda.so"):
        _core.CudaDevice(0, "/nowhere/liboktopk_cuda.so")
