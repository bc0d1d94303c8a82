"""Conditional laws: some variables held at given values, the others free.

    pi(free | clamped) = pi(free, clamped) / Z_c,    Z_c = sum over the free coordinates of pi

`condition` restricts a target to its free coordinates; every sampler then works on what is left.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from terrazzo.errors import OptionError, SpaceError, TargetError, UnsupportedError, arguments
from terrazzo.spaces import Space, Variable
from terrazzo.targets.black_boxes import BlackBox
from terrazzo.targets.running_conditionals import AbstractRunningConditionals
from terrazzo.targets.target import Clamped, Target

# ---- what is clamped


def clamped_codes(space: Space, clamped: Any) -> np.ndarray:
    """The inner integer of each clamped coordinate, -1 for the free ones.

    Args:
        space: The space.
        clamped: By variable name: its value; or `{index: value}` for some of its elements; or a NumPy masked array,
            whose masked elements stay free. For a single unnamed variable any of these without the name.

    >>> import terrazzo as tz
    >>> space = tz.Space(colour=tz.categorical(["red", "green"], 3), count=tz.integers(5, 9))
    >>> clamped_codes(space, {"colour": {0: "green"}, "count": 7}).tolist()
    [1, -1, -1, 2]
    """
    if space.num_reals:
        raise UnsupportedError(
            "clamped", "conditioning is for spaces without real variables", "fix the variable inside log_prob instead"
        )
    if space.is_plain and not (isinstance(clamped, Mapping) and set(clamped) == {"theta"}):
        clamped = {"theta": clamped}
    if not isinstance(clamped, Mapping):
        raise SpaceError("clamped", f"must be a dict, got {type(clamped).__name__}", f"by {', '.join(space.names)}")
    unknown = sorted(set(map(str, clamped)) - set(space.names))
    if unknown:
        raise SpaceError("clamped", f"names {unknown}", f"the variables are {', '.join(space.names)}")
    parts = [_codes_of(name, variable, clamped.get(name)) for name, variable in space.discrete_variables]
    return np.concatenate([part.ravel() for part in parts]).astype(np.int32)


def _codes_of(name: str, variable: Variable, value: Any) -> np.ndarray:
    codes = np.full(variable.shape, -1, np.int64)
    if value is None:
        return codes
    element = dataclasses.replace(variable, shape=(), dims=None, coords=())
    if isinstance(value, Mapping):
        for index, at in value.items():
            try:
                codes[index] = element.encode(at, name)
            except (IndexError, ValueError) as error:
                if isinstance(error, SpaceError):
                    raise
                raise SpaceError(
                    name, f"cannot be clamped at index {index!r}", f"its shape is {variable.shape}"
                ) from None
    elif isinstance(value, np.ma.MaskedArray):
        if value.shape != variable.shape:
            raise SpaceError(name, f"is clamped to shape {value.shape}", f"its shape is {variable.shape}")
        is_fixed = ~np.ma.getmaskarray(value)
        codes[is_fixed] = element.encode(np.asarray(value.data)[is_fixed], name)
    else:
        codes[...] = variable.encode(value, name)
    return codes


def reduced_space(space: Space, codes: np.ndarray) -> Space:
    """The space of the free coordinates: untouched variables as they are, partly clamped ones as a vector of the rest.

    The elements of such a vector keep the names of their places, as coordinates: of the variable's own dim where it has
    one that no other variable shares, else of a dim `<name>_free`.

    >>> import terrazzo as tz
    >>> space = reduced_space(tz.Space(w=tz.binary((2, 2)), k=tz.integers(1, 3)), np.array([0, -1, -1, 1, -1]))
    >>> space.num_dims, dict(space.variables)["w"].coords
    (3, (('w_free', ('0, 1', '1, 0')),))
    """
    kept, start = {}, 0
    for name, variable in space.discrete_variables:
        is_free = (codes[start : start + variable.num_elements] < 0).reshape(variable.shape)
        start += variable.num_elements
        if is_free.all():
            kept[name] = variable
        elif is_free.any():
            own = variable.dims[0] if variable.dims and len(variable.dims) == 1 else f"{name}_free"
            is_shared = any(own in (v.dims or ()) for other, v in space.variables if other != name)
            dim, along = f"{name}_free" if is_shared else own, dict(variable.coords)
            names = variable.dims or ("",) * len(variable.shape)
            axes = [along.get(axis) or range(n) for axis, n in zip(names, variable.shape, strict=True)]
            places = [tuple(axis[i] for axis, i in zip(axes, index, strict=True)) for index in np.argwhere(is_free)]
            labels = tuple(p[0] if len(p) == 1 else ", ".join(map(str, p)) for p in places)
            kept[name] = dataclasses.replace(variable, shape=(len(places),), dims=(dim,), coords=((dim, labels),))
    if not kept:
        raise OptionError("clamped", "holds every variable fixed", "leave at least one coordinate free")
    return Space(kept["theta"]) if space.is_plain else Space(**kept)


# ---- the conditional target


class _Completion(eqx.Module):
    """From the free coordinates to the whole configuration."""

    fixed: Int[Array, " all"]
    free: tuple[int, ...] = eqx.field(static=True)
    space: Space = eqx.field(static=True)
    reduced: Space = eqx.field(static=True)

    def full(self, theta: Any) -> Any:
        """A flat configuration of the free coordinates, real or integer, completed."""
        whole = jnp.broadcast_to(self.fixed.astype(theta.dtype), (*theta.shape[:-1], self.space.num_dims))
        return whole.at[..., np.asarray(self.free)].set(theta)

    def flat(self, values: Any) -> Any:
        """The flat configuration of the free coordinates, from what a log-probability is given."""
        parts = []
        for name, variable in self.reduced.discrete_variables:
            value = values if self.reduced.is_plain else values[name]
            lead = value.shape[: value.ndim - len(variable.shape)]
            shift = jnp.asarray(variable.low, value.dtype)
            parts.append(jnp.reshape(value, (*lead, variable.num_elements)) - shift)
        return jnp.concatenate(parts, axis=-1)


class ConditionalLogProb(eqx.Module):
    """log pi at the clamped values, as a function of the free ones, with its cheap conditionals and one-hot form."""

    completion: _Completion
    log_prob_fn: Any
    site_logits_fn: Any
    one_hot_fn: Any

    def __call__(self, values: Any) -> Any:
        whole = self.completion.full(self.completion.flat(values))
        return self.log_prob_fn(self.completion.space.unflatten(whole))

    def site_logits(self, theta: Int[Array, " dim"], i: Int[Array, ""]) -> Float[Array, " max_size"]:
        """Those of the whole target, for a free coordinate."""
        site = jnp.asarray(self.completion.free, jnp.int32)[i]
        return self.site_logits_fn(self.completion.full(theta), site)[: self.completion.reduced.max_size]

    def one_hot(self, rows: Float[Array, "dim max_size"]) -> Any:
        """That of the whole target, the clamped rows in place."""
        size = self.completion.space.max_size
        whole = jax.nn.one_hot(self.completion.fixed, size, dtype=rows.dtype)
        places = np.asarray(self.completion.free)
        whole = whole.at[places].set(0.0).at[places, : rows.shape[1]].set(rows)
        return self.one_hot_fn(whole)


class _ReducedRunning(AbstractRunningConditionals):
    """The running conditionals of the whole target, seen from the free coordinates."""

    completion: _Completion
    whole: AbstractRunningConditionals

    def start(self, theta: Int[Array, " dim"]) -> Any:
        return self.whole.start(self.completion.full(theta))

    def logits(self, tables: Any, theta: Int[Array, " dim"]) -> Float[Array, "dim max_size"]:
        rows = self.whole.logits(tables, self.completion.full(theta))
        return rows[np.asarray(self.completion.free), : self.completion.reduced.max_size]

    def moved(self, tables: Any, theta: Int[Array, " dim"], i: Int[Array, ""], value: Int[Array, ""]) -> Any:
        site = jnp.asarray(self.completion.free, jnp.int32)[i]
        return self.whole.moved(tables, self.completion.full(theta), site, value)


def _on_the_host(box: BlackBox, space: Space, reduced: Space, codes: np.ndarray) -> BlackBox:
    """A black box of the free coordinates."""
    free = np.flatnonzero(codes < 0)

    def log_prob(values: Any) -> Any:
        parts = []
        for name, variable in reduced.discrete_variables:
            value = np.asarray(values if reduced.is_plain else values[name])
            lead = value.shape[: value.ndim - len(variable.shape)]
            parts.append(value.reshape(*lead, variable.num_elements) - variable.low)
        flat = np.concatenate(parts, axis=-1)
        whole = np.broadcast_to(codes, (*flat.shape[:-1], len(codes))).copy()
        whole[..., free] = flat
        return box.evaluate(space, whole) if box.vectorized else float(box.evaluate(space, whole))

    return BlackBox(log_prob, vectorized=box.vectorized, name=box.name)


def _reduced_penalty(target: Target, completion: _Completion) -> Any:
    """The penalty of the whole target, as a function of the free coordinates."""
    fn = target.penalty_fn
    if fn is None:
        return None
    if isinstance(fn, BlackBox):
        codes = np.full(target.space.num_dims, -1)
        is_fixed = ~np.isin(np.arange(len(codes)), completion.free)
        codes[is_fixed] = np.asarray(completion.fixed)[is_fixed]
        return _on_the_host(fn, target.space, completion.reduced, codes)
    return ConditionalLogProb(completion, fn, None, None)


def condition(target: Target, clamped: Any) -> Target:
    """The target of the free variables, given values of the others.

        log pi_c(free) = log pi(free, clamped)

    Its normalising constant is Z_c, so that log Z_c - log Z is the log-probability of the clamped values. Gradient,
    cheap conditionals, one-hot form, colours and temperature are those of the target; any sampler works on it.

    Args:
        target: The target.
        clamped: By variable name: its value; or `{index: value}` for some of its elements; or a NumPy masked array,
            whose masked elements stay free. For a single unnamed variable any of these without the name.

    Returns:
        A target on the space of the free coordinates: untouched variables as they are, partly clamped ones as the
        vector of their free elements (named by their places), wholly clamped ones gone.

    >>> import terrazzo as tz
    >>> target = tz.Target(lambda v: 1.0 * v["a"] * v["b"].sum(), tz.Space(a=tz.integers(1, 3), b=tz.binary(4)))
    >>> rest = condition(target, {"a": 2, "b": {0: 1}})
    >>> rest.space.names, rest.space.num_dims, float(rest.log_prob(jnp.array([1, 0, 1])))
    (('b',), 3, 6.0)
    """
    arguments.instance("target", target, Target, "e.g. tz.Target(log_prob, tz.binary(20))", TargetError)
    codes = clamped_codes(target.space, clamped)
    free = np.flatnonzero(codes < 0)
    if len(free) == len(codes):
        return target
    reduced = reduced_space(target.space, codes)
    colours = None if target.colours is None else np.asarray(target.colours)[free]
    if isinstance(target.log_prob_fn, BlackBox):
        box = _on_the_host(target.log_prob_fn, target.space, reduced, codes)
        soft = target.penalty_fn
        penalty = None if soft is None else _on_the_host(soft, target.space, reduced, codes)
        out = Target(box, reduced, colours=colours, penalty=penalty)
    else:
        fixed = jnp.asarray(np.maximum(codes, 0), jnp.int32)
        completion = _Completion(fixed, tuple(int(i) for i in free), target.space, reduced)
        fn = ConditionalLogProb(completion, target.log_prob_fn, target.site_logits_fn, target.one_hot_fn)
        out = Target(
            fn,
            reduced,
            vectorized=target.vectorized,
            site_logits=None if target.site_logits_fn is None else fn.site_logits,
            running_conditionals=None if target.running is None else _ReducedRunning(completion, target.running),
            one_hot_log_prob=None if target.one_hot_fn is None else fn.one_hot,
            colours=colours,
            penalty=_reduced_penalty(target, completion),
        )
    whole = target.clamped
    if whole is None:
        clamping = Clamped(target.space, jnp.asarray(codes))
    else:  # what was free before is clamped further
        places = np.flatnonzero(np.asarray(whole.codes) < 0)
        clamping = Clamped(whole.space, whole.codes.at[places].set(jnp.asarray(codes)))
    out = eqx.tree_at(lambda t: t.clamped, out, clamping, is_leaf=lambda x: x is None)
    return out if target.inverse_temperature is None else out.tempered(target.inverse_temperature)
