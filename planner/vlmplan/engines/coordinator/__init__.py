"""ZeRO-3's PartitionedParameterCoordinator: which weights are gathered, whole and freed while a micro batch runs.

Its parts, each reading those above it:

- ``records``: a weight, a module and an all-gather that is under way.
- ``module_order``: whether DeepSpeed knows which module comes next; ``module_uses``: the modules in the order of their
  uses, and the weights of each; ``wrapper_modules``: modules around the model that prefetch too.
- ``wait_order``: in which order a module waits for the all-gathers that bring its weights; ``secondary``: which of
  them are two because of hpZ.
- ``live_bytes``: bytes of whole weights and flat buffers; ``gathered_weights``: the coordinator itself, which fetches,
  prefetches and releases.
- ``repeated_layers``: equal layers that a walk may leave out; ``first_pass``: the micro batch that decides for later
  ones; ``shapes``: traces that are walked alike; ``walk``: a whole micro batch, walked through once, and
  ``walk_bytes``: what it finds; ``behind_evaluation``: the one that follows an evaluation; ``replay``: the bytes of a
  walk on one rank; ``counts`` and ``all_gathers``: its collectives.
"""
