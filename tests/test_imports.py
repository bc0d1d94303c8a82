"""Data walks one way through the house, and so do imports (read with `ast`)."""

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "terrazzo"

# Each room may import (at its top level) only itself and rooms above it. Results stand above the samplers because a
# result is arrays and a space: it must not know how the draws were made.
ORDER = [
    {"errors"},
    {"runtime"},
    {"spaces"},
    {"storage"},
    {"diagnostics"},
    {"verdict"},
    {"results"},
    {"report"},
    {"targets"},
    {"models"},
    {"problems"},
    {"transports"},
    {"training"},
    {"samplers"},
    {"engine"},
    {"auto"},
    {"inference"},
    {"__init__"},
    {"paper"},
    {"cli", "__main__"},
]
OUTSIDE = {"paper", "cli", "__main__"}  # the library never imports these, not even late
BLIND = {"results", "report", "diagnostics", "verdict", "storage", "spaces", "runtime"}  # may know no method
METHODS = {"transports", "training", "samplers", "inference"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "breakpoint"}
FILES = sorted(SOURCE.rglob("*.py"))
SCRIPTS = sorted(f for folder in ("benchmarks", "docs", "gallery") for f in (SOURCE.parents[1] / folder).rglob("*.py"))


def part_of(path, source):
    """The part of the house a file belongs to: its top module or package."""
    return path.relative_to(source).with_suffix("").parts[0]


def level(part):
    for i, line in enumerate(ORDER):
        if part in line:
            return i
    raise AssertionError(f"{part} has no place in tests/test_imports.py: ORDER")


def imported_parts(node, path, source):
    """Parts of terrazzo that an import statement names."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif node.level:
        base = list(path.relative_to(source).with_suffix("").parts)
        base = ["terrazzo", *base]
        base = base[: len(base) - node.level] + ([node.module] if node.module else [])
        names = [".".join(base)] if len(base) > 1 else [f"{base[0]}.{alias.name}" for alias in node.names]
    elif node.module == "terrazzo":
        names = [f"terrazzo.{alias.name}" for alias in node.names]
    else:
        names = [node.module or ""]
    parts = [name.split(".") for name in names if name.split(".")[0] == "terrazzo"]
    known = {f.stem for f in source.glob("*.py")} | {f.name for f in source.iterdir() if f.is_dir()}
    return {p[1] if len(p) > 1 and p[1] in known else "__init__" for p in parts}


def imports(path):
    """(node, whether it runs when the module is imported) for each import of a file."""
    tree = ast.parse(path.read_text())
    late = set()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            late |= {id(n) for n in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, id(node) not in late


def violations(path, source=SOURCE):
    out = []
    here = part_of(path, source)
    for node, is_early in imports(path):
        for there in imported_parts(node, path, source):
            if there in OUTSIDE and here not in OUTSIDE:
                out.append(f"line {node.lineno}: the library imports {there}")
            elif is_early and level(there) > level(here):
                out.append(f"line {node.lineno}: {here} imports {there}, which comes later")
            elif is_early and here in BLIND and there in METHODS:
                out.append(f"line {node.lineno}: {here} must not know {there}")
    return out


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_follow_the_data(path):
    assert violations(path) == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_pickle_and_no_eval(path):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & FORBIDDEN_MODULES
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in FORBIDDEN_MODULES
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in FORBIDDEN_CALLS, f"line {node.lineno}"
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant)
            assert node.value.value is False


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("results/result.py", "from terrazzo.samplers import gibbs"),
        ("results/result.py", "import terrazzo.inference"),
        ("diagnostics/chains.py", "from terrazzo import results"),
        ("spaces/space.py", "import terrazzo"),
        ("inference/call.py", "def f():\n    from terrazzo import cli"),
        ("targets/target.py", "from ..transports import flow"),
    ],
)
def test_the_reader_sees_violations(name, text, tmp_path):
    for folder in ("diagnostics", "samplers", "transports", "results", "spaces", "inference", "targets"):
        (tmp_path / folder).mkdir()
    (tmp_path / "cli.py").touch()
    (tmp_path / name).write_text(text)
    assert violations(tmp_path / name, tmp_path)


def test_scripts_import_names_that_exist():
    """Benchmarks and pages that no test runs: what they import of the library is there."""
    for path in SCRIPTS:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "terrazzo":
                module = importlib.import_module(node.module)
                for name in (alias.name for alias in node.names):
                    is_module = hasattr(module, "__path__") and importlib.util.find_spec(f"{node.module}.{name}")
                    assert hasattr(module, name) or is_module, f"{path.name}: {node.module} has no {name}"


@pytest.mark.parametrize("path", [p for p in FILES if p.name == "__init__.py"], ids=lambda path: path.parent.name)
def test_packages_list_what_they_export(path):
    """A package that holds more than its docstring has `__all__`, and every name on it is there."""
    statements = ast.parse(path.read_text()).body[1:]
    module = importlib.import_module(".".join(path.parent.relative_to(SOURCE.parent).parts))
    assert not statements or module.__all__
    assert all(hasattr(module, name) for name in getattr(module, "__all__", []))
