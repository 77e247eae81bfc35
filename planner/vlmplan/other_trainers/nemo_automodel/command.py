"""The commands that start NeMo AutoModel's recipes: a file, and keys with dots that go before the file's.

Source: ``nemo_automodel/cli/app.py``, ``components/config/_arg_parser.py``. Earlier it was ``automodel finetune llm -c
FILE``; ``examples/llm_finetune/finetune.py -c FILE`` is what a launcher starts.
"""

from pathlib import PurePath
from typing import Final

from vlmplan.other_trainers.launchers import Launched
from vlmplan.other_trainers.shell_options import arguments_of

AUTOMODEL: Final = "automodel"
"""The program."""
MODULES: Final = (("nemo_automodel", "cli", "app"), ("nemo_automodel", "_cli", "app"))
SCRIPTS: Final = (("llm_finetune", "finetune.py"), ("vlm_finetune", "finetune.py"))
SUFFIXES: Final = (".yaml", ".yml")


def is_of_automodel(path: PurePath) -> bool:
    """Whether a script or a module is its own, which a launcher starts."""
    return path.parts[-3:] in MODULES or path.parts[-2:] in SCRIPTS


def arguments_of_automodel(words: tuple[str, ...], source: str) -> tuple[list[str], dict[str, object], Launched]:
    """The file of a command, its keys, and how many processes it starts by itself: of all GPUs where it says none."""
    positional, values = arguments_of(words, source=source)
    files = [word for word in positional if word.endswith(SUFFIXES)]
    processes = values.pop("nproc_per_node", None)
    if processes is None:
        return files, values, Launched(program=AUTOMODEL)
    return files, values, Launched(program="torchrun", options={"nproc_per_node": str(processes)})
