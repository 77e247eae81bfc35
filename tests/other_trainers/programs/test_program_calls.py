"""What the text of a program says of its calls, and of what only running it would tell."""

import json

import pytest

from unsloth_programs import INSTALLS, NOTEBOOK, SCRIPT, notebook
from vlmplan.errors import InputError
from vlmplan.other_trainers.programs import program_source, run_of_program
from vlmplan.other_trainers.programs.calls import Program
from vlmplan.other_trainers.record import Unwritten


def keyword(code: str, name: str = "a"):
    """The keyword ``name`` of the program's only call of ``f``."""
    (call,) = (call for call in Program(code, source="x.py").calls() if call.name == "f")
    return call.keywords[name]


def value(code: str):
    found = keyword(code)
    return None if found.worth is None else found.worth.value


@pytest.mark.parametrize(
    ("code", "worth"),
    [
        ("f(a=2 * 1024)", 2048),
        ("f(a=-1)", -1),
        ("m, n = 1, 2\nf(a=n)", 2),
        ("f(a=not False)", True),
        ("n = 4\nm = n\nf(a=m)", 4),
        ("f(a=torch.bfloat16)", "bfloat16"),
        ("f(a='q, k'.split if isinstance(['q'], (str, dict)) else isinstance('q', str))", True),
        ("f(a=['q', 'k'])", ["q", "k"]),
        ("f(a=2e-4 if True else 1)", 2e-4),
        ("org = 'unsloth'\nf(a=f'{org}/x')", "unsloth/x"),
        ("n = 4\nf(a=n)\nn = 8", 4),
        ("n = 4\nn = 2 * n\nf(a=n)", 8),
        ("def other(n):\n    n = 3\nn = 4\nn = 8\nf(a=n)", 8),
        ("options = dict(a=3)\nf(**options)", 3),
        ("options = {'a': 3}\nf(**options)", 3),
        ("options = {'a': 3}\noptions['a'] = 4\nf(**options)", 4),
        ("options = {**({'a': 3} if True else {})}\nf(**options)", 3),
        ("n = 4\nif n > 8:\n    n = 16\nf(a=n)", 4),
        ("def train(n=4):\n    f(a=n)\ntrain()", 4),
        ("def train(rank, n=4):\n    f(a=rank * n)\ntrain(rank=2)", 8),
        ("def rank():\n    n = 2\n    n = n * 2\n    return n\nn = 1\nf(a=rank())", 4),
        ("def main():\n    n = 2\n    n = 3\n    f(a=n)\n    n = 4\nmain()", 3),
        ("n = int(os.environ.get('RANK', '8'))\nf(a=n)", 8),
        ("settings = {'lora': {'r': 4}}\nf(a=int(settings['lora'].get('r', 16)))", 4),
        ("settings = {'lora': {}}\nf(a=settings['lora'].get('r', 16))", 16),
        ("@dataclass\nclass Settings:\n    r: int = 4\nsettings = Settings()\nf(a=settings.r)", 4),
        ("@dataclass\nclass Settings:\n    r: int = field(default=4)\nsettings = Settings(r=8)\nf(a=settings.r)", 8),
        ("class Settings:\n    R = 4\nf(a=Settings.R)", 4),
        ("f(a=getattr(torch, 'bfloat16') if torch.cuda.is_available() else torch.float32)", "bfloat16"),
        ("if __name__ == '__main__':\n    n = 4\n    n = 8\n    f(a=n)", 8),
        ("f(a=None or 4)", 4),
        ("f(a=[int(n) for n in '4, 8'.split(',')])", [4, 8]),
        ("f(a=len([1, 2]))", 2),
        ("f(a=len(sys.argv))", 1),
        ("class C:\n    @property\n    def n(self):\n        return 4\nc = C()\nf(a=c.n)", 4),
        ("options = {'a': 3}\noptions.update(dict(a=4))\nf(**options)", 4),
        ("options = {'a': 3}\noptions = {k: v for k, v in options.items() if k in known}\nf(**options)", 3),
        ("@app.cell\ndef _():\n    n = 4\n    return n\n@app.cell\ndef _(n):\n    f(a=n)", 4),
    ],
)
def test_what_an_expression_is_worth_follows_from_its_text(code: str, worth):
    assert value(code) == worth


