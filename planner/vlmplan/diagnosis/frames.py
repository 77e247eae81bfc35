"""The frames of a traceback in a log, as Python, IPython and rich print them."""

import re
from dataclasses import dataclass

from vlmplan.diagnosis.log import Line, line_of

MAX_LINES = 2000
MAX_CHARACTERS = 400_000
"""Of a traceback: that of a model of 100 nested modules under DeepSpeed has some 600 lines. A choice."""
MAX_LINE_CHARACTERS = 2000
MAX_LINES_OF_A_CALL = 40
"""Between a message and the frame that raised it: a source line, its marks, notes of the exception. A choice."""
LIBRARIES = re.compile(r"(?:site|dist)-packages|lib(?:64)?/python3|<frozen |<string>|(?:^|/)runpy\.py$")
PYTHON = re.compile(r'File "([^"]{1,400})", line (\d{1,8}), in (\S{1,200})')
IPYTHON = re.compile(r"^(?:File )?(\S{1,400}\.py):(\d{1,8}), in (\S{1,200}?)\(")
OLD_IPYTHON = re.compile(r"^(\S{1,400}\.py) in (\S{1,200}?)\(")
RICH = re.compile(r"(\S{1,400}\.py):(\d{1,8}) in (\S{1,200})")
FORMS = (PYTHON, IPYTHON, RICH)
MARKED_CODE = re.compile(r"^(?:-+>|❱)\s*\d+\s*[│|]?\s*(.+)")
START = "Traceback (most recent call last)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One call. ``code`` is the source line, empty where it is not printed; ``line`` is 0 where that is not."""

    file: str
    line: int
    function: str
    code: str = ""

    @property
    def is_of_library(self) -> bool:
        """Whether the file is an installed package's or Python's own."""
        return not self.file or LIBRARIES.search(self.file) is not None


def frames_before(text: str, start: int) -> list[Frame]:
    """The frames of the traceback that ends with the message at ``start``, outermost first; empty where there is none.

    Lines of other ranks in between are left out where a launcher marked whose they are.
    """
    lines = text[max(0, start - MAX_CHARACTERS) : start].split("\n")[-MAX_LINES:]
    own = line_of(lines.pop() if lines else "")
    found: list[Line] = []
    for raw in reversed(lines):
        line = line_of(raw[:MAX_LINE_CHARACTERS])
        if line.writer != own.writer:
            continue
        if START in line.text:
            break
        found.append(line)
    else:  # the beginning of the traceback is not there
        if not any(_frame(line.text) for line in found[:MAX_LINES_OF_A_CALL]):
            return _of_bare_code(found)
    return _frames([line.text.strip(" │|") for line in reversed(found)])


def _of_bare_code(found: list[Line]) -> list[Frame]:
    """The frames of a cut of a log that begins between a frame and its source line, which Python indents by four
    blanks."""
    lines = [line.text for line in found[:MAX_LINES_OF_A_CALL] if line.text.strip(" ^~")]
    is_code = bool(lines) and lines[0].startswith("    ")
    return [Frame(file="", line=0, function="", code=lines[0].strip()[:300])] if is_code else []


def _frames(lines: list[str]) -> list[Frame]:
    frames: list[Frame] = []
    for text in lines:
        frame = _frame(text)
        marked = MARKED_CODE.match(text)
        if frame is not None:
            frames.append(frame)
        elif frames and marked is not None:
            frames[-1] = _with_code(frames[-1], marked[1])
        elif frames and not frames[-1].code and text.strip("^~ "):
            frames[-1] = _with_code(frames[-1], text)
    return frames


def _frame(text: str) -> Frame | None:
    for form in FORMS:
        match = form.search(text)
        if match is not None:
            return Frame(file=match[1], line=int(match[2]), function=match[3].rpartition(".")[2])
    match = OLD_IPYTHON.search(text)
    return None if match is None else Frame(file=match[1], line=0, function=match[2])


def _with_code(frame: Frame, code: str) -> Frame:
    return Frame(file=frame.file, line=frame.line, function=frame.function, code=code.strip(" │|")[:300])


def own_frame(frames: list[Frame]) -> Frame | None:
    """The innermost frame of a file that is of no package: the user's, or of a trainer that is run from its folder."""
    return next((frame for frame in reversed(frames) if not frame.is_of_library), None)
