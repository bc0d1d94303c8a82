"""From what was typed to a target: a function of a module, a space as text, data from a file."""

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from terrazzo.errors import FileFormatError, OptionError, TargetError
from terrazzo.errors.user_code import described
from terrazzo.spaces import Space
from terrazzo.spaces.text import parse_space
from terrazzo.targets.black_boxes import BlackBox, blackbox
from terrazzo.targets.target import Target


def load_target(
    name: str, space: str | None, data: str | None, *, is_blackbox: bool = False, folder: Path | None = None
) -> Target:
    """The target that a command names.

    Args:
        name: `module:attribute`: a function, a `tz.blackbox`, or a `tz.Target`.
        space: The space as text; None for a `tz.Target`, which has its own.
        data: An .npz file whose arrays become keyword arguments of the function.
        is_blackbox: Whether JAX cannot trace the function.
        folder: Where the module and the data are looked for; here if None.
    """
    folder = Path.cwd() if folder is None else folder
    found = _attribute(name, folder)
    if isinstance(found, Target):
        if space is not None or data is not None:
            raise OptionError(
                "--space" if space is not None else "--data", f"{name!r} is a tz.Target already", "leave it out"
            )
        return found
    if not callable(found) and not isinstance(found, BlackBox):
        raise TargetError(
            "target",
            f"{name!r} is of type {type(found).__name__}",
            "make it a function, or a tz.Target(log_prob, space)",
        )
    if space is None:
        raise OptionError("--space", f"is missing: {name!r} is a function", 'e.g. --space "binary[20]"')
    parsed, arrays = parse_space(space), {} if data is None else load_data(folder / data)
    plain = found.fn if isinstance(found, BlackBox) else found
    function = bound(plain, parsed, arrays)
    if isinstance(found, BlackBox) or is_blackbox:
        is_vectorized = isinstance(found, BlackBox) and found.vectorized
        return Target(blackbox(function, vectorized=is_vectorized, name=name), parsed)
    try:
        return Target(function, parsed)
    except TargetError as error:
        if "cannot be traced" not in error.problem:
            raise
        remedy = "write it with jax.numpy; `terrazzo sample` takes it as it is with --blackbox"
        raise TargetError(error.field, error.problem, remedy) from None


def _attribute(name: str, folder: Path) -> Any:
    """What `module:attribute` names; the module is looked for in the folder first."""
    module, colon, attribute = name.partition(":")
    example = "write it as module:function, e.g. models:log_prob for log_prob in models.py"
    if not colon or not module or not attribute:
        raise OptionError("target", f"{name!r} is not module:function", example)
    sys.path.insert(0, str(folder))
    try:
        found = importlib.import_module(module)
    except Exception as error:  # whatever stands in a user's module
        if isinstance(error, ModuleNotFoundError) and error.name == module.split(".")[0]:
            raise OptionError("target", f"there is no module {module!r} in {str(folder)!r}", example) from None
        if isinstance(error, SyntaxError):
            problem = f"SyntaxError: {error.msg} ({Path(error.filename or module).name}, line {error.lineno})"
        else:
            problem = described(error)
        raise TargetError("target", f"{module!r} cannot be imported: {problem}", "mend the module") from None
    finally:
        sys.path.remove(str(folder))
    try:
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError:
        there = [key for key in dir(found) if callable(getattr(found, key)) and not key.startswith("_")]
        near = difflib.get_close_matches(attribute, there, n=3)
        remedy = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(there[:8]) or 'no functions'}"
        raise OptionError("target", f"{name!r} is not found", remedy) from None
    return found


def load_data(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, by name; no pickle is read."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            if not hasattr(archive, "files"):
                raise ValueError("it holds one array without a name")
            return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise FileFormatError(str(path), f"cannot be read ({error.strerror or error})", "check the path") from None
    except Exception:  # a zip that is none, arrays of objects, a plain .npy
        raise FileFormatError(
            str(path), "is no .npz file of plain arrays", "write it with np.savez(path, X=X, y=y)"
        ) from None


def bound(function: Callable[..., Any], space: Space, data: Mapping[str, np.ndarray]) -> Callable[[Any], Any]:
    """The function of one configuration, with data filled in.

    If the function has a parameter for every variable, each gets its own; otherwise its first parameter gets what
    `tz.sample` hands over: an array, or a dict of arrays where variables have names. Data go by keyword.

    >>> from terrazzo.spaces import binary
    >>> bound(lambda a, b, scale: scale * (a + b), Space(a=binary(), b=binary()), {"scale": 10})({"a": 1, "b": 1})
    20
    >>> bound(lambda theta: theta + 1, Space(binary()), {})(1)
    2
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin
        parameters = {}  # type: ignore[assignment]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [name for name in data if name not in parameters]
    if parameters and unknown and not takes_any:
        raise OptionError(
            "--data", f"{unknown[0]!r} is not a parameter of the function ({', '.join(parameters)})", "rename the array"
        )
    clash = [name for name in data if name in space.names and not space.is_plain]
    if clash:
        raise OptionError("--data", f"{clash[0]!r} is a variable of the space too", "rename the array or the variable")
    is_by_name = not space.is_plain and all(name in parameters for name in space.names)
    needed = [name for name, p in parameters.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    given = (*space.names, *data) if is_by_name else (*needed[:1], *data)
    missing = [n for n in needed if n not in given and parameters[n].kind is not inspect.Parameter.VAR_POSITIONAL]
    if missing:
        raise OptionError(
            "--data", f"the function's parameter {missing[0]!r} is neither a variable nor an array of the data",
            f"variables are {', '.join(space.names)}; data are {', '.join(data) or 'none'}",
        )  # fmt: skip
    if is_by_name:
        return lambda values: function(**values, **data)
    return lambda values: function(values, **data)
