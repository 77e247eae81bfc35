"""What a script does besides training leaves nothing behind: its folders are in a temporary one, trackers and networks
are off. Each thing that it tried is told once."""

import errno
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from vlmplan_trainer.rehearse.replaced import replaced
from vlmplan_trainer.script_rehearsal.compiling import AS_IT_IS
from vlmplan_trainer.script_rehearsal.overlay import Overlay, files_elsewhere

TRACKERS_OFF = {
    "WANDB_MODE": "disabled",
    "WANDB_DISABLED": "true",
    "COMET_MODE": "DISABLED",
    "CLEARML_OFFLINE_MODE": "1",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "SWANLAB_MODE": "disabled",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
BLOCKED = ("os.remove", "os.rmdir", "os.rename", "shutil.rmtree", "os.truncate")
"""Events of ``sys.addaudithook`` that change files which are there."""
TAKING_DESCRIPTORS = ("os.remove", "os.rmdir")
"""Their second argument is the descriptor of the folder, or -1."""


class Notes:
    """Sentences, each once."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def __call__(self, sentence: str) -> None:
        if sentence not in self.sentences:
            self.sentences.append(sentence)


def set_environment(folder: Path, *, allows_network: bool) -> None:
    """Set what libraries read while they are imported, before they are. Modules that Hugging Face's libraries copy are
    imported from ``folder``, with a copy of those that are there from before: offline, ``evaluate`` finds its metrics
    nowhere else."""
    os.environ.update(TRACKERS_OFF if allows_network else TRACKERS_OFF | OFFLINE)
    copied = _modules_cache()
    if copied.is_dir():
        shutil.copytree(copied, folder / "modules", ignore=shutil.ignore_patterns("__pycache__", "*.lock"))
    os.environ["HF_MODULES_CACHE"] = str(folder / "modules")
    os.environ["TMPDIR"] = str(folder)


def _modules_cache() -> Path:
    """The folder that Hugging Face's libraries would copy modules to."""
    kept = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    home = os.environ.get("HF_HOME") or os.path.join(kept, "huggingface")
    return Path(os.environ.get("HF_MODULES_CACHE") or os.path.join(home, "modules")).expanduser()


@contextmanager
def leaving_nothing(folder: Path, say: Callable[[str], None], *, allows_network: bool) -> Iterator[None]:
    """Within, the script writes below ``folder``, removes nothing and reaches no network unless it may."""
    _watch_files(folder, say)
    with ExitStack() as stack:
        overlay = Overlay(folder, say)
        stack.enter_context(files_elsewhere(overlay))
        _redirect_tokenizers(stack, overlay)
        if not allows_network:
            stack.enter_context(refusing_networks(say))
        _redirect_trainers(stack, folder, say)
        yield


@contextmanager
def refusing_networks(say: Callable[[str], None]) -> Iterator[None]:
    """Within, no address of a network is reached; sockets between processes of this machine have none."""
    reach: Any = socket.socket.connect

    def connect(self: Any, address: Any) -> None:
        if self.family == getattr(socket, "AF_UNIX", None):
            reach(self, address)
            return
        say(f"the network is off: it tried to reach {address[0] if isinstance(address, tuple) else address}")
        raise OSError("the network is off in a rehearsal")

    with replaced(socket.socket, "connect", connect):
        yield


def _watch_files(folder: Path, say: Callable[[str], None]) -> None:
    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event not in BLOCKED or not args or isinstance(args[0], int):
            return
        path = os.path.abspath(os.path.join(_folder_of(event, args), os.fsdecode(args[0])))
        if not path.startswith((str(folder), tempfile.gettempdir())):
            say(f"it would change files that are there, which a rehearsal does not let it: {event} {args[0]}")
            raise PermissionError(errno.EACCES, "a rehearsal changes no files", args[0])

    sys.addaudithook(audit)


def _folder_of(event: str, args: tuple[Any, ...]) -> str:
    """The folder that an event's descriptor is of, as ``shutil.rmtree`` gives it; empty where there is none."""
    has_descriptor = event in TAKING_DESCRIPTORS and isinstance(args[1], int)
    descriptor = args[1] if has_descriptor else -1
    return os.path.realpath(f"/proc/self/fd/{descriptor}") if descriptor >= 0 else ""


def _redirect_tokenizers(stack: ExitStack, overlay: Overlay) -> None:
    """Tokenizers are written by the Rust library ``tokenizers``, which asks no function of Python for its files."""
    from transformers import PreTrainedTokenizerBase

    save = PreTrainedTokenizerBase.save_pretrained

    def told(self: Any, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        os.makedirs(save_directory, exist_ok=True)
        return save(self, overlay.place(save_directory), *args, **kwargs)

    stack.enter_context(replaced(PreTrainedTokenizerBase, "save_pretrained", told))


def _redirect_trainers(stack: ExitStack, folder: Path, say: Callable[[str], None]) -> None:
    """Hugging Face's Trainer writes into a temporary folder, reports to nobody and uploads nothing."""
    from transformers import TrainingArguments

    finish = TrainingArguments.__post_init__

    def finished(self: Any) -> None:
        if self.output_dir is not None:
            say(f"its output folder {self.output_dir} is a temporary one here")
        self.output_dir = str(folder / "output")
        if self.push_to_hub:
            say("push_to_hub is off: nothing is uploaded")
        self.push_to_hub, self.report_to = False, "none"
        if self.torch_compile:
            say(AS_IT_IS)
        self.torch_compile = False
        finish(self)

    stack.enter_context(replaced(TrainingArguments, "__post_init__", finished))
