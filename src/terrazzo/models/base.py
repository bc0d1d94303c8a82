"""What models of other libraries have in common: supports, bounds, and what a result needs of its model."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from terrazzo.errors import OptionError, SpaceError, TargetError, arguments
from terrazzo.spaces import binary, categorical, integers

MOST_OUTSIDE = 0.01  # of the prior beyond the bounds of a site; a posterior of 1e4 effective draws is as uncertain
EXAMPLE = "e.g. bounds={'k': (0, 50)}"


class Support(NamedTuple):
    """The values of a discrete site.

    Attributes:
        kind: "binary", "integers" or "categorical".
        low: The least value; None where there is none, or where it depends on other sites.
        high: The largest value; None likewise.
        why: Why an end is open, in words.
    """

    kind: str
    low: int | None
    high: int | None
    why: str = "has no upper bound"


def checked_bounds(
    bounds: Any, discrete: Collection[str], real: Collection[str], observed: Collection[str]
) -> dict[str, tuple[int, int]]:
    """The bounds of sites by name; typed errors for anything that is no bound of a discrete site of the model."""
    if bounds is None:
        return {}
    if not isinstance(bounds, Mapping):
        raise OptionError("bounds", f"must be a dict by site, got {arguments.shown(bounds)}", EXAMPLE)
    found = {}
    for name, pair in bounds.items():
        if name in observed:
            raise OptionError(f"bounds[{name!r}]", "is of an observed site", "only latent sites are sampled")
        if name in real:
            raise OptionError(
                f"bounds[{name!r}]", "is of a real site", "give its distribution bounds, e.g. by truncating it"
            )
        if name not in discrete:
            known = ", ".join(sorted(discrete)) or "none"
            raise OptionError(f"bounds[{name!r}]", "is no site of the model", f"its discrete latent sites: {known}")
        is_pair = isinstance(pair, tuple | list) and len(pair) == 2 and all(arguments.is_integer(end) for end in pair)
        if not is_pair or pair[1] <= pair[0]:
            raise OptionError(
                f"bounds[{name!r}]", f"must be two integers, low < high, got {arguments.shown(pair)}", EXAMPLE
            )
        found[name] = (int(pair[0]), int(pair[1]))
    return found


def discrete_variable(
    name: str, support: Support, shape: tuple[int, ...], bounds: Mapping[str, tuple[int, int]], **axes: Any
) -> tuple[Any, bool]:
    """The variable of a discrete site, and whether it leaves out values that the site can take.

    Raises:
        SpaceError: A count without an end and without bounds; bounds outside the support; a single value.
    """
    low, high = support.low, support.high
    if name in bounds:
        bottom, top = bounds[name]
        if (low is not None and bottom < low) or (high is not None and top > high):
            ends = f"{'-inf' if low is None else low}..{'inf' if high is None else high}"
            raise SpaceError(f"bounds[{name!r}]", f"({bottom}, {top}) is not inside {ends}", "give a part of it")
        is_cut = (bottom, top) != (low, high)
        if support.kind == "integers" or (is_cut and support.kind == "categorical"):
            return integers(bottom, top, shape, **axes), is_cut
        if is_cut:
            raise SpaceError(f"bounds[{name!r}]", f"cut the {support.kind} site {name!r}", "leave them out")
    if low is None or high is None:
        raise SpaceError(
            f"site {name!r}", support.why, f"say which values count: bounds={{{name!r}: (0, 50)}} cuts the prior there"
        )
    if high <= low:
        raise SpaceError(f"site {name!r}", f"has the single value {low}", "leave constants out of the model")
    if support.kind == "binary":
        return binary(shape, **axes), False
    if support.kind == "categorical" and low == 0:
        return categorical(high + 1, shape, **axes), False
    return integers(low, high, shape, **axes), False


def note_of_cut(name: str, bounds: tuple[int, int]) -> str:
    """What to say of a site whose prior was cut."""
    return f"the prior of {name!r} is cut to {bounds[0]}..{bounds[1]}"


def all_equal(value: Any) -> float | None:
    """The one number that an array of bounds holds; None if there are several, or none that is finite."""
    array = np.asarray(value, float)
    first = float(array.ravel()[0]) if array.size else np.nan
    return first if np.isfinite(first) and (array == first).all() else None


def named_dims(name: str, ndim: int, known: Mapping[int, str]) -> tuple[str, ...] | None:
    """One name an axis: those that the model has, and `name_dim_i` for the others; None if it has none."""
    if not known:
        return None
    return tuple(known.get(axis, f"{name}_dim_{axis}") for axis in range(ndim))


def no_latent_sites(library: str) -> TargetError:
    return TargetError("model", "has no latent sites: everything is observed", f"leave a {library} variable unobserved")
