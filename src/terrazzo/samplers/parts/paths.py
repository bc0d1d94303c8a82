"""The laws between which a ladder of discrete variables leads, and their adaptation: one leg, or two.

One leg leads from the uniform law, or from a normalised reference q0, to pi. Where q0 is a product that is fitted to
the chains, there are two: a product that has missed a mode would keep it from one leg alone.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from terrazzo.errors import OptionError, UnsupportedError
from terrazzo.errors.arguments import shown
from terrazzo.samplers.kernels.gibbs import positive_int
from terrazzo.samplers.parts import ladders
from terrazzo.samplers.parts.base import Tuning
from terrazzo.samplers.parts.ladders import DEFAULT_TEMPERATURES, LadderState, adapted, as_ladder, first_state
from terrazzo.samplers.parts.pair_references import (
    mixed_log_probs,
    parts_reference,
    prior_reference,
    product_reference,
)
from terrazzo.targets.pair_models import PairReference
from terrazzo.targets.reading import is_traced
from terrazzo.targets.target import Target

UNIFORM, PRODUCT, PARTS = "uniform", "product", "parts"


class Path(NamedTuple):
    """The laws of all replicas, q0^(1 - beta) pi^beta, in the order in which neighbours swap.

    Attributes:
        betas: The inverse temperatures.
        base: q0, or None.
        legs: 1 on a leg that starts from q0, else 0; None without q0.
        cold: The first replica at beta = 1.
        ends: Those that may be at beta = 0.
    """

    betas: Float[Array, " replica"]
    base: PairReference | None
    legs: Any
    cold: int
    ends: tuple[int, ...]

    @property
    def shares(self) -> Any:
        """The power of q0 in each law."""
        return None if self.legs is None else (1 - self.betas) * self.legs


def path_of(
    target: Target, inverse_temperatures: Any, num_temperatures: int, reference: Any, second_leg: Any, product: Any
) -> Path:
    """The path of a ladder of one leg, or of two."""
    count = positive_int("num_temperatures", num_temperatures)
    found = found_reference(target, reference)
    first = as_ladder(inverse_temperatures, count, has_reference=isinstance(found, PairReference))
    if found is None:
        return Path(first, None, None, len(first) - 1, (0,))
    if isinstance(found, PairReference):
        return Path(first, found, jnp.ones_like(first), len(first) - 1, (0,))
    second = as_ladder(second_leg, len(first), has_reference=True)
    shape = (target.space.num_dims, target.space.max_size)
    log_probs = mixed_log_probs(jnp.zeros(shape, first.dtype), target.space.sizes) if product is None else product
    legs = jnp.concatenate([jnp.zeros_like(first), jnp.ones_like(second)])
    betas = jnp.concatenate([first, second[::-1]])
    return Path(betas, product_reference(log_probs), legs, len(first) - 1, (0, len(betas) - 1))


def found_reference(target: Target, reference: Any) -> Any:
    """What a ladder starts from, made on the host: the uniform law (None), "product", or a `PairReference`."""
    if isinstance(reference, PairReference):
        return reference
    if reference is None and (is_traced(target) or target.soft_level is not None):
        return None
    if reference is None:
        return prior_reference(target)
    if not isinstance(reference, str) or reference not in (UNIFORM, PRODUCT, PARTS):
        text = f"must be {UNIFORM!r}, {PRODUCT!r} or {PARTS!r}, got {shown(reference)}"
        raise OptionError("reference", text, "leave it out")
    if reference == UNIFORM:
        return None
    if target.soft_level is not None:
        raise UnsupportedError("reference", "is not for ladders through softened constraints", "leave it out")
    if reference == PRODUCT:
        return PRODUCT
    found = parts_reference(target)
    if found is None:
        text = "'parts' finds no couplings to leave out (none, or all can be summed out), or too many sites"
        raise UnsupportedError("reference", text, "leave it out")
    return found


class LegsState(NamedTuple):
    """Two legs under adaptation, and the product that the second one starts from.

    Attributes:
        first: The uniform leg.
        second: The other one.
        counts: Of the values of each site of the cold chains, in the present window; (site, value).
        product: Log-probabilities, (site, value).
    """

    first: LadderState
    second: LadderState
    counts: Float[Array, "site value"]
    product: Float[Array, "site value"]


def adapted_legs(state: LegsState, observed: tuple[Array, Array], sizes: np.ndarray) -> LegsState:
    """Both legs after one more round; where a window ends, the product is fitted to the draws of that window."""
    swap_rates, theta = observed
    num_first = state.first.rejections.shape[0]
    first = adapted(state.first, swap_rates[:, :num_first])
    second = adapted(state.second, swap_rates[:, num_first + 1 :][:, ::-1])
    counts = state.counts + jax.nn.one_hot(theta, state.counts.shape[1], dtype=state.counts.dtype).sum(axis=0)
    is_full = first.num_rounds == 0
    product = jnp.where(is_full, mixed_log_probs(counts, sizes), state.product)
    return LegsState(first, second, jnp.where(is_full, 0.0, counts), product)


def _tuning_of_legs(target: Target, first: Array) -> Tuning:
    """Adapts both legs to equal swap rates and fits the product, in windows of doubling length."""
    sizes, shape = target.space.sizes, (target.space.num_dims, target.space.max_size)

    def init() -> LegsState:
        counts = jnp.zeros(shape, first.dtype)
        second = as_ladder(None, len(first), has_reference=True)
        return LegsState(first_state(first), first_state(second), counts, mixed_log_probs(counts, sizes))

    def parameters(state: LegsState) -> dict[str, Array]:
        legs = {"inverse_temperatures": state.first.betas, "second_leg": state.second.betas}
        return {**legs, "product": state.product}

    return Tuning(
        init=init,
        parameters=parameters,
        observe=lambda state, info: (info.details["swap_rates"], state.position),
        update=lambda state, observed: adapted_legs(state, observed, sizes),
        final=parameters,
    )


def tuning(
    target: Target,
    *,
    inverse_temperatures: Any = None,
    num_temperatures: int = DEFAULT_TEMPERATURES,
    reference: Any = None,
    **_: Any,
) -> Tuning:
    """Adapts the ladder to equal swap rates, and fits the product where there is one, from the pooled chains."""
    if isinstance(reference, str) and reference == PRODUCT:
        return _tuning_of_legs(target, as_ladder(inverse_temperatures, num_temperatures))
    has_reference = isinstance(reference, PairReference)
    return ladders.tuning(as_ladder(inverse_temperatures, num_temperatures, has_reference=has_reference))
