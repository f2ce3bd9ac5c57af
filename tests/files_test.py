"""Files and directories that are replaced as a whole: what they are in the end, and after a failure."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo import cli, files, finetuning, pretraining
from keras_bert_zoo.checks import listed
from keras_bert_zoo.data import write_squad_predictions, write_submission
from keras_bert_zoo.files import clear_leftovers, replacing, write_directory
from keras_bert_zoo.finetuning import evaluate, finetune
from keras_bert_zoo.json_files import read_json, write_json
from keras_bert_zoo.pretraining import prepare, pretrain
from keras_bert_zoo.tuning import tune
from tests.helpers import WORDS, left_to_torch

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


def test_threads_write_one_path_each_completely(tmp_path):
    """The last to end counts. What an earlier process of the same number has left is removed."""
    one, other = replacing(tmp_path / "a.json"), replacing(tmp_path / "a.json")
    first = one.__enter__()
    first.write_text("fir")
    second = other.__enter__()
    second.write_text("second")
    first.write_text("first")
    other.__exit__(None, None, None)
    assert contents(tmp_path) == {"a.json": "second", first.name: "first"}
    one.__exit__(None, None, None)
    assert contents(tmp_path) == {"a.json": "first"}
    (tmp_path / f".a.part{os.getpid()}x01234567.json").touch()
    write_json(tmp_path / "a.json", {})
    assert contents(tmp_path) == {"a.json": "{}\n"}


@pytest.mark.parametrize("exists", [True, False])
def test_threads_replace_one_directory_each_completely(exists, tmp_path):
    """None fails, whichever it meets halfway; the last counts."""
    target, names = tmp_path / "preset", [f"file{i}" for i in range(20)]

    def write(folder):
        for name in ("marker", *names):
            (folder / name).write_text(folder.parent.name)

    def save_often(_):
        for _ in range(10):
            write_directory(target, "marker", (), write)

    if exists:
        save(target, "marker", *names)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(save_often, range(4)))
    found = contents(target)
    assert set(found) == {"marker", *names}
    assert len(set(found.values())) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["preset"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_does_not_wait_for_a_thread_that_it_lacks(tmp_path):
    save(tmp_path / "preset", "marker")
    program = """
import importlib.util, os, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("files", sys.argv[1])
files = importlib.util.module_from_spec(spec)
spec.loader.exec_module(files)
with files._one_thread():
    child = os.fork()
    if not child:
        files.write_directory(sys.argv[2], "marker", (), lambda folder: (folder / "marker").write_text("new"))
        os._exit(0)
    os.waitpid(child, 0)
"""
    subprocess.run([sys.executable, "-c", program, files.__file__, tmp_path / "preset"], check=True, timeout=60)
    assert contents(tmp_path / "preset") == {"marker": "new"}


def test_nothing_is_written_through_a_planted_link(tmp_path):
    (tmp_path / "mine").write_text("mine")
    for name in (f".a.part{os.getpid()}.json", ".a.part7.json"):
        (tmp_path / name).symlink_to(tmp_path / "mine")
    (tmp_path / ".a.partly.json").write_text("another's")
    write_json(tmp_path / "a.json", {})
    assert contents(tmp_path) == {"a.json": "{}\n", "mine": "mine", ".a.partly.json": "another's"}


def test_what_is_written_is_on_the_disk_before_its_name(tmp_path, monkeypatch, tokenizer):
    """Otherwise the power could fail in between, and leave empty files in place of the old ones."""
    done = []
    for owner, name in ((os, "replace"), (Path, "rename")):
        run = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda source, goal, run=run: (done.append(Path(goal).name), run(source, goal))[1]
        )
    monkeypatch.setattr(os, "fsync", lambda file: done.append(os.fstat(file).st_size))
    write_json(tmp_path / "a.json", {"a": 1})
    assert done == [(tmp_path / "a.json").stat().st_size, "a.json"]
    done.clear()
    save(tmp_path / "preset", "marker", "b")
    assert done == [3, 3, "preset"]
    done.clear()
    (tmp_path / "text").write_text("One sentence. And another.\n\nA second document. It ends.\n")
    kbz.pretraining.prepare([tmp_path / "text"], tmp_path / "data", tokenizer, sequence_length=16, verbose=False)
    sizes = sorted(path.stat().st_size for path in (tmp_path / "data").iterdir())
    assert len(sizes) > 5
    assert done[-1] == "data"
    assert sorted(done[-1 - len(sizes) : -1]) == sizes


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
        if (self.parent.name, self.name) == ("coming", fails):
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


@pytest.mark.parametrize("number", range(6))
def test_an_interrupt_leaves_the_old_directory(number, tmp_path, monkeypatch):
    target = tmp_path / "preset"
    save(target, "marker", "a")
    for name in ("marker", "a"):
        (target / name).write_text("old")
    interrupt(monkeypatch, number)
    with pytest.raises(KeyboardInterrupt):
        save(target, "marker", "a")
    assert contents(target) == dict.fromkeys(["marker", "a"], "old")
    monkeypatch.undo()
    save(target, "marker", "a")
    assert contents(target) == dict.fromkeys(["marker", "a"], "new")
    assert [path.name for path in tmp_path.iterdir()] == ["preset"]


# Ends without a word after so many renames. It loads one file alone, without Keras.
KILLED = """
import importlib.util, os, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("files", sys.argv[1])
files = importlib.util.module_from_spec(spec)
spec.loader.exec_module(files)
rename, left = Path.rename, iter(range(int(sys.argv[3])))
def rename_or_die(self, goal):
    if next(left, None) is None:
        os._exit(0)
    return rename(self, goal)
Path.rename = rename_or_die
def write(folder):
    for name in ("marker", "a", "b", "folder"):
        (folder / name).write_text("new")
