"""The map between the modules: what imports what, in functions and for types alone too."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"vlmplan": ROOT / "planner", "vlmplan_trainer": ROOT / "trainer"}
COMMAND = "vlmplan"
MAX_LINES = 400
"""Of a module: a longer one is two things, each of which wants a name."""
Graph = Mapping[str, set[str]]


@cache
def files() -> Mapping[str, Path]:
    """The file of every module, by its dotted name."""
    found: dict[str, Path] = {}
    for package, folder in PACKAGES.items():
        for path in (folder / package).rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.AST, modules: Mapping[str, object]) -> set[str]:
    """The modules that a file names: by ``import`` wherever it stands, as ``TYPE_CHECKING`` and functions too, by a
    text that is a module's name, and, where ``import_module`` gets part of a name, by every text that completes it.

    The text ``vlmplan`` alone is the name of the command and of folders."""
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    found = texts & modules.keys() - {COMMAND}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name for alias in node.names for name in (known(alias.name, modules),) if name}
        elif isinstance(node, ast.ImportFrom):
            if not node.module or node.level:
                raise AssertionError("imports are absolute here")
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name for each in named for name in (known(each, modules),) if name}
        elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
            found |= {f"{node.values[0].value}{text}" for text in texts} & modules.keys()
    return found


def known(name: str, modules: Mapping[str, object]) -> str:
    """The module that ``name`` is, or is in; empty if it is another's."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


@cache
def imports() -> Graph:
    return {name: imported(ast.parse(path.read_text()), files()) - {name} for name, path in files().items()}


def circles(graph: Graph) -> list[list[str]]:
    """The strongly connected components of more than one module, by Tarjan's algorithm."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in order:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], order[other])
        if lowest[name] == order[name]:
            place = stack.index(name)
            component = stack[place:]
            del stack[place:]
            if len(component) > 1:
                found.append(sorted(component))

    for name in sorted(graph):
        if name not in order:
            visit(name)
    return found


def children(package: str) -> Graph:
    """What the modules and packages directly in ``package`` import of each other."""

    def child(name: str) -> str:
        return ".".join(name.split(".")[: package.count(".") + 2])

    inside = [name for name in files() if name.startswith(f"{package}.")]
    graph: dict[str, set[str]] = {child(name): set() for name in inside}
    for name in inside:
        graph[child(name)] |= {child(other) for other in imports()[name]} & graph.keys() - {child(name)}
    return graph


def test_no_modules_import_each_other_in_a_circle():
    assert circles(imports()) == []


@pytest.mark.parametrize("package", [name for name, path in files().items() if path.name == "__init__.py"])
def test_no_packages_import_each_other_in_a_circle(package: str):
    assert circles(children(package)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import package.b",
        "from package.b import anything",
        "from package import b",
        "def f():\n    from package import b",
        "if TYPE_CHECKING:\n    from package.b import Anything",
        "COMMANDS = {'b': 'package.b'}",
        "TABLE = {'of type b': 'b'}\ndef f(kind):\n    import_module(f'package.{TABLE[kind]}')",
    ],
)
def test_a_circle_is_found_however_it_is_closed(text: str):
    modules = dict.fromkeys(("package", "package.a", "package.b", "package.c"))
    graph = {name: set[str]() for name in modules} | {"package.b": {"package.c"}, "package.c": {"package.a"}}
    assert circles(graph) == []
    graph["package.a"] = imported(ast.parse(text), modules)
    assert graph["package.a"] == {"package.b"}
    assert circles(graph) == [["package.a", "package.b", "package.c"]]


def test_no_module_is_longer_than_can_be_read_in_one_sitting():
    lengths = {name: len(path.read_text().splitlines()) for name, path in files().items()}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


CONTRACT = set(
    "chats errors files files.data_file files.json_reader launch memory_messages model_types.encoder_decoder "
    "model_types.reward_models model_types.thinkers phase_names plain_text plan recipe recipe.choices "
    "recipe.dropout recipe.evaluation recipe.lora_targets recipe.muon recipe.reference_adapters "
    "recipe.settings recipe.task recipe.task_choices run.record run.shortage run.step_bar run.training "
    "sample_audio sampler units versions workload".split()
)
"""What of the planner the trainer may import: what both have to agree on. Packages of which it needs a part name it."""
IN_PARTS = {name.partition(".")[0] for name in CONTRACT if "." in name}


def test_the_trainer_imports_the_contract_alone_and_all_of_it():
    named = {name for module, names in imports().items() if module.startswith("vlmplan_trainer") for name in names}
    places = [name.split(".")[1:] for name in named if name.startswith("vlmplan.")]
    assert {".".join(place[: 2 if place[0] in IN_PARTS else 1]) for place in places} == CONTRACT


def is_of_a_face(statement: ast.stmt) -> bool:
    """A docstring, an import, or ``__all__`` and the like."""
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        [target] = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return isinstance(target, ast.Name) and target.id in ("__all__", "__version__")
    is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_docstring or isinstance(statement, ast.Import | ast.ImportFrom)


PACKAGE_FACES = {name for name, path in files().items() if path.name == "__init__.py"}


@pytest.mark.parametrize("package", sorted(PACKAGE_FACES))
def test_a_package_s_face_hands_out_and_does_nothing_else(package: str):
    tree = ast.parse(files()[package].read_text())
    found = [statement for statement in tree.body if not is_of_a_face(statement)]
    if package == "vlmplan":  # what is asked for is imported then: see the test below
        assert [type(statement).__name__ for statement in found] == ["Assign", "If", "FunctionDef", "FunctionDef"]
        return
    assert [ast.unparse(statement) for statement in found] == []


MAPPED = re.compile(r"^ *((?:\w+(?:\.py)?, )*\w+(?:\.py)?)(?:  +\S.*)?$", re.MULTILINE)
"""A line of a package's docstring that begins with names of modules, or has nothing else."""
OF_A_FILE = {"vlmplan.emit", "vlmplan.plan"}
"""Whose docstrings name files that are written, or keys of one."""


@pytest.mark.parametrize("package", sorted(PACKAGE_FACES - OF_A_FILE))
def test_a_package_s_map_names_modules_that_it_has(package: str):
    face = files()[package]
    docstring = ast.get_docstring(ast.parse(face.read_text())) or ""
    named = {name for line in MAPPED.findall(docstring) for name in line.replace(".py", "").split(", ")}
    assert {
        name for name in named if not (face.parent / name).is_dir() and not face.with_name(f"{name}.py").is_file()
    } == set()


def test_what_the_console_script_imports_before_it_is_ready_for_ctrl_c_is_next_to_nothing():
    code = "import sys; before = set(sys.modules); import vlmplan; print(*sorted(set(sys.modules) - before))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["vlmplan"]


def test_test_files_have_names_of_their_own():
    """Test folders are no packages, so pytest imports a test file by its bare name and refuses a second."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, number in names.items() if number > 1] == []
