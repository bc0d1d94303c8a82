"""`maximize`: the most probable configuration."""

import contextlib
from typing import Any

import jax
import numpy as np

from terrazzo.errors import OptionError, UnsupportedError, arguments
from terrazzo.inference.call import encoded_starts
from terrazzo.inference.search import Search
from terrazzo.results.maximum import Maximum
from terrazzo.runtime.compilation import enable_compilation_cache, loose_operations_on_host
from terrazzo.runtime.devices import chosen_devices
from terrazzo.runtime.progress import Progress
from terrazzo.spaces import MAX_ENUMERATED
from terrazzo.targets.target import Target, as_target


def maximize(
    log_prob: Any,
    space: Any = None,
    *,
    seed: int,
    num_rounds: int = 3000,
    patience: int | None = None,
    max_seconds: float | None = None,
    max_evaluations: int | None = None,
    chains: int = 4,
    num_temperatures: int = 16,
    max_inverse_temperature: float | None = None,
    kernel: Any = None,
    init: Any = None,
    enumerate_up_to: int = 4096,
    precision: str | None = None,
    progress: Any = "auto",
) -> Maximum:
    """Searches for the most probable configuration.

        argmax_theta log pi(theta)

    Small spaces are enumerated, and where the terms of the function tie few sites together, the maximum is found and
    proven site by site. Elsewhere, and where `init` or `kernel` is given: parallel tempering with a cold end beyond
    beta = 1, then coordinate ascent from the best configurations it met.

    The same seed gives the same answer unless `max_seconds` cuts it short.

    Args:
        log_prob: Takes one configuration and returns a scalar; or a `tz.blackbox`; or a `tz.Target`. It need not be
            normalisable or even a probability: any function to be maximised.
        space: A `tz.Space`, or a single variable (left out for a `tz.Target`).
        seed: Of the search.
        num_rounds: Rounds of tempering, at most; a round is one sweep of every replica and one of swaps.
        patience: Stop after so many rounds without a better configuration; by default only `num_rounds` ends the
            search. (The paper's Ising task needs up to 2900 rounds, with pauses of more than 1000.)
        max_seconds: Stop the tempering after so many seconds (compilation included).
        max_evaluations: Evaluations of log pi to spend, at most; a small budget gets fewer replicas.
        chains: Independent ladders.
        num_temperatures: The length of each ladder.
        max_inverse_temperature: Its cold end; by default such that typical changes of one site are frozen there, and at
            least 1.
        kernel: The kernel of the replicas, such as `tz.samplers.gibbs(num_updates=4)`; by default Gibbs sweeps (by
            colours if the target has them, by slices if variables have many values).
        init: Configurations to start from, in the user's values, with or without a leading axis. The best of these and
            of some random ones start the ladders.
        enumerate_up_to: Spaces of at most so many configurations are enumerated.
        precision: "float64" to compute everything in double precision.
        progress: "auto", "rich", "plain" or "off" (or True, False).

    Returns:
        A `Maximum`. Ctrl-C returns the best so far, marked incomplete.

    >>> import jax.numpy as jnp, terrazzo as tz
    >>> best = maximize(lambda t: -jnp.abs(t.sum() - 7.0), tz.integers(0, 9, 3), seed=0, progress="off")
    >>> int(best.theta.sum()), best.log_prob, best.is_proven
    (7, -0.0, True)
    """
    counts = {"num_rounds": num_rounds, "chains": chains, "num_temperatures": num_temperatures}
    for name, value in (counts | ({} if patience is None else {"patience": patience})).items():
        arguments.count(name, value)
    if max_evaluations is not None:
        max_evaluations = arguments.count("max_evaluations", max_evaluations, high=2**63)
    enumerate_up_to = arguments.count("enumerate_up_to", enumerate_up_to, low=0, high=MAX_ENUMERATED)
    for name, number in (("max_seconds", max_seconds), ("max_inverse_temperature", max_inverse_temperature)):
        if number is not None:
            arguments.number(name, number)
    seed = arguments.seed_number(seed)
    if precision is not None:
        arguments.choice("precision", precision, ("float32", "float64"))
    enable_compilation_cache()
    in_precision = contextlib.nullcontext() if precision is None else jax.enable_x64(precision == "float64")
    with in_precision, loose_operations_on_host(chosen_devices()[0]), Progress(progress) as reporter:
        reporter.phase("probing")
        target = as_target(log_prob, space)
        if target.space.num_reals:
            raise UnsupportedError(
                "space", "has real variables, over which maximize does not search", "sample, and take the best draw"
            )
        size = f"{chains} ladders of {num_temperatures} temperatures"
        arguments.memory(size, 32.0 * chains * num_temperatures * target.space.num_dims, "ask for fewer")
        given = None if init is None else _checked_init(target, init)
        search = Search(target, int(seed), reporter, max_seconds, max_evaluations)
        if target.space.num_states <= min(enumerate_up_to, max_evaluations or enumerate_up_to):
            search.enumerate()
        elif given is not None or kernel is not None or not search.eliminate():
            search.pilot(given, chains)
            ladder = search.ladder(num_temperatures, max_inverse_temperature)
            search.temper(ladder, chains, num_rounds, patience, kernel)
            search.ascend()
        return search.maximum()


def _checked_init(target: Target, init: Any) -> np.ndarray:
    rows = np.atleast_2d(encoded_starts(init, target))
    if rows.ndim != 2 or not len(rows):
        raise OptionError("init", f"has leading shape {rows.shape[:-1]}", "one row a configuration")
    return rows
