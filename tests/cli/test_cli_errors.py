"""What a new user gets wrong on the command line: one sentence that names option, value and what is allowed.

Files that are wrong are in test_cli_error_files.py; streams and terminals in test_cli_streams.py.
"""

import importlib
from collections.abc import Sequence

import click
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cli_calls import DONE, MENDABLE, USAGE, call, refusal, says
from vlmplan.cli.command_line import COMMANDS
from vlmplan.errors import UnavailableError

TEXT_MODEL, VISION_MODEL = "smollm2-135m", "qwen2-vl-2b"
ESTIMATE = ("estimate", "--model", TEXT_MODEL, "--gpu", "rtx-4090", "--json")
RECOMMEND = ("recommend", "--model", TEXT_MODEL, "--gpu", "rtx-4090", "--json")
COUNTS = ("--seq-len", "--num-samples", "--global-batch", "--micro-batch", "--grad-accum", "--num-nodes")
CHOICES = {
    "--method": ("lorra", "'lora'"),
    "--precision": ("bf-16", "'bf16'"),
    "--optimizer": ("adam", "'adamw'"),
    "--zero-stage": ("4", "'3'"),
    "--offload-optimizer": ("disk", "'nvme'"),
    "--offload-params": ("ram", "'cpu'"),
    "--attention": ("flash", "'flash_attention_2'"),
    "--loss": ("half", "'chunked'"),
}


def vision(*words: str, gpu: str = "h100-sxm") -> str:
    return refusal("estimate", "--model", VISION_MODEL, "--gpu", gpu, "--json", *words)


# -- commands and options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["estimat"], ["unknown command 'estimat'", "'estimate'"]),
        (["recomend", "--model", TEXT_MODEL], ["'recomend'", "'recommend'"]),
        (["--jsn"], ["--jsn"]),
        (["estimate"], ["--model"]),
        (["recommend"], ["--model"]),
        (["estimate", "--model"], ["vlmplan estimate:", "--model", "argument", "vlmplan estimate --help"]),
        ([*ESTIMATE, "--metod", "lora"], ["--metod", "--method"]),
        ([*ESTIMATE, "--per-device-train-batch-size", "4"], ["--micro-batch says that here"]),
        ([*ESTIMATE, "--gpus", "4"], ["--gpu NAME:COUNT says that here"]),
        ([*ESTIMATE, "--load_in_4bit"], ["--method qlora says that here"]),
        ([*ESTIMATE, "--max-seq-length", "4096"], ["--seq-len says that here"]),
        (["recommend", "--model", "gpt2", "--spot"], ["--pricing interruptible says that here"]),
        (["recommend", "--model", "gpt2", "--pricing", "spot"], ["'own'; --pricing interruptible says that here"]),
        (["recommend", "--model", "gpt2", "--for", "LLaMA-Factory"], ["'axolotl'; --for llamafactory says that here"]),
        ([*ESTIMATE, "--method", "dpo"], ["'qlora'; --task dpo says that here"]),
        ([*ESTIMATE, "--precision", "bfloat16"], ["'bf16-pure'; --precision bf16 says that here"]),
        ([*ESTIMATE, "--method", "lor"], ["'lor' is not one of 'full', 'lora', 'lora-8bit', 'qlora' (see"]),
        ([*ESTIMATE, "--seq-len", "8k"], ["--seq-len", "'8k' is not a whole number"]),
        ([*ESTIMATE, "--host-ram", "64GB"], ["--host-ram", "'64GB' is not a number, written without its unit"]),
        ([*ESTIMATE, "rtx-4090"], ["rtx-4090"]),
        ([*ESTIMATE, "--gpu", "t4"], ["--gpu", "rtx-4090, t4", "once"]),
        ([*ESTIMATE, "--catalog", ""], ["--catalog", "empty"]),
        ([*ESTIMATE, "--ds-config", ""], ["--ds-config", "empty"]),
        ([*RECOMMEND, "--out", ""], ["--out", "empty"]),
        ([*RECOMMEND, "--objective", "speed"], ["--objective", "'speed'", "'time'"]),
        ([*RECOMMEND, "--pricing", "on-demand"], ["--pricing", "'on-demand'", "'on_demand'"]),
        ([*RECOMMEND, "--max-usd", "cheap"], ["--max-usd", "'cheap'"]),
    ],
)
def test_a_command_line_that_cannot_be_read_is_a_usage_error(words: Sequence[str], parts: Sequence[str]):
    says(refusal(*words, code=USAGE), "--help", *parts)


