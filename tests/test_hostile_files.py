"""Files that are damaged, or made to harm: a typed error before memory is taken, or the same result as before."""

import hashlib
import io
import json
import resource
import struct
import tracemalloc
import zipfile

import equinox as eqx
import jax
import numpy as np
import pytest

import terrazzo as tz
from terrazzo.diagnostics import LogZ
from terrazzo.errors import FileFormatError
from terrazzo.results.result import Result
from terrazzo.storage.files import LEAST_LIMIT, write_file
from terrazzo.verdict.checks import Check

SPACE = tz.Space(
    colour=tz.categorical(["red", "green", "blue"], 2, dims="site", coords={"site": ["a", "b"]}),
    count=tz.integers(-3, 4),
)


def make():
    rng = np.random.default_rng(0)
    theta = rng.integers(0, SPACE.sizes, (2, 30, 3)).astype(np.uint8)
    evidence = LogZ(-1.5, 0.1, 80.0, float("nan"))
    return Result(
        space=SPACE, theta=theta,
        sample_stats={"log_prob": rng.normal(size=(2, 30)), "acceptance_rate": np.ones((2, 30))},
        latent=rng.normal(size=(2, 30, 3)), evidence=evidence, evidence_estimates={"importance": evidence},
        transport=tz.transports.product_transport(SPACE), history={"loss": np.arange(5.0)},
        provenance={"sampler": "gibbs", "warm-up": {"choice": {"chosen": "a", "reason": "b"}}},
        extra_checks=(Check("a", 1.0, 2.0, True, "b", False),),
    )  # fmt: skip


