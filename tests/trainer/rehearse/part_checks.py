"""What the parts of a rehearsal do with fake tensors."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from forked import main
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.nn.functional import layer_norm, linear, scaled_dot_product_attention, softmax
from worlds import AMPERE, gpu, join, rehearsing

from vlmplan_trainer.rehearse.attribution import AllocationAttribution
from vlmplan_trainer.rehearse.device import NAME
from vlmplan_trainer.rehearse.device_shims import dequantising_for_products
from vlmplan_trainer.rehearse.dispatch import Rehearsal
from vlmplan_trainer.rehearse.ledger import NAMED_BYTES
from vlmplan_trainer.rehearse.special_operations import CHOOSES_EXPERTS, TAKES_ALL
from vlmplan_trainer.rehearse.values import value_of

TURING = (7, 5)
NUM_BYTES = 4 * 1000


def new_bytes(mode: Rehearsal, run: Callable[[], Any]) -> list[int]:
    """Sizes of what was allocated on the device meanwhile."""
    before = len(mode.ledger.device.events)
    kept = run()
    del kept
    return [size for _, size in mode.ledger.device.events[before:] if size > 0]


def dtypes_under_autocast(mode: Rehearsal) -> dict[str, str]:
    half, whole = gpu(3, 5, dtype=torch.bfloat16), gpu(3, 5)
    weight, double = gpu(7, 5, requires_grad=True), gpu(7, 5, dtype=torch.float64)
    with torch.autocast(NAME, torch.bfloat16):
        results = {
            "linear": linear(whole, weight),
            "matmul of float64": double @ gpu(5, 2, dtype=torch.float64),
            "layer_norm": layer_norm(half, (5,)),
            "softmax": softmax(half, dim=-1),
            "softmax to bfloat16": softmax(whole, dim=-1, dtype=torch.bfloat16),
            "sum": half.sum(),
            "addcmul": torch.addcmul(half, half, whole),
            "addcmul of halves": torch.addcmul(half, half, half),
            "mul": half * half,
            "interpolate": torch.nn.functional.interpolate(half[None, None], (6, 10), mode="bilinear"),
            "linear of float16 asked": None,
        }
        with torch.autocast(NAME, enabled=False):
            results["linear outside"] = linear(whole, weight)
    with torch.autocast(NAME, torch.float16):
        results["linear of float16 asked"] = linear(whole, weight)
    return {name: str(result.dtype).removeprefix("torch.") for name, result in results.items() if result is not None}


def types_by_default(mode: Rehearsal) -> list[str]:
    """Of two tensors that are made in the same words, the first while the default is a model's type."""
    found: list[str] = []
    for default in (torch.bfloat16, torch.float32):
        torch.set_default_dtype(default)
        found.append(str(torch.rand(3, device=NAME).sum().dtype))
    return found


def casts_of_a_weight(mode: Rehearsal) -> dict[str, int]:
    """How often its copy is made in two uses."""
    weight, size = gpu(500, 300, requires_grad=True), 2 * 500 * 300
    x = gpu(2, 300, dtype=torch.bfloat16)

    def use(*, cache_enabled: bool) -> list[Tensor]:
        with torch.autocast(NAME, torch.bfloat16, cache_enabled=cache_enabled):
            return [linear(x, weight), linear(x, weight)]

    return {
        str(is_cached): new_bytes(mode, partial(use, cache_enabled=is_cached)).count(size)
        for is_cached in (True, False)
    }


def attention(
    *,
    num_groups: int = 4,
    has_mask: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    is_told: bool = True,
    lies_apart: bool = False,
) -> str:
    """The backward of what attention ran. ``is_told``: of fewer heads of keys than of queries; ``lies_apart``: keys are
    not innermost in the mask."""
    query = gpu(2, 4, 300, 64, dtype=dtype, requires_grad=True)
    key, value = (gpu(2, num_groups, 300, 64, dtype=dtype) for _ in "kv")
    mask = gpu(2, 1, 300, 300, dtype=torch.bool) if has_mask else None
    mask = mask.transpose(2, 3) if mask is not None and lies_apart else mask
    result = scaled_dot_product_attention(
        query, key, value, mask, is_causal=not has_mask, enable_gqa=is_told and num_groups != 4
    )
    return "math" if "Overrideable" not in result.grad_fn.name() else "fused"


def attention_by_card(capability: tuple[int, int], mode: Rehearsal) -> dict[str, str]:
    return {
        "alike": attention(),
        "grouped": attention(num_groups=2),
        "one head, not told": attention(num_groups=1, is_told=False),
        "grouped, masked": attention(num_groups=2, has_mask=True),
        "masked": attention(has_mask=True),
        "masked, keys apart": attention(has_mask=True, lies_apart=True),
        "grouped float32": attention(num_groups=2, dtype=torch.float32),
        "alike float16": attention(dtype=torch.float16),
        "masked float16": attention(has_mask=True, dtype=torch.float16),
        "grouped float16": attention(num_groups=2, dtype=torch.float16),
    }