@pytest.mark.parametrize("option", CHOICES)
@pytest.mark.parametrize("command", [ESTIMATE, RECOMMEND], ids=["estimate", "recommend"])
def test_a_misspelt_choice_names_the_allowed_ones(command: Sequence[str], option: str):
    wrong, right = CHOICES[option]
    says(refusal(*command, option, wrong, code=USAGE), option, repr(wrong), right)


def test_choices_are_taken_as_the_field_writes_them():
    written = call(*ESTIMATE, "--method", "LoRA", "--precision", "BF16", "--optimizer", "AdamW", "--zero-stage", "None")
    plain = call(*ESTIMATE, "--method", "lora", "--precision", "bf16", "--optimizer", "adamw", "--zero-stage", "none")
    assert (written.code, written.out) == (DONE, plain.out)


NEEDED = {
    **dict.fromkeys(("check", "diagnose", "explain"), ("x",)),
    **dict.fromkeys(("recommend", "advise", "estimate", "rehearse"), ("--model=x",)),
    "buy": ("--gpu=x", "--hours-per-week=1"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_takes_the_last_of_two_values_and_says_nothing(name: str):
    command = getattr(importlib.import_module(COMMANDS[name][0]), name)
    options = [param for param in command.params if isinstance(param, click.Option) and not param.multiple]
    for option in options:
        flag = option.opts[0]
        if option.is_flag and not option.secondary_opts:
            continue
        needed = [word for word in NEEDED.get(name, ()) if not word.startswith(flag)]
        values = option.type.choices[:2] if isinstance(option.type, click.Choice) else ("1", "2")
        words = [f"{flag}={one}" for one in values] if not option.is_flag else [flag, option.secondary_opts[0]]
        with pytest.raises(click.UsageError, match=f"{flag} is given 2 times"):
            command.make_context(name, [*needed, *words])
        command.make_context(name, [*needed, words[0], words[0]])  # which contradicts nothing


# -- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [*COUNTS, "--lora-rank"])
@pytest.mark.parametrize("command", [ESTIMATE, RECOMMEND], ids=["estimate", "recommend"])
@pytest.mark.parametrize("value", [0, -1, 10**12 + 1, 10**400])
def test_a_count_out_of_range_is_refused(command: Sequence[str], option: str, value: int):
    sentence = refusal(*command, "--method", "lora", f"{option}={value}")
    says(sentence, f"{option} is {value}", "1 or more" if value < 1 else "at most")


@pytest.mark.parametrize("option", [*COUNTS, "--lora-rank", "--images-per-sample"])
@pytest.mark.parametrize("value", ["1.5", "nan", "inf", "1e3", "abc", "", "0x10", "9" * 5000])
def test_a_count_that_is_no_whole_number_is_a_usage_error(option: str, value: str):
    says(refusal(*ESTIMATE, f"{option}={value}", code=USAGE), option, value[:100], "whole number")


@pytest.mark.parametrize("command", [ESTIMATE, RECOMMEND], ids=["estimate", "recommend"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "-inf", "1e300"])
def test_epochs_are_a_finite_number_above_zero(command: Sequence[str], value: str):
    allowed = "at most 1,000,000,000 is allowed" if float(value) > 0 else "more than 0 is needed"
    says(refusal(*command, f"--epochs={value}"), f"--epochs is {float(value):.15g}", allowed)


@pytest.mark.parametrize("option", ["--max-usd", "--max-hours"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "-inf"])
def test_a_limit_on_the_run_is_above_zero(option: str, value: str):
    says(refusal(*RECOMMEND, f"{option}={value}"), f"{option} is {float(value):g}", "more than 0")


@pytest.mark.parametrize("value", ["-1", "nan", "-inf"])
def test_a_limit_on_the_price_is_zero_or_more(value: str):
    says(refusal(*RECOMMEND, f"--max-usd-per-hour={value}"), f"--max-usd-per-hour is {float(value):g}", "0 or more")


@pytest.mark.sweep
@settings(max_examples=20)
@given(option=st.sampled_from([*COUNTS, "--images-per-sample", "--lora-rank", "--epochs"]), value=st.integers())
@example(option="--micro-batch", value=10**9)
@example(option="--seq-len", value=10**9)
@example(option="--grad-accum", value=10**9)
@example(option="--num-nodes", value=10**9)
def test_any_whole_number_gets_an_estimate_or_one_sentence(option: str, value: int):
    found = call(*ESTIMATE, "--method", "lora", f"{option}={value}")
    if found.code == MENDABLE:
        assert (found.out, found.err.count("\n")) == ("", 1)
    else:
        assert found.document["recipe"] is not None
        assert found.err == ""


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--gpu", "h100-sxm:8", "--global-batch", "12"], ["12", "8 GPUs", "16"]),
        (["--gpu", "h100-sxm:8", "--global-batch", "16", "--micro-batch", "2", "--grad-accum", "2"], ["16", "32"]),
        (["--gpu", "h100-sxm:8", "--num-nodes", "2", "--global-batch", "8"], ["8", "16 GPUs"]),
    ],
)
def test_a_global_batch_that_the_gpus_cannot_make_names_one_that_they_can(words: Sequence[str], parts: Sequence[str]):
    says(refusal("estimate", "--model", TEXT_MODEL, *words), "--global-batch is", *parts)


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("rtx4090x", ["'rtx4090x'", "'rtx-4090'"]),
        ("A100-80", ["'A100-80'", "a100-sxm4-80gb", "a100-pcie-80gb"]),
        ("a100", ["'a100'", "a100-pcie-40gb", "a100-sxm4-80gb"]),
        ("mi250", ["'mi250'", "'mi250x'"]),
        ("m3-max", ["'m3-max'", "no memory model", "cpu:1"]),
        ("rtx-pro-5000-blackwell-72gb", ["memory", "memory_mib", "catalog"]),
        ("", ["''", "NAME"]),
        (":2", ["''", "NAME"]),
        ("t4:", ["'t4:'", "whole number"]),
        ("t4:0", ["t4:0", "at least 1"]),
        ("t4:-1", ["t4:-1", "at least 1"]),
        ("t4:abc", ["'abc'", "whole number"]),
        ("t4:1.5", ["'1.5'", "whole number"]),
        ("t4:2:2", ["'2:2'", "whole number"]),
        ("t4:10000000000", ["'10000000000'", "whole number"]),
        ("cpu:0", ["cpu:0", "at least 1"]),
        ("local:x", ["'x'", "whole number"]),
    ],
)
@pytest.mark.parametrize("command", ["estimate", "recommend"])
def test_a_gpu_that_cannot_be_meant_is_refused(command: str, name: str, parts: Sequence[str]):
    says(refusal(command, "--model", TEXT_MODEL, "--gpu", name, "--json"), *parts)


