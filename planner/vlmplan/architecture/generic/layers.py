"""How a decoder layer of an unknown family runs: by the widths of its Linears, in the order most decoders share.

Every weight is used, and so has a gradient; parameters, Linears and their products are exact. Generic is how the
results of Linears meet: attention over heads of the configured size without windows, a gate times a value where two
results have one width, one norm before each block (or one around it, where a layer has four), residual additions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.generic.groups import Group, LinearOrNorm, Role, joined, use, use_rest
from vlmplan.architecture.generic.stacks import PLAIN_STACKS, Chunks, StackFacts
from vlmplan.architecture.modules import Module
from vlmplan.architecture.tensor import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GenericShape:
    """What a configuration says of the layers. ``is_parallel``: attention and MLP both read the layer's input."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    experts_per_token: int
    activation: str
    is_parallel: bool
    attention_dropout: float
    has_rotary: bool
    stacks: StackFacts = PLAIN_STACKS
    merges_states: bool = False
    """Whether a decoder's attention to itself is that to an encoder's states too (T5Gemma 2)."""


@dataclass(frozen=True, slots=True)
class GenericContext:
    """What every layer is called with besides the hidden states; cos and sin are None without rotary positions.

    ``states`` are those of an encoder that a decoder attends to, in which tokens see each other (``is_causal`` off).
    """

    backend: AttentionBackend
    shape: GenericShape
    cos: Tensor | None
    sin: Tensor | None
    states: Tensor | None = None
    is_causal: bool = True


