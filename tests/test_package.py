"""What the package is as a whole: light to import, one-way inside, small as a wheel."""

import ast
import functools
import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import vlmplan
from cli_calls import call, isolate
from tools.documents import DOCS, PAGES, README, SECTION, blocks, with_samples, with_sections

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "transformers", "deepspeed", "peft", "bitsandbytes", "accelerate", "numpy", "pynvml"}


def modules_after(code: str) -> set[str]:
    """Names of what a fresh interpreter has imported after ``code``: packages, and those within the planner's."""
    names = "{name for m in sys.modules for name in (m.split('.')[0], '.'.join(m.split('.')[:2]))}"
    listing = f"{code}\nimport sys; sys.stdout = sys.__stdout__; print(*sorted({names}))"
    done = subprocess.run([sys.executable, "-c", listing], check=True, capture_output=True, text=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import vlmplan.cli",
        "from vlmplan.cli.command_line import run; run(['estimate', '--model', 'qwen2-vl-2b', '--gpu', 'rtx-4090'])",
        "from vlmplan.cli.command_line import run; run(['recommend', '--model', 'qwen2-vl-2b', '--gpu', 'rtx-4090'])",
        "import vlmplan_trainer",
    ],
)
def test_planning_imports_no_training_library_and_nothing_of_other_trainers(code):
    assert not modules_after(code) & {*HEAVY, "vlmplan.other_trainers"}


def test_help_imports_neither_rich_nor_yaml():
    assert not modules_after("from vlmplan.cli.command_line import run; run(['--help'])") & {"rich", "yaml", *HEAVY}


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


# -- README.md and docs/: what their commands print is in test_documents.py -------------------------------------------


def rewriting() -> str:
    return "PYTHONPATH=tests python tests/tools/documents.py rewrites what README.md and docs/ show"


def test_the_readme_shows_what_its_commands_print(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)
    text = README.read_text()
    assert sum(len(block.calls) for block in blocks(text) if block.is_run) == 1
    assert with_samples(text) == text, rewriting()


def test_the_readme_is_read_in_one_sitting():
    assert len(README.read_text().splitlines()) <= 200


def test_the_readme_counts_the_types_that_are_refused():
    (refused, total), *_ = re.findall(r"so are (\d+) of its\n\[(\d+) types\]", README.read_text())
    rows = dict(re.findall(r"^\| (refused|all) \|.* (\d+) \|$", (DOCS / "model-types.md").read_text(), re.MULTILINE))
    assert (refused, total) == (rows["refused"], rows["all"])


def test_the_readme_counts_what_comes_with_it(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)
    (counts,) = re.findall(r"(\d+) models, (\d+) kinds of GPU and (\d+) rental offers", README.read_text())
    listed = call("gpus", "--offers", "--json").document
    found = (call("models", "--json").document["models"], listed["gpus"], listed["offers"])
    assert tuple(map(int, counts)) == tuple(map(len, found))


def test_every_package_and_figure_of_a_report_is_shown_as_it_is():
    marked = {page.name: page.read_text().count("<!-- made of ") for page in PAGES}
    assert marked == {page.name: len(SECTION.findall(page.read_text())) for page in PAGES}
    assert not [page.name for page in PAGES if with_sections(page.read_text()) != page.read_text()], rewriting()


@functools.cache
def code() -> str:
    files = (file for folder in ("planner", "trainer", "tests") for file in sorted((ROOT / folder).rglob("*.py")))
    return "\n".join(f"{file.name}\n{file.read_text()}" for file in files)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_documents_name_nothing_that_does_not_exist(page):
    """Files and folders of the repository, packages and modules, and names of the code."""
    spans = set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)))
    paths = {span for span in spans if re.fullmatch(r"(?:planner|trainer|tests|docs)/[\w./-]+|\.ci/run", span)}
    missing = [path for path in paths if "NAME" not in path and not (ROOT / path).exists()]
    modules = {span for span in spans if re.fullmatch(r"vlmplan(?:_trainer)?(?:\.[a-z_]+)+", span)}
    missing += [name for name in modules if importlib.util.find_spec(name) is None]
    names = re.compile(r"(?:[A-Z][a-z]+){2,}|[A-Z]{4,}|\w+\(\)|[a-z]+_[a-z_]+|\w+\.py")
    mentioned = {span.removesuffix("()") for span in spans if names.fullmatch(span)}
    missing += [name for name in mentioned - {"NAME", "HOST"} if name not in code()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_in_python_import_what_exists(page):
    """Without importing it: the tests of families need torch."""
    folders = ("planner", "trainer", "tests")
    for block in blocks(page.read_text()):
        is_example = block.kind == "python" and block.title is None  # one with a title is a file that a command reads
        found = ast.walk(ast.parse(block.text)) if is_example else ()
        modules = (node for node in found if isinstance(node, ast.ImportFrom) and node.module)
        for node in (node for node in modules if node.module.partition(".")[0] not in sys.stdlib_module_names):
            paths = [ROOT / folder / node.module.replace(".", "/") for folder in folders]
            files = [
                file for path in paths for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()
            ]
            assert len(files) == 1, node.module
            folder = set() if files[0].name != "__init__.py" else {file.stem for file in files[0].parent.iterdir()}
            missing = {name.name for name in node.names} - folder - set(re.findall(r"\w+", files[0].read_text()))
            assert not missing, f"{node.module} has no {missing}"


def test_every_page_is_in_the_navigation_and_under_it():
    nav = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    found = {page.relative_to(DOCS).as_posix() for page in PAGES if page != README}
    assert found == {name for name in nav if not name.startswith("reports/")}