def test_an_odd_number_of_gpus_is_a_number_of_gpus():
    found = call("estimate", "--model", TEXT_MODEL, "--gpu", "t4:3", "--json")
    assert (found.code, found.document["gpu"]["count"]) == (DONE, 3)


def test_without_a_gpu_the_sentence_asks_for_one(monkeypatch: pytest.MonkeyPatch):
    def no_driver() -> None:
        raise UnavailableError("this machine has no NVIDIA driver")

    monkeypatch.setattr("vlmplan.machine.nvml.read_machine", no_driver)
    says(refusal("estimate", "--model", TEXT_MODEL), "--gpu NAME[:COUNT]", "no NVIDIA driver")
    says(refusal("recommend", "--model", TEXT_MODEL, "--gpu", "local"), "no NVIDIA driver")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("qwen2vl-2b", ["'qwen2vl-2b'", "'qwen2-vl-2b'"]),
        (
            "https://huggingface.co/Qwen/Qwen2VL-2B-Instruct",
            ["Qwen/Qwen2VL-2B-Instruct is in no cache", "'qwen2-vl-2b'"],
        ),
        ("no such model", ["'no such model'", "vlmplan models"]),
        ("", ["empty", "vlmplan models"]),
        ("a/b/c", ["'a/b/c'", "org/name"]),
        ("./nothing-here", ["nothing-here", "does not exist"]),
        ("nothing.json", ["nothing.json", "does not exist"]),
        ("~nobody-of-this-name/x", ["~nobody-of-this-name/x"]),
        ("minicpm-v-2.6", ["minicpm-v-2.6", "does not run"]),
        ("model\0name", ["model"]),
        ("x" * 5000, ["vlmplan models"]),
    ],
)
@pytest.mark.parametrize("command", ["estimate", "recommend"])
def test_a_model_that_is_none_is_refused(command: str, name: str, parts: Sequence[str]):
    says(refusal(command, "--model", name, "--gpu", "t4", "--json"), *parts)


