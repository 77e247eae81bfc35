"""What each shim of ``shims.py`` is there for, with it and without."""

import copy
import io
import os
import tempfile
import weakref
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import torch
from forked import main
from torch.nn.parallel import DistributedDataParallel
from worlds import gpu, join, rehearsing

from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload
from vlmplan_trainer.engines.optimizers import make_optimizer
from vlmplan_trainer.losses import liger as liger_loss
from vlmplan_trainer.losses.cross_entropy import LogitRule, Product
from vlmplan_trainer.rehearse import autocast, flash, shims
from vlmplan_trainer.rehearse.device import NAME
from vlmplan_trainer.rehearse.dispatch import Rehearsal
from vlmplan_trainer.rehearse.streams import DEFAULT_STREAM

Check = Callable[[Rehearsal], Any]


def one_kind_of_keys(mode: Rehearsal) -> str:
    weight = torch.nn.Parameter(torch.empty(2, 3))
    weight.data = weight.data.to(NAME)
    return "moved"


def patched_data_setter(mode: Rehearsal) -> str:
    weight = torch.nn.Parameter(torch.empty(2, 3))
    weight.data = weight.data.to(NAME)
    return (weight + weight).device.type


def making_parameters_of_fake_tensors(mode: Rehearsal) -> list[str]:
    from bitsandbytes.nn import Params4bit

    made = Params4bit(torch.empty(64, 64), requires_grad=False)
    return [kind.__name__ for kind in type(made).__mro__[1:3]]


def copying_nothing_but_data(mode: Rehearsal) -> dict[str, bool]:
    """What a copied weight has of its own, of the original's, and of nobody's."""
    layer = torch.nn.Linear(2, 3, device=NAME)
    layer.weight.ds_id = 7  # type: ignore[attr-defined]
    weight = copy.deepcopy(layer).weight
    storage = weight.untyped_storage()._cdata
    return {
        "is a parameter": isinstance(weight, torch.nn.Parameter) and weight.requires_grad,
        "has memory of its own": storage != layer.weight.untyped_storage()._cdata,
        "has views in it": weight.t().untyped_storage()._cdata == storage,
        "has the original's attributes": hasattr(weight, "ds_id"),
    }


def moving_modules_in_place(mode: Rehearsal) -> list[bool]:
    layer = torch.nn.Linear(2, 3)
    weight, seen = layer.weight, weakref.ref(layer.weight)
    layer.to(NAME)
    return [seen() is weight is layer.weight, *(_scales_stay(device) for device in (NAME, "cpu"))]


def _scales_stay(device: str) -> bool:
    """Whether a used layer of 8-bit weights still has their scales after it goes to where it is already."""
    from bitsandbytes.nn import Int8Params, Linear8bitLt

    layer = Linear8bitLt(2, 3, bias=False, has_fp16_weights=False)
    in_bytes, scales = torch.zeros(3, 2, dtype=torch.int8, device=device), torch.ones(3, device=device)
    layer.weight = Int8Params(in_bytes, requires_grad=False, CB=in_bytes, SCB=scales)
    layer.init_8bit_state()  # as its first use does
    torch.nn.Sequential(layer).to(device)
    return layer.weight.CB is None and layer.state.SCB is not None  # else its next use takes them from the weight


def taking_fake_tensors_for_real(mode: Rehearsal) -> bool:
    from transformers import LlamaConfig
    from transformers.masking_utils import create_causal_mask

    config = LlamaConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1)
    config._attn_implementation = "sdpa"
    mask = create_causal_mask(
        config, gpu(1, 5, 8), attention_mask=torch.ones(1, 5, dtype=torch.long, device=NAME), past_key_values=None
    )
    return mask is None


def raising_after_backward(mode: Rehearsal) -> list[str]:
    def fail(weight: torch.Tensor) -> None:
        raise ValueError(f"{tuple(weight.shape)}")

    found = []
    for name in ("register_hook", "register_post_accumulate_grad_hook"):
        weight = torch.nn.Parameter(gpu(3, 5))
        getattr(weight, name)(fail)
        try:
            (weight + weight).sum().backward()
        except ValueError as error:
            found.append(str(error))
    return found


