"""autocast of the device of rehearsals beside torch's own for CUDA."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import autocast_on_devices
from vlmplan_trainer.rehearse import autocast

NOT_MET = {
    "_scaled_dot_product_flash_attention": "called inside of scaled_dot_product_attention alone",
    "_thnn_fused_gru_cell": "recurrent",
    "_thnn_fused_lstm_cell": "recurrent",
    "gru_cell": "recurrent",
    "lstm_cell": "recurrent",
    "rnn_relu_cell": "recurrent",
    "rnn_tanh_cell": "recurrent",
    "binary_cross_entropy": "refused",
    "cudnn_convolution": "called inside of convolution alone",
    "cudnn_convolution_transpose": "called inside of convolution alone",
    "norm.Scalar": "torch.norm calls linalg_vector_norm",
    "norm.ScalarOpt_dim": "torch.norm calls linalg_vector_norm",
}


def test_its_lists_are_those_of_cuda():
    names = [name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    of_cuda = {name for name in names if has_kernel(f"aten::{name}", "AutocastCUDA")}
    lists = (autocast.LOWER_PRECISION, autocast.FLOAT32, autocast.FLOAT32_RESULT, autocast.WIDEST)
    assert {name for one in lists for name in one} == of_cuda - NOT_MET.keys()


@pytest.mark.sweep
@pytest.mark.skipif(shutil.which("g++") is None, reason="a device guard for CUDA has to be compiled")
def test_operations_cast_hold_and_let_go_as_under_cudas_autocast(tmp_path: Path):
    """Types of results, peaks, what is left behind an operation and behind autocast, and peaks of backward, which show
    the order of the casts where two are large."""
    command = [sys.executable, autocast_on_devices.__file__]
    guard = autocast_on_devices.built_guard(tmp_path)
    of_cuda, of_rehearsals = (
        json.loads(subprocess.run([*command, *words], capture_output=True, check=True, text=True).stdout)
        for words in (["cuda", str(guard)], ["gpu"])
    )
    assert len(of_cuda) == 2 * 2 * len(autocast_on_devices.operations())
    assert of_rehearsals == of_cuda
