"""Keywords of programs changed in place: every other character stays, and what comes out is read as what was meant."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from unsloth_programs import ADAPTS, INSTALLS, LOADS, NOTEBOOK, SCRIPT, TRAINS, notebook
from vlmplan.cli.check import check
from vlmplan.errors import InputError
from vlmplan.other_trainers.editing.program_text import edited_program
from vlmplan.other_trainers.programs import program_source, run_of_program


def edited(
    text: str, values: dict[str, object], *, is_notebook: bool = False, made: dict[str, object] | None = None
) -> str:
    """The text with these keywords, whose values it has then; None: it has none. ``made``: what goes with them."""
    run = run_of_program(program_source(text, source="x", is_notebook=is_notebook), source="x")
    assert run is not None
    changed = edited_program(run, values, source="x")
    again = run_of_program(program_source(changed, source="x", is_notebook=is_notebook), source="x")
    assert again is not None
    wanted = {
        key: value for key, value in {**run.values, **values}.items() if key not in values or values[key] is not None
    }
    assert again.values == wanted | (made or {})
    return changed


def changed_lines(before: str, after: str) -> list[str]:
    kept = before.splitlines()
    return [line.strip() for line in after.splitlines() if line not in kept]


def test_values_change_where_they_are_written():
    after = edited(SCRIPT, {"per_device_train_batch_size": 1, "max_seq_length": 1024, "optim": "adamw_torch"})
    assert changed_lines(SCRIPT, after) == [
        "max_seq_length = 1024  # größer geht auch",
        "per_device_train_batch_size = 1,",
        'optim = "adamw_torch",',
    ]


def test_new_keywords_stand_in_the_call_that_they_belong_to_written_as_its_others_are():
    text = SCRIPT.replace("    load_in_4bit = True,\n", "")
    after = edited(text, {"load_in_4bit": False, "lora_dropout": 0.5, "per_device_eval_batch_size": 1})
    assert changed_lines(text, after) == [
        "load_in_4bit = False,",
        "lora_dropout = 0.5,",
        "per_device_eval_batch_size = 1,",
    ]


def test_keywords_are_taken_out_with_their_commas():
    assert "gradient_accumulation_steps" not in edited(SCRIPT, {"gradient_accumulation_steps": None})
    assert "report_to" not in edited(SCRIPT, {"report_to": None})


def test_calls_in_one_line_and_calls_without_keywords():
    text = (
        'm, t = FastLanguageModel.from_pretrained("unsloth/Qwen2.5-0.5B")\n'
        "m = FastLanguageModel.get_peft_model(m, r=8)\nSFTTrainer(m, args=SFTConfig())\n"
    )
    after = edited(text, {"max_seq_length": 512, "use_gradient_checkpointing": "unsloth", "optim": "adamw_torch"})
    assert '("unsloth/Qwen2.5-0.5B", max_seq_length=512)' in after
    assert '(m, use_gradient_checkpointing="unsloth", r=8)' in after
    assert 'SFTConfig(optim="adamw_torch")' in after


def test_line_ends_stay():
    after = edited(SCRIPT.replace("\n", "\r\n"), {"r": 8, "lora_dropout": 0.1, "per_device_eval_batch_size": 1})
    assert "\n" not in after.replace("\r\n", "")


def test_what_cannot_be_changed_by_itself_is_refused():
    text = SCRIPT.replace("report_to = ", "**{'report_to': 'none'}, seed = ")
    with pytest.raises(InputError, match="report_to is no keyword"):
        edited(text, {"report_to": None})
    bare = SCRIPT.replace("args = SFTConfig(", "kwargs = dict(")
    with pytest.raises(InputError, match="no call to stand in"):
        edited(bare, {"optim": "adamw_torch"})


LOADED = """from transformers import AutoModelForCausalLM
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer
model = AutoModelForCausalLM.from_pretrained("qwen2.5-0.5b", dtype="bfloat16")
SFTTrainer(model=model, args=SFTConfig(bf16=True), peft_config=LoraConfig(r=8))
"""
OF_LIBRARY = LOADED.replace("from transformers import AutoModelForCausalLM", "import transformers").replace(
    "= AutoModel", "= transformers.AutoModel"
)
NAMED = "from transformers import BitsAndBytesConfig\n" + LOADED.replace(
    'AutoModelForCausalLM.from_pretrained("qwen2.5-0.5b", dtype="bfloat16")', '"qwen2.5-0.5b"'
)
NF4 = 'BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype="bfloat16"'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (LOADED, f'AutoModelForCausalLM.from_pretrained("qwen2.5-0.5b", quantization_config={NF4}'),
        (
            OF_LIBRARY,
            f'transformers.AutoModelForCausalLM.from_pretrained("qwen2.5-0.5b", quantization_config={{}}{NF4}',
        ),
        (NAMED, f"SFTTrainer(quantization_config={NF4}"),
    ],
    ids=["loaded", "of the library", "named"],
)
def test_weights_are_packed_by_the_call_that_loads_them_with_what_it_needs_imported(text: str, line: str):
    packed = {"load_in_4bit": True, "use_bnb_nested_quant": True, "bnb_4bit_quant_type": "nf4"}
    after = edited(text, packed, made={"bnb_4bit_compute_dtype": "bfloat16"})
    assert line.format("transformers.") in after
    assert after.count("import BitsAndBytesConfig") == (0 if text == OF_LIBRARY else 1)
    compile(after, "after.py", "exec")
    kept = [one for one in after.splitlines() if "BitsAndBytesConfig" not in one]
    assert set(kept) <= set(text.splitlines())


@pytest.mark.parametrize("indent", [1, 2, None])
def test_a_notebook_keeps_its_form_and_every_other_cell(indent: int | None):
    text = notebook(INSTALLS, LOADS, ADAPTS, TRAINS, "trainer.train()", indent=indent)
    after = edited(text, {"r": 8, "per_device_train_batch_size": 1, "max_seq_length": 512}, is_notebook=True)
    cells, others = json.loads(text)["cells"], json.loads(after)["cells"]
    assert [one == other for one, other in zip(cells, others, strict=True)] == [True, True, False, False, False, True]
    assert after == json.dumps(json.loads(after), indent=indent, ensure_ascii=False) + "\n"


def test_a_notebook_in_a_form_of_its_own_is_left_alone():
    text = NOTEBOOK.replace('"nbformat": 4', '"nbformat":   4')
    with pytest.raises(InputError, match="otherwise than Jupyter"):
        edited(text, {"r": 8}, is_notebook=True)


def test_the_change_that_makes_a_script_fit_is_read_as_it_was_promised(tmp_path: Path):
    large = SCRIPT.replace("per_device_train_batch_size = 2", "per_device_train_batch_size = 8")
    before, after = (str(tmp_path / name) for name in ("train.py", "fits.py"))
    Path(before).write_text(large.replace("= 2048 ", "= 16384 "), encoding="utf-8")
    fixed = CliRunner().invoke(check, [before, "--gpu", "rtx-3060-12gb:1", "--fix", "--write", after])
    assert fixed.exit_code == 0
    (promised,) = re.findall(r"memory \S+ GiB -> (\S+) GiB", fixed.stdout)[:1]
    found = CliRunner().invoke(check, [after, "--gpu", "rtx-3060-12gb:1"])
    assert f"fits: {promised} GiB" in found.stdout