def knowing_used_weights(mode: Rehearsal) -> list[Any]:
    """Whether gradients lie in one bucket, and what is sent for a step of two weights of which one is used."""
    join(0, 2)
    layers = torch.nn.ModuleDict({name: torch.nn.Linear(3, 5, bias=False, device=NAME) for name in ("used", "unused")})
    layers.forward = lambda batch: layers["used"](batch)
    for layer in layers.values():
        layer.weight.grad = gpu(5, 3)
    ddp = DistributedDataParallel(
        layers, gradient_as_bucket_view=True, find_unused_parameters=True, broadcast_buffers=False, init_sync=False
    )
    mode.collectives.key = ("backward", 1)
    ddp(gpu(2, 3)).sum().backward()
    places = {layer.weight.grad.untyped_storage()._cdata for layer in layers.values()}
    sent = [(one["kind"], one["count"], one["num_bytes"]) for one in mode.collectives.as_json() if one["step"] == 1]
    return [len(places), *sent]


def trusting_other_ranks(mode: Rehearsal) -> None:
    from deepspeed.runtime.zero import utils

    join(1, 2)
    utils.assert_ints_same_as_other_ranks([7])


def looping_over_no_ranks(mode: Rehearsal) -> dict[str, Any]:
    """One gathering of two parameters and one reduce-scatter of their gradients, padded both."""
    from deepspeed.runtime.zero import stage3
    from deepspeed.runtime.zero.partition_parameters import Init

    num_ranks = 16
    join(5, num_ranks)
    with Init(dtype=torch.bfloat16):
        layer = torch.nn.Linear(101, 7)
    host, params = mode.ledger.host, [layer.weight, layer.bias]
    mode.ledger.restart_peaks()
    operations = mode.num_operations
    params[0].all_gather_coalesced(params).wait()
    parts = stage3.reduce_scatter_coalesced([torch.empty_like(param) for param in params])
    return {
        "an operation a rank": mode.num_operations - operations > 2 * num_ranks,
        "shapes": [list(tensor.shape) for tensor in (*params, *parts)],
        "peak_bytes": host.peak_bytes,
        "live_bytes": host.live_bytes,
        "messages": [[kind, one.count, one.num_bytes] for (_, _, kind, _), one in mode.collectives.traffic.items()],
    }


def listing_known_values(mode: Rehearsal) -> list[Any]:
    numbers = torch.tensor([[2, 3], [5, 7]])
    before = mode.num_operations
    return [numbers.tolist(), mode.num_operations - before]


def forgetting_casts(mode: Rehearsal) -> int:
    weight = torch.nn.Parameter(gpu(3, 5))
    with torch.autocast(NAME, torch.bfloat16):
        torch.nn.functional.linear(gpu(2, 5), weight)
        assert len(autocast._cache) == 1
    return len(autocast._cache)


def asking_for_the_device_by_default(mode: Rehearsal) -> list[bool]:
    with torch.autocast(NAME, torch.bfloat16):
        within = torch.is_autocast_enabled()
    return [torch.is_autocast_enabled(), within]


def making_numbers_on_the_host(mode: Rehearsal) -> str:
    return torch.tensor([2.0, 3.0], device=NAME).device.type


def recording_no_streams(mode: Rehearsal) -> None:
    gpu(2).record_stream(torch.gpu.current_stream())  # type: ignore[attr-defined]


def making_tensors_of_tensors(mode: Rehearsal) -> list[int]:
    import deepspeed

    numbers = [torch.tensor(5), torch.tensor(7)]
    plain = torch.tensor(numbers)
    join(0, 2)
    with deepspeed.zero.Init(config_dict_or_path={"zero_optimization": {"stage": 3}, "train_batch_size": 2}):
        return [*plain.tolist(), *torch.tensor(numbers).tolist()]


def updating_nothing_on_the_host(mode: Rehearsal) -> str:
    recipe, said = Recipe(offload_optimizer=Offload.CPU), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(said):  # no compiler, so that it is not built
        os.environ |= {"TORCH_EXTENSIONS_DIR": folder, "CXX": "false", "PATH": ""}
        weight = torch.nn.Parameter(torch.zeros(3))
        optimizer = make_optimizer({"weight": weight}, recipe, weight_decay=0.0)
        weight.grad = torch.zeros(3)
        optimizer.step()
    return " ".join(sorted(optimizer.state[weight])) + said.getvalue()


def computing_no_softmax_of_liger(mode: Rehearsal) -> int:
    """Bytes that Liger's loss of 64 tokens takes at most."""
    x, weight = gpu(64, 16).requires_grad_(), gpu(64, 16)
    labels = torch.zeros(64, dtype=torch.int64, device=NAME)
    mode.ledger.restart_peaks()
    before = mode.ledger.device.live_bytes
    liger_loss.liger_cross_entropy(Product(x=x, weight=weight), None, labels, rule=LogitRule())
    return mode.ledger.device.peak_bytes - before


