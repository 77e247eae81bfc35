"""Which published script for vision-language models takes a command's options, whatever its copy is called."""

from collections.abc import Mapping, Sequence

from vlmplan.other_trainers.vision_scripts.internvl import INTERNVL
from vlmplan.other_trainers.vision_scripts.internvl import KEYS as INTERNVL_KEYS
from vlmplan.other_trainers.vision_scripts.llava import KEYS as LLAVA_KEYS
from vlmplan.other_trainers.vision_scripts.llava import LLAVA
from vlmplan.other_trainers.vision_scripts.other_series import SCRIPTS as OTHER_SERIES
from vlmplan.other_trainers.vision_scripts.qwen_finetune import KEYS as FINETUNE_KEYS
from vlmplan.other_trainers.vision_scripts.qwen_finetune import QWEN_FINETUNE
from vlmplan.other_trainers.vision_scripts.qwen_series import KEYS as SERIES_KEYS
from vlmplan.other_trainers.vision_scripts.qwen_series import QWEN_SERIES

OF_VISION: Mapping[str, frozenset[str]] = {
    QWEN_FINETUNE: FINETUNE_KEYS,
    QWEN_SERIES: SERIES_KEYS,
    **{script.name: script.keys for script in OTHER_SERIES},
    LLAVA: LLAVA_KEYS,
    INTERNVL: INTERNVL_KEYS,
}
"""Scripts for vision-language models, by options of their own."""
LEAST_OF_VISION = 2
"""Of them tell such a script: others have one, too."""


def script_of_options(words: Sequence[str]) -> str | None:
    """The script that has most of these options; None where none has enough."""
    keys = {word.removeprefix("--").partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    counts = {name: len(own & keys) for name, own in OF_VISION.items()}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] >= LEAST_OF_VISION else None
