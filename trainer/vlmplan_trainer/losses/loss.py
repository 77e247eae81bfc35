"""The loss of a micro batch: the plain Hugging Face path, or the output head and cross-entropy chunk by chunk.

The chunked path, our own or Liger's, runs transformers' own forward, but the output head returns the loss instead of
logits. The head is called as a module all the same, so that ZeRO-3 brings its weight before and releases it after,
forward and backward. What a model does to its logits behind the head (Gemma caps them, Cohere and Granite scale them)
is read from its configuration and checked in the first forward, with probe values in place of the logits.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from vlmplan.errors import InputError
from vlmplan.recipe.choices import LossKind
from vlmplan.recipe.choices import chunk_tokens as chunk_tokens_of
from vlmplan_trainer.labels import DECODER_INPUTS, IGNORED_LABEL, TARGET_LABELS
from vlmplan_trainer.losses.cross_entropy import LogitRule, Product, chunked_cross_entropy
from vlmplan_trainer.losses.liger import liger_cross_entropy
from vlmplan_trainer.models.base_model import base_model
from vlmplan_trainer.models.decoder_inputs import decoder_input_ids
from vlmplan_trainer.sequence_parallel import SHIFTED_LABELS

CAP_KEYS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
SCALE_KEYS = ("logit_scale", "lm_head_multiplier", "output_multiplier", "logits_scaling")
"""Configuration keys of factors; Granite divides by ``logits_scaling``, HyperCLOVA X multiplies."""
ADDED_LOGITS = "final_logits_bias"
PROBE = (-24.0, -1.0, 0.5, 8.0)
PROBE_TOLERANCE_FRACTION = 0.02
"""bfloat16 rounds three times at most: 3 / 256 of the value."""

_rules: "WeakKeyDictionary[nn.Module, LogitRule]" = WeakKeyDictionary()
"""What is known to be right of models that have run."""


def language_loss(
    model: nn.Module,
    batch: Mapping[str, Any],
    *,
    kind: LossKind,
    num_items: Tensor | int | None = None,
    chunk_tokens: int | None = None,
    hold: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """The sum of the label tokens' losses over ``num_items``, a float32 scalar.

    ``kind``: full, chunked or liger. ``batch`` is what the model's forward takes and ``labels`` (batch, tokens), those
    of the tokens themselves, or ``shift_labels``, those of the tokens after them, or ``target_labels``, answers that a
    decoder is to write, which it is given shifted as its class does that, or with what it is prompted with before
    them (``decoder_input_ids``).
    ``num_items`` None: over the label tokens of this micro batch, so that the loss is their mean, and 0 without any.
    ``chunk_tokens`` None: as the planner counts. ``hold`` gets the logits of the plain path. Under DeepSpeed this has
    to run inside the forward of the engine's module, whose result the loss must be: the engine prepares backward from
    there.
    Raises InputError for a model whose logits no rule here describes.
    """
    inputs = model_inputs(batch)
    if TARGET_LABELS in batch and DECODER_INPUTS not in batch:
        inputs[DECODER_INPUTS] = decoder_input_ids(model, batch[TARGET_LABELS])
    labels = _labels_of_next(batch).reshape(-1)
    if num_items is None:
        num_items = (labels != IGNORED_LABEL).sum().clamp(min=1)
    if kind is LossKind.FULL:
        return _plain_sum(model, inputs, labels, hold) / num_items
    fused = _liger if kind is LossKind.LIGER else partial(_chunked, chunk_tokens=chunk_tokens)
    return _fused_sum(model, inputs, labels, fused) / num_items


def _labels_of_next(batch: Mapping[str, Any]) -> Tensor:
    for name in (SHIFTED_LABELS, TARGET_LABELS):
        if name in batch:
            return batch[name]
    return pad(batch["labels"], (0, 1), value=IGNORED_LABEL)[..., 1:]


def model_loss(model: nn.Module, batch: Mapping[str, Any], *, num_items: Tensor | int | None = None) -> Tensor:
    """The loss by the model's own forward, which gets the labels: transformers' ``loss_function`` in float32, or what
    the class of an encoder and a decoder makes of answers.

    Raises InputError for a model whose forward takes no ``num_items_in_batch``: its mean would be over other tokens.
    """
    if TARGET_LABELS in batch:
        return _answers_loss(model, batch, num_items)
    taken = inspect.signature(base_model(model).forward).parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken):
        raise InputError(f"{type(base_model(model)).__name__} takes no num_items_in_batch; use --loss full")
    return model(**model_inputs(batch), labels=batch["labels"], num_items_in_batch=num_items).loss


def _answers_loss(model: nn.Module, batch: Mapping[str, Any], num_items: Tensor | int | None) -> Tensor:
    """A class's loss of answers is a mean over the label tokens of the micro batch, which has some, however often it
    predicts each (transformers 5.23 ``ProphetNetForConditionalGeneration._compute_loss``): it is weighed by their
    share of ``num_items``."""
    answers = batch[TARGET_LABELS]
    mean = model(**model_inputs(batch), labels=answers).loss
    return mean if num_items is None else mean * ((answers != IGNORED_LABEL).sum() / num_items)


def model_inputs(batch: Mapping[str, Any]) -> dict[str, Any]:
    """What the model's forward takes of a batch: no labels, and no mask of the padding where attention is causal.

    Padding is on the right, where no token before it looks, and its own losses are ignored. With ``attention_mask``
    transformers would make a mask of micro_batch × tokens² for all layers, and torch's causal kernels, which are
    planned with, would not run. Models in which tokens look ahead get ``token_type_ids`` and need the mask, and so do
    encoders.
    """
    looks_ahead = not batch.keys().isdisjoint(("token_type_ids", TARGET_LABELS))
    needless = {"labels", SHIFTED_LABELS, TARGET_LABELS} | (set() if looks_ahead else {"attention_mask"})
    return {name: value for name, value in batch.items() if name not in needless}


def _plain_sum(
    model: nn.Module, inputs: Mapping[str, Any], labels: Tensor, hold: Callable[[Tensor], None] | None
) -> Tensor:
    """transformers' ``ForCausalLMLoss``, also of models that would take a mean of their own."""
    logits = model(**inputs).logits
    if hold is not None:
        hold(logits.detach())
    return cross_entropy(logits.float().flatten(0, -2), labels, ignore_index=IGNORED_LABEL, reduction="sum")


