"""What the trace of one layer of a small model says of its modules and gradients."""

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch
from vlmplan.architecture.tape import Tape
from vlmplan.recipe.choices import LossKind


def one_layer(config, *, checkpoints=False, frozen=False):
    """What a layer's backward says of its modules and gradients, in order."""
    tree = build_model(config)
    for _, stack in tree.stacks():
        stack.checkpoints = checkpoints
    names = {id(module): name for name, module in tree.named_modules()}
    for name, parameter in tree.named_parameters():
        parameter.requires_grad = not frozen or "input_layernorm" in name
    weights = {id(parameter): name.rpartition(".")[2] for name, parameter in tree.named_parameters()}
    trace = tree.run(Tape(), Batch(micro_batch=1, num_tokens=4), AttentionBackend(), loss=LossKind.FULL)
    section = next(section for key, section in trace.sections.items() if key.startswith("layers"))
    return section, names, weights
