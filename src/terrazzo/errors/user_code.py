"""Where in the user's own code an exception arose: the file, the line and what stands there."""

import sysconfig
import traceback
from pathlib import Path

OURS = str(Path(__file__).parents[1])
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")})
MOST = 100  # characters of a line of code


def _is_foreign(file: str) -> bool:
    """Whether a file belongs to the user: not to us, nor to an installed library, nor to Python itself."""
    if file.startswith("<frozen") or "site-packages" in file or "dist-packages" in file:
        return False
    is_ours = file.startswith(OURS) and not file.startswith(str(Path(OURS) / "problems"))
    return not is_ours and not file.startswith(LIBRARIES)


def place_of(error: BaseException) -> str:
    """The innermost line of the user's code on the way to an exception; empty if there is none.

    >>> try:
    ...     {}["x"]
    ... except KeyError as error:
    ...     "line 2" in place_of(error)
    True
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_foreign(frame.filename)]
    if not frames:
        return ""
    frame = frames[-1]
    code = " ".join((frame.line or "").split())
    code = code if len(code) <= MOST else f"{code[: MOST - 3]}..."
    place = f"{Path(frame.filename).name}, line {frame.lineno}"
    return f"{place}: {code}" if code else place


def described(error: BaseException, most: int = 160) -> str:
    """The type, the first words and the place of an exception, on one line."""
    text = " ".join(str(error).split())
    text = text if len(text) <= most else f"{text[: most - 3]}..."
    place = place_of(error)
    return f"{type(error).__name__}: {text}" + (f" ({place})" if place else "")