def members(data):
    """Name to contents of a zip file."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def unlisted(parts):
    """Without the list of members in the header: so that each thing wrong must be seen for itself."""
    out = []
    for name, data in parts:
        try:
            header = json.loads(data) if name == "header.json" else {}
            header.pop("members", None)
            out.append((name, json.dumps(header).encode() if name == "header.json" else data))
        except (ValueError, TypeError, RecursionError):
            out.append((name, data))
    return out


def packed(parts, method=zipfile.ZIP_STORED, *, is_listed=False):
    """A sealed file of (name, contents) pairs."""
    parts, stream = parts if is_listed else unlisted(parts), io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in parts:
            archive.writestr(zipfile.ZipInfo(name), data, method)
        archive.comment = b" " * 71
    return sealed(stream.getvalue())


def sealed(data):
    body = data[:-71]
    return body + f"sha256:{hashlib.sha256(body).hexdigest()}".encode()


def npy(descr, shape, data=b"", order=False):
    text = repr({"descr": descr, "fortran_order": order, "shape": shape}).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return make().save(tmp_path_factory.mktemp("files") / "good.tz").read_bytes()


def outcome(path, data, reference):
    """ "error" or "same"; anything else fails. Memory stays in proportion to the file."""
    path.write_bytes(data)
    tracemalloc.start()
    found, problem = None, ""
    try:
        found = Result.load(path)
    except FileFormatError as error:
        problem = str(error)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < LEAST_LIMIT + 40 * len(data)
    if found is None:
        assert len(problem.splitlines()) <= 5
        assert len(problem) < 1000
        return "error"
    np.testing.assert_array_equal(found.theta, reference.theta)
    np.testing.assert_array_equal(found.latent, reference.latent)
    np.testing.assert_array_equal(found.log_prob, reference.log_prob)
    assert found.space == reference.space
    assert repr(found.evidence) == repr(reference.evidence)
    assert found.extra_checks == reference.extra_checks
    assert found.is_complete == reference.is_complete
    repr(found), found.diagnose()
    return "same"


# ---- one of each kind


def edited(parts, change):
    header = json.loads(parts["header.json"])
    change(header["header"])
    return {**parts, "header.json": json.dumps(header).encode()}


def variable(**fields):
    return lambda h: h["space"]["variables"][1].update(fields)


def put(name, value):
    return lambda h: h.update({name: value})


HEADERS = {
    "negative size": variable(size=-3),
    "size zero": variable(size=0),
    "size too large": variable(size=2**40),
    "size not whole": variable(size=2.5),
    "another size": variable(size=2),
    "shape of 1e12": variable(shape=[10**12]),
    "negative shapes": variable(shape=[-1, -1]),
    "two names": lambda h: h["space"]["variables"][1].update(name="colour"),
    "unknown kind": variable(kind="complex"),
    "wrong labels": lambda h: h["space"]["variables"][0].update(labels=["red", "green"]),
    "labels twice": lambda h: h["space"]["variables"][0].update(labels=["red", "red", "blue"]),
    "coords too short": lambda h: h["space"]["variables"][0].update(coords=[["site", ["a"]]]),
    "space is a list": put("space", []),
    "no variables": lambda h: h["space"].update(variables=[]),
    "evidence of text": put("evidence", ["a", "b", "c", "d"]),
    "evidence too short": put("evidence", [1.0]),
    "evidence a number": put("evidence", 3.0),
    "negative error": put("evidence", [1.0, -1.0, 2.0, 0.1]),
    "estimates a list": put("evidence_estimates", [1]),
    "checks of numbers": put("extra_checks", [[1, 2, 3]]),
    "checks a number": put("extra_checks", 3),
    "complete by text": put("is_complete", "yes"),
    "provenance a list": put("provenance", [1]),
    "warm-up a number": put("provenance", {"warm-up": 3}),
    "transport unknown": put("transport_config", {"kind": "flux"}),
    "transport with options": put("transport_config", {"kind": "product", "wings": 3}),
    "transport a number": put("transport_config", 3),
    "another transport": put("transport_config", {"kind": "autoregressive", "width": 8}),
    "enormous transport": put("transport_config", {"kind": "autoregressive", "width": 10**9}),
    "history denied": put("has_history", 1),
}
THETA = "arrays/theta.npy"
ARRAYS = {
    "values outside": (THETA, npy("|u1", (2, 30, 3), b"\x09" * 180)),
    "signed": (THETA, npy("|i1", (2, 30, 3), b"\xff" * 180)),
    "floats": (THETA, npy("<f4", (2, 30, 3), b"\0" * 720)),
    "objects": (THETA, npy("|O", (2, 30, 3), b"\0" * 1440)),
    "records": (THETA, npy([("a", "<f8")], (2, 30, 3), b"\0" * 1440)),
    "no letters": (THETA, npy("<U0", (10**12,))),
    "shape of 1e12": (THETA, npy("|u1", (10**12, 30, 3), b"\0" * 180)),
    "an endless empty axis": (THETA, npy("|u1", (10**15, 0, 3))),
    "negative shape": (THETA, npy("|u1", (-2, -30, 3), b"\0" * 180)),
    "too short": (THETA, npy("|u1", (2, 30, 3), b"\0" * 100)),
    "too long": (THETA, npy("|u1", (2, 30, 3), b"\0" * 181)),
    "two axes": (THETA, npy("|u1", (60, 3), b"\0" * 180)),
    "fewer draws": (THETA, npy("|u1", (2, 29, 3), b"\0" * 174)),
    "no header": (THETA, b"\x93NUMPY\x01\x00"),
    "code for a header": (THETA, b"\x93NUMPY\x01\x00\x10\x00__import__('os')"),
    "version 9": (THETA, b"\x93NUMPY\x09\x00" + b" " * 200),
    "NaN": ("arrays/stats/log_prob.npy", npy("<f8", (2, 30), np.full(60, np.nan).tobytes())),
    "infinity": ("arrays/stats/log_prob.npy", npy("<f8", (2, 30), np.full(60, np.inf).tobytes())),
    "latent NaN": ("arrays/latent.npy", npy("<f8", (2, 30, 3), np.full(180, np.nan).tobytes())),
    "text": ("arrays/stats/log_prob.npy", npy("<U1", (2, 30), b"\0" * 240)),
    "unknown array": ("arrays/more.npy", npy("<f8", (1,), b"\0" * 8)),
    "no transport": ("blobs/transport", b""),
    "transport of noise": ("blobs/transport", b"PK" + b"\x07" * 500),
    "unknown member": ("readme", b"hello"),
    "above": ("../arrays/theta.npy", b""),
    "absolute": ("/arrays/theta.npy", b""),
    "inside above": ("arrays/../../x.npy", b""),
    "deep JSON": ("header.json", b"[" * 200_000),
    "not JSON": ("header.json", b"{"),
    "JSON of a list": ("header.json", b"[]"),
    "a long number": ("header.json", b'{"kind": "terrazzo result", "version": ' + b"9" * 10_000 + b', "header": {}}'),
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_that_cannot_be(name, good, tmp_path):
    data = packed(edited(members(good), HEADERS[name]).items())
    assert outcome(tmp_path / "r.tz", data, make()) == "error"


@pytest.mark.parametrize("name", ARRAYS)
def test_members_that_cannot_be(name, good, tmp_path):
    place, contents = ARRAYS[name]
    assert outcome(tmp_path / "r.tz", packed({**members(good), place: contents}.items()), make()) == "error"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_missing_or_there_twice(good, tmp_path):
    parts = members(good)
    for name in ("header.json", THETA, "blobs/transport"):
        kept = [(n, d) for n, d in parts.items() if n != name]
        assert outcome(tmp_path / "r.tz", packed(kept), make()) == "error", name
    assert outcome(tmp_path / "r.tz", packed([*parts.items(), (THETA, parts[THETA])]), make()) == "error"


def test_bombs_are_refused_before_they_unfold(good, tmp_path):
    """Zeros at a thousandth of their length; the same in the transport; many members over the same bytes."""
    parts = members(good)
    huge = npy("|u1", (1, 60 * 2**20, 3)) + bytes(180 * 2**20)
    bomb = packed([*((n, d) for n, d in parts.items() if n != THETA), (THETA, huge)], zipfile.ZIP_DEFLATED)
    nested = io.BytesIO()
    np.savez_compressed(nested, leaf0=np.zeros(2**24))
    del huge
    assert len(bomb) < 2**18
    inside = packed({**parts, "blobs/transport": nested.getvalue()}.items())
    for data in (bomb, inside):
        tracemalloc.start()
        assert outcome(tmp_path / "r.tz", data, make()) == "error"
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
        tracemalloc.stop()
    overlapping = bytearray(good)  # every member claims to be as long as the file
    place = overlapping.find(b"PK\x01\x02")
    while place >= 0:
        overlapping[place + 20 : place + 28] = struct.pack("<II", len(good), len(good))
        place = overlapping.find(b"PK\x01\x02", place + 4)
    assert outcome(tmp_path / "r.tz", sealed(bytes(overlapping)), make()) == "error"


def test_what_deflates_too_well_is_not_deflated(tmp_path):
    """Everything that is saved can be loaded."""
    theta = np.zeros((1, 30 * 2**20, 3), np.uint8)
    path = Result(space=SPACE, theta=theta).save(tmp_path / "r.tz", compress=True)
    assert path.stat().st_size > theta.nbytes
    assert Result.load(path).num_draws == 30 * 2**20
    assert make().save(tmp_path / "s.tz", compress=True).stat().st_size < make().save(tmp_path / "t.tz").stat().st_size


@pytest.mark.parametrize("name", ["flow", "autoregressive", "product"])
def test_transports_come_back(name):
    from terrazzo.transports import REGISTRY, deserialise, serialise

    for options in REGISTRY[name].tests:
        transport = REGISTRY[name].build(SPACE, key=jax.random.key(3), **options)
        data, config = serialise(transport)
        back = deserialise(data, json.loads(json.dumps(config)), SPACE)
        assert jax.tree.structure(back) == jax.tree.structure(transport)
        leaves = [jax.tree.leaves(eqx.filter(t, eqx.is_array)) for t in (back, transport)]
        assert all((a == b).all() for a, b in zip(*leaves, strict=True))
        with pytest.raises(FileFormatError):
            deserialise(data[:-30], config, SPACE)
        with pytest.raises(FileFormatError):
            deserialise(data, {**config, "num_layers": 10**8, "width": 10**8}, SPACE)


# ---- many, at random


def damaged(rng, good):
    """A file with one thing wrong, sealed again more often than not."""
    kind = rng.integers(6)
    if kind == 0:  # bits, sealed again
        data = bytearray(good)
        for place in rng.integers(0, len(good) - 71, rng.integers(1, 5)):
            data[place] ^= 1 << int(rng.integers(8))
        return sealed(bytes(data))
    if kind == 1:  # cut short, or with a piece missing
        first, last = sorted(rng.integers(0, len(good), 2))
        cut = good[:last] if rng.integers(2) else good[:first] + good[last:]
        return sealed(cut) if len(cut) > 71 and rng.integers(2) else cut
    parts = members(good)
    names = list(parts)
    one, two = rng.choice(names, 2, replace=False)
    if kind == 2:  # two members change places
        parts[one], parts[two] = parts[two], parts[one]
    elif kind == 3:  # another value somewhere in the header
        header = json.loads(parts["header.json"])
        spoil(rng, header["header"])
        parts["header.json"] = json.dumps(header).encode()
    elif kind == 4:  # another header of an array
        arrays = [n for n in names if n.startswith("arrays/")]
        name = str(rng.choice(arrays))
        data = bytearray(parts[name])
        for place in rng.integers(0, 100, rng.integers(1, 4)):
            data[place] = int(rng.integers(32, 127))
        parts[name] = bytes(data)
    else:  # noise
        parts[one] = rng.bytes(int(rng.integers(0, 400)))
    method = zipfile.ZIP_DEFLATED if rng.integers(2) else zipfile.ZIP_STORED
    return packed(parts.items(), method, is_listed=kind != 3)


VALUES = (None, -1, 0, 1e300, 10**30, "x", [], {}, [[]], True, float("nan"), -(2**63), ["a"] * 50)


def spoil(rng, record):
    """Replaces one of the values that decide what a result is by one that none can have."""
    spots = [(record, k) for k in ("space", "evidence", "extra_checks", "is_complete", "transport_config")]
    spots += [(v, k) for v in record["space"]["variables"] for k in ("kind", "size", "shape", "labels")]
    where, key = spots[rng.integers(len(spots))]
    possible = {
        "evidence": (None,),
        "transport_config": (None,),
        "extra_checks": ([],),
        "labels": (None,),
        "shape": ([],),
    }
    choices = [v for v in VALUES if v is not where[key] and v not in possible.get(key, ())]
    where[key] = choices[rng.integers(len(choices))]


def survey(count, good, tmp_path):
    rng, reference = np.random.default_rng(1), make()
    counts = {"error": 0, "same": 0, "other": 0}
    for _ in range(count):
        data = damaged(rng, good)
        try:
            counts[outcome(tmp_path / "r.tz", data, reference)] += 1
        except AssertionError:
            counts["other"] += 1
            (tmp_path / f"other{counts['other']}.tz").write_bytes(data)
    return counts


def test_sixty_damaged_files(good, tmp_path):
    counts = survey(60, good, tmp_path)
    assert counts["other"] == 0
    assert counts["error"] > 40


@pytest.mark.slow
def test_five_hundred_damaged_files(good, tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    counts = survey(500, good, tmp_path)
    assert counts["other"] == 0
    assert counts["error"] > 350
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_a_header_of_any_length_is_bounded(tmp_path):
    path = write_file(tmp_path / "r.tz", "terrazzo result", 1, header={})
    data = packed([("header.json", b'{"a": [' + b"[]," * 6_000_000 + b"[]]}")], is_listed=True)
    path.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(FileFormatError, match="header"):
        Result.load(path)
    assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    tracemalloc.stop()
