"""The samplers. Adding one is one file in `kernels` and one entry here; every law of docs/theory.md then applies.

`tz.samplers.gibbs` is an entry of the registry; calling it binds options (`tz.samplers.gibbs(num_updates=4)`), and its
`factory` builds the kernel for a target.
"""

import difflib
from typing import Any

from terrazzo.errors import OptionError
from terrazzo.errors.arguments import shown
from terrazzo.samplers.kernels import any_scale as _any_scale
from terrazzo.samplers.kernels import binary_hmc as _binary_hmc
from terrazzo.samplers.kernels import blocked as _blocked
from terrazzo.samplers.kernels import blocks as _blocks
from terrazzo.samplers.kernels import collapsed as _collapsed
from terrazzo.samplers.kernels import coloured_gibbs as _coloured_gibbs
from terrazzo.samplers.kernels import discontinuous_hmc as _discontinuous_hmc
from terrazzo.samplers.kernels import discrete_langevin as _discrete_langevin
from terrazzo.samplers.kernels import dlmc as _dlmc
from terrazzo.samplers.kernels import exact as _exact
from terrazzo.samplers.kernels import gaussian_integral_hmc as _gaussian_integral_hmc
from terrazzo.samplers.kernels import gibbs as _gibbs
from terrazzo.samplers.kernels import gibbs_with_gradients as _gibbs_with_gradients
from terrazzo.samplers.kernels import hybrid as _hybrid
from terrazzo.samplers.kernels import importance as _importance
from terrazzo.samplers.kernels import integer_metropolis as _integer_metropolis
from terrazzo.samplers.kernels import locally_balanced as _locally_balanced
from terrazzo.samplers.kernels import metropolis as _metropolis
from terrazzo.samplers.kernels import mixed_hybrid as _mixed_hybrid
from terrazzo.samplers.kernels import pairs as _pairs
from terrazzo.samplers.kernels import path_auxiliary as _path_auxiliary
from terrazzo.samplers.kernels import slice_gibbs as _slice_gibbs
from terrazzo.samplers.kernels import smc as _smc
from terrazzo.samplers.kernels import swendsen_wang as _swendsen_wang
from terrazzo.samplers.kernels import tabu as _tabu
from terrazzo.samplers.kernels import tempered as _tempered
from terrazzo.samplers.kernels import tempering as _tempering
from terrazzo.samplers.kernels import tree_gibbs as _tree_gibbs
from terrazzo.samplers.kernels import zanella as _zanella
from terrazzo.samplers.kernels.latent import elliptical_slice as _latent_elliptical_slice
from terrazzo.samplers.kernels.latent import hmc as _latent_hmc
from terrazzo.samplers.kernels.latent import independence as _latent_independence
from terrazzo.samplers.kernels.latent import mala as _latent_mala
from terrazzo.samplers.kernels.latent import nuts as _latent_nuts
from terrazzo.samplers.kernels.latent import pcn as _latent_pcn
from terrazzo.samplers.kernels.latent import random_walk as _latent_random_walk
from terrazzo.samplers.parts import paths as _paths
from terrazzo.samplers.parts.base import BoundSampler as BoundSampler
from terrazzo.samplers.parts.base import Drawn as Drawn
from terrazzo.samplers.parts.base import Info as Info
from terrazzo.samplers.parts.base import SamplerSpec as SamplerSpec
from terrazzo.samplers.parts.base import SamplingAlgorithm as SamplingAlgorithm
from terrazzo.samplers.parts.base import State as State
from terrazzo.samplers.parts.base import Tuning as Tuning
from terrazzo.samplers.parts.own import is_kernel as is_kernel
from terrazzo.samplers.parts.own import own_sampler as own_sampler
from terrazzo.samplers.parts.ratios import check_gradient as _check_gradient
from terrazzo.samplers.parts.reading import prepare_neighbours as _prepare_neighbours
from terrazzo.samplers.parts.real_moves import check_mixed as _check_mixed
from terrazzo.samplers.parts.real_moves import mixed_record as _mixed_record

