"""Where the result of a run is, and the lines of Python that load it."""

from collections.abc import Iterator
from pathlib import Path

from vlmplan.model_types.thinkers import thinker_class
from vlmplan.plan import Plan
from vlmplan.recipe.choices import Method
from vlmplan.run.training import ADAPTER_FOLDER, MERGED_FOLDER, MODEL_FOLDER
from vlmplan.units import gib_text
from vlmplan_trainer.models.load import Processing, Source, model_source
from vlmplan_trainer.models.processors import ImagesAndTokens, lacks_video

FOUR_BIT = (
    'BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant={doubles}, '
    'bnb_4bit_compute_dtype="{dtype}")'
)
"""As the trainer quantises: an adapter of 4-bit weights has learnt beside their rounding."""
EIGHT_BIT = "BitsAndBytesConfig(load_in_8bit=True)"


def result_folder(plan: Plan, output_dir: Path, *, is_merged: bool) -> Path:
    """The folder from which the result is loaded."""
    name = ADAPTER_FOLDER if plan.recipe.trains_adapters else MODEL_FOLDER
    return (output_dir / (MERGED_FOLDER if is_merged else name)).absolute()


def about_result(plan: Plan, folder: Path, processing: Processing, *, has_random_base: bool) -> Iterator[str]:
    """Lines on where the result is, how large, and how it is loaded. ``has_random_base``: an adapter of weights that
    were drawn and that no file has."""
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    yield f"the result is in {folder} ({gib_text(num_bytes)})"
    if has_random_base:
        yield "it is an adapter of random weights (--random-weights), which no file has, so nothing can load it"
        return
    yield "load it with"
    is_apart = isinstance(processing.processor, ImagesAndTokens)
    for line in loading_lines(plan, folder, is_vision=processing.is_vision, is_apart=is_apart):
        yield f"  {line}"
    if lacks_video(processing.processor):
        yield "AutoProcessor needs torchvision for this model, which is not installed here: pip install torchvision"


def loading_lines(plan: Plan, folder: Path, *, is_vision: bool, is_apart: bool = False) -> list[str]:
    """Three lines of Python that leave ``model`` and ``processor`` (``tokenizer`` of a text model). ``is_apart``: no
    class puts image processor and tokenizer together, and the third leaves both."""
    auto = "AutoModelForImageTextToText" if is_vision else "AutoModelForCausalLM"
    model = plan.workload.model
    auto = "AutoModelForSeq2SeqLM" if model.is_encoder_decoder and not is_vision else auto
    auto = "AutoModelForSpeechSeq2Seq" if model.hears_prompt else auto
    auto = thinker_class(model.model_type) or auto
    scores = plan.recipe.scores_rows
    auto = "AutoModelForSequenceClassification" if scores else auto
    has_processor = is_vision or model.hears_prompt
    reader, name = ("AutoProcessor", "processor") if has_processor else ("AutoTokenizer", "tokenizer")
    last = f"{name} = {reader}.from_pretrained({str(folder)!r})"
    if is_apart:
        reader = "AutoImageProcessor, AutoTokenizer"
        last = f"processor, tokenizer = (one.from_pretrained({str(folder)!r}) for one in ({reader}))"
    if folder.name != ADAPTER_FOLDER:
        return [
            f"from transformers import {auto}, {reader}",
            f'model = {auto}.from_pretrained({str(folder)!r}, dtype="auto")',
            last,
        ]
    is_quantized = plan.recipe.method.packs_weights
    how = 'num_labels=1, dtype="auto"' if scores else 'dtype="auto"'
    if is_quantized:
        packing = FOUR_BIT if plan.recipe.method is Method.QLORA else EIGHT_BIT
        how += ", quantization_config=" + packing.format(
            dtype=plan.recipe.precision.dtype.torch_name, doubles=plan.recipe.use_double_quant
        )
    more = ", BitsAndBytesConfig" if is_quantized else ""
    base = f"{auto}.from_pretrained({_where(model_source(plan))}, {how})"
    return [
        f"from peft import PeftModel; from transformers import {auto}, {reader}{more}",
        f"model = PeftModel.from_pretrained({base}, {str(folder)!r})",
        last,
    ]


def _where(source: Source) -> str:
    return repr(source.name) + ("" if source.revision is None else f", revision={source.revision!r}")
