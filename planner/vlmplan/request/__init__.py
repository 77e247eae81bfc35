"""What a user asked for, typed, and the setup that it means.

parts     samples, machines, and what a search looks for
record    ``Request``; how every option of the command line is read and written
parsing   the request of options, and of the configuration of another trainer beside them
videos    videos of samples, as images
setup     workload, cluster and recipe of a request, completed by defaults
"""

from vlmplan.request.parsing import configured_request, own_request, parse, with_samples
from vlmplan.request.parts import (
    EvaluationRequest,
    HardwareRequest,
    Objective,
    SearchRequest,
    TaskRequest,
    VideoRequest,
    WorkloadRequest,
    image_size,
)
from vlmplan.request.record import ENUM_OPTIONS, VALUE_OPTIONS, ConfiguredRequest, Options, OptionValue, Request
from vlmplan.request.setup import (
    NETWORK_NOTE,
    RequestedSetup,
    batch_sizes,
    fixed_recipe,
    length_notes,
    network_notes,
    requested_cluster,
    requested_saving,
    requested_setup,
    resolved_recipe,
    samples_per_step,
    with_task,
    workload_of,
)

__all__ = [
    "ENUM_OPTIONS",
    "NETWORK_NOTE",
    "VALUE_OPTIONS",
    "ConfiguredRequest",
    "EvaluationRequest",
    "HardwareRequest",
    "Objective",
    "OptionValue",
    "Options",
    "Request",
    "RequestedSetup",
    "SearchRequest",
    "TaskRequest",
    "VideoRequest",
    "WorkloadRequest",
    "batch_sizes",
    "configured_request",
    "fixed_recipe",
    "image_size",
    "length_notes",
    "network_notes",
    "own_request",
    "parse",
    "requested_cluster",
    "requested_saving",
    "requested_setup",
    "resolved_recipe",
    "samples_per_step",
    "with_samples",
    "with_task",
    "workload_of",
]
