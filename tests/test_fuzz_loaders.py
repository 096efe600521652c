"""Damaged and foreign files: every loader refuses them by name; none hangs, crashes or runs them.

Files with a checksum (policies, exported policies, plans, episodes of a run) must refuse any
change, or come out as if there had been none. CSV, TOML and JSON have no checksum: a flipped digit
makes another sound file, so there a changed file is refused by name or read as what it now says.
What follows from other files (metrics, copies of policies, the lock) is written anew.
"""

import io
import json
import pickle
import random
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from loaders import (
    DERIVED,
    LOADERS,
    NAMES,
    PLAIN,
    SEALED,
    TABLES,
    WHOLE,
    Originals,
    flips,
    forged,
    forgeries,
    mutations,
    peak_megabytes,
    put_nothing,
    readers,
    refused,
)
from night import at_night

from mufield.io import sealed as files

pytestmark = pytest.mark.slow

MUTATIONS = at_night(25, 5)
"""Random mutations of each file that is read by itself; the benchmark tries 10,000."""

MOST_MEGABYTES = 2000
"""What reading any file may take beyond what the tests need."""


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    return Originals(tmp_path_factory.mktemp("zoo"))


@pytest.fixture(scope="module")
def loaders(zoo):
    return zoo.loaders


@pytest.fixture(scope="module")
def originals(zoo):
    return zoo.place


class Bomb:
    """What a careless loader would unpickle, and so create a file."""

    def __init__(self, sentinel):
        self.sentinel = sentinel

    def __reduce__(self):
        return (Path.touch, (self.sentinel,))


