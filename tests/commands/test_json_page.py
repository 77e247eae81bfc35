"""docs/tasks/json.md names every key that a command prints with ``--json``, at any depth."""

from pathlib import Path

import pytest

from cli_calls import DOES_NOT_FIT, DONE, FEW_LAYERS, call, folder_of
from documented_json import undocumented

SMALL = ("--model", "small")
SEEING = ("--model", "qwen2-vl-2b")
GROUPS = ("--task", "grpo", "--max-completion-tokens", "256", "--num-generations", "4")
COMMANDS = {
    "estimate": ("estimate", *SMALL, "--gpu", "rtx-4090:2"),
    "an estimate that does not fit": ("estimate", *SEEING, "--gpu", "rtx-4060-ti-16gb", "--host-ram", "32"),
    "an estimate with evaluations": (
        *("estimate", *SMALL, "--gpu", "rtx-4090", "--eval-batch", "2", "--eval-samples", "100"),
        *("--sample-lengths", "vary", "--no-expandable-segments", "--micro-batch", "2"),
    ),
    "an estimate with frozen vision": ("estimate", *SEEING, "--gpu", "a100-sxm4-80gb", "--images-per-sample", "4"),
    "an estimate of data": ("estimate", *SMALL, "--gpu", "rtx-4090", "--method", "lora", "--data", "text.jsonl"),
    "scaling": ("estimate", *SMALL, "--gpu", "a100-sxm4-80gb:8", "--scaling", "--global-batch", "64"),
    "GRPO with vLLM": ("estimate", *SMALL, "--gpu", "a100-sxm4-80gb:2", *GROUPS, "--generation", "vllm"),
    "GRPO": ("estimate", *SMALL, "--gpu", "a100-sxm4-80gb:2", *GROUPS),
    "comparison": ("estimate", *SMALL, "--gpu", "rtx-4060", "--compare", "method"),
    "recommend": ("recommend", *SMALL, "--gpu", "rtx-4090", "--gpu", "t4"),
    "recommend where nothing fits": ("recommend", "--model", "llama-3.1-70b", "--gpu", "t4", "--method", "full"),
    "recommend for a trainer": ("recommend", *SMALL, "--gpu", "rtx-4090:2", "--for", "trl", "--out", "out"),
    "recommend from data": ("recommend", *SMALL, "--gpu", "rtx-4090", "--data", "text.jsonl"),
    "advise": ("advise", *SMALL, "--gpu", "rtx-4090"),
    "check": ("check", "train.yaml", "--gpu", "rtx-4060"),
    "fix": ("check", "train.yaml", "--gpu", "rtx-4060", "--fix"),
    "diagnose": ("diagnose", "log.txt"),
    "diagnose with the setup": ("diagnose", "log.txt", *SMALL, "--gpu", "rtx-4060", "--micro-batch", "8"),
    "explain": ("explain", "stage"),
    "explain in a plan": ("explain", "stage", "--plan", "plan/plan.json"),
    "every key": ("explain",),
    "models": ("models",),
    "a model": ("models", "qwen2-vl-2b"),
    "models of a card": ("models", "smollm2-135m", "--gpu", "rtx-4090"),
    "gpus": ("gpus", "4090"),
    "offers": ("gpus", "l40s", "--offers"),
    "prices": ("prices", "l40s"),
    "buy": ("buy", "--gpu", "rtx-4090:2", "--price", "4000", "--hours-per-week", "20"),
}
LOG = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.77 GiB. GPU 0 has a total capacity of 7.6 GiB of "
    "which 1.61 GiB is free. Process 977732 has 6.0 GiB memory in use. Of the allocated memory 5.16 GiB is allocated "
    "by PyTorch, and 0.27 GiB is reserved by PyTorch but unallocated."
)


@pytest.fixture(autouse=True)
def _files(isolated: None) -> None:
    folder_of("small", FEW_LAYERS)
    turns = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}\n'
    Path("text.jsonl").write_text(turns * 20)
    Path("train.yaml").write_text("model_name_or_path: small\nuse_peft: true\nbf16: true\n")
    Path("log.txt").write_text(LOG)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_key_is_on_the_page(name):
    if "plan/plan.json" in COMMANDS[name]:
        call("recommend", *SMALL, "--gpu", "rtx-4090:2", "--out", "plan")
    found = call(*COMMANDS[name], "--json")
    assert found.code in (DONE, DOES_NOT_FIT), found.err
    assert undocumented(found.document) == set()
