"""What the package is as a whole: light to import, one-way inside, small as a wheel."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import vlmplan
from cli_calls import isolate
from tools.readme import README, SAMPLE, layout, with_samples

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "transformers", "deepspeed", "peft", "bitsandbytes", "accelerate", "numpy", "pynvml"}


def modules_after(code: str) -> set[str]:
    """Top-level names of what a fresh interpreter has imported after ``code``."""
    listing = (
        f"{code}\nimport sys; sys.stdout = sys.__stdout__; print(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    )
    done = subprocess.run([sys.executable, "-c", listing], check=True, capture_output=True, text=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import vlmplan.cli",
        "from vlmplan.cli import run; run(['estimate', '--model', 'qwen2-vl-2b', '--gpu', 'rtx-4090'])",
        "from vlmplan.cli import run; run(['recommend', '--model', 'qwen2-vl-2b', '--gpu', 'rtx-4090'])",
        "import vlmplan_trainer",
    ],
)
def test_planning_imports_no_training_library(code):
    assert not modules_after(code) & HEAVY


def test_help_imports_neither_rich_nor_yaml():
    assert not modules_after("from vlmplan.cli import run; run(['--help'])") & {"rich", "yaml", *HEAVY}


def test_imports_point_one_way():
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_wheel_installs_two_packages_with_their_data_and_nothing_else(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {
        "vlmplan",
        "vlmplan_trainer",
        f"vlmplan-{vlmplan.__version__}.dist-info",
    }
    assert {
        "vlmplan/gpu_catalog.yaml",
        "vlmplan/data/config_defaults.json",
        "vlmplan/data/models/qwen2-vl-2b/config.json",
        "vlmplan/py.typed",
        "vlmplan_trainer/py.typed",
        f"vlmplan-{vlmplan.__version__}.dist-info/licenses/LICENSE",
    } <= set(names)
    assert not [name for name in names if name.endswith((".pyc", ".tmp")) or "__pycache__" in name]


def test_the_readme_lists_every_module():
    assert layout() in README.read_text()


def test_the_readme_shows_what_its_commands_print(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)
    text = README.read_text()
    assert len(SAMPLE.findall(text)) == 2
    assert with_samples(text) == text
