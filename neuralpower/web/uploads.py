"""Files that a browser sends: a configuration or an ONNX file, bounded, read as data, and gone at the end."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from pathlib import Path
from types import TracebackType

from neuralpower.errors import InputError, one_line
from neuralpower.files.json_files import read_json

PREFIX = "upload:"
MOST_BYTES = {".json": 4 * 2**20, ".onnx": 256 * 2**20}
MOST_FILES = 16  # at once; the oldest go
NAME = re.compile(r"upload:([0-9a-f]{16})/([\w. -]{1,80})")


class Uploads:
    """A folder of its own, with one folder for each file."""

    def __enter__(self) -> Uploads:
        self.folder = Path(tempfile.mkdtemp(prefix="neuralpower-web-"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def add(self, name: str, content: bytes) -> str:
        """Keep a file; what a view calls it. Raises InputError for anything but a model's data."""
        plain = re.sub(r"[^\w.-]", "_", Path(name.replace("\\", "/")).name)[-80:]
        ending = checked_ending(plain)
        check_size(plain, len(content))
        key = hashlib.blake2b(content, digest_size=8).hexdigest()
        called = "config.json" if ending == ".json" else plain
        place = self.folder / key
        place.mkdir(exist_ok=True)
        file = place / called
        file.write_bytes(content)
        if ending == ".json":
            try:
                values = read_json(file)
            except (ValueError, OSError) as error:
                shutil.rmtree(place, ignore_errors=True)
                raise InputError(
                    f"{plain}: is not JSON ({one_line(error)}); upload a model's config.json"
                ) from None
            if not isinstance(values, dict):
                shutil.rmtree(place, ignore_errors=True)
                raise InputError(f"{plain}: is not a JSON object; upload a model's config.json")
        self._prune()
        return f"{PREFIX}{key}/{called}"

    def path(self, model: str) -> Path:
        """The file of an upload; raises InputError for one that is not here."""
        match = NAME.fullmatch(model.partition("?")[0])
        file = None if match is None else self.folder / match[1] / match[2]
        if file is None or not file.is_file():
            raise InputError(f"{model[:100]}: this server does not have that file; upload it again")
        return file

    def _prune(self) -> None:
        """Remove the oldest files."""
        places = sorted(self.folder.iterdir(), key=lambda place: place.stat().st_mtime_ns)
        for place in places[:-MOST_FILES]:
            shutil.rmtree(place, ignore_errors=True)


def checked_ending(name: str) -> str:
    """The ending of a file's name; raises InputError for any other than a model's data has."""
    ending = Path(name).suffix.lower()
    if ending not in MOST_BYTES:
        raise InputError(
            f"{name[:80]}: upload a config.json or an .onnx file; code is never uploaded: start the server "
            "with --trust-code, and write its path as the model"
        )
    return ending


def check_size(name: str, size: int) -> None:
    """Raise InputError for a file that is too large."""
    most = MOST_BYTES[checked_ending(name)]
    if size > most:
        raise InputError(
            f"{name[:80]}: {size / 2**20:,.0f} MiB; at most {most // 2**20} MiB are taken. Give its path to "
            "neuralpower predict"
        )
