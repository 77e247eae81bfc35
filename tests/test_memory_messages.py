"""Every form in which memory is said to have run out: made as its source makes it, and read back."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmplan.memory_messages import Kind, MemoryMessage, messages_in, requested_bytes
from vlmplan.run.shortage import Shortage
from vlmplan.units import GIB, KIB, MIB

UNKNOWN = 2**64 - 1
"""What NVML says of a process whose memory it cannot tell (NVML_VALUE_NOT_AVAILABLE)."""


def format_size(size: int) -> str:
    """``format_size`` of c10/cuda/CUDACachingAllocator.cpp: two decimals of the largest unit that is reached."""
    if size <= KIB:
        return f"{size} bytes"
    for unit, name in ((KIB, "KiB"), (MIB, "MiB")):
        if size <= unit * KIB:
            return f"{size / unit:.2f} {name}"
    return f"{size / GIB:.2f} GiB"


SIZES = st.integers(0, 300 * GIB)


def torch_2_0(
    requested: int, total: int, allocated: int, free: int, reserved: int, *, allowed: int | None = None
) -> str:
    """TORCH_CHECK_WITH(OutOfMemoryError, ...) of CUDACachingAllocator.cpp in torch 2.0."""
    allowed_info = "" if allowed is None else f"{format_size(allowed)} allowed; "
    return (
        f"CUDA out of memory. Tried to allocate {format_size(requested)} (GPU 0; {format_size(total)} total capacity; "
        f"{format_size(allocated)} already allocated; {format_size(free)} free; {allowed_info}{format_size(reserved)} "
        "reserved in total by PyTorch) If reserved memory is >> allocated memory try setting "
        "max_split_size_mb to avoid "
        "fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
    )


def torch_2_1(
    requested: int,
    total: int,
    allocated: int,
    free: int,
    reserved: int,
    *,
    capacity: str = "capacty",
    processes: str = "",
    pools: int = 0,
    backend: str = "CUDA",
) -> str:
    """The same from torch 2.1 on; later "capacity", and pools of CUDA graphs (``private_pool_msg``)."""
    of_pools = f"with {format_size(pools)} allocated in private pools (e.g., CUDA Graphs), " if pools else ""
    return (
        f"{backend} out of memory. Tried to allocate {format_size(requested)}. GPU 0 has a total {capacity} of "
        f"{format_size(total)} of which {format_size(free)} is free. {processes}Of the allocated memory "
        f"{format_size(allocated)} is allocated by PyTorch, {of_pools}and "
        f"{format_size(reserved - allocated)} is reserved "
        "by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    )


def only(text: str) -> MemoryMessage:
    (message,) = messages_in(text)
    return message


def is_near(found: int | None, size: int) -> bool:
    """Whether a size was read as it is printed: within half of its last digit."""
    unit = next(unit for unit, most in ((1, KIB), (KIB, MIB), (MIB, GIB), (GIB, 2**63)) if size <= most)
    return found is not None and abs(found - size) <= (0 if unit == 1 else unit / 100 / 2 + 1)


NUMBERS = st.tuples(SIZES, SIZES, SIZES, SIZES, SIZES)


@given(NUMBERS)
def test_sizes_of_torch_2_0_are_read_as_they_are_printed(numbers: tuple[int, int, int, int, int]):
    requested, total, allocated, free, unused = numbers
    message = only(torch_2_0(requested, total, allocated, free, allocated + unused))
    assert (message.kind, message.device, message.backend) == (Kind.DEVICE, 0, "CUDA")
    found = (message.requested_bytes, message.total_bytes, message.allocated_bytes, message.free_bytes)
    assert all(map(is_near, found, (requested, total, allocated, free)))
    assert is_near(message.reserved_bytes, allocated + unused)


@given(NUMBERS, st.sampled_from(["capacty", "capacity"]), st.sampled_from(["CUDA", "HIP"]), st.integers(0, 40 * GIB))
def test_sizes_of_later_torch_are_read_as_they_are_printed(
    numbers: tuple[int, int, int, int, int], capacity: str, backend: str, pools: int
):
    requested, total, allocated, free, unused = numbers
    text = torch_2_1(
        requested, total, allocated, free, allocated + unused, capacity=capacity, backend=backend, pools=pools
    )
    message = only(text)
    assert message.backend == backend
    found = (message.requested_bytes, message.total_bytes, message.allocated_bytes, message.free_bytes)
    assert all(map(is_near, found, (requested, total, allocated, free)))
    assert is_near(message.unallocated_bytes, unused)
    assert (message.private_pool_bytes is None) if pools == 0 else is_near(message.private_pool_bytes, pools)


def test_processes_are_told_from_this_one_and_what_the_driver_does_not_know_is_unknown():
    """``reportProcessMemoryInfo``: each process by its pid, this one as "Including non-PyTorch memory"."""
    processes = (
        "Process 528105 has 18.40 GiB memory in use. Including non-PyTorch memory, this process "
        "has 32.15 GiB memory in "
        "use. "
    )
    message = only(torch_2_1(GIB, 80 * GIB, 27 * GIB, GIB, 31 * GIB, processes=processes))
    assert message.processes == ((528105, round(18.40 * GIB)),)
    assert message.in_use_bytes == round(32.15 * GIB)
    unknown = f"Process 7 has {format_size(UNKNOWN)} memory in use. Including non-PyTorch memory, this process has "
    message = only(
        torch_2_1(GIB, 80 * GIB, 27 * GIB, GIB, 31 * GIB, processes=unknown + f"{format_size(UNKNOWN)} memory in use. ")
    )
    assert (message.processes, message.in_use_bytes) == ((), None)


def test_a_limit_of_the_process_is_read():
    message = only(torch_2_0(2 * GIB, 24 * GIB, 3 * GIB, 20 * GIB, 5 * GIB, allowed=7 * GIB))
    assert (message.allowed_bytes, message.reserved_bytes, message.free_bytes) == (7 * GIB, 5 * GIB, 20 * GIB)


def test_the_backend_of_cuda_malloc_async_is_read():
    """c10/cuda/CUDAMallocAsyncAllocator.cpp."""
    message = only(
        "torch.OutOfMemoryError: Allocation on device 1 would exceed allowed memory. (out of memory)\n"
        f"Currently allocated     : {format_size(9 * GIB)}\nRequested               : {format_size(640 * MIB)}\n"
        f"Device limit            : {format_size(11 * GIB)}\nFree (according to CUDA): {format_size(7 * MIB)}\n"
        "PyTorch limit (set by user-supplied memory fraction)\n"
        f"                        : {format_size(UNKNOWN)}"
    )
    assert (message.device, message.requested_bytes, message.total_bytes) == (1, 640 * MIB, 11 * GIB)
    assert (message.allocated_bytes, message.free_bytes, message.allowed_bytes) == (9 * GIB, 7 * MIB, None)


def test_xpu_and_mps_are_recognised():
    """c10/xpu/XPUCachingAllocator.cpp of torch 2.5; aten/src/ATen/mps/MPSAllocator.mm, where a GB is 2**30 bytes."""
    xpu = only(
        "XPU out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.91 GiB. "
        "Of the allocated memory "
        "14.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated. "
        "Please use `empty_cache` "
        "to release all unoccupied cached memory."
    )
    assert (xpu.backend, xpu.requested_bytes, xpu.unallocated_bytes, xpu.free_bytes) == ("XPU", 2 * GIB, GIB, None)
    mps = only(
        "MPS backend out of memory (MPS allocated: 9.00 GB, other allocations: 1.50 MB, max "
        "allowed: 9.07 GB). Tried to "
        "allocate 20.00 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory "
        "allocations (may cause system failure)."
    )
    assert (mps.backend, mps.requested_bytes, mps.allocated_bytes) == ("MPS", 20 * MIB, 9 * GIB)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("RuntimeError: CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`", Kind.DEVICE),
        ("torch.AcceleratorError: CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in", Kind.DEVICE),
        ("RuntimeError: CUDA driver error: out of memory", Kind.DEVICE),
        ("RuntimeError: HIP error: out of memory", Kind.DEVICE),
        ("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", Kind.DEVICE),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", Kind.CUDA_LIBRARY),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", Kind.CUDA_LIBRARY),
        ("misc/strongstream.cc:63 NCCL WARN Cuda failure 2 'out of memory'", Kind.CUDA_LIBRARY),
        ("NCCL WARN Failed to CUDA calloc async 608 bytes", Kind.CUDA_LIBRARY),
        ("Error out of memory at line 380 in file /src/csrc/pythonInterface.cpp", Kind.CUDA_LIBRARY),
        ("OSError: [Errno 12] Cannot allocate memory", Kind.HOST),
        ("terminate called after throwing an instance of 'std::bad_alloc'", Kind.HOST),
        ("MemoryError", Kind.HOST),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=12.0.", Kind.HOST),
        ("Last State: Terminated  Reason: OOMKilled  Exit Code: 137", Kind.HOST),
        ("RuntimeError: DataLoader worker (pid 4) is killed by signal: Killed.", Kind.HOST),
        (
            "RuntimeError: DataLoader worker (pid 4) is killed by signal: Bus error. It is possible that",
            Kind.SHARED_MEMORY,
        ),
        (
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient "
            "shared memory (shm).",
            Kind.SHARED_MEMORY,
        ),
        ("RuntimeError: unable to write to file </torch_12_34>", Kind.SHARED_MEMORY),
        ("OSError: [Errno 28] No space left on device: '/out/checkpoint-100'", Kind.DISK),
        (
            "[2023-07-10 12:50:58,416] [ERROR] [launch.py:324:sigkill_handler] ['python'] exits with return code = -9",
            Kind.KILLED,
        ),
        ("  exitcode  : -9 (pid: 438)", Kind.KILLED),
        ("failed (exitcode: -9) local_rank: 0 (pid: 438) of binary: /opt/conda/bin/python", Kind.KILLED),
        ("subprocess.CalledProcessError: Command '[...]' died with <Signals.SIGKILL: 9>.", Kind.KILLED),
        ("train.sh: line 3: 12345 Killed                  python train.py", Kind.KILLED),
        ("container exited with exit code 137", Kind.KILLED),
    ],
)
def test_other_messages_are_recognised_by_whose_memory_it_was(text: str, kind: Kind):
    assert only(text).kind is kind


def test_numbers_of_the_host_are_read():
    cpu = only(
        "RuntimeError: [enforce fail at alloc_cpu.cpp:83] err == 0. DefaultCPUAllocator: can't "
        "allocate memory: you tried "
        "to allocate 268435456 bytes. Error code 12 (Cannot allocate memory)"
    )
    assert (cpu.kind, cpu.requested_bytes) == (Kind.HOST, 268435456)
    numpy = only("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1.50 GiB for an array with shape (1,)")
    assert (numpy.kind, numpy.requested_bytes) == (Kind.HOST, 3 * GIB // 2)
    ray = only(
        "Memory on the node (IP: 172.17.0.2, ID: 90ef) where the task (task ID: a6, name=allocate_memory, pid=91085, "
        "memory used=24.99GB) was running was 32.62GB / 33.28GB (0.980175), which exceeds the memory usage threshold"
    )
    assert (ray.in_use_bytes, ray.total_bytes) == (round(32.62 * GIB), round(33.28 * GIB))
    kernel = only("Out of memory: Killed process 4021 (python) total-vm:99kB, anon-rss:4096kB, file-rss:0kB")
    assert (kernel.kind, kernel.in_use_bytes) == (Kind.HOST, 4 * MIB)


def test_two_ranks_that_wrote_into_one_line_are_two_messages():
    """YJiangcm/LTE#3: two processes, one standard error."""
    text = torch_2_0(2 * GIB, 80 * GIB, 77 * GIB, 307 * MIB, 78 * GIB)
    other = torch_2_0(2 * GIB, 80 * GIB, 77 * GIB, 355 * MIB, 78 * GIB).replace("GPU 0", "GPU 3")
    found = messages_in(f"torch.cudatorch.cuda..OutOfMemoryErrorOutOfMemoryError: : {text}{other}")
    assert [(message.device, message.free_bytes) for message in found] == [(0, 307 * MIB), (3, 355 * MIB)]


