"""A plan's own steps on fake tensors: exact bytes, FLOPs and collectives of one rank among any number, without a GPU.

run          the whole rehearsal; __main__ is its process, answer what it and other rehearsals tell
device       a GPU that is not there; accelerator tells DeepSpeed of it, autocast and kernels give it CUDA's ways
dispatch     what happens to every operation, collectives to every message; shapes remembers what operations return
ledger       which storages are alive; attribution says who asked for them, components what they are for
batch        a micro batch of the plan's samples
ranks        loops over ranks, answered at once
shims        what has to be put in the way of the libraries, each with its reason
"""