class LayerRun:
    """One pass through one layer; remembers which modules it called."""

    def __init__(self, context: GenericContext) -> None:
        self.context, self.shape = context, context.shape
        self.used: set[int] = set()

    def call(self, module: Module, x: Tensor) -> Tensor:
        self.used.update(id(part) for _, part in module.named_modules())
        return module(x)

    def layer(self, layer: Group, x: Tensor) -> Tensor:
        """Each block of the layer behind its norm, added to the residual."""
        norms = [layer.at(step.path) for step in layer.steps if step.is_norm and step.in_width in (0, x.shape[-1])]
        units: list[str | None] = [*layer.blocks]
        if any(not step.is_norm for step in layer.steps):
            units.append(None)  # Linears of the layer itself, as OPT's MLP
        if len(units) > 1 and (self.shape.is_parallel or len(norms) == 1):
            x = self._in_parallel(layer, x, units, norms)
        else:
            x = self._in_turn(layer, x, units, norms)
        return use_rest(x, layer, self.used)

    def _in_turn(self, layer: Group, x: Tensor, units: Sequence[str | None], norms: Sequence[Module]) -> Tensor:
        norms_per_unit = len(norms) // max(1, len(units))
        for index, unit in enumerate(units):
            before = norms[index * norms_per_unit : (index + 1) * norms_per_unit]
            hidden = self.call(before[0], x) if before else x
            hidden = self._unit(layer, unit, hidden)
            if len(before) > 1:
                hidden = self.call(before[1], hidden)
            x = ops.add(x, ops.dropout(hidden, self.shape.stacks.dropout))
            del hidden
        return x

    def _in_parallel(self, layer: Group, x: Tensor, units: Sequence[str | None], norms: Sequence[Module]) -> Tensor:
        total = x
        hidden: Tensor | None = None
        for index, unit in enumerate(units):
            if hidden is None or index < len(norms):
                hidden = self.call(norms[index], x) if index < len(norms) else x
            total = ops.add(total, self._unit(layer, unit, hidden))
        return total

    def _unit(self, layer: Group, name: str | None, x: Tensor) -> Tensor:
        if name is None:
            y, made = self._chain(layer, x)
            return use(x if y is None else y, *made)
        block, states = layer.modules_by_name[name], self.context.states
        if states is not None and isinstance(block, Group) and _looks_at_encoder(name, block):
            return self._cross_attention(block, x, states)
        return self.block(block, x) if isinstance(block, Group) else self.call(block, x)

    def block(self, block: Group, x: Tensor) -> Tensor:
        """An attention, an MLP, a mixture of experts or something else; the result has x's shape."""
        if block.role is Role.EXPERTS:
            return self.call(block, x)
        if block.role is Role.ATTENTION:
            return self.attention(block, x)
        if block.role is Role.EXPERT_LIST and block.blocks:
            return self._listed(block, x)
        y, made = self._chain(block, x)
        for name in block.blocks:
            out = self._unit(block, name, x)
            y = out if y is None else ops.add(y, out)
        return use(x if y is None else y, *made)

    def _listed(self, block: Group, x: Tensor) -> Tensor:
        """Experts in a list: each over an equal part of the rows."""
        num_rows = x.numel // x.shape[-1] * self.shape.experts_per_token
        rows = max(1, num_rows // len(block.blocks))
        outs = [self._unit(block, name, ops.resample(x, 1, rows, x.shape[-1])) for name in block.blocks]
        result = ops.resample(outs.pop(0), *x.shape)
        return use(result, *outs)

    def _chain(self, block: Group, x: Tensor) -> tuple[Tensor | None, list[Tensor]]:
        """x through the Linears of an MLP: (result of x's width if there is one, results that nothing used)."""
        last = output_step(block.steps, x.shape[-1])
        made: list[Tensor] = []
        for step in block.steps:
            if step is last or step.is_norm:
                continue
            source = x if step.in_width == x.shape[-1] else joined(made, step.in_width, x, self.shape.activation)
            made.append(self.call(block.at(step.path), source))
            del source
        if last is not None:
            gated = joined(made, last.in_width, x, self.shape.activation)
            return self.call(block.at(last.path), gated), made
        return (made.pop() if made and made[-1].shape[-1] == x.shape[-1] else None), made

    # -- attention ---------------------------------------------------------------------------------------------------

    def attention(self, block: Group, x: Tensor) -> Tensor:
        """Queries, keys and values from the Linears, attention, and the Linear back to x's width."""
        last = output_step(block.steps, x.shape[-1])
        if last is None:
            y, made = self._chain(block, x)
            return use(x if y is None else y, *made)
        states = self.context.states if self.shape.merges_states else None
        pieces = self._pieces(x.shape[1])
        made = self._projections(block, x, last)
        q, k, v = self._heads(made, x)
        cos, sin = self.context.cos, self.context.sin
        if cos is not None and sin is not None and q.shape[-1] == k.shape[-1] == cos.shape[-1]:
            q, k = ops.rotate(q, cos, sin), ops.rotate(k, cos, sin)
        scores = Scores(dropout=self.shape.attention_dropout)
        if states is not None:
            k, v = self._with_states(block, k, v, states)
        if pieces is not None:
            q, k, v = _in_pieces(q, k, v, pieces)
        is_causal = self.context.is_causal and states is None  # a mask of both says who sees whom
        out = attend(self.context.backend, q, k, v, is_causal=is_causal, scores=scores)
        if pieces is not None:
            out = ops.resample(out, *x.shape[:-1], out.shape[-1])
        del q, k, v
        if out.shape[-1] != last.in_width:
            out = ops.resample(out, *x.shape[:-1], last.in_width)
        return use(self.call(block.at(last.path), out), *made)

    def _pieces(self, num_tokens: int) -> Chunks | None:
        """In which tokens attend, where they do not to all."""
        stacks = self.shape.stacks
        if self.context.states is not None:
            return stacks.streams(num_tokens) if stacks.num_predictions else None
        return None if self.context.is_causal or stacks.local is None else stacks.local.chunks(num_tokens)

    def _with_states(self, block: Group, k: Tensor, v: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values with those of ``states`` behind them, which the same Linears make."""
        steps = [step for step in block.steps if not step.is_norm and step.path[-1].startswith(KEY_LETTERS)]
        made: list[Tensor] = [self.call(block.at(step.path), states) for step in steps]
        if len(made) != len(KEY_LETTERS):
            return k, v
        more = [_in_heads(one, states.shape[0], states.shape[1], self.shape.head_dim) for one in made]
        del made
        batch, num_heads, num_tokens, head_dim = k.shape
        shape = (batch, num_heads, num_tokens + states.shape[1], head_dim)
        return ops.concatenate([k, more[0]], shape), ops.concatenate([v, more[1]], shape)

    def _cross_attention(self, block: Group, x: Tensor, states: Tensor) -> Tensor:
        """Attention of x to ``states``, of which keys and values are made."""
        last = output_step(block.steps, x.shape[-1])
        names = [step for step in block.steps if step is not last and not step.is_norm]
        both = [step for step in names if step.path[-1] == KEYS_AND_VALUES]
        keys = both or [step for step in names if step.path[-1].startswith(KEY_LETTERS)]
        if last is None or len(keys) != 2 - len(both) or len(names) != len(keys) + 1:
            return self.block(block, x)
        heads: dict[bool, list[Tensor]] = {True: [], False: []}
        for step in names:
            source = states if step in keys else x
            made: Tensor = self.call(block.at(step.path), source)
            parts = ops.split(made, *[(*made.shape[:2], made.shape[2] // 2)] * 2) if step in both else [made]
            del made
            heads[step in keys] += [
                _in_heads(part, source.shape[0], source.shape[1], self.shape.head_dim) for part in parts
            ]
            del parts
        [q], [k, v] = heads.pop(False), heads.pop(True)
        scores = Scores(dropout=self.shape.attention_dropout)
        out = attend(self.context.backend, q, k, v, is_causal=False, scores=scores)
        del q, k, v
        if out.shape[-1] != last.in_width:
            out = ops.resample(out, *x.shape[:-1], last.in_width)
        return self.call(block.at(last.path), out)

    def _projections(self, block: Group, x: Tensor, last: LinearOrNorm) -> list[Tensor]:
        """The results of the Linears before attention, in order, normed where there are norms for them."""
        made: list[Tensor] = []
        normed: set[int] = set()
        for step in block.steps:
            if step is last or step.path[-1].endswith(OF_GLOBAL_TOKENS):
                continue
            if step.is_norm:
                self._norm(block.at(step.path), step.in_width, made, normed)
                continue
            source = x if step.in_width == x.shape[-1] or not made else _narrowed(made, normed, step.in_width)
            if source is not x and source.shape[-1] != step.in_width:
                source = ops.resample(source, *x.shape[:-1], step.in_width)
            made.append(self.call(block.at(step.path), source))
            del source
        return made

    def _norm(self, norm: Module, width: int, made: list[Tensor], normed: set[int]) -> None:
        """Norm the first result that the norm fits: of its width, of heads of its width, or wider than it."""
        open_ = [index for index in range(len(made)) if index not in normed]
        exact = [index for index in open_ if made[index].shape[-1] == width]
        heads = [index for index in open_ if width and made[index].shape[-1] % width == 0]
        wider = [index for index in open_ if width and made[index].shape[-1] > width]
        for index in (exact or heads or wider)[:1]:
            x = made[index]
            rows = x.shape[:-1]
            if not exact and heads:
                count = x.shape[-1] // width
                made[index] = self.call(norm, x.view(*rows, count, width)).view(*x.shape)
            else:
                made[index] = self.call(norm, x if exact else ops.part(x, *rows, width))
            normed.add(index)

    def _heads(self, made: list[Tensor], x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (batch, heads, tokens, head_dim); takes what it uses out of ``made``."""
        shape = self.shape
        batch, num_tokens = x.shape[0], x.shape[1]
        wide = sorted(range(len(made)), key=lambda index: (-made[index].shape[-1], index))
        kept = sorted(wide[:3])
        parts = [made[index] for index in kept]
        made[:] = [tensor for index, tensor in enumerate(made) if index not in kept]
        if len(parts) == 1 and parts[0].shape[-1] % shape.head_dim == 0:
            kv_heads = (parts[0].shape[-1] // shape.head_dim - shape.num_heads) // 2
            if kv_heads > 0:
                key = (batch, kv_heads, num_tokens, shape.head_dim)
                q, k, v = ops.split(parts[0], (batch, shape.num_heads, num_tokens, shape.head_dim), key, key)
                return q, k, v
        if len(parts) == 3:
            return self._three(parts, batch, num_tokens)
        source = parts[-1] if parts else x
        width = parts[0].shape[-1] if parts else 0
        head_dim = width // shape.num_heads if width and width % shape.num_heads == 0 else shape.head_dim
        full = (batch, shape.num_heads, num_tokens, head_dim)
        q = (
            parts[0].view(*full)
            if width == shape.num_heads * head_dim
            else ops.resample(parts[0] if parts else x, *full)
        )
        return q, ops.resample(source, *full), ops.resample(source, *full)

    def _three(self, parts: Sequence[Tensor], batch: int, num_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """Results of three Linears: the first of the widest are the queries, whatever their order was."""
        shape = self.shape
        position = max(range(3), key=lambda index: (parts[index].shape[-1], -index))
        q = parts[position]
        k, v = (part for index, part in enumerate(parts) if index != position)
        width = shape.num_heads * shape.head_dim
        head_dim = shape.head_dim
        if q.shape[-1] % width:
            head_dim = q.shape[-1] // shape.num_heads
        if q.shape[-1] > width and q.shape[-1] % width == 0:
            q = ops.part(q, batch, num_tokens, width)  # a gate beside the queries
        return (
            q.view(batch, q.shape[-1] // head_dim, num_tokens, head_dim),
            *(_in_heads(part, batch, num_tokens, head_dim) for part in (k, v)),
        )  # pyright: ignore[reportReturnType]


def _looks_at_encoder(name: str, block: Group) -> bool:
    """Whether a block of a decoder, or the only one in it (T5), is attention to what an encoder has read."""
    names = (name, *block.modules_by_name)
    return block.role is Role.ATTENTION and any(word in one for one in names for word in CROSS_WORDS)


def _in_pieces(q: Tensor, k: Tensor, v: Tensor, chunks: Chunks) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values in pieces, which are so many more samples."""
    return tuple(
        ops.resample(x, x.shape[0] * chunks.count, x.shape[1], length, x.shape[-1])
        for x, length in ((q, chunks.rows), (k, chunks.keys), (v, chunks.keys))
    )  # pyright: ignore[reportReturnType]


def _in_heads(x: Tensor, batch: int, num_tokens: int, head_dim: int) -> Tensor:
    num_heads = max(1, x.shape[-1] // head_dim)
    if num_heads * head_dim == x.shape[-1]:
        return x.view(batch, num_heads, num_tokens, head_dim)
    return ops.resample(x, batch, num_heads, num_tokens, head_dim)


def _narrowed(made: list[Tensor], normed: set[int], width: int) -> Tensor:
    """The latest result that is at least ``width`` wide, cut to it; taken out of ``made``."""
    for index in reversed(range(len(made))):
        if made[index].shape[-1] >= width:
            x = made.pop(index)
            kept = [other - (other > index) for other in normed if other != index]
            normed.clear()
            normed.update(kept)
            return x if x.shape[-1] == width else ops.part(x, *x.shape[:-1], width)
    return made[-1]


CROSS_WORDS = ("encoder_attn", "cross_attn", "crossattention", "EncDecAttention", "encoder_decoder_attention")
"""Parts of the names of attention to what an encoder has read."""
OF_GLOBAL_TOKENS = "_global"
"""End of the names of Linears for tokens that attend to all, of which samples have none (LED, Longformer)."""
KEY_LETTERS = ("k", "v")
"""Beginnings of the names of Linears that make keys and values."""
KEYS_AND_VALUES = "c_attn"
"""Name of the one that makes both (GPT-2)."""
OUTPUT_NAMES = ("o_proj", "o", "wo", "out", "output", "out_proj", "dense")
"""Names of the Linear behind attention, for models that register it first."""


def output_step(steps: Sequence[LinearOrNorm], width: int) -> LinearOrNorm | None:
    """The last Linear back to ``width``, if another comes before it or its name says that it is the last."""
    linears = [step for step in steps if not step.is_norm]
    last = [step for step in linears[1:] if step.out_width == width]
    named = [step for step in linears if step.out_width == width and step.path[-1].lower() in OUTPUT_NAMES]
    return (named or last)[-1] if len(linears) > 1 and (named or last) else None