@pytest.mark.parametrize(
    "code",
    [
        "f(a=args.rank)",
        "n = 4\nif x:\n    n = 8\nf(a=n)",
        "n = 4\nn = 8\ndef train():\n    f(a=n)\nn = 9",
        "def other():\n    global n\n    n = 2\nn = 4\nn = 8\nf(a=n)",
        "f(a=n)\nn = 4\nn = 8",
        "for n in (1, 2):\n    f(a=n)",
        "def train(n=4):\n    f(a=n)",
        "n = 4\nn += 1\nf(a=n)",
        "m, n = pair\nf(a=n)",
        "f(a=1 / 0)",
        "f(a=10 ** 9)",
        "settings = {'r': 4}\nif x:\n    settings['r'] = 8\nf(a=settings['r'])",
        "settings = {'r': 4}\nsettings.update(own)\nf(a=settings.get('r'))",
        "def train(n):\n    f(a=n)\ntrain(2)\ntrain(4)",
        "def train(n):\n    for n in (1, 2):\n        f(a=n)\ntrain(2)",
        "def rank():\n    if x:\n        return 2\n    return 4\nf(a=rank())",
        "class Settings:\n    R = 4\nsettings = Settings()\nsettings.R = other\nf(a=settings.R)",
        "f(a=yaml.safe_load(open('settings.yaml'))['r'])",
        "f(a='x' * 4 < 3)",
        "a = b\nb = a\nf(a=a)",
        "names = ['q']\nnames.append('k')\nf(a=names)",
        "def names():\n    found = []\n    for one in m:\n        found.append(one)\n    return found\nf(a=names())",
    ],
)
def test_what_only_running_tells_is_worth_nothing(code: str):
    assert value(code) is None


OPTIONS = """
parser = argparse.ArgumentParser()
parser.add_argument("-r", "--lora-rank", type=int, default=16)
parser.add_argument("--name", dest="model", default="a/b")
parser.add_argument("--bf16", action="store_true", default=True)
parser.add_argument("--tf32", action="store_true")
parser.add_argument("--data", required=True)
parser.add_argument("--twice", default=1)
parser.add_argument("--twice", default=2)
def main():
    args = parser.parse_args()
    f(a=args.{name})
"""


@pytest.mark.parametrize(("name", "worth"), [("lora_rank", 16), ("model", "a/b"), ("bf16", True), ("tf32", False)])
def test_an_option_of_the_program_is_worth_its_default_and_that_is_said(name: str, worth):
    found = keyword(OPTIONS.replace("{name}", name)).worth
    assert found is not None
    assert (found.value, found.is_default) == (worth, True)


@pytest.mark.parametrize("name", ["data", "twice", "other"])
def test_an_option_without_one_default_is_what_running_tells(name: str):
    assert value(OPTIONS.replace("{name}", name)) is None


def test_places_are_characters_of_the_text_whatever_its_alphabet():
    code = 'x = "größer"; f(b="ü", a=12)'
    found = keyword(code)
    assert code[slice(*found.value_span)] == "12"
    assert code[slice(*found.span)] == "a=12"


def test_a_name_is_written_where_it_is_bound():
    code = "n = 4\nf(a=n)"
    assert keyword(code).value_span == (4, 5)


def test_calls_behind_a_false_condition_do_not_run_and_others_names_are_followed():
    code = "from m import g as h\nif False:\n    h(1)\nif True:\n    h(2)\nelse:\n    h(3)"
    (call,) = Program(code, source="x.py").calls()
    assert (call.name, call.node.args[0].value) == ("g", 2)


