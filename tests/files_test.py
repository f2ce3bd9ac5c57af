"""Files and directories that are replaced as a whole: what they are in the end, and after a failure."""

import os
from pathlib import Path

import pytest

from keras_bert_zoo import cli
from keras_bert_zoo.files import clear_leftovers, listed, replacing, write_directory, write_json
from tests.helpers import left_to_torch

if left_to_torch():
    pytest.skip("files know no backend: once is enough", allow_module_level=True)


def contents(directory):
    return {path.name: path.read_text() for path in directory.iterdir()}


def save(path, *names):
    def write(folder):
        for name in names:
            (folder / name).write_text("new")

    write_directory(path, marker="marker", owned=("owned",), write=write)


@pytest.mark.parametrize("exists", [True, False])
def test_the_target_of_a_link_is_replaced(exists, tmp_path):
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link.json"
    if exists:
        target.write_text("old")
    link.symlink_to(target)
    write_json(link, {})
    assert link.is_symlink()
    assert target.read_text() == "{}\n"
    assert [path.name for path in target.parent.iterdir()] == ["target"]
    with replacing(link) as beside:
        assert beside.suffix == ".json"
        beside.write_text("")


def test_a_process_puts_no_half_written_file_of_another_into_place(tmp_path, monkeypatch):
    path = tmp_path / "state.json"

    def overlap():
        with replacing(path) as old:
            old.write_text("whole, of a run that was started again")
            monkeypatch.setattr(os, "getpid", lambda: 1)
            with replacing(path) as new:
                new.write_text("half")
                assert old != new
                assert not old.exists()
                new.write_text("whole")

    with pytest.raises(FileNotFoundError):
        overlap()
    assert contents(tmp_path) == {"state.json": "whole"}


def test_nothing_is_written_through_a_planted_link(tmp_path):
    (tmp_path / "mine").write_text("mine")
    for name in (f".a.part{os.getpid()}.json", ".a.part7.json"):
        (tmp_path / name).symlink_to(tmp_path / "mine")
    (tmp_path / ".a.partly.json").write_text("another's")
    write_json(tmp_path / "a.json", {})
    assert contents(tmp_path) == {"a.json": "{}\n", "mine": "mine", ".a.partly.json": "another's"}


@pytest.mark.parametrize("kind", ["a pipe or a device", "a directory"])
def test_only_files_are_replaced(kind, tmp_path):
    (os.mkfifo if kind.startswith("a pipe") else os.mkdir)(tmp_path / "it")
    (tmp_path / "link").symlink_to(tmp_path / "it")
    for name in ("it", "link"):
        with pytest.raises(ValueError, match=rf"{name} must be a regular file, or a new one\. Received: {kind}"):
            write_json(tmp_path / name, {})
    assert {path.name for path in tmp_path.iterdir()} == {"it", "link"}
    assert not (tmp_path / "it").is_file()


def test_a_pipe_that_has_no_path_is_not_replaced():
    reader, writer = os.pipe()
    with pytest.raises(ValueError, match="must be a regular file, or a new one"):
        write_json(Path(f"/dev/fd/{writer}"), {})
    os.close(reader)
    os.close(writer)


