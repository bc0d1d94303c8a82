"""Results: values and labels, the table, the verdict, ArviZ, and files that notice every damaged byte."""

import dataclasses
import importlib
import json
import types
import warnings
import zipfile

import numpy as np
import pytest

import terrazzo as tz
from terrazzo.diagnostics import LogZ
from terrazzo.errors import FileFormatError, OptionError, SpaceError
from terrazzo.results.result import Result
from terrazzo.transports import product_transport
from terrazzo.verdict.checks import ENUMERATED, Check

HOSTILE = "<script>alert(1)</script>&\"'"


def make(num_chains=4, num_draws=600, seed=0, **changes):
    rng = np.random.default_rng(seed)
    space = tz.Space(
        gene=tz.binary(2, dims="site", coords={"site": ["left", "right"]}),
        count=tz.integers(-3, 4),
        colour=tz.categorical(["red", "green", "blue"], dims="spot", shape=2),
        code=tz.categorical(4),
    )
    theta = rng.integers(0, space.sizes, (num_chains, num_draws, space.num_dims))
    theta[:, :, 1] = 1
    parts = {
        "space": space,
        "theta": theta.astype(space.dtype),
        "sample_stats": {
            "log_prob": rng.normal(size=(num_chains, num_draws)),
            "acceptance_rate": rng.uniform(size=(num_chains, num_draws)),
            "num_evaluations": np.full((num_chains, num_draws), 3),
        },
        "latent": rng.normal(size=theta.shape),
        "evidence": LogZ(1.5, 0.1, 200.0, 0.3),
        "provenance": {"sampler": "gibbs", "seed": 0, "tuned": {"scale": np.float32(0.5)}, "sizes": np.arange(3)},
        "history": {"loss": np.linspace(3, 1, 50)},
        "is_complete": True,
    }
    return Result(**(parts | changes))


@pytest.fixture(scope="module")
def result():
    return make()


def test_draws_are_in_the_users_values(result):
    assert list(result.draws) == list(result) == ["gene", "count", "colour", "code"]
    assert "count" in result
    assert "theta" not in result
    assert result.draws["gene"].shape == (4, 600, 2)
    assert set(np.unique(result.draws["count"])) == set(range(-3, 5))
    assert result.draws["colour"].shape == (4, 600, 2)
    assert set(np.unique(result.draws["colour"])) == {"red", "green", "blue"}
    assert result.draws["code"].dtype == result.draws["gene"].dtype == np.int64
    assert result.draws["colour"] is result.draws["colour"]
    np.testing.assert_array_equal(
        result.space.encode({k: v[1, 5:9] for k, v in result.draws.items()}), result.theta[1, 5:9]
    )
    with pytest.raises(KeyError, match="gene, count"):
        result.draws["nothing"]
    assert result.num_chains == 4
    assert result.num_draws == 600
    assert result.log_prob.shape == (4, 600)
    assert (result.log_z, result.log_z_standard_error) == (1.5, 0.1)
    assert result.constant == ["gene[right]"]


