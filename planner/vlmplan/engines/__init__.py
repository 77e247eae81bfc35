"""Engines: what plain PyTorch, DDP and each ZeRO stage hold on a GPU and send to others, from load to save.

An engine is one class: its walk tells a ``Sink`` what it allocates and frees, and beside the walk stand its model
states in closed form, its bounds for searching and its collectives; those of ZeRO-1 to 3 and of FSDP2 in files of their
own, from which the walk inherits (``zero12_formulas``, ``zero3_formulas``, ``fsdp2_formulas``).

choice                which engine runs a recipe
engine, events, components
                      what every engine has, what it tells of memory, and by which component
plain, ddp, zero0, zero12, zero3, fsdp1, fsdp2
                      the engines, each with its source
coordinator, zero3_gathers, shards
                      ZeRO-3: what is gathered, whole and freed; its shards
layer_shards, flat_units, layer_groups
                      FSDP: units of both, of FSDP1, of FSDP2
partitions, groups12  the partitions of ZeRO-1 and 2, with one parameter group and with several
parameters, parameter_groups, packed_loading, adapter_starts, dora_lengths
                      what engines are given, and what loading takes
optimizer_states, model_states
                      bytes of states and updates, and of all that stays
muon12, muon3, muon_groups, newton_schulz
                      DeepSpeed's Muon
collectives           what is sent in a step
autocast              what ``torch.autocast`` keeps
bounds, profile       bounds for searching
"""

# pyright: reportUnusedImport=false
from vlmplan.engines.choice import STAGES, engine_of, overlapped_fraction
from vlmplan.engines.engine import Engine
from vlmplan.engines.model_states import ModelStates