files.write_directory(sys.argv[2], "marker", ("owned",), write)
"""


@pytest.mark.parametrize("moves", range(11))
def test_a_kill_leaves_the_old_directory_or_the_new_one(moves, tmp_path):
    """What is there before and what is there after differ in their names."""
    target = tmp_path / "preset"
    save(target, "marker", "owned", "a", "folder")
    for path in target.iterdir():
        path.write_text("old")
    (target / "mine").write_text("old")
    subprocess.run([sys.executable, "-c", KILLED, files.__file__, target, str(moves)], check=True)
    opened = (target / "marker").exists()
    clear_leftovers(target)
    old = dict.fromkeys(["marker", "owned", "a", "folder", "mine"], "old")
    new = {**dict.fromkeys(["marker", "a", "b", "folder"], "new"), "mine": "old"}
    assert contents(target) == (old if moves < 5 else new)
    assert opened is (moves == 0 or moves >= 9)


@pytest.mark.parametrize("left", ["old", "done", "new"])
def test_what_a_kill_left_of_what_is_removed_does_no_harm(left, tmp_path):
    """It came while a finished save or an undone one was being removed."""
    target = tmp_path / "preset"
    save(target, "marker")
    folder = target / f".preset.part{2**30}"
    (folder / left).mkdir(parents=True)
    if left != "old":
        (folder / left / "modules").write_text("another")
    save(target, "marker", "a")
    assert contents(target) == dict.fromkeys(["marker", "a"], "new")


def test_two_processes_do_not_mix_their_files(tmp_path, monkeypatch):
    """The second begins and ends once the first has moved the old files out."""
    target = tmp_path / "preset"
    save(target, "marker", "a", "b")
    rename = Path.rename

    def rename_after_another(self, goal):
        if self.name == "new":
            monkeypatch.undo()
            (target / "marker").write_text("another")
            (target / "a").write_text("another")
        return rename(self, goal)

    monkeypatch.setattr(Path, "rename", rename_after_another)
    with pytest.raises(OSError, match=r"a must not exist\. Received: a file that another process wrote"):
        save(target, "marker", "a", "b")
    assert contents(target) == {"marker": "another", "a": "another", "b": "new"}


def test_what_a_running_process_writes_stays(tmp_path):
    """What a dead one wrote is removed; the running one is the process that started the tests."""
    dead, running = (tmp_path / f".preset.part{number}" for number in (2**30, os.getppid()))
    for path in (dead, running, tmp_path / ".preset.partly"):
        (path / "new").mkdir(parents=True)
    clear_leftovers(tmp_path / "preset")
    assert {path.name for path in tmp_path.iterdir()} == {running.name, ".preset.partly"}
    assert (running / "new").exists()


def test_what_else_is_in_a_directory_is_not_touched(tmp_path, monkeypatch):
    """It may be a log that is open, the current directory, or a mount."""
    target = tmp_path / "preset"
    save(target, "marker")
    (target / "logs").mkdir()
    monkeypatch.chdir(target / "logs")
    before = target.stat().st_ino, Path.cwd().stat().st_ino
    with open("log.csv", "w") as log:
        print("1", file=log, flush=True)
        save("..", "marker", "a")
        print("2", file=log)
    assert (target.stat().st_ino, Path.cwd().stat().st_ino) == before
    assert Path("log.csv").read_text() == "1\n2\n"
    assert (target / "a").read_text() == "new"


def test_who_may_read_stays(tmp_path):
    (tmp_path / "preset").mkdir()
    (tmp_path / "preset").chmod(0o2770)
    save(tmp_path / "preset", "marker")
    (tmp_path / "a.json").touch(0o600)
    write_json(tmp_path / "a.json", {})
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("preset", "a.json")]
    assert modes == [0o2770, 0o600]


@pytest.mark.parametrize(
    "name, write",
    [
        ("out", lambda model, path: prepare(["text"], path, kbz.BertTokenizer(WORDS))),
        ("out", lambda model, path: pretrain(pretraining.Run("data"), path)),
        ("out", lambda model, path: finetune(finetuning.Run("mrpc", "bert_tiny"), path)),
        ("out", lambda model, path: evaluate(finetuning.Run("mrpc", "preset"), path)),
        ("out", lambda model, path: tune(finetuning.Run("mrpc", "bert_tiny"), path)),
        ("path", lambda model, path: model.save_to_preset(path)),
        ("path", lambda model, path: kbz.convert_preset("preset", path)),
        ("directory", lambda model, path: write_submission(path, "RTE", [0])),
        ("directory", lambda model, path: write_squad_predictions(path, [], [])),
        ("filepath", lambda model, path: model.export(path, format="tf_saved_model")),
    ],
)
@pytest.mark.parametrize("path", ["gs://bucket/run", "hf://org/name", Path("gs://bucket/run")])
def test_an_address_is_no_directory(path, name, write, backbone, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    instead = "; upload_preset() writes to the Hub" if str(path).startswith("hf:") else ""
    with pytest.raises(ValueError) as error:
        write(backbone, path)
    assert str(error.value) == f"`{name}` must be a local path{instead}. Received: {name}='{path}'"
    assert not list(tmp_path.iterdir())


def test_a_path_that_is_not_utf8_is_kept_in_json(tmp_path):
    value = {"data": os.fsdecode(b"caf\xe9.tsv"), "name": "caf\u00e9 \\udce9"}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value


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
    assert listed(["a\x1b[2K\nb", "n" * 300]) == r"'a\x1b[2K\nb', 'nnnnnnnnnnnn...nnnnnnnnnnnnn'"
    assert listed("abcdef") == "a, b, c, d, e, f"
    assert listed("abcdefgh") == "a, b, c, d, e, f and 2 more"
