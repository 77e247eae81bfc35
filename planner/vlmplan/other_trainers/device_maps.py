"""Where a program's ``device_map`` puts the layers of its model."""

from typing import Final

from vlmplan.other_trainers.meaning import Surroundings
from vlmplan.other_trainers.settings import Settings

DEVICE_MAP: Final = "device_map"
PLACED: Final = f"from_pretrained.{DEVICE_MAP}"
"""The text of any that a program hands on when its arguments are made already."""
SPREADING: Final = ("auto", "balanced", "balanced_low_0", "sequential")
"""Those that spread layers over all GPUs that a process sees (transformers 5.23, ``_get_device_map``)."""
OF_EACH_GPU: Final = 'device_map={"": PartialState().process_index} puts a whole model on each GPU, which is planned'


def refuse_spread_layers(settings: Settings, around: Surroundings) -> None:
    """On several GPUs of a machine such a model is no copy on each: started as one process its layers lie on one GPU
    after another, and in several processes accelerate raises ValueError (``Accelerator.prepare_model``)."""
    settings.ignore((DEVICE_MAP, PLACED))
    said = settings.text(DEVICE_MAP, "") if DEVICE_MAP in settings else ""
    if said not in SPREADING:
        return
    if around.num_gpus is None:
        settings.note(f"device_map {said} spreads layers over the GPUs of a machine that has several: {OF_EACH_GPU}")
    elif around.num_gpus > around.num_nodes:
        settings.refuse(
            DEVICE_MAP,
            f"which spreads layers over several GPUs, one after another: not planned, and accelerate refuses it in a "
            f"distributed run; {OF_EACH_GPU}",
        )


def refuse_placed_layers(settings: Settings) -> None:
    """Of ZeRO-3, which shards a model while it is loaded (transformers 5.23, ``check_and_set_device_map``)."""
    if PLACED in settings:
        settings.refuse_whole(
            f"{DEVICE_MAP} is {settings.value(PLACED)}, with which from_pretrained does not load a model under ZeRO-3 "
            f'("DeepSpeed Zero-3 is not compatible with passing a `{DEVICE_MAP}`"); leave it out'
        )
