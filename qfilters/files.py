"""Writing files: nobody sees half of one, two do not write at once, a failure is one line."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import QFiltersError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the system's refusal to write `path` into a QFiltersError."""
    try:
        yield
    except OSError as error:
        raise QFiltersError(f"cannot write {path}: {error.strerror or error}") from error


def lock(folder: Path) -> int:
    """Lock a folder that is there until the handle is closed, at the latest by the process's end.

    A file system without locks is written unlocked.

    Raises:
        QFiltersError: another process holds it.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise QFiltersError(f"{folder} is being written by another process: wait for it") from None
    except OSError:
        pass  # no locks here
    return handle


def atomic_write(path: str | Path, data: bytes | str) -> Path:
    """Write `data` (text as UTF-8) to a temporary neighbour of `path`, then rename it.

    Folders are made as needed. What was at `path` stays until the new file is complete.

    Raises:
        QFiltersError: the place cannot be written.
    """
    path = Path(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data.encode() if isinstance(data, str) else data)
                file.flush()
                os.fsync(file.fileno())
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    return path
