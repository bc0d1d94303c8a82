"""The samplers, by name. Adding one is one file and one line of `REGISTRY`; the laws of DESIGN section 5 then apply."""

import difflib
from typing import Any

from terrazzo.arguments import shown
from terrazzo.errors import OptionError
from terrazzo.samplers.any_scale import any_scale as any_scale
from terrazzo.samplers.any_scale import check as _check_any_scale
from terrazzo.samplers.any_scale import tuning as _tune_any_scale
from terrazzo.samplers.base import Info as Info
from terrazzo.samplers.base import SamplerSpec as SamplerSpec
from terrazzo.samplers.base import SamplingAlgorithm as SamplingAlgorithm
from terrazzo.samplers.base import State as State
from terrazzo.samplers.base import Tuning as Tuning
from terrazzo.samplers.binary_hmc import binary_hmc as binary_hmc
from terrazzo.samplers.binary_hmc import check_binary as _check_binary
from terrazzo.samplers.blocks import block_gibbs as block_gibbs
from terrazzo.samplers.blocks import hamming_ball as hamming_ball
from terrazzo.samplers.coloured_gibbs import coloured_gibbs as coloured_gibbs
from terrazzo.samplers.coloured_gibbs import prepare as _prepare_colours
from terrazzo.samplers.discontinuous_hmc import discontinuous_hmc as discontinuous_hmc
from terrazzo.samplers.discontinuous_hmc import tuning as _tune_discontinuous_hmc
from terrazzo.samplers.discrete_langevin import discrete_langevin as discrete_langevin
from terrazzo.samplers.discrete_langevin import tuning as _tune_discrete_langevin
from terrazzo.samplers.dlmc import dlmc as dlmc
from terrazzo.samplers.dlmc import tuning as _tune_dlmc
from terrazzo.samplers.gaussian_integral_hmc import check as _check_binary_pairwise
from terrazzo.samplers.gaussian_integral_hmc import gaussian_integral_hmc as gaussian_integral_hmc
from terrazzo.samplers.gaussian_integral_hmc import prepare as _prepare_terms
from terrazzo.samplers.gaussian_integral_hmc import tuning as _tune_gaussian_integral_hmc
from terrazzo.samplers.gibbs import gibbs as gibbs
from terrazzo.samplers.gibbs import metropolised_gibbs as metropolised_gibbs
from terrazzo.samplers.gibbs import systematic_gibbs as systematic_gibbs
from terrazzo.samplers.gibbs_with_gradients import gibbs_with_gradients as gibbs_with_gradients
from terrazzo.samplers.hybrid import hybrid as hybrid
from terrazzo.samplers.hybrid import prepare as _prepare_hybrid
from terrazzo.samplers.integer_metropolis import check as _check_ordered
from terrazzo.samplers.integer_metropolis import integer_metropolis as integer_metropolis
from terrazzo.samplers.integer_metropolis import tuning as _tune_integer_metropolis
from terrazzo.samplers.latent import SPECS as _LATENT_SPECS
from terrazzo.samplers.locally_balanced import locally_balanced as locally_balanced
from terrazzo.samplers.metropolis import metropolis as metropolis
from terrazzo.samplers.metropolis import tuning as _tune_metropolis
from terrazzo.samplers.pairs import pair_gibbs as pair_gibbs
from terrazzo.samplers.pairs import swap as swap
from terrazzo.samplers.path_auxiliary import path_auxiliary as path_auxiliary
from terrazzo.samplers.path_auxiliary import tuning as _tune_path_auxiliary
from terrazzo.samplers.ratios import check_gradient as _check_gradient
from terrazzo.samplers.slice_gibbs import slice_gibbs as slice_gibbs
from terrazzo.samplers.smc import smc as smc
from terrazzo.samplers.swendsen_wang import check as _check_clusters
from terrazzo.samplers.swendsen_wang import prepare as _prepare_clusters
from terrazzo.samplers.swendsen_wang import swendsen_wang as swendsen_wang
from terrazzo.samplers.tabu import tabu as tabu
from terrazzo.samplers.tempered_runs import run_tempering as run_tempering
from terrazzo.samplers.tempering import parallel_tempering as parallel_tempering
from terrazzo.samplers.tempering import prepare as _prepare_tempering
from terrazzo.samplers.tempering import tuning as _tune_ladder
from terrazzo.samplers.zanella import tuning as _tune_jumps
from terrazzo.samplers.zanella import zanella as zanella

_GRADIENT = frozenset({"gradient"})
_ORDERED = frozenset({"ordered"})