def inside_flash_backward(mode: Rehearsal) -> list[int]:
    """What is allocated by the backward of grouped attention: dq, dk, dv, then the kernel's own."""
    batch, heads, groups, tokens, width = 2, 6, 3, 130, 40
    kwargs = {"dtype": torch.bfloat16, "requires_grad": True}
    query = gpu(batch, heads, tokens, width, **kwargs)
    key, value = (gpu(batch, groups, tokens, width, **kwargs) for _ in "kv")
    result = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    grad = gpu(*result.shape, dtype=torch.bfloat16)
    return sorted(new_bytes(mode, lambda: torch.autograd.grad(result, (query, key, value), grad)))


def inside_backward_with_a_learned_bias(mode: Rehearsal) -> list[int]:
    """What is allocated by the backward of attention whose mask needs a gradient: for each head and row of 196 keys."""
    heads, tokens, width = 3, 196, 64
    parts = [gpu(2, heads, tokens, width, dtype=torch.bfloat16, requires_grad=True) for _ in "qkv"]
    bias = gpu(2, heads, tokens, tokens, dtype=torch.bfloat16, requires_grad=True)
    result = scaled_dot_product_attention(*parts, attn_mask=bias)
    grad = gpu(*result.shape, dtype=torch.bfloat16)
    return sorted(new_bytes(mode, lambda: torch.autograd.grad(result, (*parts, bias), grad)))


def inside_attention_with_a_boolean_mask(mode: Rehearsal) -> list[int]:
    """What is allocated of 64 KiB or more by attention with a mask of 512 keys."""
    parts = [gpu(1, 2, 512, 64, dtype=torch.bfloat16) for _ in "qkv"]
    mask = gpu(1, 1, 512, 512, dtype=torch.bool)
    return [size for size in new_bytes(mode, lambda: scaled_dot_product_attention(*parts, mask)) if size >= 65_536]


def layouts_of_attention(mode: Rehearsal) -> dict[str, bool]:
    """Whether the result of queries that lie head after head lies token after token."""

    def lies_by_tokens(dtype: torch.dtype, *, has_mask: bool = False) -> bool:
        parts = [gpu(2, 4, 64, 32, dtype=dtype) for _ in "qkv"]
        mask = gpu(2, 1, 64, 64, dtype=dtype) if has_mask else None
        return scaled_dot_product_attention(*parts, attn_mask=mask).transpose(1, 2).is_contiguous()

    return {
        "flash": lies_by_tokens(torch.bfloat16),
        "masked": lies_by_tokens(torch.bfloat16, has_mask=True),
        "float32": lies_by_tokens(torch.float32),
    }


def inside_the_gradient_of_embeddings(mode: Rehearsal, num_tokens: int) -> list[int]:
    """Of 1,000 in 64 bfloat16."""
    rows = gpu(num_tokens, 64, dtype=torch.bfloat16)
    ids = torch.zeros(num_tokens, dtype=torch.int64, device=NAME)
    return new_bytes(mode, lambda: torch.ops.aten.embedding_dense_backward(rows, ids, 1000, -1, False))


def inside_what_cuda_does_in_two_steps(mode: Rehearsal) -> dict[str, list[int]]:
    scores, halves = gpu(64, 1000), gpu(64, 1000, dtype=torch.float16)
    products = gpu(64, 1000, requires_grad=True)
    likely, log_likely = products.softmax(-1), products.log_softmax(-1)
    return {
        "softmax backward": new_bytes(mode, lambda: torch.autograd.grad(likely, products, scores)),
        "embedding backward": inside_the_gradient_of_embeddings(mode, 4096),
        "embedding backward of few tokens": inside_the_gradient_of_embeddings(mode, 3072),
        "log_softmax backward": new_bytes(mode, lambda: torch.autograd.grad(log_likely, products, scores)),
        "logsumexp": sorted(new_bytes(mode, lambda: torch.logsumexp(scores, dim=-1))),
        "isinf": new_bytes(mode, lambda: torch.isinf(halves)),
        "sum of booleans": new_bytes(mode, lambda: (halves > 0).sum(-1)),
        "sum of float16": new_bytes(mode, lambda: halves.sum(-1, dtype=torch.float32)),
        "dropout": new_bytes(mode, lambda: torch.native_dropout(halves, 0.1, True)),
        "dropout of equal shapes": new_bytes(mode, lambda: torch.native_dropout(halves, 0.1, True)),
    }


