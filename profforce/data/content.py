"""Content hashes of files, remembered by (size, modification time) so that most are not reread."""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from profforce.data.files import write_json
from profforce.errors import UserError

log = logging.getLogger(__name__)


class ContentIndex:
    """``{file: [size, mtime_ns, sha256]}`` in a JSON file; rebuilt when it is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._changed = False
        self._folders: dict[str, str] = {}
        """Relative to the index."""
        self._rows: dict[str, tuple[int, int, str]] = self._load()

    def digests(
        self, files: Sequence[Path], look: Callable[[int], None] | None = None
    ) -> list[str]:
        """SHA-256 of each file's content; a file is read only if its size or time changed.

        ``look`` is called with a file's position before it is read.
        """
        return [self._digest(file, position, look) for position, file in enumerate(files)]

    def save(self) -> None:
        """Write the index if something is new."""
        if self._changed:
            write_json(self.path, self._rows)
            self._changed = False

    def _digest(self, file: Path, position: int, look: Callable[[int], None] | None) -> str:
        name = self._name(file)
        try:
            stat = file.stat()
            known = self._rows.get(name)
            if known is not None and known[:2] == (stat.st_size, stat.st_mtime_ns):
                return known[2]
            if look is not None:
                look(position)
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
        except OSError as error:
            raise UserError(f"cannot read audio ({error.strerror})", where=file) from error
        self._rows[name] = (stat.st_size, stat.st_mtime_ns, digest)
        self._changed = True
        return digest

    def _name(self, file: Path) -> str:
        """Path of ``file`` relative to the index, so that a corpus may be moved as a whole."""
        folder, name = os.path.split(file)
        if folder not in self._folders:
            try:
                relative = os.path.relpath(folder, self.path.parent)
            except ValueError:  # Windows: another drive
                relative = folder
            self._folders[folder] = Path(relative).as_posix()
        return f"{self._folders[folder]}/{name}"

    def _load(self) -> dict[str, tuple[int, int, str]]:
        if not self.path.is_file():
            return {}
        try:
            rows = json.loads(self.path.read_text(encoding="utf-8"))
            return {
                str(name): (int(size), int(mtime), str(digest))
                for name, (size, mtime, digest) in rows.items()
            }
        except (OSError, ValueError, TypeError, AttributeError) as error:
            log.warning("%s is damaged (%s); the audio files are hashed again", self.path, error)
            return {}