# fmt: off
_SPECS = (
    SamplerSpec("metropolis", metropolis, "random walk: +-1 steps or redraws of several coordinates",
                "Metropolis et al. (1953)", tuning=_tune_metropolis),
    SamplerSpec("integer_metropolis", integer_metropolis, "rounded Gaussian steps with learned covariance",
                "Haario et al. (2001)", _ORDERED, _tune_integer_metropolis, _check_ordered),
    SamplerSpec("gibbs", gibbs, "Gibbs, random scan: one site a step", "Geman & Geman (1984)"),
    SamplerSpec("systematic_gibbs", systematic_gibbs, "Gibbs, a whole sweep a step", "Geman & Geman (1984)"),
    SamplerSpec("metropolised_gibbs", metropolised_gibbs, "Gibbs that never proposes to stay", "Liu (1996)"),
    SamplerSpec("block_gibbs", block_gibbs, "Gibbs, several sites jointly", "Jensen et al. (1995)"),
    SamplerSpec("pair_gibbs", pair_gibbs, "Gibbs, two random sites jointly: for constraints that tie sites together",
                "Jensen et al. (1995)"),
    SamplerSpec("swap", swap, "exchanges of two values, for fixed counts, and redraws of one site", "Kawasaki (1966)"),
    SamplerSpec("coloured_gibbs", coloured_gibbs, "Gibbs, all sites of one colour of the graph at once",
                "Gonzalez et al. (2011)", prepare=_prepare_colours),
    SamplerSpec("slice_gibbs", slice_gibbs, "slice sampling of one site: O(log K) evaluations", "Neal (2003)"),
    SamplerSpec("hamming_ball", hamming_ball, "exact redraw in a random Hamming ball", "Titsias & Yau (2017)"),
    SamplerSpec("locally_balanced", locally_balanced, "single-site moves by exact, balanced ratios", "Zanella (2020)"),
    SamplerSpec("zanella", zanella, "continuous-time, rejection-free, on a time grid", "Zanella (2020)",
                tuning=_tune_jumps),
    SamplerSpec("tabu", tabu, "a Zanella process that does not undo its moves", "Power & Goldman (2019)",
                tuning=_tune_jumps),
    SamplerSpec("gibbs_with_gradients", gibbs_with_gradients, "single-site moves by gradient",
                "Grathwohl et al. (2021)", _GRADIENT, check=_check_gradient),
    SamplerSpec("discrete_langevin", discrete_langevin, "DMALA: all coordinates along the gradient",
                "Zhang et al. (2022)", _GRADIENT, _tune_discrete_langevin, _check_gradient),
    SamplerSpec("path_auxiliary", path_auxiliary, "PAS: a path of informed changes, one correction",
                "Sun et al. (2022)", _GRADIENT, _tune_path_auxiliary, _check_gradient),
    SamplerSpec("dlmc", dlmc, "Wasserstein gradient flow in every coordinate", "Sun et al. (2023)",
                _GRADIENT, _tune_dlmc, _check_gradient),
    SamplerSpec("any_scale", any_scale, "a learned quadratic model, from local to global steps", "Sun et al. (2023)",
                _GRADIENT | _ORDERED, _tune_any_scale, _check_any_scale),
    SamplerSpec("discontinuous_hmc", discontinuous_hmc, "Laplace momentum, coordinate by coordinate",
                "Nishimura et al. (2020)", tuning=_tune_discontinuous_hmc),
    SamplerSpec("binary_hmc", binary_hmc, "exact motion between the walls of binary variables",
                "Pakman & Paninski (2013)", frozenset({"binary"}), check=_check_binary),
    SamplerSpec("gaussian_integral_hmc", gaussian_integral_hmc, "HMC on a Gaussian augmentation of pairwise models",
                "Zhang et al. (2012)", frozenset({"binary", "pairwise"}), _tune_gaussian_integral_hmc,
                _check_binary_pairwise, _prepare_terms),
    SamplerSpec("swendsen_wang", swendsen_wang, "cluster flips for Ising and Potts models",
                "Swendsen & Wang (1987)", frozenset({"pairwise"}), None, _check_clusters, _prepare_clusters),
    SamplerSpec("parallel_tempering", parallel_tempering, "a ladder of temperatures over any other kernel",
                "Syed et al. (2022)", tuning=_tune_ladder, prepare=_prepare_tempering),
    SamplerSpec("hybrid", hybrid, "a global move through a transport, then local moves",
                "Gabrie et al. (2022)", frozenset({"transport"}), prepare=_prepare_hybrid),
)
# fmt: on

REGISTRY: dict[str, SamplerSpec] = {spec.name: spec for spec in (*_SPECS, *_LATENT_SPECS)}


def get(name: Any, field: str = "sampler") -> SamplerSpec:
    """The registry's line for a name; raises `OptionError` with the nearest names if there is none.

    >>> get("gibbs").reference
    'Geman & Geman (1984)'
    """
    if isinstance(name, str) and name in REGISTRY:
        return REGISTRY[name]
    near = difflib.get_close_matches(shown(name), REGISTRY, n=3, cutoff=0.4)
    remedy = f"did you mean {', '.join(near)}?" if near else f"one of {', '.join(REGISTRY)}"
    raise OptionError(field, f"{shown(name)} is unknown", remedy)