def test_a_message_that_rich_has_folded_is_read():
    text = torch_2_1(2 * GIB, 80 * GIB, 70 * GIB, GIB, 78 * GIB, capacity="capacity")
    folded = "\n".join(text[start : start + 80] for start in range(0, len(text), 80) if text[start : start + 80])
    words = text.split()
    folded = "\n".join(" ".join(words[start : start + 9]) for start in range(0, len(words), 9))
    message = only(folded)
    assert (message.total_bytes, message.allocated_bytes, message.unallocated_bytes) == (80 * GIB, 70 * GIB, 8 * GIB)


@pytest.mark.parametrize(
    "text",
    [
        "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF",
        "exitcode: -15",
        "return code = -90",
        "The children were Killed softly",
        "raise OutOfMemoryError",
        "learning_rate: 1e-9",
        "loaded 9 shards; memory 12.5 GiB",
        "",
    ],
)
def test_what_only_looks_alike_is_no_message(text: str):
    assert messages_in(text) == []


def test_what_is_not_printed_is_unknown():
    message = only("torch.OutOfMemoryError: CUDA out of memory.")
    assert (message.requested_bytes, message.total_bytes, message.num_details) == (None, None, 0)
    assert requested_bytes("mat1 and mat2 shapes cannot be multiplied") is None


