"""Spaces as one line of text: `gamma: binary[100], k: integers[1, 10], colour: categorical[red, green; 4, 4]`.

    space    = variable | name ":" variable { "," name ":" variable }
    variable = "binary" [ "[" shape "]" ]
             | "integers" "[" low "," high [ ";" shape ] "]"
             | "categorical" "[" (number | label "," label ...) [ ";" shape ] "]"
             | "real" [ "[" (number | bound "," bound [ ";" shape ]) "]" ]
             | ("simplex" | "ordered") "[" number [ ";" shape ] "]"
    bound    = a number such as 0, -1.5 or 1e-3, or inf, or -inf
    shape    = number { "," number }
    label    = a word, or any text in single or double quotes

A shape comes last: alone in `binary`, after a semicolon elsewhere; `real[3]` is a vector, as `tz.real(3)` is. Read by
hand, piece by piece: nothing is evaluated.
"""

import re
from typing import Any, NoReturn

from terrazzo.errors import SpaceError
from terrazzo.spaces import RealVariable, Space, Variable, binary, categorical, integers, ordered, real, simplex

TOKEN = re.compile(
    r"""\s*(?:(?P<number>[+-]?\d+)(?![\w.])"""
    r"""|(?P<decimal>[+-]?(?:(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?)(?![\w.])|[+-]inf\b)"""
    r"""|(?P<word>[^\W\d]\w*(?:[.-]\w+)*)|(?P<sign>[\[\]():;,])"""
    r"""|(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'))"""
)
KINDS = ("binary", "integers", "categorical", "real", "simplex", "ordered")
ALONE = ("binary", "real")  # kinds that need no brackets
EXAMPLE = 'e.g. "gamma: binary[100], k: integers[1, 10], colour: categorical[red, green, blue; 4, 4]"'
CLOSING = {"[": "]", "(": ")"}


def parse_space(text: str) -> Space:
    """The space that a text describes; `SpaceError` names the place where it goes wrong.

    >>> parse_space("gamma: binary[100], k: integers[1,10]").num_dims
    101
    >>> parse_space("scale: real[0, inf], mean: real[2], weight: simplex[3]").num_reals
    5
    >>> parse_space("binary[4, 4]").variables[0][1].shape
    (4, 4)
    >>> parse_space("binary[4")
    Traceback (most recent call last):
    ...
    terrazzo.errors.SpaceError: space: expected ']' at letter 9, at the end of 'binary[4'
      -> e.g. "gamma: binary[100], k: integers[1, 10], colour: categorical[red, green, blue; 4, 4]"
    """
    return _Reader(text).space()