def test_the_current_directory_is_filled_and_stays(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = Path.cwd().stat().st_ino
    save(".", "marker", "owned", "a")
    assert contents(Path.cwd()) == {"marker": "new", "owned": "new", "a": "new"}
    for name in ("marker", "owned", "a", "mine"):
        Path(name).write_text("old")
    save(tmp_path / "here", "marker", "b")
    assert contents(Path.cwd()) == {"marker": "new", "a": "old", "b": "new", "mine": "old"}
    assert Path.cwd().stat().st_ino == (tmp_path / "here").stat().st_ino == before
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


@pytest.mark.parametrize("fails", ["write", "marker", "b"])
def test_a_failure_leaves_the_current_directory_as_it_was(fails, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = dict.fromkeys(["marker", "owned", "mine"], "old")
    for name, text in before.items():
        Path(name).write_text(text)
    rename = Path.rename

    def fail(self, goal):
        if (self.parent.name, self.name) == ("new", fails):
            raise OSError("disk gone")
        return rename(self, goal)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="disk gone" if fails != "write" else "No such file"):
        save(".", "marker", "b", *(["no/folder"] if fails == "write" else []))
    assert contents(tmp_path) == before


def interrupt(monkeypatch, number):
    """Interrupt, as by Ctrl+C, directly after a rename, and again after the one that undoes it."""
    rename, count = Path.rename, iter(range(100))

    def rename_and_stop(self, goal):
        rename(self, goal)
        if next(count) in (number, number + 1):
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", rename_and_stop)


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("number", range(4))
def test_an_interrupt_leaves_the_old_directory_or_the_new_one(here, number, tmp_path, monkeypatch):
    target = tmp_path / "preset"
    save(target, "marker", "a")
    for name in ("marker", "a"):
        (target / name).write_text("old")
    if here:
        monkeypatch.chdir(target)
    interrupt(monkeypatch, number)
    try:
        save(target, "marker", "a")
    except KeyboardInterrupt:
        assert here or number < 2
    else:
        assert not here
        assert number >= 2
    for left in target.glob(".preset.part*"):
        left.rename(tmp_path / left.name)
    assert contents(target) in (dict.fromkeys(["marker", "a"], text) for text in ("old", "new"))
    monkeypatch.undo()
    save(target, "marker", "a")
    assert [path.name for path in tmp_path.iterdir()] == ["preset"]


@pytest.mark.parametrize("here", [True, False])
def test_what_a_kill_left_is_brought_back_or_removed(here, tmp_path, monkeypatch):
    """Another process' own directory stays while that process runs: here the process that started the tests."""
    target = tmp_path / "preset"
    target.mkdir()
    if here:
        monkeypatch.chdir(target)
        (target / "marker").write_text("half of the new one")
    else:
        target.rmdir()
    folder = target if here else tmp_path
    dead, running = (folder / f".preset.part{number}" for number in (2**30, os.getppid()))
    for name in ("new", "old"):
        for path in (dead, running):
            (path / name).mkdir(parents=True)
            (path / name / "marker").write_text(name)
    (folder / ".preset.partly").mkdir()
    clear_leftovers(target)
    assert (target / "marker").read_text() == "old"
    assert not dead.exists()
    assert (running / "old" / "marker").read_text() == "old"
    assert (folder / ".preset.partly").exists()


def test_a_folder_that_a_kill_left_in_the_current_directory_is_brought_back(tmp_path):
    """An example is the pooling folder of an embedder, half replaced."""
    dead = tmp_path / f".{tmp_path.name}.part{2**30}"
    for folder, text in ((tmp_path / "owned", "new"), (dead / "old" / "owned", "old")):
        folder.mkdir(parents=True)
        (folder / "config").write_text(text)
    save(dead / "new", "marker")
    clear_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["owned"]
    assert contents(tmp_path / "owned") == {"config": "old"}


def test_what_another_user_s_process_writes_stays(tmp_path, monkeypatch):
    (tmp_path / ".preset.part7" / "new").mkdir(parents=True)

    def refuse(process, signal):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    clear_leftovers(tmp_path / "preset")
    assert (tmp_path / ".preset.part7" / "new").exists()


def test_a_link_to_a_directory_stays_one(tmp_path):
    (tmp_path / "store" / "target").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "store" / "target")
    for _ in range(2):
        save(tmp_path / "link", "marker")
    assert (tmp_path / "link").is_symlink()
    assert contents(tmp_path / "store" / "target") == {"marker": "new"}
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["target"]


def test_links_beside_the_files_stay_links(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    save(tmp_path / "preset", "marker")
    for name, target in (("gone", "nowhere"), ("folder", "../elsewhere")):
        (tmp_path / "preset" / name).symlink_to(target)
    save(tmp_path / "preset", "marker", "a")
    links = {path.name: os.readlink(path) for path in (tmp_path / "preset").iterdir() if path.is_symlink()}
    assert links == {"gone": "nowhere", "folder": "../elsewhere"}
    assert (tmp_path / "preset" / "a").read_text() == "new"


def test_convert_to_here(backbone, tmp_path, monkeypatch):
    backbone.save_to_preset(tmp_path / "preset")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path(f".here.part{2**30}", "new").mkdir(parents=True)  # Left by a process that was killed.
    assert cli.main(["convert", "../preset", "."]) == 0
    names = {path.name for path in (tmp_path / "preset").iterdir()}
    assert {path.name for path in Path.cwd().iterdir()} == names == set(os.listdir(tmp_path / "here"))
    backbone.save_to_preset(".")
    assert {path.name for path in Path.cwd().iterdir()} == names


def test_of_many_names_six_are_listed():
    assert listed("abcdef") == "a, b, c, d, e, f"
    assert listed("abcdefgh") == "a, b, c, d, e, f and 2 more"
