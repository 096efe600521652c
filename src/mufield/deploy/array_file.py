"""The file that `DeployedPolicy` reads: an .npz archive with a document and a checksum."""

import hashlib
import io
import json
import zipfile
from pathlib import Path

import numpy as np

from .._files import write_bytes
from .describe import Deployable
from .reader import DTYPES, MARK, npy_header

LONG_AGO = (1980, 1, 1, 0, 0, 0)
"""The date of every member, so that equal policies have equal bytes."""


def write_array_file(path: Path, deployable: Deployable) -> None:
    """Writes a policy for the NumPy reader, whole or not at all."""
    write_bytes(path, to_bytes(deployable))


def to_bytes(deployable: Deployable) -> bytes:
    """The file's contents, the same for the same policy."""
    text = json.dumps(deployable.document, allow_nan=False, sort_keys=True).encode()
    members = {"document": npy_header("|u1", (len(text),)) + text}
    for name, array in sorted(deployable.arrays.items()):
        code = DTYPES[array.dtype.name]
        # Little-endian whatever this computer is.
        plain = np.asarray(array, dtype=code, order="C")
        members[name] = npy_header(code, plain.shape) + plain.tobytes()
    return sealed(members)


def sealed(members: dict[str, bytes]) -> bytes:
    """An archive of members as they are, with its checksum as the comment at its end."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            entry = zipfile.ZipInfo(f"{name}.npy", LONG_AGO)
            entry.create_system = 3  # as on Unix, wherever it is written
            archive.writestr(entry, data)
        archive.comment = MARK + b"0" * 64
    data = file.getvalue()[:-64]
    return data + hashlib.sha256(data).hexdigest().encode()
