"""Sealed files: arrays and a document that come back as they were, or an error that names the file.

What damaged and foreign files do to every loader is tested in test_fuzz_loaders.py.
"""

import json
import os

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save as to_safetensors

from mufield import UserError
from mufield.io.atomic import check_own, locked, open_new, write_bytes
from mufield.io.sealed import digest, read_sealed, sealed_bytes, write_sealed
from mufield.jobs.job import JobStore

DOCUMENT = {"name": "größe", "numbers": [1, 2.5, None], "inner": {"yes": True}}
ARRAYS = {
    "weights": np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3),
    "count": np.array(7, dtype=np.int64),
    "mask": np.array([True, False]),
    "none": np.zeros((0, 4)),
    "words": np.array([2**64 - 1], dtype=np.uint64),
}


@pytest.fixture
def path(tmp_path):
    write_sealed(tmp_path / "sealed", DOCUMENT, ARRAYS, kind="test file")
    return tmp_path / "sealed"


def forge(path, entry, arrays=ARRAYS):
    """A file of other programs, with whatever entry."""
    path.write_bytes(to_safetensors(dict(arrays), metadata={"mufield": json.dumps(entry)}))


def test_all_comes_back_as_it_was(path):
    document, arrays = read_sealed(path, "test file")
    assert document == DOCUMENT
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array, strict=True)
    with safe_open(path, framework="np") as file:  # other programs read it, too
        assert set(file.keys()) == ARRAYS.keys()


def test_equal_contents_give_equal_bytes(path):
    turned = {name: np.asarray(ARRAYS[name], order="F") for name in reversed(ARRAYS)}
    data = sealed_bytes(DOCUMENT, turned, kind="test file")
    assert data == path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    assert list(header) == sorted(header)
    assert list(header["__metadata__"]) == ["mufield"]


def test_a_file_of_another_kind_is_refused_by_name(path):
    with pytest.raises(UserError, match=r"sealed: expected a policy, got a test file"):
        read_sealed(path, "policy")


@pytest.mark.parametrize("name", ["document", "kind", "sha256", "dtype", "shape"])
def test_every_part_is_under_the_seal(name, path):
    text, arrays = json.dumps(DOCUMENT), dict(ARRAYS)
    entry = {"kind": "test file", "document": text, "sha256": digest("test file\n" + text, ARRAYS)}
    forge(path, entry)
    assert read_sealed(path, "test file").document == DOCUMENT
    if name == "dtype":
        arrays["words"] = arrays["words"].view(np.int64)
    elif name == "shape":
        arrays["weights"] = arrays["weights"].reshape(3, 2)
    else:
        entry[name] = {"document": "{}", "kind": "policy", "sha256": "0" * 64}[name]
    forge(path, entry, arrays)
    with pytest.raises(UserError, match="sealed"):
        read_sealed(path, "policy" if name == "kind" else "test file")


@pytest.mark.parametrize(
    "entry", [[], 3, {}, {"kind": "test file"}, {"document": None, "kind": "test file"}]
)
def test_forged_entries_are_refused_by_name(entry, path):
    forge(path, entry)
    with pytest.raises(UserError, match="sealed"):
        read_sealed(path, "test file")


@pytest.mark.parametrize("document", ["[" * 100_000, "[]", "3", "nothing", 5])
def test_forged_documents_are_refused_by_name(document, path):
    forge(path, {"kind": "test file", "document": document, "sha256": ""})
    with pytest.raises(UserError, match="sealed"):
        read_sealed(path, "test file")


def test_number_formats_that_numpy_lacks_are_refused(path):
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"dtype":"U64"', b'"dtype":"F8_E5M2"'))
    with pytest.raises(UserError, match="sealed"):
        read_sealed(path, "test file")
    header = b'{"a":{"dtype":"F8_E5M2","shape":[8],"data_offsets":[0,8]},'
    header += b'"__metadata__":{"mufield":"{\\"kind\\":\\"test file\\",\\"document\\":\\"{}\\"}"}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(UserError, match="sealed"):
        read_sealed(path, "test file")


def test_what_is_no_file_is_refused_by_name(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for place, what in (("pipe", "device"), (".", "directory"), ("nowhere", "missing")):
        with pytest.raises(UserError, match=what):
            read_sealed(tmp_path / place, "test file")


def test_the_disk_is_waited_for_unless_switched_off(path, monkeypatch):
    waited = []
    monkeypatch.setattr(os, "fsync", waited.append)
    write_bytes(path, b"1")
    assert waited == []
    monkeypatch.delenv("MUFIELD_FSYNC")
    write_bytes(path, b"2")
    assert len(waited) == 2  # the file, and the directory that names it


@pytest.fixture
def precious(tmp_path):
    """A file outside of what somebody sent, and how to see that nobody touched it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    yield outside
    assert [path.name for path in outside.iterdir()] == ["precious"]
    assert (outside / "precious").read_text() == "precious"


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_lock_that_is_a_link_is_refused(link, precious, tmp_path):
    sent = tmp_path / "sent"
    sent.mkdir()
    link(precious / "precious", sent / "lock")
    with pytest.raises(UserError, match=r"cannot lock with .*lock"), locked(sent):
        pass


def test_links_are_replaced_and_never_followed(precious, tmp_path):
    for name, write in {
        "bytes": lambda path: write_bytes(path, b"new"),
        "log": lambda path: os.write(open_new(path), b"new"),
    }.items():
        (tmp_path / name).symlink_to(precious / "precious")
        write(tmp_path / name)
        assert not (tmp_path / name).is_symlink()
        assert (tmp_path / name).read_bytes() == b"new"


def test_directories_that_lead_elsewhere_are_refused(precious, tmp_path):
    sent = tmp_path / "sent"
    (sent / "jobs").mkdir(parents=True)
    check_own(sent)
    (sent / "jobs" / "one").symlink_to(precious)
    check_own(sent, "made")
    for parts in ((), ("jobs",)):
        with pytest.raises(UserError, match=r"jobs.one is a symbolic link"):
            check_own(sent, *parts)
    with pytest.raises(UserError, match="symbolic link"), JobStore(sent).writing():
        pass