@pytest.mark.parametrize(("name", "part"), [("nobody", "vlmplan gpus --offers"), ("runpods", "'runpod'")])
def test_a_provider_that_is_none_is_refused(name: str, part: str):
    says(refusal(*RECOMMEND, "--provider", name), f"unknown provider '{name}'", part)


# -- images and sequences --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size", ["0x0", "0x448", "448", "448x", "x448", "", "-1x448", "448x448x3", "1.5x2", f"{10**9}x{10**9}", "wide"]
)
def test_an_image_size_that_is_none_shows_how_one_is_written(size: str):
    says(vision("--image-size", size), f"--image-size is {size!r}", "448x448")


def test_images_that_do_not_fit_in_the_sequence_name_the_tokens_they_need():
    says(vision("--seq-len", "200"), "--seq-len is 200", f"{16 * 16} tokens")
    says(vision("--images-per-sample", "5"), "--seq-len is 1024", "5 image(s)", f"{5 * 16 * 16} tokens")
    says(vision("--image-size", "999999x999999"), "--seq-len is 1024", "999999x999999")


def test_an_image_that_the_processor_refuses_is_refused():
    says(vision("--image-size", "999999x1"), "999999x1", "aspect ratio")


def test_a_text_model_takes_no_images():
    says(refusal(*ESTIMATE, "--images-per-sample", "1"), "--images-per-sample is 1", f"{TEXT_MODEL} takes no images")
    for command in (ESTIMATE, RECOMMEND):
        says(refusal(*command, "--image-size", "64x48"), "--image-size is 64x48", f"{TEXT_MODEL} takes no images")


def test_what_is_no_number_is_called_so():
    says(refusal("gpus", "--min-memory", "much", code=USAGE), "'much' is not a number")


@pytest.mark.parametrize("amount", ["-2", "nan", "inf", "1e400"])
def test_an_amount_that_cannot_be_is_refused_with_what_can(amount: str):
    refused = refusal("gpus", "--max-usd-per-hour", amount, code=USAGE)
    says(refused, "--max-usd-per-hour", f"'{amount}' is not a number from 0 to 1,000,000,000,000")


def test_beams_are_of_what_is_generated():
    says(refusal(*ESTIMATE, "--eval-batch", "2", "--eval-beams", "4"), "--eval-beams is 4", "--eval-new-tokens")


def test_interruptions_are_of_machines_that_may_be_interrupted():
    says(refusal(*RECOMMEND, "--spot-interruptions-per-day", "2"), "--pricing interruptible")
    assert call(*RECOMMEND, "--spot-interruptions-per-day", "2", "--pricing", "interruptible").code == DONE


def test_learned_positions_end_where_their_table_ends():
    words = ("--gpu", "a100-sxm4-80gb", "--seq-len", "2049")
    says(refusal("estimate", "--model", "gpt2", *words), "--seq-len is 2049", "1024")
    says(refusal("estimate", "--model", "blip2-opt-2.7b", *words), "--seq-len is 2049", "2048")
    assert call("estimate", "--model", "gpt2", "--gpu", "rtx-4090", "--seq-len", "1024").code == DONE