def inside_the_backward_of_indexing(mode: Rehearsal) -> dict[str, list[int]]:
    """What is allocated by the gradient of 1,000 numbers of which 10 are taken."""
    numbers, places = gpu(1000, requires_grad=True), torch.zeros(10, dtype=torch.int64, device=NAME)
    taken = {
        "index": numbers[places],
        "gather": numbers.gather(0, places),
        "max": numbers.max(0, keepdim=True).values,
        "topk": numbers.topk(10).values,
    }
    found: dict[str, list[int]] = {}
    for name, one in taken.items():
        grad = gpu(*one.shape)
        found[name] = new_bytes(mode, lambda: torch.autograd.grad(one, numbers, grad))  # noqa: B023 called at once
    return found


class Packed(Tensor):
    """A tensor made of another, as torchao's moments are."""

    @staticmethod
    def __new__(cls, codes: Tensor) -> "Packed":
        return Tensor._make_wrapper_subclass(cls, codes.shape, device=codes.device, dtype=torch.float32)

    def __init__(self, codes: Tensor) -> None:
        self.codes = codes

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], *rest: Any) -> "Packed":
        return cls(inner["codes"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is torch.ops.aten.slice.Tensor
        return cls(func(args[0].codes, *args[1:]))


def inside_a_part_of_a_tensor_made_of_another(mode: Rehearsal) -> dict[str, Any]:
    packed = Packed(gpu(1000, dtype=torch.uint8))
    sizes = new_bytes(mode, lambda: packed.narrow(0, 100, 500))
    return {"allocated": sizes, "kind": type(packed.narrow(0, 100, 500)).__name__}


def inside_products_of_packed_weights(mode: Rehearsal) -> dict[str, list[int]]:
    """What is allocated in forward and in backward, with scales that are quantised themselves."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    packed = Linear4bit(512, 1024, bias=False, compute_dtype=torch.bfloat16, device="meta")
    packed.weight = Params4bit(gpu(1024, 512, dtype=torch.bfloat16), requires_grad=False, module=packed)
    packed = packed.to(NAME)
    x = gpu(128, 512, dtype=torch.bfloat16, requires_grad=True)
    with dequantising_for_products():
        forward = new_bytes(mode, lambda: packed(x))
        result = packed(x)
    grad = gpu(128, 1024, dtype=torch.bfloat16)
    backward = new_bytes(mode, lambda: torch.autograd.grad(result, x, grad))
    return {"forward": sorted(forward), "backward": sorted(backward)}


class Given(torch.autograd.Function):
    """Some number of its input. The gradient of that is a new tensor, which ``keep`` is told of."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Callable[[Tensor], None]) -> Tensor:
        ctx.keep = keep
        return x.new_empty(())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        made = torch.empty(1000, device=grad.device)
        ctx.keep(made)
        return made, None


def summed_gradients(mode: Rehearsal) -> dict[str, int]:
    """New tensors of an activation's size in a backward that gives it two gradients, each told to somebody."""

    def num_made(keep: Callable[[Tensor], None]) -> int:
        x = gpu(1000, requires_grad=True)
        y = x.view(1000)
        total = Given.apply(y, keep) + Given.apply(y, keep)
        return new_bytes(mode, total.backward).count(NUM_BYTES)

    kept: list[Tensor] = []
    return {"alone": num_made(lambda gradient: None), "held": num_made(kept.append)}


class Doubler(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Doubler()

    def forward(self, x: Tensor) -> Tensor:
        x = x * 2
        x = x * 2
        return self.inner(x)


def live_while_makers_are_asked(mode: Rehearsal) -> dict[str, Any]:
    """The highest moment of a module that rebinds its variable, in tensors, and who is said to have made the last."""
    model, attribution = Layer(), AllocationAttribution()
    attribution.learn(model)
    mode._maker = attribution
    x = gpu(NAMED_BYTES, dtype=torch.uint8)
    with torch.no_grad():
        result = model(x)
    entry = mode.ledger.entries[mode.ledger.number_of(result.untyped_storage()) or 0]
    return {"tensors": mode.ledger.device.peak_bytes / NAMED_BYTES, "maker": entry.maker}


def values(mode: Rehearsal) -> dict[str, Any]:
    """What is known of integer tensors after operations, on the device."""
    ids = torch.tensor([[2, 3, 5], [5, 7, 2]]).to(NAME)
    is_five = ids == 5
    picked = gpu(2, 3, 11)[is_five]
    changed = ids.clone()
    changed[is_five] = 13
    changed += 1
    lost = ids.clone()
    lost.copy_(gpu(300, 300, dtype=torch.int64)[:2, :3])  # too large for its values to be kept
    return {
        "list": ids.tolist(),
        "sum": int(ids.sum()),
        "where": is_five.nonzero().tolist(),
        "picked": list(picked.shape),
        "changed": changed.tolist(),
        "untouched": ids.tolist(),
        "unique": ids.unique().tolist(),
        "repeated": torch.repeat_interleave(ids[0], ids[1]).shape[0],
        "view": ids.view(-1)[1:4].tolist(),
        "large view is known": value_of(is_five.unsqueeze(-1).expand(2, 3, 10**8)) is not None,
        "is lost": value_of(lost) is None,
        "unknown": [float(gpu(3).sum()), bool(gpu(1, dtype=torch.bool)), int(gpu(1, dtype=torch.int64))],
        "pixels are not zero": bool((gpu(2, 3) == 0).any()),
    }


def collectives(mode: Rehearsal) -> list[dict[str, Any]]:
    """Two ranks' worth of four; the larger side counts."""
    join(3, 4)
    mode.collectives.key = ("step", 2)
    part, whole = gpu(25, dtype=torch.bfloat16), gpu(100, dtype=torch.bfloat16)
    dist.all_gather_into_tensor(whole, part)
    dist.all_gather_into_tensor(whole, part)
    dist.reduce_scatter_tensor(part, whole)
    dist.all_reduce(gpu(7))
    dist.broadcast(gpu(3, dtype=torch.int64), 0)
    dist.barrier()
    dist.all_reduce(gpu(7), group=dist.new_group([1, 3]))
    return mode.collectives.as_json()


def accelerator(capability: tuple[int, int]) -> dict[str, Any]:
    from vlmplan_trainer.rehearse import device
    from vlmplan_trainer.rehearse.accelerator import RehearsalAccelerator
    from vlmplan_trainer.rehearse.ledger import Ledger

    module = device.register(Ledger())
    made = RehearsalAccelerator(module, compute_capability=capability, total_bytes=2**34, overhead_bytes=2**30)
    return {
        "bf16": made.is_bf16_supported(),
        "fp16": made.is_fp16_supported(),
        "name": made.device_name(0),
        "resolves_data_dependency": made.resolves_data_dependency(),
        "is_synchronized_device": made.is_synchronized_device(),
        "total": made.total_memory(),
        "available": made.available_memory(),
    }


def groups_without_padding(mode: Rehearsal) -> dict[str, Any]:
    """A mask of unknown values picks everything in the function of GLM-5 Next that groups keys, and nowhere else."""
    function = "def {}(x, keep): return x[:, keep]"
    shapes: dict[str, Any] = {}
    for name in (TAKES_ALL[1], "another"):
        made: dict[str, Any] = {}
        exec(compile(function.format(name), TAKES_ALL[0], "exec"), made)
        try:
            shapes[name] = list(made[name](gpu(2, 6, 4), gpu(6) > gpu(6)).shape)
        except DynamicOutputShapeException:
            shapes[name] = None
    return shapes


def rows_of_experts(mode: Rehearsal) -> list[int]:
    """Rows split by numbers that are not known."""
    counts = gpu(7, 3).long().sum(0).tolist()
    return [part.shape[0] for part in gpu(7, 2).split(counts)]


def tokens_of_experts(mode: Rehearsal) -> list[list[int]]:
    """How many tokens each expert is asked for, that a class of transformers has chosen by what is not known."""
    file, function = CHOOSES_EXPERTS[0]
    source = f"def {function}(scores):\n    return torch.topk(scores, k=2, dim=-1, sorted=False)[1]\n"
    names: dict[str, Any] = {"torch": torch}
    exec(compile(source, file, "exec"), names)
    mask = torch.nn.functional.one_hot(names[function](gpu(6, 4)), num_classes=4).permute(2, 1, 0)
    hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero(as_tuple=False)
    return [[int(expert), torch.where(mask[int(expert)].squeeze(0))[1].numel()] for expert in hit]


def in_world(check: Callable[[Rehearsal], Any], capability: tuple[int, int] = AMPERE) -> Any:
    with rehearsing(capability=capability) as mode:
        return check(mode)


CHECKS = {
    **{
        check.__name__: partial(in_world, check)
        for check in (
            dtypes_under_autocast,
            types_by_default,
            casts_of_a_weight,
            inside_flash_backward,
            inside_backward_with_a_learned_bias,
            inside_attention_with_a_boolean_mask,
            layouts_of_attention,
            inside_what_cuda_does_in_two_steps,
            inside_the_backward_of_indexing,
            inside_products_of_packed_weights,
            inside_a_part_of_a_tensor_made_of_another,
            summed_gradients,
            live_while_makers_are_asked,
            values,
            groups_without_padding,
            rows_of_experts,
            tokens_of_experts,
            collectives,
        )
    },
    **{
        f"attention on {name}": partial(in_world, partial(attention_by_card, capability), capability)
        for name, capability in (("ampere", AMPERE), ("turing", TURING))
    },
    **{f"accelerator {a}.{b}": partial(accelerator, (a, b)) for a, b in ((7, 0), (7, 5), (8, 0), (9, 0))},
}

if __name__ == "__main__":
    main(CHECKS)