@given(st.text(max_size=300))
def test_any_text_is_read(text: str):
    for message in messages_in(f"{text} CUDA out of memory. Tried to allocate {text}"):
        assert message.start <= message.end


@given(
    st.integers(1, 90 * GIB),
    st.integers(1, 90 * GIB),
    st.sampled_from(["forward", "backward", "step"]),
    st.integers(1, 10**6),
)
def test_what_the_bundled_trainer_says_of_itself_is_read(allocated: int, requested: int, phase: str, step: int):
    shortage = Shortage(
        rank=3,
        phase=phase,
        step=step,
        is_on_host=False,
        allocated_bytes=allocated,
        requested_bytes=requested,
        free_bytes=5 * MIB,
        total_bytes=24 * GIB,
        planned_bytes=7 * GIB,
    )
    message = only(f"vlmplan_trainer: {shortage.sentence()}")
    assert (message.phase, message.step, message.rank, message.total_bytes) == (phase, step, 3, 24 * GIB)
    assert only(replace(shortage, is_on_host=True).sentence()).kind is Kind.HOST
    found = zip((message.allocated_bytes, message.requested_bytes), (allocated, requested), strict=True)
    assert all(size is not None and abs(size - exact) <= max(GIB // 200 + 1, 0) for size, exact in found)