# -- what does not go together ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--method", "qlora", "--zero-stage", "3"], ["--method qlora", "--zero-stage 3", "stage 2"]),
        (["--offload-params", "cpu", "--zero-stage", "2"], ["--offload-params cpu", "--zero-stage 2", "stage 3"]),
        (["--offload-params", "cpu", "--zero-stage", "none"], ["--zero-stage none", "stage 3"]),
        (["--offload-optimizer", "cpu", "--zero-stage", "0"], ["--offload-optimizer cpu", "1, 2 or 3"]),
        (["--offload-optimizer", "nvme", "--zero-stage", "2"], ["--offload-optimizer nvme", "stage 3"]),
        (["--offload-optimizer", "cpu", "--optimizer", "sgd"], ["--optimizer sgd", "adamw"]),
        (["--offload-params", "nvme", "--nvme-path", " "], ["--nvme-path is empty"]),
        (["--precision", "bf16-pure", "--zero-stage", "0"], ["--precision bf16-pure", "1, 2 or 3"]),
        (["--attention", "flash_attention_2", "--precision", "fp32"], ["flash_attention_2", "fp32", "sdpa"]),
        (["--lora-rank", "8"], ["--lora-rank", "lora", "--method is full"]),
        (["--lora-targets", "q_proj"], ["--lora-targets", "--method is full"]),
        (["--train-embeddings"], ["--train-embeddings", "--method is full"]),
        (["--kbit-upcast"], ["--kbit-upcast", "qlora", "--method is full"]),
        (["--no-double-quant"], ["--no-double-quant", "qlora", "--method is full"]),
        (["--freeze-vision", "--freeze-projector", "--freeze-language"], ["frozen", "nothing"]),
        (["--freeze-language", "--images-per-sample", "0"], ["what is trained", "--images-per-sample of 1 or more"]),
    ],
)
def test_options_that_contradict_each_other_are_refused(words: Sequence[str], parts: Sequence[str]):
    says(vision(*words, gpu="h100-sxm:2"), *parts)


def test_a_comparison_of_what_no_variant_can_train_is_refused():
    words = ("--freeze-language", "--images-per-sample", "0", "--compare", "zero")
    says(vision(*words, gpu="h100-sxm:2"), "--images-per-sample of 1 or more")


@pytest.mark.parametrize("gpu", ["t4", "v100-sxm2-16gb"])
def test_what_a_card_before_ampere_cannot_do_is_refused_with_what_it_can(gpu: str):
    words = ("--attention", "flash_attention_2")
    says(vision(*words, gpu=gpu), " ".join(words), "8.0", "--attention sdpa")


def test_attention_that_transformers_refuses_names_the_others():
    words = ("--gpu", "h100-sxm", "--attention")
    says(refusal("estimate", "--model", "gemma-2-2b", *words, "sdpa"), "sdpa", "eager or flash_attention_2")
    says(refusal("estimate", "--model", "blip2-opt-2.7b", *words, "flash_attention_2"), "eager or sdpa")


@pytest.mark.parametrize(
    ("targets", "parts"),
    [
        ("q_prj", ["q_prj", "q_proj"]),
        ("All-Linear", ["All-Linear", "all-linear"]),
        ("q_proj,elsewhere", ["elsewhere", "gate_proj", "attention"]),
        ("all-linear,q_proj", ["all-linear,q_proj", "alone"]),
        ("norm", ["norm", "linear"]),
        ("q_proj,norm", ["norm", "linear"]),
        ("lm_head", ["lm_head", "--loss full"]),
        ("", ["empty", "all-linear"]),
        (" , ", ["empty", "all-linear"]),
    ],
)
def test_lora_targets_that_match_nothing_name_what_would(targets: str, parts: Sequence[str]):
    says(vision("--method", "lora", "--lora-targets", targets), "--lora-targets", *parts)


def test_frozen_parts_leave_no_layer_to_adapt():
    says(refusal(*ESTIMATE, "--method", "lora", "--freeze-language"), "--lora-targets all-linear", "frozen")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("estimate", "--model", TEXT_MODEL, "--gpu", "t4"), "--html"),
        (("advise", "--model", TEXT_MODEL), "--html"),
        (("recommend", "--model", TEXT_MODEL), "--out, --html or --svg"),
        (("rehearse", "--model", TEXT_MODEL, "--gpu", "t4"), "--html, --svg or --trace"),
        (("launch", "--demo"), "--html"),
        (("calibrate",), "--out"),
    ],
)
def test_force_without_a_file_to_overwrite_is_refused(words: Sequence[str], said: str):
    found = call(*words, "--force")
    assert (found.code, f"--force goes with {said}, whose file it overwrites" in found.err) == (USAGE, True)