_GRADIENT, _ORDERED, _TRANSPORT = frozenset({"gradient"}), frozenset({"ordered"}), frozenset({"transport"})
_REALS = frozenset({"reals"})

# fmt: off
metropolis = SamplerSpec(
    "metropolis", _metropolis.metropolis, "random walk: +-1 steps or redraws of several coordinates",
    "Metropolis et al. (1953)", tuning=_metropolis.tuning)
integer_metropolis = SamplerSpec(
    "integer_metropolis", _integer_metropolis.integer_metropolis, "rounded Gaussian steps with learned covariance",
    "Haario et al. (2001)", needs=_ORDERED, tuning=_integer_metropolis.tuning, check=_integer_metropolis.check)
gibbs = SamplerSpec(
    "gibbs", _gibbs.gibbs, "Gibbs, random scan: one site a step", "Geman & Geman (1984)", prepare=_gibbs.prepare)
systematic_gibbs = SamplerSpec(
    "systematic_gibbs", _gibbs.systematic_gibbs, "Gibbs, a whole sweep a step", "Geman & Geman (1984)",
    prepare=_gibbs.prepare_systematic)
metropolised_gibbs = SamplerSpec(
    "metropolised_gibbs", _gibbs.metropolised_gibbs, "Gibbs that never proposes to stay", "Liu (1996)")
block_gibbs = SamplerSpec("block_gibbs", _blocks.block_gibbs, "Gibbs, several sites jointly", "Jensen et al. (1995)")
pair_gibbs = SamplerSpec(
    "pair_gibbs", _pairs.pair_gibbs, "Gibbs, two random sites jointly: for constraints that tie sites together",
    "Jensen et al. (1995)")
swap = SamplerSpec(
    "swap", _pairs.swap, "exchanges of two values, for fixed counts, and redraws of one site", "Kawasaki (1966)")
coloured_gibbs = SamplerSpec(
    "coloured_gibbs", _coloured_gibbs.coloured_gibbs, "Gibbs, all sites of one colour of the graph at once",
    "Gonzalez et al. (2011)", prepare=_coloured_gibbs.prepare, distribution=_coloured_gibbs.DISTRIBUTION)
slice_gibbs = SamplerSpec(
    "slice_gibbs", _slice_gibbs.slice_gibbs, "slice sampling of one site: O(log K) evaluations", "Neal (2003)")
hamming_ball = SamplerSpec(
    "hamming_ball", _blocks.hamming_ball, "exact redraw in a random Hamming ball", "Titsias & Yau (2017)")
locally_balanced = SamplerSpec(
    "locally_balanced", _locally_balanced.locally_balanced, "single-site moves by exact, balanced ratios",
    "Zanella (2020)", prepare=_prepare_neighbours)
zanella = SamplerSpec(
    "zanella", _zanella.zanella, "continuous-time, rejection-free, on a time grid", "Zanella (2020)",
    tuning=_zanella.tuning, prepare=_prepare_neighbours)
tabu = SamplerSpec(
    "tabu", _tabu.tabu, "a Zanella process that does not undo its moves", "Power & Goldman (2019)",
    tuning=_zanella.tuning, prepare=_prepare_neighbours)
gibbs_with_gradients = SamplerSpec(
    "gibbs_with_gradients", _gibbs_with_gradients.gibbs_with_gradients, "single-site moves by gradient",
    "Grathwohl et al. (2021)", needs=_GRADIENT, check=_check_gradient)
discrete_langevin = SamplerSpec(
    "discrete_langevin", _discrete_langevin.discrete_langevin, "DMALA: all coordinates along the gradient",
    "Zhang et al. (2022)", needs=_GRADIENT, tuning=_discrete_langevin.tuning, check=_check_gradient)
path_auxiliary = SamplerSpec(
    "path_auxiliary", _path_auxiliary.path_auxiliary, "PAS: a path of informed changes, one correction",
    "Sun et al. (2022)", needs=_GRADIENT, tuning=_path_auxiliary.tuning, check=_check_gradient)
dlmc = SamplerSpec(
    "dlmc", _dlmc.dlmc, "Wasserstein gradient flow in every coordinate", "Sun et al. (2023)", needs=_GRADIENT,
    tuning=_dlmc.tuning, check=_check_gradient)
