"""What an experiment is made of: pieces, the methods that run them, and the plan that says for how long.

A piece is one cell of a table: one sampler on one setting of an experiment (and one fold, where there are folds). It is
the unit of work, of storage and of resuming.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from terrazzo.results.result import Result
from terrazzo.targets.target import Target


class Piece(NamedTuple):
    """One cell of a table.

    Attributes:
        experiment: "mixture", "ising", "logistic" or "selection".
        setting: Which target of that experiment.
        sampler: A key of the experiment's methods.
        fold: Which fifth of the rows is held out, from 0; None where there are no folds.
    """

    experiment: str
    setting: str
    sampler: str
    fold: int | None = None

    @property
    def stem(self) -> str:
        """The piece's file name without its ending, below the folder of its experiment.

        >>> Piece("logistic", "iris", "ours", 0).stem
        'iris--ours--fold1'
        """
        return f"{self.setting}--{self.sampler}" + ("" if self.fold is None else f"--fold{self.fold + 1}")

    def __str__(self) -> str:
        fold = "" if self.fold is None else f", fold {self.fold + 1}"
        return f"{self.experiment}, {self.setting}{fold}, {self.sampler}"


@dataclass(frozen=True)
class Method:
    """How a row of a table is made.

    Attributes:
        label: What the row is called; `{iterations}` and `{burn_in}` are filled in.
        kind: "flow" (the paper's recipe), "baseline" (a sampler of the registry), "reference" (tempering, for what
            the posterior is) or "ours".
        sampler: The registry's name, for baselines.
        iterations_share: Share of the plan's training iterations, for flows.
        burn_in_share: Share of the plan's burn-in, for baselines.
        step_share: Share of the plan's burn-in and thinning that a sampler with long steps gets.
        gradient: How a flow is trained, as in `tz.reverse_kl`: "paper" is what the paper's authors do.
        options: Options of the sampler.
    """

    label: str
    kind: str
    sampler: str = ""
    iterations_share: float = 1.0
    burn_in_share: float = 1.0
    step_share: float = 1.0
    gradient: str = "paper"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """How long an experiment runs under a preset; the defaults are the paper's.

    Attributes:
        settings: The targets that run unless others are asked for.
        folds: The folds that run unless others are asked for.
        methods: The samplers that run unless others are asked for; empty means all.
        chains: Independent chains.
        draws: Kept draws a chain.
        thin: Steps a kept draw.
        burn_in: Steps before the first kept draw, for baselines.
        iterations: Training steps of the paper's flow.
        batch_size: Latent draws a training step.
        tuning_steps: Steps in which the flow's random walk finds its scale (its chains start in the flow: no burn-in).
        flow: Options of the flow that differ from the paper's architecture.
        reference: Chains, rounds and temperatures of the tempering run, and the kernel's steps between swaps.
        ours: Options of `tz.sample` for our own row (often a time limit); none is the default pipeline.
    """

    settings: tuple[str, ...]
    folds: tuple[int | None, ...] = (None,)
    methods: tuple[str, ...] = ()
    chains: int = 128
    draws: int = 10_000
    thin: int = 10
    burn_in: int = 100_000
    iterations: int = 10_000
    batch_size: int = 128
    tuning_steps: int = 10_000
    flow: Mapping[str, Any] = field(default_factory=dict)
    reference: Mapping[str, int] = field(
        default_factory=lambda: {"chains": 64, "rounds": 20_000, "temperatures": 24, "moves": 1}
    )
    ours: Mapping[str, Any] = field(default_factory=dict)


class Run(NamedTuple):
    """What a method gives back.

    Attributes:
        result: The draws.
        seconds: Wall time by part: `train`, `burn_in`, `sample`; compilation is inside them.
        training: How training went, or None.
    """

    result: Result
    seconds: dict[str, float]
    training: dict[str, Any] | None = None


Extras = Callable[[Run], tuple[dict[str, Any], dict[str, np.ndarray]]]


class Case(NamedTuple):
    """A target ready to be sampled.

    Attributes:
        target: The target.
        extras: Further figures of a run, and the small arrays that its pictures need.
    """

    target: Target
    extras: Extras


class Experiment(NamedTuple):
    """One experiment of the paper.

    Attributes:
        name: Its name on the command line.
        title: What it is.
        settings: All targets it knows.
        num_folds: Folds of its cross-validation; 0 if it has none.
        methods: All rows it knows, by key.
        build: `build(setting, fold, seed, archive) -> Case`.
        precision: None, or "float64" where single precision is wrong.
        check_data: `check_data(setting, archive)` raises a `TerrazzoError` where `build` would not find its data.
    """

    name: str
    title: str
    settings: tuple[str, ...]
    num_folds: int
    methods: Mapping[str, Method]
    build: Callable[[str, int | None, int, Path | None], Case]
    precision: str | None = None
    check_data: Callable[[str, Path | None], object] = lambda setting, archive: None
