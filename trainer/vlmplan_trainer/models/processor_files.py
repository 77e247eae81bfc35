"""What stands beside the weights of a checkpoint: the files that its processor, tokenizer and generation come from,
and those of its licence.

Training changes none of them, so the result gets them as they are. A processor that was loaded here and saved again is
not the same: without torchvision it has no part for videos (``processors.py``), and transformers gives classes and keys
the names of its own version.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from vlmplan.errors import InputError
from vlmplan.files.json_reader import read_json_object
from vlmplan_trainer.models.processors import ImagesAndTokens

GENERATION = "generation_config.json"
PREPROCESSOR, VIDEO, PROCESSOR = "preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json"
TOKENIZER = "tokenizer_config.json"
FORCED_TOKENS = "forced_decoder_ids"
"""What older generation settings of Whisper begin with, whatever language is said."""
TOKENIZER_FILES = (
    *("tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
    *("*.model", "*.model.v*", "tekken.json", "*.tiktoken"),
)
LICENSES = ("LICENSE*", "NOTICE*", "USE_POLICY*")
"""Texts that licences ask to go with what is made of a model (Llama's, Apache's)."""
PATTERNS = (
    *LICENSES,
    *(GENERATION, PREPROCESSOR, VIDEO, PROCESSOR, "audio_tokenizer_config.json"),
    *("chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja"),
    *TOKENIZER_FILES,
    *(f"*_tokenizer/{name}" for name in TOKENIZER_FILES),  # the Q-Former's of InstructBLIP
)
"""What ``from_pretrained`` of processors, tokenizers and generation settings looks for (transformers 5.23:
``processing_utils.py``, ``tokenization_utils_base.py``, ``video_processing_auto.py``, ``utils/hub.py``); licences."""


def processor_files(source: str, *, revision: str | None = None) -> dict[str, Path]:
    """These files of a folder or a Hugging Face id, by their names in it; of an id they are put in the Hub's cache.

    Raises OSError where they cannot be had.
    """
    folder = Path(source)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(source, revision=revision, allow_patterns=list(PATTERNS)))
    found = sorted(path for pattern in ("*", "*/*") for path in folder.glob(pattern) if path.is_file())
    names = {path.relative_to(folder).as_posix(): path.absolute() for path in found}
    return {name: path for name, path in names.items() if any(fnmatchcase(name, pattern) for pattern in PATTERNS)}


@contextmanager
def naming_damaged(files: Mapping[str, Path], source: str) -> Iterator[None]:
    """Inside, what transformers raises while it makes a processor or a tokenizer of ``files`` is InputError with the
    file that is damaged, or that it is none of those.

    Of JSON that another release of tokenizers wrote, that package raises Exception itself (0.23).
    """
    try:
        yield
    except ImportError:
        raise
    except Exception as error:  # KeyError, TypeError and more, by what a file lacks
        for name, path in files.items():
            if name.endswith(".json"):
                read_json_object(path)
        if isinstance(error, OSError | ValueError):
            raise
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"{source} cannot be loaded: of the files of its processor or tokenizer transformers says {said}; download "
            f"them again, or install the releases of transformers and tokenizers that wrote them"
        ) from None


def copy_files(files: Mapping[str, Path], folder: Path) -> None:
    """Copy them into ``folder``, over what is there."""
    for name, path in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / name)


def say_speech(folder: Path, speech: Mapping[str, str]) -> None:
    """Write the language and the task of what is said into the files of tokenizer and generation in ``folder``."""
    for name in (TOKENIZER, GENERATION):
        if speech and (folder / name).is_file():
            values = {key: value for key, value in _object_in(folder / name).items() if key != FORCED_TOKENS}
            _write(folder / name, values | dict(speech))


def name_classes(folder: Path, processor: Any) -> None:
    """Write into the files of ``processor`` in ``folder`` the classes that they leave to a config.json.

    For a folder that must not have one: transformers takes a folder of an adapter with a config.json for the folder of
    a whole model (``models/auto/auto_factory.py``), and without it cannot tell that InternVL's videos, say, are not for
    a class of the name that its images' class suggests.
    """
    processor_class = type(processor).__name__
    values = {name: _object_in(folder / name) for name in (PROCESSOR, PREPROCESSOR, TOKENIZER)}
    is_whole = not isinstance(processor, ImagesAndTokens)
    if (
        is_whole
        and processor is not getattr(processor, "tokenizer", processor)
        and not any("processor_class" in said for said in values.values())
    ):
        _write(folder / TOKENIZER, values[TOKENIZER] | {"processor_class": processor_class})
    preprocessor = values[PREPROCESSOR]
    if preprocessor and not {"image_processor_type", "feature_extractor_type"} & preprocessor.keys():
        image_class = type(processor.image_processor).__name__.removesuffix("Pil")
        _write(folder / PREPROCESSOR, preprocessor | {"image_processor_type": image_class})
    video_class = _video_class(processor)
    is_named = (folder / VIDEO).is_file() or "video_processor" in values[PROCESSOR]
    if video_class is not None and not is_named and preprocessor:
        others = {key: value for key, value in preprocessor.items() if key != "image_processor_type"}
        _write(folder / VIDEO, others | {"video_processor_type": video_class})


def _video_class(processor: Any) -> str | None:
    """The class of the part for videos; None where the processor's class has none.

    transformers names it like the processor, but for processors that take another model's (Qwen2.5-VL Qwen2-VL's).
    """
    import transformers

    for kind in type(processor).__mro__:
        if kind.__module__.startswith("transformers.") and "video_processor" in _parameters(kind):
            name = kind.__name__.removesuffix("Processor") + "VideoProcessor"
            return name if hasattr(transformers, name) else None
    return None


def _parameters(kind: type) -> set[str]:
    code = getattr(kind.__init__, "__code__", None)
    return set() if code is None else set(code.co_varnames[: code.co_argcount])


def _object_in(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _write(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
