"""The README's first picture: what you give, what you get, and how far to trust it.

    python docs/first_picture.py docs/first-picture.png

A noisy picture of 24 x 24 pixels; log pi is the Ising posterior of the picture without the noise. Beside it is written
first-picture-narrow.png, the same in one column, for phones. It needs matplotlib (`pip install 'terrazzo[plots]'`).
"""

import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import terrazzo as tz
from terrazzo.paper.plots import new_figure, themed
from terrazzo.report import theme, words

SHORT = {
    "difference from tempered draws (s.e.)": "differs from tempering by (s.e.)",
    "chains that stay where they were started": "chains stuck in other modes",
}
SIZE, NOISE, COUPLING = 24, 0.2, 0.45


def true_picture() -> np.ndarray:
    """Three chips: a disc, a square and a bar."""
    y, x = np.mgrid[:SIZE, :SIZE]
    disc = (y - 7) ** 2 + (x - 7) ** 2 <= 20
    square = (y >= 5) & (y < 13) & (x >= 15) & (x < 21)
    bar = (y >= 16) & (y < 21) & (x >= 3) & (x < 20)
    return (disc | square | bar).astype(int)


def sampled() -> tuple[np.ndarray, np.ndarray, tz.Result]:
    """The picture, the same with noise, and draws of the posterior."""
    truth = true_picture()
    noisy = truth ^ (np.random.default_rng(1).random(truth.shape) < NOISE)
    field = jnp.asarray(np.log((1 - NOISE) / NOISE) * (2 * noisy - 1) / 2)

    def log_prob(theta):
        s = 2.0 * theta - 1.0
        return jnp.sum(field * s) + COUPLING * (jnp.sum(s[1:] * s[:-1]) + jnp.sum(s[:, 1:] * s[:, :-1]))

    return truth, noisy, tz.sample(log_prob, tz.binary((SIZE, SIZE)), seed=0)


def draw(noisy: np.ndarray, result: tz.Result, path: Path, *, is_narrow: bool = False) -> None:
    """Three parts, in a row or one below the other: the target, the draws, the verdict."""
    with themed():
        if is_narrow:
            figure = new_figure(4.2, 9.4)
            parts = figure.subfigures(3, 1, height_ratios=(1.45, 1.1, 1.15), hspace=0.04)
        else:
            figure = new_figure(11, 3.5)
            parts = figure.subfigures(1, 3, width_ratios=(1.0, 1.75, 1.4), wspace=0.04)
        given = parts[0].subplots()
        given.imshow(noisy, cmap=theme.CHIP)
        parts[0].suptitle("you give: log π", fontsize=12, fontweight="bold")
        given.set_xlabel("a noisy picture, and a function of\n576 unknown bits", fontsize=10)
        axes = parts[1].subplots(2, 4)
        draws = result["theta"]
        for axis, chain in zip(axes[:, :3].ravel(), range(6), strict=True):
            axis.imshow(draws[chain, -1], cmap=theme.CHIP)
        mean, sd = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))
        for axis, grid, name in ((axes[0, 3], mean, "mean"), (axes[1, 3], sd, "unsure")):
            axis.imshow(grid, cmap=theme.CHIP, vmin=0)
            axis.set_title(name, fontsize=10, fontweight="normal", pad=3)
        parts[1].suptitle("you get: draws", fontsize=12, fontweight="bold")
        for axis in (given, *axes.ravel()):
            axis.set_xticks([])
            axis.set_yticks([])
            axis.spines[:].set_visible(False)
        _verdict(parts[2], result)
        figure.savefig(path, dpi=110, pil_kwargs={"optimize": True})


def _verdict(part, result: tz.Result) -> None:
    """The grade, the checks it rests on, log Z."""
    part.suptitle("and how far to trust it", fontsize=12, fontweight="bold")
    axis = part.subplots()
    axis.set_axis_off()
    axis.set(xlim=(0, 1), ylim=(0, 1))
    good, ground = {"good": ("#14532d", "#dcf2e3"), "open": ("#6b4a00", "#fdf0cf"), "bad": ("#7a1d12", "#fbe4e0")}[
        words.TONES[result.verdict.grade]
    ]
    box = {"boxstyle": "round,pad=0.4", "facecolor": ground, "edgecolor": "none"}
    axis.text(0.02, 0.93, result.verdict.grade, fontsize=15, fontweight="bold", color=good, bbox=box, va="top")
    shown = [check for check in result.checks() if check.is_independent or check.name in ("worst R-hat", "least ESS")]
    for i, check in enumerate(shown[:6]):
        sign = "passed" if check.passed else "failed"
        value = f"{check.value:.0f}" if abs(check.value) >= 100 else f"{check.value:.4g}"
        axis.text(0.0, 0.66 - 0.115 * i, SHORT.get(check.name, check.name), fontsize=10)
        axis.text(1.0, 0.66 - 0.115 * i, f"{value}, {sign}", fontsize=10, ha="right", color="#5b6675")
    text = f"log Z = {result.log_z:.2f} ± {result.log_z_standard_error:.2g}"
    axis.text(0.0, 0.66 - 0.115 * len(shown[:6]), text, fontsize=10)


def main() -> None:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "first-picture.png")
    _, noisy, result = sampled()
    narrow = path.with_stem(f"{path.stem}-narrow")
    draw(noisy, result, path)
    draw(noisy, result, narrow, is_narrow=True)
    print(result.diagnose())
    print(path, narrow)


if __name__ == "__main__":
    main()
