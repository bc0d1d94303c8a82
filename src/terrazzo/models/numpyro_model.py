"""A NumPyro model as a target: its log-density, its prior, its predictions.

The model runs under NumPyro's own handlers with every latent site substituted by a value of the space; the sum of the
sites' log-densities is log pi. What the model is made of is read once (`numpyro_sites`).
"""

import copy
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.distributions import (
    BernoulliProbs,
    BinomialProbs,
    CategoricalProbs,
    ExpandedDistribution,
    Independent,
    MaskedDistribution,
    Unit,
)
from numpyro.primitives import Messenger

from terrazzo.errors import TargetError
from terrazzo.models.base import MOST_OUTSIDE, note_of_cut
from terrazzo.models.numpyro_sites import Reading, has_mask, latent_sites, read, run
from terrazzo.results.models import Model
from terrazzo.targets.mixed import Reference
from terrazzo.targets.target import Target

NUM_PRIOR_DRAWS = 256  # over which the part of the prior outside the bounds is averaged


def target_of(model: Any, args: tuple, kwargs: dict[str, Any], bounds: Any) -> Target:
    """What `tz.from_numpyro` returns."""
    reading = read(model, args, kwargs, bounds)
    density = Density(reading)
    reference = None
    if reading.is_prior_proper:
        reference = Reference(log_prob=density.prior, draw=density.draw)
    notes = tuple(note_of_cut(name, ends) for name, ends in reading.cut.items())
    if reading.is_prior_proper and reading.cut:
        _warn_of_cut_prior(density)
    about = Model("numpyro", density.predict, reading.observed, notes)
    return Target(density.joint, reading.space, reference=reference, model=about)


class _Unobserved(Messenger):
    """Observed sites are redrawn; factors stay."""

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["is_observed"] and not isinstance(msg["fn"], Unit):
            msg["is_observed"], msg["value"] = False, None


class _Cut(Messenger):
    """Sites with bounds are drawn within them (it stands outside of `seed`, which has set their keys)."""

    def __init__(self, fn: Any, cut: Mapping[str, tuple[int, int]]):
        super().__init__(fn)
        self.cut = cut

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["name"] in self.cut and msg["value"] is None:
            low, _ = self.cut[msg["name"]]
            logits = jnp.moveaxis(_log_probs_within(msg["fn"], self.cut[msg["name"]]), 0, -1)
            msg["value"] = low + jax.random.categorical(msg["kwargs"]["rng_key"], logits).astype(jnp.int32)


class Density:
    """The functions of a model that a target needs; each traces the model again, in the precision of the call."""

    def __init__(self, reading: Reading):
        self.reading = reading

    def joint(self, values: dict[str, Any]) -> Any:
        """log p(latent sites, data)."""
        return self._sum(values, lambda site: True)

    def prior(self, values: dict[str, Any]) -> Any:
        """log p(latent sites), each cut site normalised within its bounds."""
        return self._sum(values, lambda site: site["name"] in self.reading.names, is_normalised=True)

    def _sum(self, values: dict[str, Any], is_counted: Any, *, is_normalised: bool = False) -> Any:
        trace = self._trace(values)
        total = jnp.zeros((), jnp.result_type(float))
        with jax.numpy_dtype_promotion("standard"):
            for name, site in trace.items():
                if site["type"] != "sample" or not is_counted(site):
                    continue
                log_prob = _log_prob(site, is_checked=name in self.reading.checked)
                if is_normalised and name in self.reading.cut:
                    within = _log_probs_within(site["fn"], self.reading.cut[name])
                    log_prob = log_prob - jax.nn.logsumexp(within, axis=0)
                total = total + jnp.sum(log_prob)
        return total.astype(jnp.result_type(float))

    def _trace(self, values: dict[str, Any]) -> dict[str, Any]:
        reading = self.reading
        trace = run(handlers.substitute(reading.model, data=self._typed(values)), reading.args, reading.kwargs)
        if set(latent_sites(trace)) != set(reading.names):
            raise TargetError(
                "model", "has other sites when it is called again", "make its sites the same in each call"
            )
        return trace

    def _typed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values of the types that NumPyro's own draws have: a scan carries no others."""
        wanted = {name: jnp.result_type(int if name in self.reading.discrete else float) for name in self.reading.names}
        arrays = {name: jnp.asarray(values[name]) for name in self.reading.names}
        is_relaxed = {name: jnp.issubdtype(x.dtype, jnp.floating) for name, x in arrays.items()}
        return {name: x if is_relaxed[name] and name in self.reading.discrete else x.astype(wanted[name])
                for name, x in arrays.items()}  # fmt: skip

    def draw(self, key: Any) -> dict[str, Any]:
        """A draw of the latent sites from the prior, within the bounds."""
        cut, reading = self.reading.cut, self.reading
        model = reading.model if not cut else _Cut(handlers.seed(reading.model, key), cut)
        trace = run(model, reading.args, reading.kwargs, key)
        return {
            name: jnp.asarray(trace[name]["value"]).astype(
                jnp.int32 if name in reading.discrete else jnp.result_type(float)
            )
            for name in reading.names
        }

    def outside(self, key: Any) -> dict[str, Any]:
        """How much of each cut site's prior lies outside its bounds, given a draw of what it depends on."""
        trace = self._trace(self.draw(key))
        return {
            name: 1 - jnp.exp(jax.nn.logsumexp(_log_probs_within(trace[name]["fn"], ends), axis=0)).min()
            for name, ends in self.reading.cut.items()
        }

    def predict(
        self, seed: int, draws: dict[str, np.ndarray], args: tuple, kwargs: dict[str, Any]
    ) -> dict[str, np.ndarray]:
        """New data of each draw, and the deterministic sites; with other arguments of the model if some are given."""
        reading = self.reading
        if not args and not kwargs:
            if reading.scanned:
                raise TargetError(
                    "predictive", f"{reading.scanned[0]!r} is observed inside a scan, where it stays what it is",
                    "pass the model's arguments with None as its data",
                )  # fmt: skip
            args, kwargs = reading.args, reading.kwargs
        model = _Unobserved(reading.model)
        values = self._typed(draws)

        def one(line: Any) -> dict[str, Any]:
            key, values = line
            trace = run(handlers.substitute(model, data=values), args, kwargs, key)
            return {name: site["value"] for name, site in trace.items() if _is_predicted(site, reading.names)}

        num_draws = len(next(iter(values.values())))
        keys = jax.random.split(jax.random.key(seed), num_draws)
        found = jax.jit(lambda lines: jax.lax.map(one, lines, batch_size=min(num_draws, 256)))((keys, values))
        return {name: np.asarray(value) for name, value in found.items()}


