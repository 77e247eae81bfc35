"""The random numbers of a rank, kept in its checkpoints: of torch on the host and on its GPU, where dropout is drawn,
and numpy's, by which transformers masks what Whisper hears (``_compute_mask_indices`` in 5.23)."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy
import torch
from torch import Tensor

HOST, GPU, NUMPY = "host", "gpu", "numpy"


def seed_all(seed: int) -> None:
    """Begin all random numbers of this process from ``seed``."""
    torch.manual_seed(seed)  # on a GPU too
    numpy.random.seed(seed % 2**32)


@contextmanager
def own_numbers(device: torch.device, *of: int) -> Iterator[None]:
    """Within, torch draws numbers that begin from what they are ``of``; behind it, those that it would have drawn."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(random.Random("/".join(map(str, of))).getrandbits(63))
        yield


def save_random_state(path: Path, device: torch.device) -> None:
    _, keys, position, *_ = numpy.random.get_state()
    states = {HOST: torch.get_rng_state(), NUMPY: torch.tensor([*map(int, keys), position])}
    if device.type == "cuda":
        states[GPU] = torch.cuda.get_rng_state(device)
    torch.save(states, path)


def load_random_state(path: Path, device: torch.device) -> None:
    """Go on with the numbers in the file at ``path``; version 0.1.0 wrote the host's alone."""
    kept = torch.load(path, weights_only=True)
    states: dict[str, Tensor] = {HOST: kept} if isinstance(kept, Tensor) else kept
    torch.set_rng_state(states[HOST])
    if NUMPY in states:
        *keys, position = states[NUMPY].tolist()
        state = {"key": numpy.array(keys, dtype=numpy.uint32), "pos": position}
        numpy.random.set_state({"bit_generator": "MT19937", "state": state})
    if GPU in states and device.type == "cuda":
        torch.cuda.set_rng_state(states[GPU], device)
