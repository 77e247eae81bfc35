"""Layers that add the results of attention and of an MLP to a residual, told by what their modules are called."""

from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.modules import Module
from vlmplan.architecture.tensor import Tensor


class PreNormLayer(Module):
    """The ``forward`` of a layer with a norm before attention and one before the MLP; who derives from it makes them.
    ``context`` is what the attention takes."""

    MODULES = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
    """In the order in which they run."""

    def forward(self, x: Tensor, context: Any) -> Tensor:
        attention_norm, attention, mlp_norm, mlp = (getattr(self, name) for name in self.MODULES)
        residual = x
        x = attention_norm(x)
        x = attention(x, context)
        x = ops.add(residual, x)
        residual = x
        x = mlp_norm(x)
        x = mlp(x)
        return ops.add(residual, x)


class SandwichNormLayer(Module):
    """The same with a norm behind attention and one behind the MLP, too."""

    MODULES = (
        *("input_layernorm", "self_attn", "post_attention_layernorm"),
        *("pre_feedforward_layernorm", "mlp", "post_feedforward_layernorm"),
    )

    def forward(self, x: Tensor, context: Any) -> Tensor:
        before_attention, attention, behind_attention, before_mlp, mlp, behind_mlp = (
            getattr(self, name) for name in self.MODULES
        )
        residual = x
        x = before_attention(x)
        x = attention(x, context)
        x = behind_attention(x)
        x = ops.add(residual, x)
        residual = x
        x = before_mlp(x)
        x = mlp(x)
        x = behind_mlp(x)
        return ops.add(residual, x)
