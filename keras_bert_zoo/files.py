"""Read and write files so that a failure leaves nothing half-written."""

import glob
import os
import re
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

# No configuration comes near the first limit. The largest known vocabularies reach a third of the second as JSON,
# which takes up to 25 times its size in memory, and a tenth of the third.
SETTINGS_BYTES, TOKENIZER_BYTES, TEXT_BYTES = 16 * 2**20, 32 * 2**20, 256 * 2**20


# What follows `.part` in a temporary name: the process' number and, for its threads, random digits.
_PART = re.compile(r"(\d*)(?:x[0-9a-f]+)?")
# Temporary paths that threads are writing, each with the process that has the thread.
_written: set[tuple[int, Path]] = set()
_locks: dict[int, threading.Lock] = {}


def _one_thread() -> threading.Lock:
    """Return this process' lock; that of a process it was forked from may be held by a thread that it lacks."""
    return _locks.setdefault(os.getpid(), threading.Lock())


@contextmanager
def _writing(folder: Path, begin: str, end: str = "") -> Iterator[Path]:
    """Yield a new path for this process and thread, whose name begins and ends so."""
    mine = os.getpid(), folder / f"{begin}{os.getpid()}x{secrets.token_hex(4)}{end}"
    _written.add(mine)
    try:
        yield mine[1]
    finally:
        _written.discard(mine)


def _written_elsewhere(folder: Path, begin: str, end: str = "") -> Iterator[tuple[Path, int]]:
    """Yield other processes' temporary paths with the numbers of those processes, 0 where there is none."""
    for path in folder.glob(f"{glob.escape(begin)}*{glob.escape(end)}"):
        match = _PART.fullmatch(path.name.removeprefix(begin).removesuffix(end))
        if match and (os.getpid(), path) not in _written:
            yield path, int(match[1] or 0)