def test_functions_that_nothing_calls_any_more_do_not_run():
    code = "def inner():\n    f(a=1)\ndef outer():\n    inner()\ndef main():\n    f(a=2)\n{}\nmain()\n"
    assert value(code.format("if False:\n    outer()")) == 2
    with pytest.raises(ValueError, match="too many values"):
        value(code.format("outer()"))
    with pytest.raises(ValueError, match="too many values"):
        value(code.format("register(outer)"))


def test_no_program_is_told_by_its_line():
    with pytest.raises(InputError, match=r"x.py, line 2: .*a program in Python is needed"):
        Program("x = 1\nfrom from", source="x.py")


# -- notebooks -------------------------------------------------------------------------------------------------------


def test_lines_of_ipython_become_statements_that_are_as_long():
    source = program_source(notebook(INSTALLS, "y = 1"), source="n.ipynb", is_notebook=True)
    compile(source.code, "n", "exec")
    assert source.cells is not None
    for cell in source.cells:
        own = source.code[cell.start : cell.start + len(cell.text)]
        assert [len(line) for line in own.split("\n")] == [len(line) for line in cell.text.split("\n")]
        assert ("import os" in own) == ("import os" in cell.text)


@pytest.mark.parametrize("cell", ["%%bash\nrm -rf {x", "!a", "%", "!", "?f", "files = !ls \\\n   -l", "  %time f()"])
def test_cells_that_are_no_python_say_nothing(cell: str):
    source = program_source(notebook(f"{cell}\n", "f(a=3)"), source="n.ipynb", is_notebook=True)
    code = source.code if not cell.startswith(" ") else source.code.replace("  pass", "pass  ")
    assert value(code) == 3


def test_a_cell_that_is_no_python_matters_where_it_trains():
    source = program_source(notebook("from from\nx = 1", "f(a=3)"), source="n.ipynb", is_notebook=True)
    assert value(source.code) == 3
    with pytest.raises(InputError, match=r"n.ipynb, line 1"):
        Program(
            program_source(notebook("from from\nSFTTrainer(m)"), source="n.ipynb", is_notebook=True).code,
            source="n.ipynb",
        )


def test_a_notebook_is_one_with_cells():
    with pytest.raises(InputError, match="no cells"):
        program_source(json.dumps({"a": 1}), source="n.ipynb", is_notebook=True)


# -- the run ---------------------------------------------------------------------------------------------------------


def run(code: str, *, is_notebook: bool = False):
    return run_of_program(program_source(code, source="x", is_notebook=is_notebook), source="x")


def test_the_run_of_a_script_is_what_its_calls_say():
    found = run(SCRIPT)
    assert found is not None
    assert found.trainer == "unsloth"
    assert found.values["model_name"] == "unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit"
    assert (found.values["r"], found.values["per_device_train_batch_size"], found.values["dtype"]) == (16, 2, None)


def test_the_run_of_a_notebook_is_what_its_cells_say():
    found = run(NOTEBOOK, is_notebook=True)
    assert found is not None
    assert found.values["model_name"] == "unsloth/Qwen2-VL-2B-Instruct"
    assert found.values["finetune_vision_layers"] is True


def test_the_least_of_the_lengths_counts_and_one_that_is_not_written_is_told():
    assert run(SCRIPT.replace("optim =", "max_seq_length = 512, optim =")).values["max_seq_length"] == 512
    assert run(SCRIPT.replace("optim =", "max_seq_length = 4096, optim =")).values["max_seq_length"] == 2048
    unwritten = run(SCRIPT.replace("optim =", "max_seq_length = args.n, optim =")).values["max_seq_length"]
    assert isinstance(unwritten, Unwritten)
    assert unwritten == "args.n"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("SFTTrainer(", "ORPOTrainer("), "ORPOTrainer, which is not read"),
        (("SFTTrainer(", "print("), "holds no trainer"),
        (("trainer.train()", "SFTTrainer(model)"), "trains 2 times"),
        (("args = SFTConfig(", "args = made("), "not written as one call"),
        (("report_to = ", "**more, x = "), r"SFTConfig takes \*\*more"),
    ],
)
def test_what_no_run_is_read_from_is_told(change: tuple[str, str], words: str):
    with pytest.raises(InputError, match=words):
        run(SCRIPT.replace(*change))