any_scale = SamplerSpec(
    "any_scale", _any_scale.any_scale, "a learned quadratic model, from local to global steps", "Sun et al. (2023)",
    needs=_GRADIENT | _ORDERED, tuning=_any_scale.tuning, check=_any_scale.check)
discontinuous_hmc = SamplerSpec(
    "discontinuous_hmc", _discontinuous_hmc.discontinuous_hmc, "Laplace momentum, coordinate by coordinate",
    "Nishimura et al. (2020)", tuning=_discontinuous_hmc.tuning)
binary_hmc = SamplerSpec(
    "binary_hmc", _binary_hmc.binary_hmc, "exact motion between the walls of binary variables",
    "Pakman & Paninski (2013)", needs=frozenset({"binary"}), check=_binary_hmc.check_binary)
gaussian_integral_hmc = SamplerSpec(
    "gaussian_integral_hmc", _gaussian_integral_hmc.gaussian_integral_hmc,
    "HMC on a Gaussian augmentation of pairwise models", "Zhang et al. (2012)", needs=frozenset({"binary", "pairwise"}),
    tuning=_gaussian_integral_hmc.tuning, check=_gaussian_integral_hmc.check, prepare=_gaussian_integral_hmc.prepare)
swendsen_wang = SamplerSpec(
    "swendsen_wang", _swendsen_wang.swendsen_wang, "cluster flips for Ising and Potts models",
    "Swendsen & Wang (1987)", needs=frozenset({"pairwise"}), check=_swendsen_wang.check, prepare=_swendsen_wang.prepare)
tree_gibbs = SamplerSpec(
    "tree_gibbs", _tree_gibbs.tree_gibbs, "Gibbs, all sites of an induced forest at once, for pair models",
    "Hamze & de Freitas (2004)", needs=frozenset({"pairwise"}), check=_tree_gibbs.check, prepare=_tree_gibbs.prepare)
parallel_tempering = SamplerSpec(
    "parallel_tempering", _tempering.parallel_tempering, "a ladder of temperatures over any other kernel",
    "Syed et al. (2022)", tuning=_paths.tuning, prepare=_tempering.prepare, record=_tempering.replicas,
    distribution=_tempering.DISTRIBUTION)
hybrid = SamplerSpec(
    "hybrid", _hybrid.hybrid, "a global move through a transport, then local moves", "Gabrie et al. (2022)",
    needs=_TRANSPORT, prepare=_hybrid.prepare)
latent_random_walk = SamplerSpec(
    "latent_random_walk", _latent_random_walk.random_walk,
    "random-walk Metropolis in the latent space: the paper's method", "Jaini et al. (2021)", needs=_TRANSPORT,
    tuning=_latent_random_walk.tuning, has_latent=True)
latent_pcn = SamplerSpec(
    "latent_pcn", _latent_pcn.pcn, "preconditioned Crank-Nicolson in the latent space", "Cotter et al. (2013)",
    needs=_TRANSPORT, tuning=_latent_pcn.tuning, has_latent=True)
latent_independence = SamplerSpec(
    "latent_independence", _latent_independence.independence, "independent proposals from the transport",
    "Tierney (1994)", needs=_TRANSPORT, has_latent=True)
latent_elliptical_slice = SamplerSpec(
    "latent_elliptical_slice", _latent_elliptical_slice.elliptical_slice,
    "elliptical slice in the latent space, nothing to tune", "Murray et al. (2010)", needs=_TRANSPORT, has_latent=True)
latent_mala = SamplerSpec(
    "latent_mala", _latent_mala.mala, "Langevin with a straight-through force in the latent space",
    "Roberts & Tweedie (1996)", needs=_TRANSPORT, tuning=_latent_mala.tuning, has_latent=True)
latent_hmc = SamplerSpec(
    "latent_hmc", _latent_hmc.hmc, "Hamiltonian Monte Carlo with a straight-through force", "Duane et al. (1987)",
    needs=_TRANSPORT, tuning=_latent_hmc.tuning, has_latent=True)
