"""What the vision towers of composite models have in common: which hidden states they hand out.

Source: transformers 5.23 ``utils/output_capturing.py``: a composite model asks its tower for the hidden states that
``vision_feature_layer`` names. All layers run whatever it names, and what the tower returns lives until the composite
model's ``forward`` ends; so does the graph of layers behind the last one named, which no gradient ever reaches.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import pairwise

from vlmplan.architecture.config import Config
from vlmplan.architecture.modules import LayerCall, Module, Stack
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError


class VisionOutput:
    """``BaseModelOutputWithPooling`` with the hidden states that were asked for, in that order."""

    __slots__ = ("hidden_states", "last_hidden_state", "pooled")

    def __init__(
        self, last_hidden_state: Tensor, hidden_states: Sequence[Tensor] = (), pooled: Tensor | None = None
    ) -> None:
        self.last_hidden_state, self.hidden_states, self.pooled = last_hidden_state, tuple(hidden_states), pooled

    @property
    def tensors(self) -> list[Tensor]:
        """What it holds."""
        return [self.last_hidden_state, *self.hidden_states, *([] if self.pooled is None else [self.pooled])]

    def through(self, change: Callable[[Tensor], Tensor]) -> "VisionOutput":
        """The output with what ``change`` makes of the hidden states that were asked for."""
        return VisionOutput(self.last_hidden_state, [change(state) for state in self.hidden_states], self.pooled)


class EqualLayers(Module):
    """An encoder of nothing but ``layers``, all like ``layer``."""

    def __init__(self, layer: Module, config: Config) -> None:
        self.layers = Stack.of(layer, config.integer("num_hidden_layers"), label="vision")


class Encoder(Module):
    """The layers of a tower, cut into stretches where a hidden state is handed out.

    Every stretch has a kind of layer of its own: what a layer keeps alive is not the same before and behind a hidden
    state that somebody holds. Layers behind the last one handed out are stretches of one layer, because each keeps
    its graph until the whole output is dropped. So are those that hand out one of several: the gradients of hidden
    states side by side may be views of one tensor, which the layer then cannot free. ``ends`` are numbers of layers at
    which a stretch ends besides. ``holds_all``: every hidden state is handed out behind those that are asked for, where
    the composite model takes its pick of all that the tower has collected.
    """

    def __init__(
        self,
        make_layer: Callable[[], Module],
        num_layers: int,
        feature_layers: Sequence[int],
        ends: Sequence[int] = (),
        *,
        holds_all: bool = False,
    ) -> None:
        self.feature_layers = [_resolved(index, num_layers) for index in feature_layers]
        self.others = [index for index in range(num_layers + 1) if holds_all and index not in self.feature_layers]
        ends = [*ends, *self.others]
        bounds = {0, num_layers, *self.feature_layers, *ends}
        if self.feature_layers:
            bounds.update(range(max(self.feature_layers) + 1, num_layers))
        if len(self.feature_layers) > 1:
            bounds.update(index - 1 for index in self.feature_layers if index)
        self.stretches = list(pairwise(sorted(bounds)))
        pattern = [kind for kind, (start, stop) in enumerate(self.stretches) for _ in range(start, stop)]
        self.layers = Stack([make_layer() for _ in self.stretches], pattern, label="vision")

    def run(self, x: Tensor, call: LayerCall, beside: Sequence[Tensor] = ()) -> tuple[Tensor, list[Tensor]]:
        """(last hidden state, those asked for); ``call(layer, x, *beside)`` runs one layer, see ``Stack.run``."""
        return self(x, call, beside)

    def forward(self, x: Tensor, call: LayerCall, beside: Sequence[Tensor] = ()) -> tuple[Tensor, list[Tensor]]:
        handed_out = [*self.feature_layers, *self.others]
        last, held = [x], {0: x} if 0 in handed_out else {}
        del x  # what no one else holds is gone once the next layer is through
        for start, stop in self.stretches:
            is_used = start in self.feature_layers
            is_unused = bool(self.feature_layers) and start >= max(self.feature_layers)
            # What is cast for a layer whose graph goes with the output is in autocast's cache alone.
            with last[0].tape.caching_casts() if is_unused else nullcontext():
                x = self.layers.run(last.pop(), call, beside=beside, start=start, stop=stop, shares_input=is_used)
            last.append(x)
            del x
            if stop in handed_out:
                held[stop] = last[0]
        return last[0], [held[index] for index in handed_out]


def _resolved(index: int, num_layers: int) -> int:
    if not -num_layers - 1 <= index <= num_layers:
        raise InputError(f"config.json: vision_feature_layer is {index}; the vision tower has {num_layers} layers")
    return index % (num_layers + 1)