Fused = Callable[[Sequence[Product], Tensor | None, Tensor, LogitRule], Tensor]
"""The sum of the losses of products, bias and labels, with what the model does to its logits."""


def _chunked(
    products: Sequence[Product], bias: Tensor | None, labels: Tensor, rule: LogitRule, *, chunk_tokens: int | None
) -> Tensor:
    chunk = chunk_tokens or chunk_tokens_of(products[0].weight.shape[0])
    return chunked_cross_entropy(products, bias, labels, rule=rule, chunk=chunk)


def _liger(products: Sequence[Product], bias: Tensor | None, labels: Tensor, rule: LogitRule) -> Tensor:
    if len(products) > 1:
        raise InputError("--loss liger skips adapters on the output head; give --loss chunked or full")
    return liger_cross_entropy(products[0], bias, labels, rule=rule)


def _fused_sum(model: nn.Module, inputs: Mapping[str, Any], labels: Tensor, fused: Fused) -> Tensor:
    if model in _rules:
        return _run_fused(model, inputs, labels, _rules[model], fused)[0]
    candidates = logit_rules(model)
    total, probed = _run_fused(model, inputs, labels, candidates[0], fused)
    _rules[model] = _fitting_rule(model, candidates, probed)
    if _rules[model] != candidates[0]:
        return _fused_sum(model, inputs, labels, fused)
    return total


def _run_fused(
    model: nn.Module, inputs: Mapping[str, Any], labels: Tensor, rule: LogitRule, fused: Fused
) -> tuple[Tensor, Tensor]:
    """(sum of the losses, what the model made of the probe values)."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    heard: list[Tensor] = []
    trains_own = any(weight.requires_grad for weight in base_model(model).parameters(recurse=False))

    def sum_of_losses(products: list[Product], bias: Tensor | None) -> Tensor:
        bias = bias if added is None else added[0]
        num_tokens = products[0].x.shape[0]
        if num_tokens != labels.shape[0]:
            raise InputError(f"the model has {num_tokens} outputs for {labels.shape[0]} labels; use --loss full")
        return fused(products, bias, labels, rule)

    def keep_and_probe(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        heard.append(output)
        hidden = args[0].detach()
        probe = hidden.new_tensor(PROBE).view(*(1 for _ in hidden.shape[:-1]), -1)  # no more for more tokens
        return probe.requires_grad_(trains_own)

    with _computing(head, sum_of_losses), _without_added_logits(model) as added:
        hook = head.register_forward_hook(keep_and_probe)  # behind DeepSpeed's, which watch over the loss
        try:
            logits = model(**inputs).logits
        finally:
            hook.remove()
    if len(heard) != 1:
        raise InputError(
            f"{type(base_model(model)).__name__} runs its output head {len(heard)} times in a forward, and a loss in "
            f"chunks is of one result of it; use --loss full"
        )
    total = _WatchedLoss.apply(heard[0], logits) if trains_own else heard[0]
    return cast(Tensor, total), logits.detach().flatten(0, -2)[0]


class _WatchedLoss(torch.autograd.Function):
    """The loss, whose backward comes by the model's result too, with a gradient of zeros.

    ZeRO-3 brings the weights that a module itself has before the backward of its result. The loss is of the head's,
    so those of the model, as BLIP-2's ``query_tokens``, would be missing when their gradient is added.
    """

    @staticmethod
    def forward(ctx: Any, loss: Tensor, logits: Tensor) -> Tensor:
        ctx.logits = logits.detach()  # one row of probe values
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, torch.zeros_like(ctx.logits)


@contextmanager
def _without_added_logits(model: nn.Module) -> Iterator[Tensor | None]:
    """What the model adds to its logits, one row, while it adds nothing; None for most (BART and its like add
    ``final_logits_bias``)."""
    owner = base_model(model)
    added: Tensor | None = getattr(owner, ADDED_LOGITS, None)
    if added is None:
        yield None
        return
    setattr(owner, ADDED_LOGITS, added.new_zeros((1, 1)))
    try:
        yield added
    finally:
        setattr(owner, ADDED_LOGITS, added)


Sum = Callable[[list[Product], Tensor | None], Tensor]


@contextmanager
def _computing(head: nn.Module, sum_of_losses: Sum) -> Iterator[None]:
    """While this lasts, ``head`` returns ``sum_of_losses`` of the products that its result is the sum of."""
    leaf = _active_copy(head)
    if not hasattr(leaf, "lora_A"):
        linear = cast(nn.Linear, leaf)  # or a class of its making: 4-bit and 8-bit ones too have its weight and bias

        def forward(hidden: Tensor) -> Tensor:
            return sum_of_losses([Product(x=_rows(hidden), weight=linear.weight)], linear.bias)

        with _replaced_forward(leaf, forward):
            yield
        return
    thin, wide, base, scaling, dropout = _lora_parts(leaf)

    def lora_forward(hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        def wide_forward(update: Tensor) -> Tensor:
            with _whole(base):
                products = [Product(x=_rows(hidden), weight=base.weight), Product(x=_rows(update), weight=wide.weight)]
                return sum_of_losses(products, base.bias)

        update = thin(dropout(hidden.to(next(thin.parameters()).dtype))) * scaling
        with _replaced_forward(wide, wide_forward):
            return wide(update)

    with _replaced_forward(leaf, lora_forward):
        yield


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _active_copy(head: nn.Module) -> nn.Module:
    """The Linear that a head computes with: itself, or peft's trained copy of it."""
    copies = getattr(head, "modules_to_save", None)
    return head if copies is None else copies[head.active_adapters[0]]  # type: ignore[index]


