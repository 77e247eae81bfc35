"""A tiny Qwen2-VL with random weights and made-up images: everything that a run does, without a download.

The trainer writes the model, in a process of its own: the planner does not import torch.
"""

import os
from pathlib import Path

from vlmplan.child_process import last_words, run_python
from vlmplan.errors import MissingPackageError, UnavailableError
from vlmplan.launch.run_folder import RUN_FILES, held_run_problem
from vlmplan.request import Options
from vlmplan.run.training import METRICS_FILE
from vlmplan.versions import INSTALL, installed_version

FOLDER = "vlmplan-demo"
MODEL_FOLDER = "tiny-model"
"""Not ``model``: there the trainer writes its result."""
NEEDED = ("torch", "transformers", "deepspeed", "safetensors", "pillow")
PLAN_OPTIONS: Options = {
    "gpu": "cpu:2",
    "zero_stage": "2",
    "precision": "fp32",
    "seq_len": 64,
    "images_per_sample": 1,
    "image_size": "112x112",
    "micro_batch": 2,
}
"""Where the user says nothing else. Two ranks on any processor; 64 tokens are what a made-up chat takes,
16 of an image included, so that what is measured can be held to what was planned."""
TRAINER_OPTIONS: Options = {"dummy_data": 64, "learning_rate": 1e-3}
"""Random weights learn at a higher rate than trained ones."""
WRITE_MODEL = (
    "import sys; from pathlib import Path; from vlmplan_trainer.models.tiny import write_tiny_model; "
    "write_tiny_model(Path(sys.argv[1]), 'qwen2_vl')"
)


def demo_folder() -> Path:
    """``vlmplan-demo`` here, numbered where that is taken by something else than a demo that trained no step."""
    names = [FOLDER, *(f"{FOLDER}-{number}" for number in range(2, 1000))]
    return next((Path(name) for name in names if not _is_taken(Path(name))), Path(FOLDER))


def _is_taken(folder: Path) -> bool:
    if not folder.is_dir():
        return os.path.lexists(folder)
    left = {MODEL_FOLDER, METRICS_FILE, *RUN_FILES}
    return held_run_problem(folder) is not None or any(entry.name not in left for entry in folder.iterdir())


def refuse_without_packages() -> None:
    """Raise MissingPackageError where packages that the demo trains with are not installed."""
    missing = [name for name in NEEDED if installed_version(name) is None]
    if missing:
        raise MissingPackageError(f"training needs {', '.join(missing)}, not installed here: {INSTALL}")


def write_demo_model(folder: Path) -> Path:
    """Write the tiny model into ``folder``, which is made; the folder, absolute. UnavailableError where that fails."""
    folder = folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnavailableError(f"the demo's model cannot be written to {folder}: {error.strerror}") from None
    done = run_python(["-c", WRITE_MODEL, str(folder)])
    if done.returncode:
        raise UnavailableError(f"the demo's model cannot be written to {folder}: {last_words(done)}")
    return folder
