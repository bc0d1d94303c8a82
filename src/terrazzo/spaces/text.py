"""Spaces as one line of text: `gamma: binary[100], k: integers[1, 10], colour: categorical[red, green; 4, 4]`.

    space    = variable | name ":" variable { "," name ":" variable }
    variable = "binary" [ "[" shape "]" ]
             | "integers" "[" low "," high [ ";" shape ] "]"
             | "categorical" "[" (number | label "," label ...) [ ";" shape ] "]"
    shape    = number { "," number }
    label    = a word, or any text in single or double quotes

A shape comes last: alone in `binary`, after a semicolon elsewhere. Read by hand, piece by piece: nothing is evaluated.
"""

import re
from typing import Any, NoReturn

from terrazzo.errors import SpaceError
from terrazzo.spaces import RealVariable, Space, Variable, binary, categorical, integers

TOKEN = re.compile(
    r"""\s*(?:(?P<number>[+-]?\d+)(?![\w.])|(?P<word>[^\W\d]\w*(?:[.-]\w+)*)|(?P<sign>[\[\]():;,])"""
    r"""|(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'))"""
)
KINDS = ("binary", "integers", "categorical")
EXAMPLE = 'e.g. "gamma: binary[100], k: integers[1, 10], colour: categorical[red, green, blue; 4, 4]"'
CLOSING = {"[": "]", "(": ")"}


def parse_space(text: str) -> Space:
    """The space that a text describes; `SpaceError` names the place where it goes wrong.

    >>> parse_space("gamma: binary[100], k: integers[1,10]").num_dims
    101
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
        found: dict[str, Variable] = {}
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

    def variable(self) -> Variable:
        kind = self.next()[1]
        if self.next()[0] != "word" or kind not in KINDS:
            self.fail(" or ".join(KINDS))
        self.index += 1
        opening = self.next()[1]
        if not self.sign("[("):
            if kind != "binary":
                self.fail(f"'[' after {kind}")
            return binary()
        close = CLOSING[opening]
        first = self.items(close)
        shape = None
        if self.sign(";"):
            shape = self.items(close)
        if not self.sign(close):
            self.fail(f"{close!r}")
        return self.built(kind, first, shape)

    def items(self, close: str) -> list[Any]:
        """Numbers and labels up to a semicolon or the end of the brackets."""
        found: list[Any] = []
        while True:
            kind, text = self.next()
            if kind not in ("number", "word", "quoted"):
                self.fail("a number or a label") if found or text != close else None
                return found
            self.index += 1
            found.append(int(text) if kind == "number" else _unquoted(text))
            if not self.sign(","):
                return found

    def built(self, kind: str, first: list[Any], shape: list[Any] | None) -> Variable:
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
        if len(first) == 1 and numbers(first):
            return categorical(first[0], axes)
        if len(first) < 2:
            self.index -= 1
            self.fail("a number of categories, or at least two labels")
        return categorical(first if numbers(first) else [str(item) for item in first], axes)


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
    """A variable as text; real ones are for people to read, `parse_space` takes discrete ones."""
    if isinstance(v, Variable):
        return _variable_text(v)
    shape = ", ".join(map(str, v.shape))
    bounds = f" in {v.support}" if v.kind == "real" and (v.low is not None or v.high is not None) else ""
    return f"{v.kind}[{shape}]{bounds}" if shape else f"{v.kind}{bounds}"


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
