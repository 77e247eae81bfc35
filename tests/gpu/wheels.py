"""The packages of the campaign for a machine without a network: ``python tests/gpu/wheels.py FOLDER``.

What such a machine has already is torch with what that needs, and huggingface_hub, tokenizers, safetensors, rich and
PyYAML. The folder gets the rest as wheels in the versions of constraints.txt, in at most 64 MiB: DeepSpeed, which is a
source distribution, is built here without its extensions (it compiles CPU Adam there, at first use), and bitsandbytes
keeps the libraries of one version of CUDA. There::

    python -m pip install --no-index --no-deps --target SITE FOLDER/*.whl
    export PYTHONPATH=SITE:planner:trainer:tests
    python -c 'from vlmplan.cli import main; main()' calibrate
    python tests/gpu/campaign.py --slice-s 480

It takes a minute and needs an installation of ``.[train,dev]``: building DeepSpeed imports torch.
"""

import csv
import io
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import click

from vlmplan.versions import CHECKED_VERSIONS

MOST_BYTES = 64 * 2**20
"""Of the folder. A choice: what is carried to such a machine beside the repository's own files."""
ROOT = Path(__file__).parents[2]
BUILT = ("deepspeed",)
NEEDED = {
    "deepspeed": CHECKED_VERSIONS["deepspeed"],
    "bitsandbytes": CHECKED_VERSIONS["bitsandbytes"],
    "transformers": CHECKED_VERSIONS["transformers"],
    "peft": CHECKED_VERSIONS["peft"],
    "accelerate": CHECKED_VERSIONS["accelerate"],
    "torchao": CHECKED_VERSIONS["torchao"],
    "liger-kernel": "0.8.5",
    "hjson": None,
    "ninja": None,
    "pydantic": None,
    "pydantic-core": None,
    "annotated-types": None,
    "typing-inspection": None,
    "typing-extensions": None,
    "click": None,
    "nvidia-ml-py": None,
}
"""By name; the version, or None for that of this installation. click and nvidia-ml-py are vlmplan's own, hjson, ninja
and those from pydantic on are DeepSpeed's."""
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 27, 28, 31, 34)] + ["manylinux2014_x86_64"]


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--python", "python_version", default="3.12", show_default=True, help="Of the machine.")
@click.option("--cuda", default="130", show_default=True, help="Of its torch: 130 for +cu130.")
def main(folder: Path, python_version: str, cuda: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    for name in NEEDED:
        if name in BUILT:
            built(name, folder)
        else:
            downloaded(name, folder, python_version)
    for wheel in folder.glob("bitsandbytes-*.whl"):
        stripped(wheel, lambda member: keeps(member, cuda))
    total = sum(wheel.stat().st_size for wheel in folder.glob("*.whl"))
    for wheel in sorted(folder.glob("*.whl")):
        click.echo(f"{wheel.stat().st_size / 2**20:6.2f} MiB  {wheel.name}")
    click.echo(f"{total / 2**20:6.2f} MiB  in all")
    if total > MOST_BYTES:
        raise click.ClickException(f"more than the {MOST_BYTES // 2**20} MiB that there are")


def requirement(name: str) -> str:
    from importlib.metadata import version

    return f"{name}=={NEEDED[name] or version(name)}"


def built(name: str, folder: Path) -> None:
    words = ["wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), requirement(name)]
    pip(words, {"DS_BUILD_OPS": "0"})


def downloaded(name: str, folder: Path, python_version: str) -> None:
    words = ["download", "--no-deps", "--only-binary=:all:", "--python-version", python_version]
    words += ["--implementation", "cp", *(word for platform in PLATFORMS for word in ("--platform", platform))]
    pip([*words, "-d", str(folder), requirement(name)], {})


def pip(words: list[str], environment: dict[str, str]) -> None:
    subprocess.run([sys.executable, "-m", "pip", "-q", *words], env={**os.environ, **environment}, check=True)


def keeps(member: str, cuda: str) -> bool:
    """Whether a machine with this version of CUDA needs the file: every library but those of other versions."""
    library = re.search(r"libbitsandbytes_([a-z]+)(\d*)", member)
    return library is None or library[1] == "cpu" or (library[1] == "cuda" and library[2] == cuda)


def stripped(wheel: Path, wanted: Callable[[str], bool]) -> None:
    """Take the members that are not ``wanted`` out of a wheel, and out of its RECORD."""
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory(dir=wheel.parent) as folder:
        members = [one for one in archive.infolist() if wanted(one.filename)]
        if not any("libbitsandbytes_cuda" in one.filename for one in members):
            raise click.ClickException(f"{wheel.name} has no library of that version of CUDA")
        smaller = Path(folder) / wheel.name
        with zipfile.ZipFile(smaller, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made:
            for one in members:
                content = archive.read(one)
                if one.filename.endswith(".dist-info/RECORD"):
                    content = record_of(content, {member.filename for member in members})
                made.writestr(one, content, zipfile.ZIP_DEFLATED, 9)
        smaller.replace(wheel)


def record_of(content: bytes, members: set[str]) -> bytes:
    """The lines of a RECORD whose files are there."""
    out = io.StringIO()
    rows = [row for row in csv.reader(io.StringIO(content.decode())) if row and row[0] in members]
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()


if __name__ == "__main__":
    main()