def _lora_parts(layer: nn.Module) -> tuple[Any, Any, Any, float, nn.Module]:
    """(A, B, base layer, scaling, dropout) of peft's ``lora.Linear``; ``result = base(x) + B(A(dropout(x))) * s``."""
    adapters: Any = layer
    name = adapters.active_adapters[0]
    scaling, dropout = adapters.scaling[name], adapters.lora_dropout[name]
    return adapters.lora_A[name], adapters.lora_B[name], adapters.base_layer, scaling, dropout


def _whole(frozen: nn.Module) -> AbstractContextManager[Any]:
    """The weights of a module that is not called, brought together from ZeRO-3's shards: frozen, so forward only."""
    sharded = [parameter for parameter in frozen.parameters() if hasattr(parameter, "ds_id")]
    if not sharded:
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(sharded)


@contextmanager
def _replaced_forward(module: nn.Module, forward: Callable[..., Tensor]) -> Iterator[None]:
    """``module`` with another forward; hooks stay."""
    with ExitStack() as stack:
        if "forward" in vars(module):
            stack.callback(setattr, module, "forward", vars(module)["forward"])
        else:
            stack.callback(delattr, module, "forward")
        module.forward = forward  # type: ignore[method-assign]
        yield


def logit_rules(model: nn.Module) -> list[LogitRule]:
    """The operations that the model may apply to its logits, by its configuration; the likeliest first.

    A model that sees may leave out what its language model alone would do (Cohere 2 in Aya Vision): what its forward
    does not name is not likely, nor what it names as a factor of hidden states (MiniCPM 3). The first forward of a
    wrong rule is run again, and an order of modules that ZeRO-3 records then is not that of later steps.
    """
    text = model.config.get_text_config()  # type: ignore[union-attr, operator]
    said = _forward_text(base_model(model))
    caps, scales = list[float | None]([None]), [1.0]
    for key in (*CAP_KEYS, *SCALE_KEYS):
        value, values = getattr(text, key, None), caps if key in CAP_KEYS else scales
        if isinstance(value, int | float) and value:
            found = [1 / value, float(value)] if key == "logits_scaling" else [float(value)]
            if re.search(rf"\*\s*[\w.]*\b{key}\b", said):
                found.reverse()
            is_of_states = re.search(rf"\bhidden_states\s*[*/]\s*[\w.]*\b{key}\b", said)
            values[:] = [*found, *values] if key in said and not is_of_states else [*values, *found]
    return list(dict.fromkeys(LogitRule(scale=scale, cap=cap) for cap in caps for scale in scales))


def _forward_text(model: nn.Module) -> str:
    """The source of the model's forward; empty where it has none."""
    try:
        return inspect.getsource(inspect.unwrap(type(model).forward))
    except (OSError, TypeError):
        return ""


def _fitting_rule(model: nn.Module, candidates: list[LogitRule], probed: Tensor) -> LogitRule:
    probe = torch.tensor(PROBE, dtype=torch.float64)
    seen = probed.double().cpu()
    for rule in candidates:
        if seen.shape == probe.shape and torch.allclose(seen, rule(probe), rtol=PROBE_TOLERANCE_FRACTION, atol=1e-3):
            return rule
    raise InputError(f"--loss chunked does not know what {type(model).__name__} does with its logits; use --loss full")