def test_a_program_without_unsloth_holds_no_run():
    assert run("from transformers import Trainer\nTrainer(model).train()") is None


LINEARS = """def linears(model):
    \"\"\"All of them.\"\"\"
    names = set()
    for name, module in model.named_modules():
        if isinstance(module, bnb.nn.Linear4bit):
            parts = name.split(".")
            names.add(parts[0] if len(parts) == 1 else parts[-1])
    names.discard("lm_head")
    return list(names)
"""


@pytest.mark.parametrize(
    ("code", "worth"),
    [
        (LINEARS, "all-linear"),
        (LINEARS.replace('"lm_head"', '"q_proj"'), None),
        (LINEARS.replace("    names.discard", "    names.remove('visual')\n    names.discard"), None),
        (LINEARS.replace("        if", "        if skips(name):\n            continue\n        if"), None),
    ],
)
def test_a_function_that_lists_all_linears_is_taken_for_them_unless_it_leaves_some_out(code: str, worth: str | None):
    assert value(f"{code}f(a=linears(m))") == worth
    assert value(f"{code}found = linears(m)\nf(a=found)") == worth


OF_CLASS = "class C:\n    n: int = 2\nc = C()\n"
OF_PARSER = 'parser.add_argument("--n", default=2)\nc = parser.parse_args()\n'


@pytest.mark.parametrize("code", [OF_CLASS, OF_PARSER])
@pytest.mark.parametrize(
    ("line", "worth"),
    [
        ("", 2),
        ("setattr(c, 'm', 3)\n", 2),
        ("setattr(c, 'n', 3)\n", None),
        ("for key, one in table.items():\n    setattr(c, key, one)\n", None),
        ("vars(c).update(table)\n", None),
        ("c.__dict__.update(table)\n", None),
        ("parser.set_defaults(**table)\n", None),
        ("class D:\n    def __init__(self, key):\n        setattr(self, key, 1)\n", 2),
    ],
)
def test_a_default_is_not_known_where_any_attribute_may_be_given_another_value(code: str, line: str, worth: int | None):
    assert value(f"{code}{line}f(a=c.n)") == worth


@pytest.mark.parametrize(
    ("body", "made", "worth"),
    [
        ("n = 2", "C()", 2),
        ("n = 2\n    def __post_init__(self):\n        self.n = 2 * self.n", "C()", None),
        ("def __init__(self):\n        self.n = 2", "C()", 2),
        ("def __init__(self, n=2):\n        self.n = n", "C()", 2),
        ("def __init__(self, n=2):\n        self.n = n", "C(n=3)", 3),
        ("def __init__(self, n=2):\n        self.n = n", "C(3)", None),
        ("def __init__(self, m, n=2):\n        self.n = m", "C(m=3)", 3),
        ("def __init__(self, n):\n        self.n = 2 * n", "C(n=3)", None),
        ("def __init__(self):\n        if late:\n            self.n = 2", "C()", None),
        ("def __init__(self):\n        self.n = 2\n    def grow(self):\n        self.n = 4", "C()", None),
        ("def __init__(self, n=2):\n        self.n = n", "C(**table)", None),
    ],
)
def test_an_attribute_that_methods_set_is_what_the_first_of_them_always_sets(body: str, made: str, worth: int | None):
    assert value(f"class C:\n    {body}\nc = {made}\nf(a=c.n)") == worth
