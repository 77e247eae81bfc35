"""Random numbers go on from a checkpoint as if nothing had happened, on the host and on a GPU."""

import numpy
import pytest
import torch

from vlmplan_trainer.saving.random_state import load_random_state, own_numbers, save_random_state, seed_all

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def drawn() -> list[float]:
    return [float(torch.rand(())), *numpy.random.rand(700)[-2:]]


def test_numbers_go_on_where_they_were_saved(tmp_path):
    seed_all(7)
    drawn()
    save_random_state(tmp_path / "random-0.pt", CPU)
    expected = drawn()
    seed_all(8)
    assert drawn() != expected
    load_random_state(tmp_path / "random-0.pt", CPU)
    assert drawn() == expected


def test_numbers_of_their_own_are_the_same_and_leave_the_others_as_they_were():
    torch.manual_seed(7)
    expected = [float(torch.rand(())) for _ in range(2)]
    torch.manual_seed(7)
    first = float(torch.rand(()))
    found = []
    for of in ((0, 5, 0), (0, 5, 0), (0, 5, 1)):
        with own_numbers(CPU, *of):
            found.append(float(torch.rand(())))
    assert [first, float(torch.rand(()))] == expected
    assert found[0] == found[1] != found[2]


def test_numbers_begin_from_the_seed():
    seed_all(2**63 - 1)
    first = drawn()
    seed_all(2**63 - 1)
    assert drawn() == first


def test_the_numbers_of_a_gpu_are_those_that_dropout_draws_there(monkeypatch, tmp_path):
    of_gpu, found = torch.arange(16, dtype=torch.uint8), []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: of_gpu)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: found.append((state.tolist(), device)))
    save_random_state(tmp_path / "random-0.pt", CUDA)
    load_random_state(tmp_path / "random-0.pt", CPU)  # a run may go on without one
    assert found == []
    load_random_state(tmp_path / "random-0.pt", CUDA)
    assert found == [(of_gpu.tolist(), CUDA)]


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_a_checkpoint_of_version_0_1_0_has_the_numbers_of_the_host_alone(tmp_path, device):
    torch.manual_seed(3)
    torch.save(torch.get_rng_state(), tmp_path / "random-0.pt")
    expected = float(torch.rand(()))
    load_random_state(tmp_path / "random-0.pt", device)
    assert float(torch.rand(())) == expected