latent_nuts = SamplerSpec(
    "latent_nuts", _latent_nuts.nuts, "no-U-turn sampler with a straight-through force", "Hoffman & Gelman (2014)",
    needs=_TRANSPORT, tuning=_latent_nuts.tuning, has_latent=True)
blocked = SamplerSpec(
    "blocked", _blocked.blocked, "a discrete kernel at fixed reals, then NUTS at fixed theta",
    "Jensen et al. (1995)", needs=_REALS, tuning=_blocked.tuning, check=_check_mixed, prepare=_blocked.prepare,
    record=_mixed_record)
collapsed = SamplerSpec(
    "collapsed", _collapsed.collapsed, "NUTS with the discrete variables summed out, which are drawn given the reals",
    "Hoffman & Gelman (2014)", needs=_REALS, tuning=_collapsed.tuning, check=_collapsed.check,
    prepare=_collapsed.prepare, record=_mixed_record)
tempered = SamplerSpec(
    "tempered", _tempered.tempered, "parallel tempering of discrete and real variables from a proper reference",
    "Surjanovic et al. (2022)", needs=_REALS, tuning=_tempered.tuning, check=_check_mixed, prepare=_tempered.prepare,
    record=_tempered.record)
MIXED_HYBRID = SamplerSpec(  # what `hybrid` is on a space with real variables
    "hybrid", _mixed_hybrid.mixed_hybrid, "a joint jump through a transport, then moves of both kinds of variables",
    "Gabrie et al. (2022)", needs=_TRANSPORT | _REALS, tuning=_mixed_hybrid.tuning, check=_check_mixed,
    prepare=_mixed_hybrid.prepare, record=_mixed_record)
smc = SamplerSpec(
    "smc", _smc.smc, "sequential Monte Carlo from the uniform law: particles and log Z", "Del Moral et al. (2006)",
    program=_smc.smc)
importance = SamplerSpec(
    "importance", _importance.importance, "independent draws of a transport, weighted", "Hesterberg (1988)",
    program=_importance.importance)
exact = SamplerSpec(
    "exact", _exact.exact, "independent draws and log Z, by elimination or enumeration", "Dechter (1999)",
    program=_exact.exact)

PROGRAMS: dict[str, SamplerSpec] = {spec.name: spec for spec in (smc, importance, exact)}
MIXED: dict[str, SamplerSpec] = {spec.name: spec for spec in (blocked, collapsed, tempered)}
REGISTRY: dict[str, SamplerSpec] = {spec.name: spec for spec in (
    metropolis, integer_metropolis, gibbs, systematic_gibbs, metropolised_gibbs, block_gibbs, pair_gibbs, swap,
    coloured_gibbs, slice_gibbs, hamming_ball, locally_balanced, zanella, tabu, gibbs_with_gradients,
    discrete_langevin, path_auxiliary, dlmc, any_scale, discontinuous_hmc, binary_hmc, gaussian_integral_hmc,
    swendsen_wang, tree_gibbs, parallel_tempering, hybrid, latent_random_walk, latent_pcn, latent_independence,
    latent_elliptical_slice, latent_mala, latent_hmc, latent_nuts,
)}
# fmt: on

__all__ = [
    *REGISTRY,
    *MIXED,
    *PROGRAMS,
    "MIXED",
    "PROGRAMS",
    "REGISTRY",
    "BoundSampler",
    "SamplerSpec",
    "SamplingAlgorithm",
    "get",
]


def get(name: Any, field: str = "sampler") -> SamplerSpec:
    """The entry of a name; raises `OptionError` with the nearest names if there is none.

    >>> get("gibbs").reference
    'Geman & Geman (1984)'
    """
    known = REGISTRY | MIXED | PROGRAMS
    if isinstance(name, str) and name in known:
        return known[name]
    near = difflib.get_close_matches(shown(name), known, n=3, cutoff=0.4)
    remedy = f"did you mean {', '.join(near)}?" if near else f"one of {', '.join(known)}"
    raise OptionError(field, f"{shown(name)} is unknown", remedy)