def _is_predicted(site: Mapping[str, Any], latent: Iterable[str]) -> bool:
    is_new = site["type"] == "sample" and site["name"] not in latent and not isinstance(site["fn"], Unit)
    return is_new or site["type"] == "deterministic"


def _log_prob(site: Mapping[str, Any], *, is_checked: bool) -> Any:
    """The log-density of a site, one number an element of its batch.

    A value outside the support is impossible: NumPyro's densities do not say so where a support depends on other
    sites. The density is taken at a value inside, so that its gradient is finite all the same.
    """
    fn, value = _guarded(site["fn"]), site["value"]
    if isinstance(value, int | float):  # an array is data; a number would be part of the computation
        value = jnp.asarray(value) if is_checked else np.asarray(value)  # a traced support takes JAX's arrays alone
    if not is_checked:
        log_prob = fn.log_prob(value)
    else:
        is_inside = fn.support(value)
        if has_mask(fn):
            is_inside = is_inside | ~jnp.asarray(fn._mask)
        axes = tuple(range(jnp.ndim(is_inside), jnp.ndim(value)))
        inside = jnp.where(jnp.expand_dims(is_inside, axes), value, fn.support.feasible_like(value))
        log_prob = jnp.where(is_inside, fn.log_prob(inside.astype(jnp.result_type(value))), -jnp.inf)
    scale = site["scale"]
    return log_prob if scale is None else scale * log_prob


def _guarded(fn: Any) -> Any:
    """The distribution with probabilities of exactly 0 or 1 made constants.

    NumPyro replaces them by the nearest numbers inside (0, 1). The derivative there overflows, and NaN would be the
    gradient of any model with a probability such as `z * p`.
    """
    if isinstance(fn, MaskedDistribution | ExpandedDistribution | Independent):
        made = copy.copy(fn)
        made.base_dist = _guarded(fn.base_dist)
        return made
    if isinstance(fn, BernoulliProbs | BinomialProbs | CategoricalProbs) and isinstance(fn.probs, jax.Array):
        made, limits = copy.copy(fn), jnp.finfo(fn.probs.dtype)
        is_inside = (fn.probs > limits.tiny) & (fn.probs < 1 - limits.eps)
        made.probs = jnp.where(is_inside, fn.probs, jax.lax.stop_gradient(fn.probs))
        return made
    return fn


def _log_probs_within(fn: Any, ends: tuple[int, int]) -> Any:
    """log p of each value within bounds, shape (value, *batch)."""
    values = jnp.arange(ends[0], ends[1] + 1, dtype=jnp.int32).reshape(-1, *(1,) * len(fn.batch_shape))
    with jax.numpy_dtype_promotion("standard"):
        return fn.log_prob(jnp.broadcast_to(values, (values.shape[0], *fn.batch_shape)))


def _warn_of_cut_prior(density: Density) -> None:
    keys = jax.random.split(jax.random.key(0), NUM_PRIOR_DRAWS)
    found = jax.jit(jax.vmap(density.outside))(keys)
    for name, shares in found.items():
        share = float(np.mean(np.asarray(shares)))
        if share > MOST_OUTSIDE:
            warnings.warn(
                f"{note_of_cut(name, density.reading.cut[name])}, and {100 * share:.2g} % of it lies outside"
                f"\n  -> widen bounds[{name!r}] if the data allow such values",
                RuntimeWarning, stacklevel=5,
            )  # fmt: skip
