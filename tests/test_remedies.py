"""What an error advises can be followed: every function that a message names exists under that name."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import terrazzo

SOURCE = Path(terrazzo.__file__).parent
NAMES = re.compile(r"\b(tz|terrazzo|jax)((?:\.[A-Za-z_]\w*)+)")
ARGUMENTS = re.compile(r"\b(?:tz\.)?(Target|sample)\(\.\.\., (\w+)=")


def texts():
    """(file, line, text) of every string inside a call of an error."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            called = getattr(node, "func", None)
            name = getattr(called, "id", getattr(called, "attr", ""))
            if isinstance(node, ast.Call) and (name.endswith("Error") or name in ("instance", "count", "memory")):
                for part in ast.walk(node):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield path.relative_to(SOURCE), part.lineno, part.value


def exists(root, parts):
    """Whether a dotted name can be reached by attributes or imports, as a reader would try it."""
    module = importlib.import_module({"tz": "terrazzo"}.get(root, root))
    for i, part in enumerate(parts):
        if hasattr(module, part):
            module = getattr(module, part)
            continue
        try:
            module = importlib.import_module(".".join([module.__name__, part]))
        except (ImportError, AttributeError):
            return i > 0 and parts[:i] == ["config"]
    return True


NAMED = [(str(p), n, root, rest) for p, n, text in texts() for root, rest in NAMES.findall(text)]


@pytest.mark.parametrize(("path", "line", "root", "rest"), NAMED)
def test_the_named_function_exists(path, line, root, rest):
    assert exists(root, rest.strip(".").split(".")), f"{path}:{line} names {root}{rest}"


def test_named_arguments_exist():
    for path, line, text in texts():
        for function, argument in ARGUMENTS.findall(text):
            known = terrazzo.Target.__init__ if function == "Target" else terrazzo.sample
            assert argument in known.__code__.co_varnames or argument in str(known.__wrapped__.__code__.co_varnames), (
                f"{path}:{line} names {function}(..., {argument}=)"
            )


def test_there_are_names():
    assert len(NAMED) >= 10