def test_immutable(result):
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.is_complete = False
    for array in (result.theta, result.log_prob, result.draws["colour"], result.history["loss"]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = array[0]


def test_wrong_arrays_are_refused(result):
    with pytest.raises(SpaceError, match="theta"):
        make(theta=np.zeros((4, 600, 3), np.uint8))
    with pytest.raises(OptionError, match="log_prob"):
        make(sample_stats={"log_prob": np.zeros((4, 599))})


def test_summary_rows(result):
    table = result._with_verdict
    names = [row.name for row in table.rows]
    assert names[:3] == ["gene[left]", "gene[right]", "count"]
    assert "colour[0] = red" in names
    assert "code = 3" in names
    assert names[-1] == "log_prob"
    assert len(names) == 3 + 2 * 3 + 4 + 1
    assert table["count"].mean == pytest.approx(result.draws["count"].mean())
    red = (result.draws["colour"][..., 0] == "red").mean()
    assert table["colour[0] = red"].mean == pytest.approx(red)
    assert table["colour[0] = red"].sd == pytest.approx(np.sqrt(red * (1 - red)), rel=1e-3)
    assert np.isnan(table["gene[right]"].ess_bulk)
    assert table.num_constant == 1
    assert str(table).splitlines()[-1].startswith("1 of 6 coordinates constant")
    widths = {len(line) for line in str(table).splitlines()[: len(names) + 1]}
    assert len(widths) == 1
    assert table.to_dict()["count"]["r_hat"] == table["count"].r_hat
    frame = table.to_pandas()
    assert list(frame.columns) == ["mean", "sd", "mcse", "ess_bulk", "ess_tail", "r_hat"]
    assert frame.loc["count", "mean"] == table["count"].mean


def test_summary_of_many_rows_and_categories():
    space = tz.Space(a=tz.binary(200), b=tz.categorical(50))
    theta = np.random.default_rng(0).integers(0, space.sizes, (2, 40, 201)).astype(np.uint8)
    text = str(Result(space=space, theta=theta).summary())
    assert "more rows" in text
    assert "less likely categories not listed" in text
    assert len(text.splitlines()) < 70


INDEPENDENT = Check("difference from tempered draws (s.e.)", 1.0, 4.0, True, "explore", is_independent=True)


def test_trusted():
    result = make(extra_checks=(INDEPENDENT,))
    assert result.verdict.is_trusted, str(result.verdict)
    assert str(result.verdict).startswith("trusted: worst R-hat 1")
    assert "1 of 6 coordinates constant" in str(result.verdict)
    assert "trusted" in repr(result)
    assert "4 chains x 600 draws" in repr(result)


def test_chains_that_agree_are_unchecked_if_nothing_else_was_looked_at(result):
    assert result.verdict.grade == "unchecked"
    assert not result.verdict.is_trusted
    assert str(result.verdict).startswith("unchecked: ")


def test_the_worst_failed_check_makes_the_grade():
    short = Check("draws of the exploration", 9.0, 100.0, False, "explore longer", "unchecked")
    wrong = Check("difference from tempered draws (s.e.)", 9.0, 4.0, False, "explore", is_independent=True)
    note = Check("Pareto k", 1.0, 0.7, False, "train", "")
    assert make(extra_checks=(INDEPENDENT, note)).verdict.grade == "trusted"
    assert make(extra_checks=(INDEPENDENT, note, short)).verdict.grade == "unchecked"
    assert make(extra_checks=(INDEPENDENT, note, short, wrong)).verdict.grade == "not trusted"


def test_exact_draws_are_not_asked_for_their_r_hat():
    every = Check(ENUMERATED, 81.0, 81.0, True, "", is_independent=True)
    few = make(num_draws=3, num_chains=1, extra_checks=(every,))
    assert few.verdict.grade == "exact"
    assert few.verdict.is_trusted


def test_fewer_draws_than_asked_for_are_in_the_verdict():
    short = make(extra_checks=(INDEPENDENT,), provenance={"draws": 1000})
    assert short.verdict.grade == "trusted"
    assert "draws a chain 600 of 1000" in str(short.verdict)


def test_advice_that_was_already_followed_is_not_given():
    wrong = {"theta": apart(make().theta)}
    assert "default sampler" in str(make(**wrong).verdict)
    assert "default sampler" not in str(make(**wrong, provenance={"warm-up": {}}).verdict).split(";")[0]


def apart(theta):
    theta = theta.copy()
    theta[0, :, 2] = 7
    return theta


def categories_apart(theta):
    return np.where(np.arange(6) == 3, np.arange(4)[:, None, None] % 3, theta)


FAILURES = {
    "interrupted": (lambda: make(is_complete=False), "the run was interrupted"),
    "one chain": (lambda: make(num_chains=1, num_draws=2000), "chains 1"),
    "short": (lambda: make(num_draws=60), "least ESS"),
    "apart": (lambda: make(theta=apart(make().theta)), "worst R-hat"),
    "category apart": (
        lambda: make(theta=np.where(np.arange(6) == 3, np.arange(4)[:, None, None] % 3, make().theta)),
        "inf",
    ),
    "constant": (lambda: make(theta=np.zeros((4, 600, 6), np.uint8)), "coordinates that moved 0"),
    "frozen chain": (
        lambda: make(sample_stats={"acceptance_rate": np.array([[0.0], [1], [1], [1]]) * np.ones((4, 600))}),
        "lowest acceptance",
    ),
    "mode loss": (lambda: make(extra_checks=(Check("log Z gap", 9.0, 3.0, False, "temper"),)), "temper"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_not_trusted(name):
    build, words = FAILURES[name]
    verdict = build().verdict
    assert not verdict.is_trusted
    assert words in str(verdict)
    assert str(verdict).startswith("not trusted: ")
    assert "\n" not in str(verdict)


@pytest.mark.parametrize("num_draws", [0, 3])
def test_too_few_draws_are_not_trusted(num_draws, tmp_path):
    result = make(num_draws=num_draws)
    assert not result.verdict.is_trusted
    assert "R-hat" in str(result.verdict)
    assert f"4 chains x {num_draws} draws" in repr(result)
    assert result._repr_html_()
    assert str(result.summary())
    assert Result.load(result.save(tmp_path / "r")).num_draws == num_draws


def test_pareto_k_is_information_only():
    bad = make(evidence=LogZ(1.0, 0.1, 3.0, 1.4), extra_checks=(INDEPENDENT,))
    assert [c.passed for c in bad.checks() if c.name == "Pareto k"] == [False]
    assert bad.verdict.is_trusted


def test_html_is_escaped():
    space = tz.Space(**{HOSTILE: tz.categorical([HOSTILE, "b"]), "x": tz.binary()})
    theta = np.random.default_rng(0).integers(0, 2, (2, 50, 2)).astype(np.uint8)
    result = Result(space=space, theta=theta, provenance={"sampler": HOSTILE})
    text = result._repr_html_() + result.summary()._repr_html_()
    assert "<script" not in text
    assert "&lt;script&gt;" in text


# ---- ArviZ


def check_groups(posterior, stats):
    assert posterior["gene"].dims == ("chain", "draw", "site")
    assert list(posterior["site"].values) == ["left", "right"]
    assert posterior["colour"].dims == ("chain", "draw", "spot")
    assert posterior["colour"].dtype == posterior["gene"].dtype == np.int64
    assert posterior["colour"].attrs["labels"] == ["red", "green", "blue"]
    assert posterior["count"].values.min() == -3
    assert posterior.attrs["inference_library"] == "terrazzo"
    assert json.loads(posterior.attrs["provenance"])["sampler"] == "gibbs"
    assert stats["lp"].dims == ("chain", "draw")
    assert "acceptance_rate" in stats


def test_arviz_now(result):
    data = result.to_arviz()
    check_groups(data.posterior, data.sample_stats)
    arviz = importlib.import_module("arviz")
    assert arviz.summary(data, var_names=["count"]).shape[0] == 1


def test_draws_can_be_computed_with(result):
    gene = result.draws["gene"]
    assert set(np.unique(2 * gene - 1)) == {-1, 1}
    assert (2 * result.theta - 1).min() == -1
    assert result.theta.dtype == np.int64
    assert result.codes.dtype == result.space.dtype
    copy = dataclasses.replace(result, is_complete=False)
    np.testing.assert_array_equal(copy.codes, result.codes)
    pyplot = pytest.importorskip("matplotlib.pyplot")
    arviz = importlib.import_module("arviz")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arviz.plot_posterior(result.to_arviz(), var_names=["gene", "colour"])
    pyplot.close("all")


def test_without_arviz_the_extra_is_named(result, monkeypatch):
    monkeypatch.setitem(importlib.import_module("sys").modules, "arviz", None)
    with pytest.raises(tz.errors.MissingPackageError, match=r"terrazzo\[plots\]"):
        result.to_arviz()


def test_arviz_1_gives_a_tree(result, monkeypatch):
    monkeypatch.setitem(importlib.import_module("sys").modules, "arviz", types.ModuleType("arviz"))
    tree = result.to_arviz()
    check_groups(tree["posterior"], tree["sample_stats"])


# ---- files


def test_save_and_load(result, tmp_path):
    for compress in (False, True):
        path = result.save(tmp_path / f"{compress}.tz", compress=compress)
        back = Result.load(path)
        assert back.space == result.space
        assert back.space.coordinate_names() == result.space.coordinate_names()
        np.testing.assert_array_equal(back.theta, result.theta)
        assert back.codes.dtype == result.codes.dtype == result.space.dtype
        np.testing.assert_array_equal(back.latent, result.latent)
        for name, values in result.sample_stats.items():
            np.testing.assert_array_equal(back.sample_stats[name], values)
        np.testing.assert_array_equal(back.history["loss"], result.history["loss"])
        assert back.evidence == result.evidence
        assert back.provenance == result.provenance == json.loads(json.dumps(result.provenance))
        assert back.verdict == result.verdict
    assert sorted(p.name for p in tmp_path.iterdir()) == ["False.tz", "True.tz"]
    assert (tmp_path / "True.tz").stat().st_size < (tmp_path / "False.tz").stat().st_size
    with zipfile.ZipFile(tmp_path / "False.tz") as archive:
        assert "arrays/theta.npy" in archive.namelist()


def test_bare_result_and_plain_space(tmp_path):
    space = tz.Space(tz.integers(5, 9, shape=(2, 2)))
    theta = np.zeros((1, 3, 4), np.uint8)
    back = Result.load(
        Result(space=space, theta=theta, extra_checks=(Check("a", 1.0, 2.0, True, "b"),)).save(tmp_path / "r")
    )
    assert back.space.is_plain
    assert back.draws["theta"].shape == (1, 3, 2, 2)
    assert (back.draws["theta"] == 5).all()
    assert back.history is None
    assert back.evidence is None
    assert back.log_prob is None
    assert back.extra_checks[0].name == "a"


def small_file(tmp_path):
    space = tz.Space(tz.binary(3))
    theta = np.random.default_rng(0).integers(0, 2, (2, 20, 3)).astype(np.uint8)
    return Result(space=space, theta=theta, sample_stats={"log_prob": np.ones((2, 20))}).save(tmp_path / "result.tz")


def test_every_97th_byte_is_guarded(tmp_path):
    path = small_file(tmp_path)
    good = path.read_bytes()
    places = sorted({*range(0, len(good), 97), 0, 1, len(good) - 1, len(good) - 71, len(good) - 72, len(good) - 80})
    for place in places:
        for bit in (1, 128):
            damaged = bytearray(good)
            damaged[place] ^= bit
            path.write_bytes(bytes(damaged))
            with pytest.raises(FileFormatError) as error:
                Result.load(path)
            assert str(path) in str(error.value)
    for length in (0, 1, 50, 71, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:length])
        with pytest.raises(FileFormatError, match=r"result\.tz"):
            Result.load(path)
    path.write_bytes(good + b"x")
    with pytest.raises(FileFormatError):
        Result.load(path)
    path.write_bytes(good)
    assert Result.load(path).num_draws == 20


def test_foreign_files_are_refused(tmp_path):
    from terrazzo.storage.files import write_file

    path = write_file(tmp_path / "other", "terrazzo checkpoint", 1, header={})
    with pytest.raises(FileFormatError, match="terrazzo checkpoint"):
        Result.load(path)
    path = write_file(tmp_path / "newer", "terrazzo result", 99, header={})
    with pytest.raises(FileFormatError, match="version 99"):
        Result.load(path)
    path = write_file(tmp_path / "empty", "terrazzo result", 1, header={})
    with pytest.raises(FileFormatError, match="lacks"):
        Result.load(path)
    with pytest.raises(FileFormatError, match="cannot be read"):
        Result.load(tmp_path / "absent")
    np.savez(tmp_path / "other.npz", theta=np.zeros(3))
    with pytest.raises(FileFormatError):
        Result.load(tmp_path / "other.npz")
    with pytest.raises(OptionError, match="folder"):
        small_file(tmp_path / "no" / "such")


def test_objects_are_never_unpickled(tmp_path):
    from terrazzo.storage.files import write_file

    with pytest.raises(ValueError, match=r"[Oo]bject"):
        write_file(tmp_path / "objects", "terrazzo result", 1, header={}, arrays={"theta": np.array([object()])})
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_keeps_the_old_file(tmp_path, monkeypatch):
    path = small_file(tmp_path)
    good = path.read_bytes()
    monkeypatch.setattr("terrazzo.storage.files.os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        make(num_draws=10).save(path)
    assert path.read_bytes() == good
    assert [p.name for p in tmp_path.iterdir()] == ["result.tz"]


def test_a_transport_is_stored_with_the_result(tmp_path):
    space = make(num_draws=10).space
    transport = product_transport(space, logits=np.random.default_rng(0).normal(size=(space.num_dims, space.max_size)))
    back = Result.load(make(transport=transport, num_draws=10).save(tmp_path / "r")).transport
    np.testing.assert_array_equal(np.asarray(back.logits), np.asarray(transport.logits))
