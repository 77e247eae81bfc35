"""How tokens fall on experts changes no bytes of the kernels that transformers trains with, however uneven they are."""

import pytest

pytest.importorskip("transformers")

import torch
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from storages import Live

NUM_EXPERTS, PER_TOKEN, NUM_TOKENS, WIDTH, INNER = 8, 2, 512, 64, 128
SHARE = NUM_TOKENS * PER_TOKEN // NUM_EXPERTS


def routed(imbalance: float) -> torch.Tensor:
    """Experts of each token, of which the first has ``imbalance`` times its share and the others equally many."""
    busiest = min(NUM_TOKENS, int(SHARE * imbalance))
    rest = NUM_TOKENS * PER_TOKEN - busiest
    others = (torch.arange(rest) % (NUM_EXPERTS - 1) + 1).tolist()
    return torch.tensor([[0 if token < busiest else others.pop(), others.pop()] for token in range(NUM_TOKENS)])


def bytes_of(kernel: str, imbalance: float, *, trains: bool) -> tuple[int, int, int]:
    """(kept for backward, most in forward, most in backward) of one layer's experts."""
    sizes = {"num_experts": NUM_EXPERTS, "num_experts_per_tok": PER_TOKEN, "moe_intermediate_size": INNER}
    config = Qwen3MoeConfig(hidden_size=WIDTH, **sizes)
    config._experts_implementation = kernel
    experts = Qwen3MoeExperts(config).bfloat16().requires_grad_(trains)
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    tokens = torch.randn(NUM_TOKENS, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    indices, scores = routed(imbalance), torch.rand(NUM_TOKENS, PER_TOKEN, dtype=torch.bfloat16)
    with (
        torch.autograd.set_multithreading_enabled(False),
        Live((tokens, indices, scores, *experts.parameters())) as live,
    ):
        result = experts(tokens, indices, scores)
        kept, forward = live.live, live.most
        live.most = live.live
        result.sum().backward()
    return kept, forward, live.most


def test_the_default_kernel_is_the_grouped_one():
    from transformers import Qwen3MoeForCausalLM

    with torch.device("meta"):
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(num_hidden_layers=1))
    assert model.config._experts_implementation == "grouped_mm"


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("kernel", ["grouped_mm", "batched_mm"])
def test_an_uneven_load_takes_the_bytes_of_an_even_one(kernel: str, trains: bool):
    even = bytes_of(kernel, 1.0, trains=trains)
    assert bytes_of(kernel, 1.5, trains=trains) == even
    assert bytes_of(kernel, NUM_TOKENS / SHARE, trains=trains) == even


def test_the_loop_over_experts_keeps_as_much_and_peaks_a_little_higher_in_backward():
    even, uneven, most = (bytes_of("eager", one, trains=True) for one in (1.0, 1.5, NUM_TOKENS / SHARE))
    assert even[0] == uneven[0] == most[0]
    assert even[2] < uneven[2] < most[2] < 1.1 * even[2]