def deriving_shapes_unseen(mode: Rehearsal) -> int:
    """Bytes that the sum of a sharded tensor with itself takes at most, on one of two ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    join(0, 2)
    shard = DTensor.from_local(gpu(3 * 512), init_device_mesh(NAME, (2,)), [Shard(0)], run_check=False)
    mode.ledger.restart_peaks()
    before = mode.ledger.device.live_bytes
    result = shard.mul(shard)
    del result
    return mode.ledger.device.peak_bytes - before


def counting_bytes_as_addresses(mode: Rehearsal) -> list[bool]:
    """Whether FSDP1 takes a weight for one that is there, and for one whose bytes have gone."""
    import torch.distributed.fsdp._flat_param as flat

    weight = gpu(3 * 512)
    found = [flat._data_ptr_allocated(weight)]
    weight.untyped_storage().resize_(0)
    return [*found, flat._data_ptr_allocated(weight)]


def taking_tensors_together(mode: Rehearsal) -> list[int]:
    """The largest tensor that is allocated in clipping, and in the updates of an optimizer that was told nothing,
    beside its states."""
    weights = [gpu(numel, requires_grad=True) for numel in (5 * 65_536, 5 * 65_536 + 1, 3)]
    for weight in weights:
        weight.grad = torch.empty_like(weight)
    device = mode.ledger.device
    before = len(device.events)
    torch.nn.utils.clip_grad_norm_(weights, 1.0)
    in_norms = max(size for _, size in device.events[before:])
    optimizer = torch.optim.AdamW(weights)
    optimizer.step()
    mode.ledger.restart_peaks()
    live = device.live_bytes
    optimizer.step()
    return [in_norms, device.peak_bytes - live]


def waiting_on_own_streams(mode: Rehearsal) -> bool:
    return torch.accelerator.current_stream() is DEFAULT_STREAM


def flattening_gathered_lists(mode: Rehearsal) -> list[int]:
    """Bytes that gathering a list of four ranks' tensors takes while its work is there, and after it."""
    from deepspeed import comm

    join(0, 4)
    own, parts = gpu(512), [gpu(512) for _ in range(4)]
    before = mode.ledger.device.live_bytes
    work = comm.all_gather(parts, own, async_op=True)
    during = mode.ledger.device.live_bytes - before
    del work
    return [during, mode.ledger.device.live_bytes - before]


def paging_in_host_memory(mode: Rehearsal) -> list[str]:
    from bitsandbytes.optim import PagedAdamW8bit

    weight = torch.nn.Parameter(gpu(1 << 17))
    optimizer = PagedAdamW8bit([weight])
    return [optimizer.get_state_buffer(weight, dtype=torch.uint8).device.type]


def counting_saved_bytes(mode: Rehearsal) -> int:
    shared = gpu(3, 5, dtype=torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        content = {"weights": [shared, shared.view(5, 3)], "state": {"step": gpu(7, dtype=torch.float32)}}
        with shims.counting_saved_bytes() as saved:
            torch.save(content, Path(folder) / "file.pt")
    return saved.num_bytes


def saving_fake_tensors(mode: Rehearsal) -> None:
    with tempfile.TemporaryDirectory() as folder:
        torch.save({"weights": gpu(3, 5)}, Path(folder) / "file.pt")


def flash_attention_from_torch(mode: Rehearsal) -> list[int]:
    with flash.flash_attention_from_torch():
        return logits_shape_of_flash_attention(mode)


def logits_shape_of_flash_attention(mode: Rehearsal) -> list[int]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=64, intermediate_size=32, num_attention_heads=2, num_hidden_layers=1, vocab_size=50
    )
    model = LlamaForCausalLM._from_config(config, attn_implementation="flash_attention_2", dtype=torch.bfloat16)
    return list(model.to(NAME)(torch.zeros(3, 7, dtype=torch.long, device=NAME)).logits.shape)


def checked(check: Check, without: str) -> Any:
    with rehearsing(without=without) as mode:
        return check(mode)


SHIMS = {shim.__name__: globals()[shim.__name__] for shim in (*shims.SHIMS, *shims.DEVICE_SHIMS)}
"""A check for every one; none is missing."""
CHECKS = {
    **{name: partial(checked, check, "") for name, check in SHIMS.items()},
    **{f"no {name}": partial(checked, check, name) for name, check in SHIMS.items()},
    "counting_saved_bytes": partial(checked, counting_saved_bytes, ""),
    "no counting_saved_bytes": partial(checked, saving_fake_tensors, ""),
    "flash_attention_from_torch": partial(checked, flash_attention_from_torch, ""),
    "no flash_attention_from_torch": partial(checked, logits_shape_of_flash_attention, ""),
}

if __name__ == "__main__":
    main(CHECKS)
