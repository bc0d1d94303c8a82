"""Targets: a log-probability on a space, probed before anything long starts.

A `Target` is log pi(theta), unnormalised, evaluated pointwise on flat integers (docs/theory.md), with what is known
about it. JAX hides mistakes (NaN, vector-valued functions, indices out of range all run), so every target is probed.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from terrazzo.errors import GradientError, TargetError, arguments
from terrazzo.spaces import Configuration, Space, as_space
from terrazzo.targets import mixed, probing
from terrazzo.targets.black_boxes import BlackBox, called_back
from terrazzo.targets.pair_models import PairReference
from terrazzo.targets.running_conditionals import AbstractRunningConditionals
from terrazzo.targets.starts import find_starts, uniform_starts
from terrazzo.targets.summing import summed
from terrazzo.targets.tracing import here_and_now, in_this_precision, traced

MAX_REDRAWS = 100
SOFTNESS = 4.0  # nats for each violated constraint, at beta = 1


def after(earlier: Float[Array, ""], theta: Int[Array, " dim"]) -> Int[Array, " dim"]:
    """The configuration, but not before a log-probability is known.

    XLA may run what does not depend on each other at the same time, and on a CPU two batches of linear algebra then
    wait for each other's threads forever (jaxlib 0.10, a Cholesky factor in each). `log_prob` is never NaN, but the
    compiler does not know that.
    """
    return jnp.where(jnp.isnan(earlier), 0, theta)


class Clamped(eqx.Module):
    """Of which space a target is a conditional law, and the value of each fixed coordinate there (-1 for free ones)."""

    space: Space = eqx.field(static=True)
    codes: Int[Array, " all"]


class Target(eqx.Module):
    """An unnormalised log-probability on a `Space`.

    Args:
        log_prob: Takes one configuration (a plain array for a single unnamed variable, else a dict) and returns a
            scalar; or a `blackbox`. Functions that differ only in their data share their compiled code.
        space: A `Space` or a single variable.
        vectorized: Whether `log_prob` takes a batch with a leading axis and returns a vector.
        terms: Whether `log_prob` returns a vector of terms, whose sum is log pi (in a batch, along the last axis).
        site_logits: Optional cheap conditionals: `site_logits(theta, i)` returns, for flat theta and a coordinate i,
            log pi with theta_i set to 0..K_max-1, up to a constant (entries beyond K_i are ignored).
        running_conditionals: Optional conditionals of all sites at once, kept up while sites change.
        one_hot_log_prob: Optional log-probability of a (d, K_max) array of (relaxed) one-hot rows, for
            gradient-informed moves of unordered variables.
        colours: Optional colouring of the interaction graph: int[d]; coordinates of one colour do not interact.
        reference: Optional distribution that tempering starts from, such as the prior. Without real variables it is
            used where it is a product of sites.
        model: What a model of another library knows beyond its log-density (see `tz.from_numpyro`): its data, and how
            to predict new ones. It reaches the result, and takes no part in sampling.
        penalty: Optional soft form of the constraints: takes what `log_prob` takes and returns how many constraints are
            violated, 0 exactly where `log_prob` is finite. It is used to find starts where chance finds none.
        probe: Whether to check the function, and every hint against it, now (recommended; takes a fraction of a
            second).

    >>> import jax.numpy as jnp, terrazzo as tz
    >>> target = Target(lambda theta: jnp.sum(theta * 0.5), tz.binary(3))
    >>> float(target.log_prob(jnp.array([1, 0, 1])))
    1.0
    """

    space: Space = eqx.field(static=True)
    log_prob_fn: Any
    site_logits_fn: Any
    running: AbstractRunningConditionals | None
    one_hot_fn: Any
    colours: tuple[int, ...] | None = eqx.field(static=True)
    penalty_fn: Any
    vectorized: bool = eqx.field(static=True)
    has_gradient: bool = eqx.field(static=True)
    has_real_gradient: bool = eqx.field(static=True)
    reference: mixed.Reference | None
    model: Any = eqx.field(static=True)
    inverse_temperature: Any
    base: PairReference | None
    soft_level: Any
    clamped: Clamped | None

    def __init__(
        self,
        log_prob: Callable | BlackBox,
        space: Any,
        *,
        vectorized: bool = False,
        terms: bool = False,
        site_logits: Callable | None = None,
        running_conditionals: AbstractRunningConditionals | None = None,
        one_hot_log_prob: Callable | None = None,
        colours: Any = None,
        penalty: Callable | BlackBox | None = None,
        reference: mixed.Reference | None = None,
        model: Any = None,
        probe: bool = True,
    ):
        self.space = as_space(space)
        probing.check_functions(log_prob, penalty, site_logits=site_logits, one_hot_log_prob=one_hot_log_prob)
        if self.space.num_reals:
            hints = (site_logits, running_conditionals, one_hot_log_prob, colours, penalty)
            mixed.refuse_hints(dict(zip(mixed.NO_HINTS, hints, strict=True)))
        if arguments.flag("terms", terms):
            log_prob = summed(log_prob, vectorized=vectorized)
        self.model = model
        self.log_prob_fn = log_prob
        self.site_logits_fn = site_logits
        self.running = running_conditionals
        self.one_hot_fn = one_hot_log_prob
        self.colours = None if colours is None else probing.checked_colours(colours, self.space)
        if isinstance(log_prob, BlackBox) and penalty is not None and not isinstance(penalty, BlackBox):
            penalty = BlackBox(penalty, vectorized=log_prob.vectorized)
        self.penalty_fn = penalty
        self.vectorized = arguments.flag("vectorized", vectorized)
        self.has_gradient = self.has_real_gradient = False
        with jax.enable_x64(True):
            self.reference = mixed.checked_reference(reference, self.space)
        self.inverse_temperature = self.base = None
        self.soft_level = None
        self.clamped = None
        probe = arguments.flag("probe", probe)
        if self.space.num_reals:
            with jax.enable_x64(True):  # reals are moved in float64 unless the user says otherwise
                self.has_real_gradient = mixed.probe(self) if probe else not self.is_blackbox
                mixed.trace(self)
            return
        if probe and not self.is_blackbox:
            probing.probe_shape(self)
        self._trace()
        if probe:
            probing.probe_values(self)
            self.has_gradient = probing.probe_gradient(self)
            probing.probe_penalty(self)
            probing.probe_hints(self)

    def _trace(self) -> None:
        """Replaces plain functions by what they compute and their data; `log_prob_fn` then takes one configuration."""
        dim, size = self.space.num_dims, self.space.max_size
        theta, one = jax.ShapeDtypeStruct((dim,), jnp.int32), jax.ShapeDtypeStruct((), jnp.int32)
        if not self.is_blackbox:
            single = _single(self.log_prob_fn) if self.vectorized else self.log_prob_fn
            example = jax.eval_shape(self.space.unflatten, theta)
            found = traced(single, example)
            if found is not single:
                if self.penalty_fn is not None and self.vectorized:
                    self.penalty_fn = _single(self.penalty_fn)
                self.log_prob_fn, self.vectorized = found, False
            if not self.vectorized:
                self.penalty_fn = traced(self.penalty_fn, example)
        self.site_logits_fn = traced(self.site_logits_fn, theta, one)
        self.one_hot_fn = traced(self.one_hot_fn, jax.ShapeDtypeStruct((dim, size), jnp.result_type(float)))

    def without_model(self) -> "Target":
        """The target without what only its result needs: two models that differ in their data share compiled code."""
        if self.model is None:
            return self
        made = object.__new__(Target)
        for field in dataclasses.fields(self):
            object.__setattr__(made, field.name, None if field.name == "model" else getattr(self, field.name))
        return made

    @property
    def compilation_group(self) -> Any:
        """What compiled code depends on: the computation, and the shapes of its data."""
        parts = (self.log_prob_fn, self.site_logits_fn, self.running, self.one_hot_fn, self.penalty_fn)
        arrays, rest = eqx.partition(parts, eqx.is_array)
        shapes = tuple((x.shape, str(x.dtype)) for x in jax.tree.leaves(arrays))
        leaves, tree = jax.tree.flatten(rest)
        return self.space, self.colours, shapes, tuple(leaves), tree

    @property
    def is_blackbox(self) -> bool:
        return isinstance(self.log_prob_fn, BlackBox)

    @property
    def has_cheap_neighbours(self) -> bool:
        """Whether the conditionals of all sites cost less than evaluating all neighbours."""
        return self.site_logits_fn is not None or self.running is not None

    def log_prob(self, theta: Int[Array, " dim"]) -> Float[Array, ""]:
        """log pi at one flat configuration.

        -inf means impossible. NaN and +inf both come out as +inf: a chain that meets one stays on it, where the
        end-of-chunk check of `inference` finds it and reports the configuration.
        """
        value = called_back(self.log_prob_fn, self.space, theta) if self.is_blackbox else self._traced(theta)
        value = jnp.where(jnp.isnan(value), jnp.inf, value)
        if self.soft_level is not None and self.inverse_temperature is not None:
            value = jnp.where(self.inverse_temperature == 1, value, self._softened(theta, value))
        return self.tempered_values(value, self.of_base(lambda q0: q0.log_density(theta)))

    def log_density(self, theta: Int[Array, " dim"], y: Float[Array, " real"]) -> Float[Array, ""]:
        """log pi of a mixed configuration, as a density of the unconstrained y: see `targets.mixed`."""
        value = self.log_prob_of(theta, y) + self.space.log_jacobian(y)
        return jnp.where(jnp.isnan(value), -jnp.inf, value)

    def log_prob_of(self, theta: Int[Array, " dim"], y: Float[Array, " real"]) -> Float[Array, ""]:
        """`log_density` without the Jacobian: log pi in the user's scale."""
        return self.given(y).log_prob_fn(self.space.discrete.unflatten(theta))

    def unguarded(self, theta: Int[Array, " dim"], y: Float[Array, " real"]) -> Float[Array, ""]:
        """log pi in the user's scale as the function itself has it: what its structure is read from."""
        return self._called(self.space.unflatten(theta, y))

    def given(self, y: Float[Array, " real"]) -> "Target":
        """The discrete target of a mixed one at fixed reals y (unconstrained; it may be traced)."""
        return mixed.of_given(self, y, Target)

    def softened(self, level: float) -> "Target":
        """The target whose tempered forms below beta = 1 let chains pass through impossible configurations.

        There log pi counts as `level` less 4 nats for each violated constraint. At beta = 1 nothing changes.
        """
        value = jnp.asarray(level, jnp.result_type(float))
        return eqx.tree_at(lambda t: t.soft_level, self, value, is_leaf=lambda x: x is None)

    @property
    def can_be_soft(self) -> bool:
        """Whether there is a penalty that compiled code can use, and no hint that knows nothing of it."""
        has_hints = self.has_cheap_neighbours or self.colours is not None
        return self.penalty_fn is not None and not isinstance(self.penalty_fn, BlackBox) and not has_hints

    def soft_log_prob(self, theta: Int[Array, " dim"]) -> Float[Array, ""]:
        """What replicas below beta = 1 temper: log pi, or its softened form."""
        value = self.log_prob(theta)
        return value if self.soft_level is None else self._softened(theta, value)

    def _softened(self, theta: Array, value: Array) -> Array:
        return jnp.where(value == -jnp.inf, self.soft_level - SOFTNESS * self.penalty(theta), value)

    def tempered(self, inverse_temperature: Any, base: PairReference | None = None) -> "Target":
        """The target q0^(1 - beta) pi^beta, with beta = `inverse_temperature` (may be traced); without a base, pi^beta.

        Impossible stays impossible at 0. Tempering is from the untempered target: `target.tempered(0.5).tempered(0.1)`
        has beta = 0.1.
        """
        beta = jnp.asarray(inverse_temperature, jnp.result_type(float))
        return eqx.tree_at(lambda t: (t.inverse_temperature, t.base), self, (beta, base), is_leaf=lambda x: x is None)

    def tempered_values(self, value: Array, of_base: Array | None) -> Array:
        """beta times log-probabilities, of configurations or of values of a site; impossible stays impossible.

        Args:
            value: The log-probabilities.
            of_base: What `of_base` says of the same configurations or values; None for what has no part in log q0.
        """
        if self.inverse_temperature is None:
            return value
        tempered = self.inverse_temperature * value
        return jnp.where(jnp.isinf(value), value, tempered if of_base is None else tempered + of_base)

    def of_base(self, part: Callable[[PairReference], Array]) -> Array | None:
        """(1 - beta) times a part of log q0; None where tempering is from the counting measure."""
        if self.base is None or self.inverse_temperature is None:
            return None
        return (1 - self.inverse_temperature) * part(self.base)

    def site_logits(self, theta: Int[Array, " dim"], i: Int[Array, ""]) -> Float[Array, " max_size"]:
        """log pi with theta_i set to 0..K_max-1, up to a constant; -inf beyond K_i.

        Uses the target's own `site_logits` where it has one, else evaluates all K_max candidates in one batch.
        """
        values = jnp.arange(self.space.max_size, dtype=theta.dtype)
        size = jnp.asarray(self.space.sizes)[i]
        if self.site_logits_fn is None:
            inside = jnp.minimum(values, size - 1)
            logits = jax.vmap(lambda k: self.log_prob(theta.at[i].set(k)))(inside)
        else:
            with jax.default_matmul_precision("highest"):
                logits = self.site_logits_fn(theta, i)
            return self.cheap_logits(logits, values < size, self.of_base(lambda q0: q0.site_logits(theta)[i]))
        return jnp.where(values < size, logits, -jnp.inf)

    def cheap_logits(
        self, logits: Float[Array, "*site value"], is_value: Any, of_base: Array | None
    ) -> Float[Array, "*site value"]:
        """Conditionals that did not come from `log_prob`, tempered; -inf at what is no value of a site."""
        return jnp.where(is_value, self.tempered_values(logits.astype(jnp.result_type(float)), of_base), -jnp.inf)

    def running_logits(self, tables: Any, theta: Int[Array, " dim"]) -> Float[Array, "dim max_size"]:
        """The conditionals of all sites from the tables of `running`, tempered; -inf beyond K_i."""
        assert self.running is not None
        with jax.default_matmul_precision("highest"):
            logits = self.running.logits(tables, theta)
        of_base = self.of_base(lambda q0: q0.site_logits(theta))
        return self.cheap_logits(logits, np.arange(self.space.max_size) < self.space.sizes[:, None], of_base)

    def with_running(self, running: AbstractRunningConditionals | None) -> "Target":
        """The target with running conditionals that are known to be its own."""
        return eqx.tree_at(lambda t: t.running, self, running, is_leaf=lambda x: x is None)

    def all_site_logits(self, theta: Int[Array, " dim"]) -> Float[Array, "dim max_size"]:
        """`site_logits` of every site."""
        if self.running is not None:
            return self.running_logits(self.running.start(theta), theta)
        return jax.vmap(lambda i: self.site_logits(theta, i))(jnp.arange(self.space.num_dims, dtype=jnp.int32))

    def log_prob_relaxed(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        """log pi at real theta, for gradients (straight-through training, gradient-informed proposals)."""
        if not self.has_gradient:
            raise GradientError(
                "log_prob",
                "cannot be differentiated at real theta",
                "write it with differentiable operations on theta, or choose a method that needs no gradient",
            )
        return self.tempered_values(self._traced(theta), None)

    def slope(self, theta: Int[Array, " dim"]) -> Float[Array, " dim"]:
        """The gradient of `log_prob_relaxed` at a configuration, without the part of a ladder's base.

        Taken with respect to the user's own values, made real: the compiler then finds that `log_prob` at the same
        configuration does the same work, and does it once.
        """
        dtype = jnp.result_type(float)
        real = jax.tree.map(lambda v: v.astype(dtype), self.space.unflatten(theta))
        gradients = jax.grad(lambda values: self.tempered_values(self._called(values), None))(real)
        parts = [gradients] if self.space.is_plain else [gradients[name] for name in self.space.names]
        return jnp.concatenate([part.reshape(-1) for part in parts])

    def _traced(self, theta: Array) -> Float[Array, ""]:
        return self._called(self.space.unflatten(theta))

    def _called(self, values: Any) -> Float[Array, ""]:
        with jax.default_matmul_precision("highest"):  # TF32 would be wrong by whole nats at log pi ~ 5000
            if self.vectorized:
                values = jax.tree.map(lambda v: v[None], values)
                out = self.log_prob_fn(values)[0]
            else:
                out = here_and_now(self.log_prob_fn)(values)
        return jnp.asarray(out).astype(jnp.result_type(float))

    def penalty(self, theta: Int[Array, " dim"]) -> Float[Array, ""]:
        """How many constraints a flat configuration violates; the target must have been given a `penalty`."""
        values = self.space.unflatten(theta)
        if self.vectorized:
            return self.penalty_fn(jax.tree.map(lambda v: v[None], values))[0].astype(jnp.result_type(float))
        return jnp.asarray(self.penalty_fn(values)).astype(jnp.result_type(float))

    def possible_starts(self, key: Array, num_chains: int) -> Int[Array, "chain dim"] | Configuration:
        """Configurations of positive probability: uniform ones where these are common, else what a search finds.

        Impossible ones are redrawn, 100 times and then up to a million times within two seconds; a target with a
        `penalty` goes down that instead (see `starts`). Raises `StartError` where all of this finds none.
        """
        if self.space.num_reals:
            return mixed.possible_starts(self, key, num_chains)
        theta, log_prob = uniform_starts(self, key, num_chains, 1 if self.is_blackbox else MAX_REDRAWS)
        first, values = np.asarray(theta), np.asarray(log_prob)
        if (values == np.inf).any():
            raise probing.non_finite_error(self, first[(values == np.inf).argmax()])
        if (values > -np.inf).all():
            return theta
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().astype(np.uint32).tolist())
        found = find_starts(
            probing.log_prob_evaluator(self), self.space.sizes, rng, num_chains, given=first[values > -np.inf],
            penalty=None if self.penalty_fn is None else probing.penalty_evaluator(self),
        )  # fmt: skip
        return jnp.asarray(found, jnp.int32)


def _single(function: Callable) -> Callable:
    """A function of a batch, as one of a single configuration."""
    return lambda values: function(jax.tree.map(lambda v: v[None], values))[0]


def as_target(log_prob: Any, space: Any = None) -> Target:
    """A `Target` as it is, or a log-probability and its space made into one."""
    if isinstance(log_prob, Target):
        if space is not None and as_space(space) != log_prob.space:
            raise TargetError("space", "differs from the target's own space", "leave it out: sample(target, seed=0)")
        return log_prob if log_prob.space.num_reals else in_this_precision(log_prob)  # reals are moved in float64
    if space is not None:
        return Target(log_prob, space)
    raise TargetError("space", "is missing", "e.g. tz.sample(log_prob, tz.binary(20), seed=0)")
