"""Spaces as text: what is read, what is written, and where a mistake is."""

import numpy as np
import pytest

import terrazzo as tz
from terrazzo.errors import SpaceError
from terrazzo.spaces.text import format_space, parse_space


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("binary", tz.Space(tz.binary())),
        ("binary[]", tz.Space(tz.binary())),
        ("binary[100]", tz.Space(tz.binary(100))),
        ("binary(28, 28)", tz.Space(tz.binary((28, 28)))),
        ("integers[-8, 7; 3, 5]", tz.Space(tz.integers(-8, 7, shape=(3, 5)))),
        ("categorical[5]", tz.Space(tz.categorical(5))),
        ("categorical[5; 2]", tz.Space(tz.categorical(5, shape=2))),
        ("categorical[red, green]", tz.Space(tz.categorical(["red", "green"]))),
        ("categorical['a, b', \"it's\", 'x\\'y'; 2]", tz.Space(tz.categorical(["a, b", "it's", "x'y"], shape=2))),
        ("categorical[10, 20, 30]", tz.Space(tz.categorical([10, 20, 30]))),
        ("categorical[a, 2]", tz.Space(tz.categorical(["a", "2"]))),
        ("gamma: binary[100], k: integers[1,10]", tz.Space(gamma=tz.binary(100), k=tz.integers(1, 10))),
        ("real", tz.Space(tz.real())),
        ("real[]", tz.Space(tz.real())),
        ("real[3]", tz.Space(tz.real(3))),
        ("real[0, 1]", tz.Space(tz.real(0.0, 1.0))),
        ("real[-inf, 2.5; 4]", tz.Space(tz.real(high=2.5, shape=4))),
        ("real[1e-3, inf]", tz.Space(tz.real(low=0.001))),
        ("real(-inf, +inf; 2, 3)", tz.Space(tz.real((2, 3)))),
        ("w: simplex[3; 2], cut: ordered[4]", tz.Space(w=tz.simplex(3, shape=2), cut=tz.ordered(4))),
        ("inf: binary, x: real[-.5, 1.]", tz.Space(inf=tz.binary(), x=tz.real(-0.5, 1.0))),
        (" x :binary;y: binary[2], ", tz.Space(x=tz.binary(), y=tz.binary(2))),
        ("'my name': binary, größe: integers[0, 3]", tz.Space(**{"my name": tz.binary(), "größe": tz.integers(0, 3)})),
    ],
)
def test_texts_are_read_and_written(text, space):
    assert parse_space(text) == space
    assert parse_space(format_space(space)) == space


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "binary or integers or categorical or real or simplex or ordered at letter 1"),
        ("binary[4", "']' at letter 9"),
        ("binary[4]]", "the end"),
        ("binary[4], integers[0, 3]", "name them all"),
        ("x: binary, binary[3]", "':' after the name 'binary' at letter 18"),
        ("x: binary, x: binary", "'x' is there twice"),
        ("x: complex[3]", "ordered at letter 4"),
        ("x: real[0.5]", "a length, or two bounds"),
        ("x: real[0, 1, 2]", "a length, or two bounds"),
        ("x: real[; 3]", "a number at letter 9"),
        ("x: real[a, 1]", "a number at letter 9"),
        ("x: real[0, b]", "a number at letter 12"),
        ("x: real[1, 0]", "must be above low=1"),
        ("x: real[0, 1; 2.5]", "at letter 15"),
        ("x: simplex", "'[' after simplex"),
        ("x: simplex[a]", "the number of parts"),
        ("x: simplex[1]", "at least 2 parts"),
        ("x: ordered[2, 3]", "the number of parts"),
        ("x: integers", "'[' after integers"),
        ("x: integers[3]", "the least and the largest value"),
        ("x: integers[1, a]", "the least and the largest value"),
        ("x: integers[1, 5; b]", "a shape of whole numbers"),
        ("x: integers[5, 1]", "must be above low=5"),
        ("x: binary[2; 3]", "a shape alone"),
        ("x: binary[a]", "a shape alone"),
        ("x: binary[0]", "shape must be positive"),
        ("x: binary[1.5]", "at letter 11"),
        ("x: categorical[a]", "at least two labels"),
        ("x: categorical[a, a]", "must be distinct"),
        ("x: categorical[a,, b]", "a number or a label at letter 18"),
        ("x: categorical['a, b]", "at letter 16"),
        ("x: binary y: binary", "',' and the next variable at letter 11"),
        ("chain: binary", "reserved"),
        ("x: __import__('os')", "binary or integers or categorical"),
        ("x = binary", "at letter 3"),
    ],
)
def test_a_mistake_is_named_with_its_place(text, says):
    with pytest.raises(SpaceError) as error:
        parse_space(text)
    assert says in str(error.value)
    assert len(str(error.value).splitlines()) <= 3


def test_random_texts_are_read_or_refused():
    """Nothing but a `SpaceError` comes out, whatever is typed."""
    rng = np.random.default_rng(0)
    words = [
        "binary",
        "integers",
        "categorical",
        "x",
        "[",
        "]",
        "(",
        ")",
        ",",
        ";",
        ":",
        "3",
        "-2",
        "'a'",
        '"',
        " ",
        "0",
    ]
    for _ in range(3000):
        text = "".join(rng.choice(words, rng.integers(1, 12)))
        try:
            space = parse_space(text)
        except SpaceError:
            continue
        assert parse_space(format_space(space)) == space
