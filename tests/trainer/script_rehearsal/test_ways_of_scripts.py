"""Ways of scripts that torch does not let fake tensors, or a machine without a card, go."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from vlmplan_trainer.script_rehearsal.generators import generators_of_the_card
from vlmplan_trainer.script_rehearsal.inference import inferring_without_gradients
from vlmplan_trainer.script_rehearsal.mode import Unknowns, reading_fake_tensors


def test_generators_of_a_card_draw_on_the_host_as_theirs_do():
    expected = torch.randint(0, 1000, (8,), generator=torch.Generator().manual_seed(3))
    with generators_of_the_card():
        generator = torch.Generator(device="cuda:1").manual_seed(3)
        assert generator.device == torch.device("cuda", 1)
        assert isinstance(generator, torch.Generator)
        assert isinstance(torch.default_generator, torch.Generator)
        assert not isinstance(3, torch.Generator)
        assert torch.equal(torch.randint(0, 1000, (8,), generator=generator), expected)
    assert torch.Generator().device == torch.device("cpu")


def test_data_of_a_script_are_looked_at_in_inference_mode_without_gradients():
    data = torch.arange(6.0).view(2, 3)
    weight = torch.ones(3, requires_grad=True)

    @torch.inference_mode()
    def product(row: torch.Tensor) -> torch.Tensor:
        return row * weight

    with inferring_without_gradients(), FakeTensorMode(allow_non_fake_inputs=True):
        with torch.inference_mode():
            assert not (data[0] * weight).requires_grad
            with torch.inference_mode(False):
                assert (data[1] * weight).requires_grad
            assert not torch.is_grad_enabled()
        assert not product(data[0]).requires_grad
        assert torch.is_grad_enabled()
    with torch.inference_mode():
        assert torch.is_inference_mode_enabled()


def test_tensors_are_told_apart_by_their_pointers():
    """So accelerate finds the weights of an optimizer again when FSDP2 has sharded them."""
    with reading_fake_tensors(Unknowns()), FakeTensorMode():
        one, other = torch.empty(7), torch.empty(7)
        assert one.data_ptr() == one.view(1, 7).data_ptr() != other.data_ptr()
        assert one[3:].data_ptr() - one.data_ptr() == 3 * 4
