"""What a user asked for, typed, and the setup that it means.

parts                samples, machines, and what a search looks for
record               ``Request``; how every option of the command line is read and written
parsing              the request of options, and of the configuration of another trainer beside them
videos               videos of samples, as images
machines             the cluster of a request
saving_and_loading   when its trainer saves, and which processes open images
trainer_behaviour    what its trainer does of a setup by itself, and what it cannot do
mistakes             errors of a setup, told with the file of another trainer that means it
idle_options         options that mean nothing in a setup
samples              the workload of a request
setup                workload and recipe of a request, completed by defaults; not handed out here: it imports slowly
"""

# pyright: reportUnusedImport=false
from vlmplan.request.data_samples import with_samples
from vlmplan.request.machines import network_notes, requested_cluster
from vlmplan.request.mistakes import told_with_its_file
from vlmplan.request.parsing import configured_request, on_other_machines, own_request, parse
from vlmplan.request.parts import (
    EvaluationRequest,
    HardwareRequest,
    Objective,
    SearchRequest,
    TaskRequest,
    WorkloadRequest,
    image_size,
)
from vlmplan.request.record import (
    ConfiguredRequest,
    Options,
    OptionValue,
    Request,
)