def truncations(data):
    """The file cut at many places."""
    places = {0, 1, 7, 8, 9, len(data) // 2, len(data) - 1, len(data) - 9}
    shares = at_night(23, 4)
    places |= {round(share * len(data) / shares) for share in range(shares)}
    return [data[:place] for place in sorted(places) if 0 <= place < len(data)]


def foreign(sentinel):
    """Files of other programs, and files that were made to do harm."""
    rng = random.Random(1)
    bomb = pickle.dumps(Bomb(sentinel))
    archive, arrays = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as inner:
        inner.writestr("document.npy", b"\0" * 10_000_000)
    np.savez(arrays, document=np.array([Bomb(sentinel)], dtype=object))
    deep = b"[" * 100_000
    nested = json.dumps({"mufield": "[" * 50_000}).encode()
    header = b'{"__metadata__":' + nested + b"}"
    return {
        "an empty file": b"",
        "a picture": b"\x89PNG\r\n\x1a\n" + rng.randbytes(300),
        "an archive": archive.getvalue(),
        "a pickle": bomb,
        "arrays with a pickle": arrays.getvalue(),
        "a sealed pickle": files.sealed_bytes({}, {"bomb": np.frombuffer(bomb, "u1")}, kind="bomb"),
        "a page": b"<!doctype html><html><body>404</body></html>\n",
        "a huge header": (2**63).to_bytes(8, "little") + b"{}",
        "a long header": (90_000_000).to_bytes(8, "little") + b"{" + b" " * 1000,
        "random bytes": rng.randbytes(2000),
        "zeros": bytes(4096),
        "deep lists": deep,
        "deep lists that end": deep + b"]" * 100_000,
        "deep tables": b"a = " + b"{b = " * 5_000,
        "a deep description": len(header).to_bytes(8, "little") + header,
        "a number": b"3\n",
        "a text": b'"text"\n',
        "a list": b"[]\n",
        "an empty table": b"{}\n",
        "a long number": b"9" * 10_000,
        "parquet's name only": b"PAR1PAR1",
        "parquet that lies": b"PAR1" + b"\xff" * 64 + b"\xff\xff\xff\x7fPAR1",
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_sound_file_is_read(name, loaders, originals):
    assert refused(loaders[name], originals / name) is not None


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_was_cut_short_is_refused(name, loaders, originals, tmp_path):
    path, whole = tmp_path / name, (originals / name).read_bytes()
    text = name.endswith(("csv", "toml", "json"))
    for data in truncations(whole):
        path.write_bytes(data)
        found = refused(loaders[name], path)
        # Text may end anywhere and still say something.
        assert found is None or (text and len(data) > 0)


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_bit_is_found_or_changes_nothing(name, loaders, originals, tmp_path):
    path, whole = tmp_path / name, (originals / name).read_bytes()
    sound, count = loaders[name](originals / name), 0
    many = at_night(150, 20)
    for data in flips(whole, many):
        path.write_bytes(data)
        found = refused(loaders[name], path)
        count += found is None
        if name in SEALED:
            assert found in (None, sound)
    assert count > many / 15


@pytest.mark.parametrize("name", NAMES)
def test_a_foreign_file_is_refused_and_never_run(name, loaders, originals, tmp_path):
    path, sentinel = tmp_path / name, tmp_path / "executed"
    others = {other: (originals / other).read_bytes() for other in NAMES if other != name}
    # An episode may be told as a log, too, and has positions.
    alike = [{"network.policy", "moves.policy"}, *({f"episode.{e}", f"log.{e}"} for e in TABLES)]
    alike += [{"positions.csv", "episode.csv"}, {"positions.csv", "log.csv"}]
    alike += [{"trips.csv", "zones.csv"}]  # both are records of trips
    others = {o: data for o, data in others.items() if {o, name} not in alike}
    for what, data in (foreign(sentinel) | others).items():
        path.write_bytes(data)
        assert refused(loaders[name], path) is None, f"{name} was read from {what}"
        assert not sentinel.exists(), f"{name} ran {what}"
    path.unlink()
    for what in put_nothing(path):
        assert refused(loaders[name], path) is None, f"{name} was read from {what}"


def test_the_bomb_goes_off_where_pickles_are_read(tmp_path):
    pickle.loads(foreign(tmp_path / "executed")["a pickle"])
    assert (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", SEALED)
def test_a_file_with_a_forged_checksum_is_refused_or_read(name, loaders, originals, tmp_path):
    path = tmp_path / name
    for data in list(forged(originals / name, forgeries))[:: at_night(2, 10)]:
        path.write_bytes(data)
        refused(loaders[name], path)


@pytest.mark.parametrize("name", NAMES)
def test_files_that_were_changed_at_random_are_refused_or_read(name, loaders, originals, tmp_path):
    path, whole = tmp_path / name, (originals / name).read_bytes()
    others = [(originals / other).read_bytes() for other in NAMES if other != name]
    sound, before = loaders[name](originals / name), peak_megabytes()
    for data in mutations(whole, MUTATIONS, others):
        path.write_bytes(data)
        found = refused(loaders[name], path)
        if name in SEALED:
            assert found in (None, sound)
    assert peak_megabytes() - before < MOST_MEGABYTES


def test_every_loader_is_tried():
    """A new function that reads files fails here until its file is among those that are fuzzed."""
    assert readers() == LOADERS.keys()
    assert set(LOADERS.values()) <= {None, *NAMES, *WHOLE, *DERIVED, *PLAIN}


# A run's directory.


THOROUGH = ("episodes/0001.safetensors", "policies/0001.policy", "config.json", "timings.jsonl")
FEW = ("an empty file", "a pickle", "random bytes", "deep lists that end", "a deep description")


@pytest.fixture
def copied(zoo, tmp_path):
    return shutil.copytree(zoo.run, tmp_path / "run")


@pytest.mark.parametrize("name", [*WHOLE, *DERIVED, *PLAIN])
def test_a_damaged_run_is_refused_by_name_or_mended(name, zoo, copied, tmp_path):
    open_run, path, sentinel = zoo.open_run, copied / name, tmp_path / "executed"
    sound, whole = open_run(copied), path.read_bytes()
    damaged = {f"cut to {len(data)}": data for data in truncations(whole)[:: at_night(4, 8)]}
    damaged |= {f"flip {i}": data for i, data in enumerate(flips(whole or b"\0", at_night(10, 2)))}
    others = foreign(sentinel)
    # Files of one format share their reader, so one of each format meets all foreign files.
    damaged |= others if name in THOROUGH else {what: others[what] for what in FEW}
    if name in WHOLE:  # a sound file, but in the wrong place
        damaged["another part"] = (copied / WHOLE[WHOLE.index(name) - 1]).read_bytes()
    for what, data in damaged.items():
        path.write_bytes(data)
        found = refused(open_run, copied, name=copied)
        assert not sentinel.exists(), f"{name} ran {what}"
        if name in DERIVED:
            assert found == sound, f"{name} was not mended after {what}"
        elif name in WHOLE:
            assert found in (None, sound), f"{name} was read after {what}"
            assert found is None or what.startswith("flip")
        path.write_bytes(whole)
    path.unlink()
    for what in put_nothing(path):
        found = refused(open_run, copied, name=copied)
        assert found is None or (name not in WHOLE and name != "config.json"), f"{name}: {what}"