class _Reader:
    """Reads a text from left to right."""

    def __init__(self, text: str):
        self.text, self.tokens = text, []
        place = 0
        while text[place:].strip():
            match = TOKEN.match(text, place)
            if match is None:
                place += len(text[place:]) - len(text[place:].lstrip())
                self.fail("a name, a number or one of [ ] : ; ,", place)
            kind = str(match.lastgroup)
            self.tokens.append((kind, match[kind], match.start(kind)))
            place = match.end()
        self.index = 0

    def fail(self, expected: str, place: int | None = None) -> NoReturn:
        if place is None:
            place = self.tokens[self.index][2] if self.index < len(self.tokens) else len(self.text)
        where = (
            f"before {self.text[place : place + 20]!r}"
            if place < len(self.text)
            else f"at the end of {self.text[-20:]!r}"
        )
        raise SpaceError("space", f"expected {expected} at letter {place + 1}, {where}", EXAMPLE)

    def next(self) -> tuple[str, str]:
        return self.tokens[self.index][:2] if self.index < len(self.tokens) else ("end", "")

    def take(self, kind: str, expected: str) -> str:
        found, text = self.next()
        if found != kind:
            self.fail(expected)
        self.index += 1
        return text

    def sign(self, signs: str) -> bool:
        """Takes one of these signs if it comes next."""
        kind, text = self.next()
        if kind == "sign" and text in signs:
            self.index += 1
            return True
        return False

    def space(self) -> Space:
        is_named = len(self.tokens) > 1 and self.tokens[1][1] == ":"
        if not is_named:
            variable = self.variable()
            if self.next()[0] != "end":
                self.fail("the end (a single variable has no name; name them all to have several)")
            return Space(variable)
        found: dict[str, Variable | RealVariable] = {}
        while True:
            place = self.index
            name = self.take(
                self.next()[0] if self.next()[0] in ("word", "quoted") else "word", "the name of a variable"
            )
            name = _unquoted(name)
            if name in found:
                self.index = place
                self.fail(f"a new name ({name!r} is there twice)")
            if not self.sign(":"):
                self.fail(f"':' after the name {name!r}")
            found[name] = self.variable()
            if self.next()[0] == "end":
                return Space(**found)
            if not self.sign(",;"):
                self.fail("',' and the next variable")
            if self.next()[0] == "end":  # a comma at the end
                return Space(**found)

    def variable(self) -> Variable | RealVariable:
        kind = self.next()[1]
        if self.next()[0] != "word" or kind not in KINDS:
            self.fail(" or ".join(KINDS))
        self.index += 1
        opening = self.next()[1]
        if not self.sign("[("):
            if kind not in ALONE:
                self.fail(f"'[' after {kind}")
            return binary() if kind == "binary" else real()
        close = CLOSING[opening]
        first = self.items(close, has_bounds=kind == "real")
        shape = None
        if self.sign(";"):
            shape = self.items(close)
        if not self.sign(close):
            self.fail(f"{close!r}")
        return self.built(kind, first, shape)

    def items(self, close: str, *, has_bounds: bool = False) -> list[Any]:
        """Numbers and labels up to a semicolon or the end of the brackets; numbers alone where they are bounds."""
        found: list[Any] = []
        taken = ("number", "decimal") if has_bounds else ("number", "word", "quoted")
        while True:
            kind, text = self.next()
            kind = "decimal" if has_bounds and text == "inf" else kind
            if kind not in taken:
                self.fail("a number" if has_bounds else "a number or a label") if found or text != close else None
                return found
            self.index += 1
            found.append(int(text) if kind == "number" else float(text) if kind == "decimal" else _unquoted(text))
            if not self.sign(","):
                return found

    def built(self, kind: str, first: list[Any], shape: list[Any] | None) -> Variable | RealVariable:
        numbers = lambda items: all(isinstance(item, int) for item in items)
        if kind == "binary":
            if shape is not None or not numbers(first):
                self.index -= 1
                self.fail("a shape alone in binary[...]")
            return binary(tuple(first))
        if shape is not None and not (shape and numbers(shape)):
            self.index -= 1
            self.fail("a shape of whole numbers after ';'")
        axes = tuple(shape or ())
        if kind == "integers":
            if len(first) != 2 or not numbers(first):
                self.index -= 1
                self.fail("the least and the largest value in integers[low, high; shape]")
            return integers(first[0], first[1], axes)
        if kind == "real":
            return self.built_real(first, shape)
        if kind in ("simplex", "ordered"):
            if len(first) != 1 or not numbers(first):
                self.index -= 1
                self.fail(f"the number of parts in {kind}[parts; shape]")
            return (simplex if kind == "simplex" else ordered)(first[0], axes)
        if len(first) == 1 and numbers(first):
            return categorical(first[0], axes)
        if len(first) < 2:
            self.index -= 1
            self.fail("a number of categories, or at least two labels")
        return categorical(first if numbers(first) else [str(item) for item in first], axes)

    def built_real(self, first: list[Any], shape: list[int] | None) -> RealVariable:
        """A real variable: bounds and a shape, or a shape of one axis alone."""
        if not first and shape is None:
            return real()
        if len(first) == 1 and shape is None and isinstance(first[0], int):
            return real(first[0])
        if len(first) != 2:
            self.index -= 1
            self.fail("a length, or two bounds, in real[low, high; shape]")
        return real(float(first[0]), float(first[1]), shape=tuple(shape or ()))


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text[:1] in "\"'" else text


def format_space(space: Space, *, most: int | None = None) -> str:
    """The text that `parse_space` reads back (names of axes are left out).

    Args:
        space: The space.
        most: Letters after which the text is cut, for people.

    >>> format_space(Space(on=binary(3), k=integers(1, 9, shape=2), c=categorical(["a", "b c"])))
    "on: binary[3], k: integers[1, 9; 2], c: categorical[a, 'b c']"
    """
    parts = [_text_of(v) if space.is_plain else f"{_quoted(name)}: {_text_of(v)}" for name, v in space.variables]
    text = ", ".join(parts)
    return text if most is None or len(text) <= most else text[: most - 1] + "…"


def _text_of(v: Variable | RealVariable) -> str:
    """A variable as text; one with a bijection of its own is for people to read, and is not read back."""
    if isinstance(v, Variable):
        return _variable_text(v)
    shape = ", ".join(map(str, v.shape))
    if v.is_own:
        return f"real[{shape}] in {v.support}"
    if v.kind != "real":
        axes = ", ".join(map(str, v.shape[:-1]))
        return f"{v.kind}[{v.shape[-1]}{f'; {axes}' if axes else ''}]"
    if v.low is None and v.high is None and len(v.shape) < 2:
        return f"real[{shape}]" if shape else "real"
    ends = f"{_number('-inf', v.low)}, {_number('inf', v.high)}"
    return f"real[{ends}{f'; {shape}' if shape else ''}]"


def _number(open_end: str, value: float | None) -> str:
    return open_end if value is None else repr(value).removesuffix(".0")


def _variable_text(v: Variable) -> str:
    shape = ", ".join(map(str, v.shape))
    if v.kind == "binary":
        return f"binary[{shape}]" if shape else "binary"
    inner = f"{v.low}, {v.low + v.size - 1}" if v.kind == "integers" else str(v.size)
    if v.labels is not None:
        inner = ", ".join(
            str(x) if isinstance(x, int) and not isinstance(x, bool) else _quoted(str(x)) for x in v.labels
        )
    return f"{v.kind}[{inner}{f'; {shape}' if shape else ''}]"


def _quoted(text: str) -> str:
    if re.fullmatch(r"[^\W\d]\w*(?:[.-]\w+)*", text):
        return text
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
