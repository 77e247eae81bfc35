"""Who asked for memory: the module, DeepSpeed's or the optimizer's function, or the backward of what operation."""

import sys

import torch

ENGINES = ("/torch/distributed/fsdp/", "/deepspeed/", "/torch/optim/", "/bitsandbytes/")
LIBRARIES = (*ENGINES, "/peft/", "/vlmplan_trainer/", "/transformers/")
WRAPPER = "/torch/nn/parallel/distributed.py"
MAKING_BUFFERS = ("_pre_forward", "_ddp_init_helper", "__init__")
"""Functions of ``DistributedDataParallel`` that have the reducer make buckets, and weights sent at the beginning."""
DDP = "ddp "
"""How they are called; gradients may be views of buckets."""
OWN = ("/vlmplan_trainer/rehearse/", "/vlmplan_trainer/script_rehearsal/", "/vlmplan_trainer/resized_storages.py")


class AllocationAttribution:
    """Looks up the stack for what a reader knows by name. ``own``: files that only pass on what was asked of them."""

    own: tuple[str, ...] = OWN

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def learn(self, model: torch.nn.Module) -> None:
        """The modules of ``model``, by name."""
        self._names |= {id(module): name for name, module in model.named_modules()}

    def __call__(self) -> str:
        return _reducer_function() or self._asking_function()

    def _asking_function(self) -> str:
        frame = sys._getframe(1)
        node = torch._C._current_autograd_node()
        function = ""
        while frame is not None:
            code = frame.f_code
            path = code.co_filename
            is_comprehension = code.co_name.startswith("<")  # a frame of its own before Python 3.12
            if not function and not is_comprehension and not any(own in path for own in self.own):
                library = next((name for name in LIBRARIES if name in path), None)
                if library is not None:
                    function = f"{library.strip('/').split('/')[-1]} {code.co_name}"
                    if library in ENGINES:
                        return function
            if code.co_name == "forward" and "self" in code.co_varnames:
                variables = frame.f_locals
                name = self._names.get(id(variables.get("self")))
                if type(variables) is dict:  # before Python 3.13 a copy, which would keep tensors until forward ends
                    variables.clear()
                del variables
                if name:
                    return name
            frame = frame.f_back
        return node.name() if node is not None else function


def _reducer_function() -> str:
    """The one of ``MAKING_BUFFERS`` that is running; empty where none is."""
    frame = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.endswith(WRAPPER):
        frame = frame.f_back
    name = frame.f_code.co_name if frame is not None else ""
    return f"{DDP}{name}" if name in MAKING_BUFFERS else ""