def check_size(path: Path, limit: int) -> None:
    """Reject an implausibly large file before it is read."""
    size = path.stat().st_size
    if size > limit:
        raise ValueError(f"{path} must be at most {limit // 2**20} MiB. Received: {size / 2**20:.0f} MiB")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` that replaces `path` at the end; an error leaves nothing behind.

    Each call has its own temporary path. It deletes those of other processes, even of running ones, so that none can
    put an older file into place.
    """
    if path.exists() and not path.is_file():
        received = "a directory" if path.is_dir() else "a pipe or a device"
        raise ValueError(f"{path} must be a regular file, or a new one. Received: {received}")
    target = Path(os.path.realpath(path))  # A link is kept.
    begin, end = f".{target.stem}.part", path.suffix  # Some writers require their suffix.
    for left, process in _written_elsewhere(target.parent, begin, end):
        if process:
            left.unlink(missing_ok=True)
    with _writing(target.parent, begin, end) as beside:
        try:
            yield beside
            to_disk(beside)
            if target.exists():
                with suppress(OSError):  # Some file systems have no permissions.
                    shutil.copymode(target, beside)
            os.replace(beside, target)
        finally:
            beside.unlink(missing_ok=True)


def to_disk(path: Path) -> None:
    """Wait until a file, or all in a directory, are on the disk.

    Otherwise a power failure can leave a new name without its contents.
    """
    for each in filter(Path.is_file, path.rglob("*")) if path.is_dir() else [path]:
        # It may be read-only; Windows flushes no such file.
        with each.open("rb+" if os.name == "nt" else "rb") as file:
            os.fsync(file.fileno())


def check_local(**out: str | os.PathLike[str]) -> None:
    """Refuse the address of a bucket or a hub, given by the argument's name: `Path` would make it a local directory."""
    for name, path in out.items():
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:[/\\]", str(path)):  # `Path` keeps one slash; a drive has one letter.
            instead = "; upload_preset() writes to the Hub" if str(path).startswith("hf:") else ""
            raise ValueError(f"`{name}` must be a local path{instead}. Received: {name}={str(path)!r}")


def check_out(out: str | os.PathLike[str], folder: Path) -> None:
    """Refuse an `out` whose files could not be written into this directory; nothing is made yet."""
    check_local(out=out)
    place = folder.absolute()
    place = next(filter(os.path.lexists, (place, *place.parents)), place)
    reason = "is no directory"
    if place.is_dir():
        try:
            tempfile.TemporaryFile(dir=place).close()
            return
        except OSError as error:
            reason = f"says: {error.strerror}"
    raise ValueError(f"`out` must be where files can be written. Received: out={str(out)!r}, but {place} {reason}")


def _is_leftover(path: Path) -> bool:
    """Whether a killed process left this file or directory, from `replacing` or `directory_beside`."""
    return path.name.startswith(".") and ".part" in path.name


@contextmanager
def names_tensors(path: Path) -> Iterator[None]:
    """Turn safetensors' errors in writing, as on a full disk, into an `OSError` that names the file."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise OSError(f"{path} could not be written completely. Received: {error}") from None


@contextmanager
def directory_beside(target: Path, folder: Path | None = None) -> Iterator[Path]:
    """Yield a new directory of this call for what is to become `target`; it is removed at the end.

    Args:
        target: The path to write later.
        folder: The directory to make it in; by default that of `target`.
    """
    with _writing(folder or target.parent, f".{target.name}.part") as beside:
        beside.mkdir(parents=True)
        try:
            yield beside
        finally:
            _remove(beside, target)


def clear_leftovers(target: Path) -> None:
    """Undo, finish or remove what processes killed in `directory_beside` left."""
    for folder in (target.parent, target):
        for left, process in _written_elsewhere(folder, f".{target.name}.part"):
            if left.is_dir() and not left.is_symlink() and not _is_running(process):
                _remove(left, target)


def _is_running(process: int) -> bool:
    """Whether this machine has another process of this number, or False if that cannot be known."""
    if process in (0, os.getpid()) or os.name != "posix":
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # Another user's.
        pass
    return True


def _remove(beside: Path, target: Path) -> None:
    """Remove `beside`; before that, undo an exchange that a kill ended, or finish it if all old files had left."""
    coming = beside / "coming"
    found = coming if coming.is_dir() else beside / "old"
    if beside.parent == target and found.is_dir():
        for path in found.iterdir():
            if not os.path.lexists(target / path.name):  # Else another process has written it since.
                path.rename(target / path.name)
    shutil.rmtree(beside, ignore_errors=True)


def is_empty(folder: Path) -> bool:
    """Whether a directory holds nothing but leftovers."""
    return all(map(_is_leftover, folder.iterdir()))


def write_directory(
    path: str | os.PathLike[str],
    marker: str,
    owned: tuple[str, ...],
    write: Callable[[Path], None],
    opened_by: str | None = None,
) -> None:
    """Fill a directory, completely or not at all; an error leaves `path` unchanged.

    A new one is filled beside `path` and renamed into place. In one that exists, which may be the current directory or
    a mount, the files are replaced by renaming, and others, which may be open, are not touched.

    Args:
        path: The directory to write. It may exist if it is empty or holds `marker`; other files in it are kept.
        marker: Name of the file that identifies our own directories.
        owned: Names of files that `write` does not always make; old ones are removed.
        write: Called with the directory to fill.
        opened_by: Name of the file without which a directory cannot be read, by default the marker: it leaves first
            and comes last, so that no reader takes a directory of which a part is replaced.
    """
    check_local(path=path)
    target = Path(path).resolve()  # A link is kept, and `.` has a parent.
    if target.exists() and not target.is_dir():
        raise ValueError(f"`path` must be a directory. Received: path={str(path)!r}, a file")
    with _one_thread():  # Another may have moved the marker away.
        clear_leftovers(target)
        if target.is_dir() and not is_empty(target) and not (target / marker).is_file():
            raise ValueError(
                f"`path` must be a new or empty directory, or one with a {marker}. Received: path={str(path)!r}"
            )
        stays = target.exists()
    with directory_beside(target, target if stays else target.parent) as beside:
        new = beside / "new"
        new.mkdir()
        write(new)
        to_disk(new)
        with _one_thread():
            if stays or target.exists():  # Another thread may have made it.
                _exchange(target, beside, owned, opened_by or marker)
            else:
                new.rename(target)


def _exchange(target: Path, beside: Path, owned: tuple[str, ...], opened_by: str) -> None:
    """Replace files in `target` by those in `beside / "new"`; an error undoes all renames.

    After a kill the names in `beside` tell `_remove` how far it came: `old` holds files that have left, `coming` files
    that are still to come.
    """
    new, coming, old = (beside / name for name in ("new", "coming", "old"))
    old.mkdir()
    names = sorted((path.name for path in new.iterdir()), key=lambda name: (name == opened_by, name))
    leave = [name for name in (*sorted({*owned} - {*names}), *names) if os.path.lexists(target / name)]
    moves = [(target / name, old / name) for name in reversed(leave)]
    moves += [(new, coming), *((coming / name, target / name) for name in names), (old, beside / "done")]
    with ExitStack() as undo:
        for source, goal in moves:
            if os.path.lexists(goal):
                raise OSError(f"{goal} must not exist. Received: a file that another process wrote at the same time")
            undo.callback(_move_back, goal, source)  # Before the rename: Ctrl+C may come right after it.
            source.rename(goal)
        undo.pop_all()


def _move_back(goal: Path, source: Path) -> None:
    if not os.path.lexists(source):
        goal.rename(source)
