"""Files that lie, are broken, or mean harm: each gets one short sentence, runs no code, and takes no memory."""

import io
import json
import math
import os
import pickle
import random
import resource
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo.checkpoints import bundle, bundle_writer, hdf5, pytorch, tensorflow1
from tests import layouts
from tests.helpers import WORDS, left_to_torch, numpy, random_inputs, randomise, short_error

if left_to_torch():
    pytest.skip("files know no backend: once is enough", allow_module_level=True)

MIB = 2**20


@pytest.fixture(autouse=True)
def no_memory_is_taken():
    """The process' peak memory grows by no more than a few layers and a lazy import take."""
    forget_the_most_memory()
    before = most_memory()
    yield
    assert most_memory() - before < 512 * 1024


def forget_the_most_memory():
    """Reset the peak, so that what an earlier test held hides nothing; only Linux can."""
    if Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")


def most_memory():
    """Return the peak memory, in KiB."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.fixture
def preset(backbone, tmp_path):
    randomise(backbone).save_to_preset(tmp_path / "preset")
    return tmp_path / "preset"


@pytest.fixture
def classifier_preset(classifier, tmp_path):
    classifier.save_to_preset(tmp_path / "preset")
    return tmp_path / "preset"


def refused(words, preset, kind=kbz.BertBackbone, **options):
    with short_error(words, longest=600):
        kind.from_preset(preset, **options)


def edit(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def sparse(path, size):
    with path.open("wb") as file:
        file.truncate(size)


# --- safetensors


def safetensors_bytes(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape, start, end, kind="F32"):
    return {"dtype": kind, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01",
        safetensors_bytes({}, length=10**6),
        safetensors_bytes({}, length=2**63),
        safetensors_bytes({"a": entry([2], 0, 8)}),
        safetensors_bytes({"a": entry([2], 0, 8)}, b"1234567"),
        safetensors_bytes({"a": entry([2], 0, 8)}, b"123456789"),
        safetensors_bytes({"a": entry([2], 10**12, 10**12 + 8)}, b"12345678"),
        safetensors_bytes({"a": entry([2], 8, 0)}, b"12345678"),
        safetensors_bytes({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, b"123456789012"),
        safetensors_bytes({"a": entry([3], 0, 8)}, b"12345678"),
        safetensors_bytes({"a": entry([2**40, 2**40], 0, 8)}, b"12345678"),
        safetensors_bytes({"a": entry([-2], 0, 8)}, b"12345678"),
        safetensors_bytes({"a": entry([2], 0, 8, "F99")}, b"12345678"),
        safetensors_bytes(b"not json"),
        safetensors_bytes(b"[" * 100_000),
        b"\x80\x02cos\nsystem\n.",
    ],
)
def test_safetensors_that_lie(preset, content):
    (preset / "model.safetensors").write_bytes(content)
    refused("model.safetensors must be a safetensors file (", preset)


def test_a_long_header_is_not_parsed(preset):
    (preset / "model.safetensors").write_bytes(safetensors_bytes(b"{}".ljust(4 * MIB + 1)))
    refused("model.safetensors must be a safetensors file (its header has 4194305 bytes, too many)", preset)


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E8M0", "F4", "I32", "C64"])
def test_weights_of_kinds_that_no_model_has(preset, kind):
    path = preset / "model.safetensors"
    size = struct.unpack("<Q", path.read_bytes()[:8])[0]
    header, data = json.loads(path.read_bytes()[8 : 8 + size]), path.read_bytes()[8 + size :]
    old = header["embeddings.word_embeddings.weight"]
    values = math.prod(old["shape"])
    end = len(data) + {"F4": values // 2, "I32": values * 4, "C64": values * 8}.get(kind, values)
    header["embeddings.word_embeddings.weight"] = entry(old["shape"], len(data), end, kind)
    header["unused"] = entry([values], *old["data_offsets"])  # Every byte belongs to a tensor.
    path.write_bytes(safetensors_bytes(header, data.ljust(end, b"\0")))
    refused(
        "Weights must be of one of the kinds float16, bfloat16, float32, float64. Received: "
        f"embeddings.word_embeddings.weight of {kind}",
        preset,
    )


def test_weights_that_are_no_floats(preset):
    from safetensors.numpy import load_file, save_file

    tensors = load_file(preset / "model.safetensors")
    save_file({name: array.astype("int8") for name, array in tensors.items()}, preset / "model.safetensors")
    refused("Weights must be of one of the kinds float16, bfloat16, float32, float64. Received:", preset)


# --- config.json and its like


@pytest.mark.parametrize(
    "field, words",
    [
        ("vocab_size", "token_embedding/embeddings must have the shape (1000000000000, 8)"),
        ("hidden_size", "Received: (40, 8)"),
        ("intermediate_size", "intermediate/kernel must have the shape (8, 1000000000000)"),
        ("max_position_embeddings", "position_embedding/embeddings must have the shape (1000000000000, 8)"),
        ("type_vocab_size", "segment_embedding/embeddings must have the shape (1000000000000, 8)"),
        ("num_hidden_layers", "`num_hidden_layers` must be the number of layers that the weights have, 2"),
    ],
)
def test_absurd_sizes_meet_the_header_before_memory(preset, field, words):
    edit(preset / "config.json", **{field: 10**12})
    tracemalloc.start()
    refused(words, preset)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * MIB
    absurd = "at most 1000. Received" if field == "num_hidden_layers" else "must have at most 2e+10 parameters"
    refused(absurd, preset, load_weights=False)


def test_absurd_heads(classifier_preset):
    edit(classifier_preset / "config.json", id2label=None, num_labels=10**12)
    for load_weights in (True, False):
        refused("at most 1000000 classes", classifier_preset, kbz.BertTextClassifier, load_weights=load_weights)
    edit(classifier_preset / "config.json", num_labels=7)
    refused("classifier/kernel must have the shape (8, 7)", classifier_preset, kbz.BertTextClassifier)


@pytest.mark.parametrize("value", [0, -1, 10**400, 2**63, True, "40", 40.5, [40], {"a": 1}])
def test_sizes_that_are_none(preset, value):
    edit(preset / "config.json", vocab_size=value)
    for load_weights in (True, False):
        with pytest.raises(ValueError, match=r"vocab_size|vocabulary_size|token_embedding/embeddings must have"):
            kbz.BertBackbone.from_preset(preset, load_weights=load_weights)


JSON_FILES = ["config.json", "preset.json", "tokenizer_config.json", "model.safetensors.index.json", "tokenizer.json"]


def write_json_file(preset, name, write):
    if name == "model.safetensors.index.json":
        (preset / "model.safetensors").unlink()
    write(preset / name)


@pytest.mark.parametrize("name", JSON_FILES)
@pytest.mark.parametrize(
    "content, words",
    [
        (b'{"a":' * 100_000, "must hold a JSON object. Received: one nested too deeply"),
        (b"[" * 100_000, "must hold a JSON object. Received: one nested too deeply"),
        (b'{"a": ' + b"1" * 10_000 + b"}", "must hold a JSON object (Exceeds the limit"),
        (b"\xff\xfe{}", "must be UTF-8 text. Received: invalid start byte at byte 0"),
        (b"{", "must hold a JSON object (Expecting"),
        (b"[]", "must hold a JSON object. Received: list"),
        (b"", "must hold a JSON object (Expecting value"),
    ],
)
def test_json_that_is_none(preset, name, content, words):
    write_json_file(preset, name, lambda path: path.write_bytes(content))
    refused(f"{name} {words}", preset)


@pytest.mark.parametrize("name", [*JSON_FILES, "vocab.txt"])
def test_files_larger_than_anybody_means_are_not_read(preset, name):
    limit = {"tokenizer.json": 32, "vocab.txt": 256}.get(name, 16)
    write_json_file(preset, name, lambda path: sparse(path, limit * MIB + 1))
    tracemalloc.start()
    refused(f"{name} must be at most {limit} MiB. Received: {limit} MiB", preset)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * MIB


@pytest.mark.parametrize("value", [float("-inf"), float("inf"), float("nan"), 1e30, -1e300])
def test_a_longest_input_that_is_no_length_is_none(classifier_preset, value):
    edit(classifier_preset / "preset.json", sequence_length=None)
    edit(classifier_preset / "tokenizer_config.json", model_max_length=value)
    assert kbz.BertTextClassifier.from_preset(classifier_preset).preprocessor.sequence_length == 16


# --- The vocabulary


@pytest.mark.parametrize(
    "content, words",
    [
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\na\n", "must not hold a token twice. Received: 'a' twice"),
        (
            b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n\na\n",
            "right-stripped strings of one line. Received: vocabulary[5]=''",
        ),
        (b"[PAD]\r\n\r\n[UNK]\r\n", "must hold right-stripped strings of one line. Received: vocabulary[1]=''"),
        (b"a\nb\n", "`vocabulary` must hold [PAD], [UNK], [CLS], [SEP], [MASK]"),
        (b"", "`vocabulary` must hold [PAD], [UNK], [CLS], [SEP], [MASK]"),
        (b"[PAD]\n\xff\xfe\n", "The vocabulary must be UTF-8 text"),
    ],
)
def test_vocabularies_that_are_none(classifier_preset, tmp_path, content, words):
    (classifier_preset / "vocab.txt").write_bytes(content)
    refused(words, classifier_preset, kbz.BertTextClassifier)
    for to in ("huggingface", "tensorflow1"):
        with short_error(words):
            kbz.convert_preset(classifier_preset, tmp_path / "out", to)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "field, value, words",
    [
        ("hidden_act", "x |\n\n# Injected", "`activation` must be one of"),
        ("hidden_act", "\ud800", "`activation` must be one of"),
        ("num_attention_heads", 7, "`num_heads` must divide `hidden_dim`"),
        ("hidden_dropout_prob", 9.0, "`dropout` must be a number in [0, 1). Received: dropout=9.0"),
        ("classifier_dropout", 9.0, "`dropout` must be a number in [0, 1). Received: dropout=9.0"),
        ("layer_norm_eps", -1.0, "`layer_norm_epsilon` must be"),
    ],
)
def test_a_config_that_no_model_can_have_is_neither_written_nor_uploaded(
    classifier_preset, field, value, words, tmp_path
):
    path = classifier_preset / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    for run in (
        lambda: kbz.convert_preset(classifier_preset, tmp_path / "out"),
        lambda: kbz.upload_preset("hf://me/out", classifier_preset),
    ):
        with short_error(words):
            run()
    assert not (tmp_path / "out").exists()


def test_a_conversion_leaves_the_state_of_random_numbers(classifier_preset, tmp_path):
    random.seed(0)
    kbz.convert_preset(classifier_preset, tmp_path / "out")
    assert random.random() == random.Random(0).random()


def test_a_preset_that_no_task_could_open_is_neither_written_nor_uploaded(classifier_preset, tmp_path):
    (classifier_preset / "vocab.txt").write_text("\n".join([*WORDS, *map(str, range(41 - len(WORDS)))]) + "\n")
    for run in (
        lambda: kbz.convert_preset(classifier_preset, tmp_path / "out"),
        lambda: kbz.upload_preset("hf://me/out", classifier_preset),
    ):
        with pytest.raises(ValueError, match=r"The vocabulary must have at most 40 tokens, .* Received: 41"):
            run()
    assert not (tmp_path / "out").exists()


def test_empty_lines_at_the_end_are_no_tokens(classifier_preset):
    (classifier_preset / "vocab.txt").write_text("\n".join(WORDS) + "\n\n\r\n")
    tokenizer = kbz.BertTextClassifier.from_preset(classifier_preset).preprocessor.tokenizer
    assert tokenizer.vocabulary == WORDS


# --- Shards


@pytest.fixture
def sharded(preset):
    """A preset whose index leads to one shard."""
    (preset / "model.safetensors").rename(preset / "shard-1.safetensors")
    from safetensors import safe_open

    with safe_open(preset / "shard-1.safetensors", "numpy") as file:
        places = dict.fromkeys(file.keys(), "shard-1.safetensors")
    (preset / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return preset


NAME = "embeddings.word_embeddings.weight"


@pytest.mark.parametrize(
    "place, words",
    [
        ("../../etc/passwd", "plain file names. Received: '../../etc/passwd'"),
        ("/etc/passwd", "plain file names. Received: '/etc/passwd'"),
        ("..\\shard", "plain file names. Received: '..\\\\shard'"),
        ("C:shard", "plain file names. Received: 'C:shard'"),
        ("..", "plain file names. Received: '..'"),
        ("", "plain file names. Received: ''"),
        (["shard-1.safetensors"], "plain file names. Received:"),
        ("x" * 5000, "plain file names. Received:"),
        ("a\x00b", "plain file names. Received:"),
        ("shard-2.safetensors", "a directory without shard-2.safetensors"),
        (None, "a directory without None"),
    ],
)
def test_an_index_leads_to_its_neighbours_only(sharded, place, words):
    index = sharded / "model.safetensors.index.json"
    edit(index, weight_map={**json.loads(index.read_text())["weight_map"], NAME: place})
    refused(words, sharded)


def test_an_index_that_does_not_fit_its_shards(sharded, backbone, tmp_path):
    expected = numpy(backbone(random_inputs())["pooled_output"])
    (sharded / "shard-1.safetensors").rename(tmp_path / "blob")  # As in the hub's cache.
    (sharded / "shard-1.safetensors").symlink_to(tmp_path / "blob")
    loaded = kbz.BertBackbone.from_preset(sharded)
    np.testing.assert_array_equal(numpy(loaded(random_inputs())["pooled_output"]), expected)

    index = sharded / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    edit(index, weight_map={**places, "embeddings.extra": "shard-1.safetensors"})
    refused("must be in the file it names. Received: 'embeddings.extra' not in shard-1.safetensors", sharded)
    edit(index, weight_map={**places, "a\n" * 3000: "shard-1.safetensors"})
    refused("must be in the file it names. Received: 'a\\na", sharded)
    for wrong in ([1], "shard", 5):
        edit(index, weight_map=wrong)
        refused("`weight_map` must be of type dict", sharded)
    edit(index, weight_map={})
    refused("the number of layers that the weights have, 0", sharded)


# --- pytorch_model.bin: a small assembler of pickles


class Raw(bytes):
    """Instructions that leave one value."""


def build(value):
    if isinstance(value, Raw):
        return value
    if isinstance(value, tuple):
        return b"(" + b"".join(map(build, value)) + b"t"
    return pickle.dumps(value, protocol=2)[2:-1]


def storage(size, kind="FloatStorage", key="0", **parts):
    return Raw(build(("storage", Raw(f"ctorch\n{kind}\n".encode()), key, "cpu", size, *parts.values())) + b"Q")


def tensor(offset=0, shape=(2,), strides=(1,), size=2, held=None):
    arguments = (storage(size) if held is None else held, offset, shape, strides, False, None)
    return Raw(b"ctorch._utils\n_rebuild_tensor_v2\n" + build(arguments) + b"R")


def state(**tensors):
    return b"\x80\x02}" + b"".join(build(name) + value + b"s" for name, value in tensors.items()) + b"."


def zipped(program, files=None, compression=zipfile.ZIP_STORED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        archive.writestr("archive/data.pkl", program)
        for name, content in ({"archive/data/0": bytes(8)} if files is None else files).items():
            archive.writestr(name, content)
    return stream.getvalue()


TAIL = struct.pack("<q", 2) + bytes(8)


def legacy(program, keys=("0",), tail=TAIL, system=None):
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {}} if system is None else system
    parts = [pickle.dumps(part, protocol=2) for part in (pytorch._LEGACY_MAGIC, 1001, system)]
    return b"".join([*parts, program, pickle.dumps(list(keys), protocol=2), tail])


@pytest.fixture
def pytorch_preset(preset):
    (preset / "model.safetensors").unlink()

    def write(content):
        (preset / "pytorch_model.bin").write_bytes(content)
        return preset

    return write


def test_the_assembler_makes_what_can_be_read(tmp_path):
    """Otherwise every refusal below might be for another reason."""
    for content in (zipped(state(a=tensor())), legacy(state(a=tensor()))):
        (tmp_path / "file").write_bytes(content)
        (name, read), *rest = pytorch.read(tmp_path / "file").items()
        assert (name, read.shape, rest) == ("a", (2,), [])
        np.testing.assert_array_equal(read.read(), [0, 0])


def programs(marker):
    """Return each way for a pickle to run code or bring in what is not a tensor, with the words of its refusal."""
    command = f"touch {marker}"
    text = build(command)
    return {
        "REDUCE": (b"\x80\x02cos\nsystem\n" + build((command,)) + b"R.", "the name 'os system'"),
        "posix": (b"\x80\x02cposix\nsystem\n" + text + b"\x85R.", "the name 'posix system'"),
        "eval": (b"\x80\x02cbuiltins\neval\n" + build((f"open({str(marker)!r}, 'w')",)) + b"R.", "builtins eval"),
        "getattr": (b"\x80\x02c__builtin__\ngetattr\n.", "the name '__builtin__ getattr'"),
        "torch.load": (b"\x80\x02ctorch\nload\n.", "the name 'torch load'"),
        "dotted": (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2.__globals__\n.", "_rebuild_tensor_v2.__globals__"),
        "STACK_GLOBAL": (
            b"\x80\x04\x8c\x02os\x8c\x06system\x93" + text + b"\x85R.",
            "the instruction SHORT_BINUNICODE",
        ),
        "STACK_GLOBAL, old strings": (b"\x80\x04U\x02osU\x06system\x93.", "the instruction STACK_GLOBAL"),
        "INST": (b"(S'" + command.encode() + b"'\nios\nsystem\n.", "the instruction STRING"),
        "INST, binary": (b"(" + text + b"ios\nsystem\n.", "the instruction INST"),
        "OBJ": (b"(ccollections\nOrderedDict\n" + text + b"o.", "the instruction OBJ"),
        "NEWOBJ": (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "the instruction NEWOBJ"),
        "NEWOBJ_EX": (b"\x80\x04ccollections\nOrderedDict\n)}\x92.", "the instruction NEWOBJ_EX"),
        "EXT1": (b"\x80\x02\x82\x01.", "the instruction EXT1"),
        "PERSID": (b"\x80\x02P0\n.", "the instruction PERSID"),
        "BUILD of a class": (b"\x80\x02ctorch\nFloatStorage\n}b.", "an object of type Global in place of a dict"),
        "BUILD of a function": (
            b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}b.",
            "an object of type Global in place of a dict",
        ),
        "call of a class": (b"\x80\x02ctorch\nFloatStorage\n)R.", "a call"),
        "call of a string": (b"\x80\x02" + text + b")R.", "a call"),
        "call with too little": (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.", "a broken pickle (TypeError)"),
        "no dict": (b"\x80\x02]" + text + b"a.", "an object of type list"),
        "no tensor": (b"\x80\x02}" + build("a") + text + b"s.", "'a' of type str"),
        "module": (b"\x80\x02ctorch.nn\nLinear\n.", "the name 'torch.nn Linear'"),
        "set as a key": (b"\x80\x02})Ns.", "a key of type tuple"),
        "a key nested too deeply to hash": (b"\x80\x02})" + b"\x85" * 200_000 + b"Ns.", "a key of type tuple"),
        "keys of one hash": (pickle.dumps({0: None}, 2), "a key of type int"),  # As multiples of 2**61 - 1 have.
        "a list in call after call": (
            b"\x80\x02ccollections\nOrderedDict\nq\x08]("
            + build(("a", None)) * 99
            + b"eq\x09"
            + b"h\x08h\x09\x85R" * 99,
            "calls that pass more values than it holds",
        ),
        "a storage's endless name": (state(a=tensor(held=storage(2, key="0" * 101))), "a storage of another kind"),
        "a pair nested": (
            b"\x80\x02ccollections\nOrderedDict\n]])" + b"\x85" * 200_000 + b"aNaa\x85R.",
            "a key of type tuple",
        ),
        "empty stack": (b"\x80\x02s.", "a broken pickle (IndexError)"),
        "no mark": (b"\x80\x02NNt.", "a broken pickle (IndexError)"),
        "no memo": (b"\x80\x02h\x00.", "a broken pickle (KeyError)"),
        "no end": (b"\x80\x02}", "a broken pickle (ValueError)"),
        "unknown": (b"\x80\x02\xff.", "a broken pickle (ValueError)"),
        "a string of 4 GB": (b"\x80\x02X\xff\xff\xff\xff.", "a broken pickle (ValueError)"),
        "a memo of 2**31": (b"\x80\x02Nr\xff\xff\xff\x7f.", "an object of type NoneType"),
    }


@pytest.mark.parametrize("container", [zipped, legacy])
@pytest.mark.parametrize("attack", programs("marker"))
def test_no_pickle_runs(pytorch_preset, attack, container, tmp_path):
    program, words = programs(tmp_path / "marker")[attack]
    refused(words, pytorch_preset(container(program)))
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("program", [b"\x80\x02cos\nsystem\n.", b"\x80\x02}.", b"", b"\x80\x02" + b"N" * 9])
def test_a_bare_pickle_is_no_state_dict(pytorch_preset, program):
    refused("must hold a state dict of tensors and nothing else", pytorch_preset(program))


@pytest.mark.parametrize("container", [zipped, legacy])
@pytest.mark.parametrize(
    "view",
    [
        {"offset": 1},
        {"shape": (3,)},
        {"strides": (2,)},
        {"strides": (0,)},
        {"shape": (10**9,), "strides": (0,)},
        {"shape": (2, 10**6), "strides": (1, 0)},
        {"strides": (-1,)},
        {"offset": -1},
        {"shape": (-2,)},
        {"shape": (2, 2)},
        {"shape": (2**60, 2**60), "strides": (1, 1)},
        {"shape": (2.0,)},
        {"shape": (True,)},
        {"shape": ((1,),)},
        {"shape": (1,) * 100, "strides": (1,) * 100},
        {"shape": [2]},
        {"offset": None},
        {"held": Raw(b"N")},
        {"held": storage(2, view=("0", 0, 2))},
        {"held": storage(2, kind="ByteStorage")},
        {"held": storage(-2)},
        {"held": storage(10**15)},
        {"held": storage("2")},
        {"held": storage(2, key=0)},
    ],
)
def test_views_outside_their_storage(pytorch_preset, view, container):
    content = container(state(a=tensor(**view)))
    refused("must hold a state dict of tensors and nothing else. Received: ", pytorch_preset(content))


def test_few_bytes_do_not_pose_as_many(pytorch_preset):
    """A hundred layers of one storage: each view is sound, their sum is not."""
    program = state(**{f"t{i}": tensor(shape=(10_000,), size=10_000) for i in range(100)})
    content = zipped(program, {"archive/data/0": bytes(40_000)})
    refused("must hold the values of its tensors. Received:", pytorch_preset(content))


@pytest.mark.parametrize(
    "files, words",
    [
        ({}, "no entry data/0 of 2 values"),
        ({"archive/data/0": bytes(4)}, "no entry data/0 of 2 values"),
        ({"archive/data/0": bytes(8), "archive/../../x": b""}, "an entry named 'archive/../../x'"),
        ({"archive/data/0": bytes(8), "../x": b""}, "an entry named '../x'"),
        ({"archive/data/0": bytes(8), "/etc/x": b""}, "an entry named '/etc/x'"),
        ({"archive/data/0": bytes(8), "archive/a\\b": b""}, "an entry named"),
        ({"archive/data/0": bytes(8), "other/data.pkl": b""}, "an archive with 2 entries data.pkl"),
        ({"archive/data/0": bytes(8), "archive/byteorder": b"big"}, "values that are not little-endian"),
    ],
)
def test_archives_that_are_none(pytorch_preset, files, words):
    refused(words, pytorch_preset(zipped(state(a=tensor()), files)))


def test_zip_bombs(pytorch_preset):
    bomb = zipped(bytes(64 * MIB), {}, zipfile.ZIP_DEFLATED)
    assert len(bomb) < MIB
    refused("'archive/data.pkl', which is compressed or encrypted", pytorch_preset(bomb))
    refused("'archive/data.pkl' of 3145728 bytes", pytorch_preset(zipped(b"}" * (3 * MIB))))  # Each byte makes a dict.
    content = bytearray(zipped(state(a=tensor())))
    for start in range(len(content) - 4):  # The sizes of the pickle's entry in the directory, in both fields.
        if content[start : start + 4] == b"PK\x01\x02":
            content[start + 20 : start + 28] = struct.pack("<II", 2**31, 2**31)
            break
    refused("'archive/data.pkl' of 2147483648 bytes", pytorch_preset(bytes(content)))
    entries = {f"archive/{i}": b"" for i in range(40_000)}  # Each becomes an object of half a kilobyte.
    refused("an archive whose list of entries is too long", pytorch_preset(zipped(state(a=tensor()), entries)))


@pytest.mark.parametrize(
    "content, words",
    [
        (legacy(state(a=tensor()), tail=b""), "must be a file of torch.save. Received: a broken one"),
        (legacy(state(a=tensor()), tail=struct.pack("<q", 2) + bytes(4)), "beyond the end of the file"),
        (legacy(state(a=tensor()), tail=struct.pack("<q", -2) + bytes(8)), "of -2 values in place of 2"),
        (legacy(state(a=tensor()), tail=struct.pack("<q", 10**15)), "values in place of 2"),
        (legacy(state(a=tensor()), keys=()), "no storage '0'"),
        (legacy(state(a=tensor()), keys=("1",)), "a storage '1' that no tensor uses"),
        (legacy(state(a=tensor()), keys=(1,)), "no list of storages"),
        (legacy(state(a=tensor()), system={"little_endian": False}), "values that are not little-endian"),
        (legacy(state(a=tensor()), system=[]), "values that are not little-endian"),
        (pickle.dumps(1, protocol=2), "another format"),
    ],
)
def test_legacy_files_that_are_none(pytorch_preset, content, words):
    refused(words, pytorch_preset(content))


@pytest.mark.parametrize("container", [zipped, legacy])
def test_whatever_is_cut_or_flipped_is_read_or_refused(tmp_path, container):
    program = state(a=tensor(), b=tensor(shape=(1, 2), strides=(2, 1)))
    whole = container(program)
    rng = np.random.default_rng(0)
    contents = [whole[:length] for length in range(0, len(whole), 3)]
    for _ in range(400):
        flipped = bytearray(whole)
        for place in rng.integers(0, len(whole), rng.integers(1, 4)):
            flipped[place] = rng.integers(0, 256)
        contents.append(bytes(flipped))
    refusals = 0
    for content in contents:
        (tmp_path / "file").write_bytes(content)
        try:
            for value in pytorch.read(tmp_path / "file").values():
                value.read()
        except ValueError as error:
            refusals += 1
            assert len(str(error)) < 600  # noqa: PT017
    assert refusals > len(contents) // 3


# --- HDF5


def compressed(file):
    """One value, in a chunk that would be 1 GB."""
    file.create_dataset("a", (1,), "float32", maxshape=(None,), chunks=(2**28,), compression="gzip")


def more_than_a_chunk(file):
    """Two values, whose chunk would unpack to any number of bytes."""
    values = file.create_dataset("a", (2,), "float32", chunks=(2,), compression="gzip")
    values.id.write_direct_chunk((0,), zlib.compress(bytes(MIB)))


def a_list_of_types(file):
    file.create_dataset("a", data=np.zeros(8, "V2"))
    file["a"].attrs["dtype"] = ["bfloat16", "bfloat16"]


def deep(file):
    for _ in range(300):
        file = file.create_group("a")


def of_a_type_that_numpy_lacks(file):
    import h5py

    space = h5py.h5s.create_simple((1,))
    h5py.h5d.create(file.id, b"a", h5py.h5t.UNIX_D32LE, space)


def of_another_encoding(file):
    import h5py

    h5py.h5g.create(file.id, b"\xff\xfe")


@pytest.mark.parametrize(
    "write, words",
    [
        (of_a_type_that_numpy_lacks, "must be an HDF5 file (No NumPy equivalent for TypeTimeID exists)"),
        (of_another_encoding, "must hold names in UTF-8. Received: b'\\xff\\xfe'"),
        (compressed, "must hold its values without filters, such as compression. Received: 'a' with 1"),
        (more_than_a_chunk, "must hold its values without filters, such as compression. Received: 'a' with 1"),
        (a_list_of_types, "must hold arrays of numbers. Received: 'a' of |V2"),
        (deep, "must hold names of at most 500 characters. Received: 501"),
    ],
)
def test_hdf5_that_lies(tmp_path, write, words):
    import h5py

    with h5py.File(tmp_path / "file", "w") as file:
        write(file)
    with short_error(words):
        [tensor.read() for tensor in hdf5.read_hdf5(tmp_path / "file").values()]


# --- TF1


@pytest.fixture
def tensorflow1_preset(tmp_path):
    pytest.importorskip("tensorflow")
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16,
    )  # fmt: skip
    layouts.write_tensorflow1(transformers.BertModel(config), tmp_path / "bert")
    return tmp_path / "bert"


@pytest.fixture
def tensorflow1_index(preset):
    kbz.convert_preset(preset, preset.with_name("tf1"), "tensorflow1")
    return preset.with_name("tf1") / "bert_model.ckpt.index"


def test_broken_tensorflow1_checkpoints(tensorflow1_preset):
    index = tensorflow1_preset / "bert_model.ckpt.index"
    data = tensorflow1_preset / "bert_model.ckpt.data-00000-of-00001"
    whole = index.read_bytes()
    for content in (b"", b"nonsense", whole[: len(whole) // 2], whole[:-1], whole[100:]):
        index.write_bytes(content)
        refused("bert_model.ckpt.index must be the index of a TensorFlow checkpoint. Received:", tensorflow1_preset)
    sparse(index, 17 * MIB)
    refused("bert_model.ckpt.index must be at most 16 MiB", tensorflow1_preset)
    index.write_bytes(whole)
    edit(tensorflow1_preset / "bert_config.json", vocab_size=10**12)
    refused("token_embedding/embeddings must have the shape (1000000000000, 8)", tensorflow1_preset)
    edit(tensorflow1_preset / "bert_config.json", vocab_size=40)
    content = data.read_bytes()
    data.write_bytes(content[:-1])
    refused("beyond bert_model.ckpt.data-00000-of-00001", tensorflow1_preset)
    data.unlink()
    refused("beyond bert_model.ckpt.data-00000-of-00001", tensorflow1_preset)


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        Path.mkdir,
        lambda path: path.symlink_to("/dev/null"),  # /dev/zero would never end.
        lambda path: path.symlink_to("missing"),
        lambda path: path.symlink_to(path),
    ],
    ids=["pipe", "directory", "device", "dangling link", "link to itself"],
)
def test_only_a_file_is_an_index(tensorflow1_index, make):
    tensorflow1_index.unlink()
    make(tensorflow1_index)
    refused("must hold exactly one checkpoint (one *.index file). Received: [] in", tensorflow1_index.parent)


@pytest.mark.parametrize("name", [".index", "..index"])
def test_an_index_without_a_prefix_leads_to_no_file_outside(tensorflow1_index, name):
    preset = tensorflow1_index.parent
    for path in preset.glob("bert_model.ckpt.*"):  # What the directory's own name would be the prefix of.
        path.rename(preset.with_name(path.name.replace("bert_model.ckpt", preset.name)))
    (preset / name).touch()
    refused("must hold exactly one checkpoint (one *.index file). Received: [] in", preset)


def index_of(order, names=(b"a",)):
    """Return an index of two blocks, listed in this order."""
    blocks, handles = b"", []
    for entries in ({b"": bundle_writer._field(1, 1)}, dict.fromkeys(names, b"")):
        blocks, handle = bundle_writer._append(blocks, entries)
        handles.append(handle)
    blocks, handle = bundle_writer._append(blocks, {b"%04d" % i: handles[n] for i, n in enumerate(order)})
    return blocks + (handle + handle).ljust(bundle.FOOTER - len(bundle.MAGIC), b"\0") + bundle.MAGIC


def test_no_block_of_an_index_is_read_twice(tmp_path):
    (tmp_path / "model.data-00000-of-00001").write_bytes(b"1")
    for order in ([0, 1], [0, 0], [0, 1] * 1000, [1, 0]):
        (tmp_path / "model.index").write_bytes(index_of(order))
        if order == [0, 1]:
            assert set(bundle.read(tmp_path / "model")) == {"a"}
            continue
        with pytest.raises(ValueError, match=r"the index of a TensorFlow checkpoint\. Received: blocks that overlap"):
            bundle.read(tmp_path / "model")


def test_names_of_an_index_are_bounded(tmp_path):
    (tmp_path / "model.data-00000-of-00001").write_bytes(b"1")
    for names, words in [
        ([b"%06d" % i for i in range(2**16)], "more than 65,536 tensors"),
        ([b"a" * 1025], "a key or value beyond the end of its block, or of its length"),
    ]:
        (tmp_path / "model.index").write_bytes(index_of([0, 1], names))
        with pytest.raises(ValueError, match=words):
            bundle.read(tmp_path / "model")


def test_whatever_of_an_index_is_flipped_is_read_or_refused(tensorflow1_preset):
    """TensorFlow's own reader ends the process at some of these. What is read is what was written."""

    def read():
        tensors = tensorflow1._read_tensors(tensorflow1_preset)
        assert tensors.pop("global_step").shape == ()
        return {name: (tensor.shape, tensor.read().tobytes()) for name, tensor in tensors.items()}

    index = tensorflow1_preset / "bert_model.ckpt.index"
    whole, rng = index.read_bytes(), np.random.default_rng(0)
    written, refusals = read(), 0
    for _ in range(300):
        flipped = bytearray(whole)
        for place in rng.integers(0, len(whole), rng.integers(1, 4)):
            flipped[place] = rng.integers(0, 256)
        index.write_bytes(bytes(flipped))
        try:
            assert read() == written
        except ValueError as error:
            refusals += 1
            assert len(str(error)) < 600  # noqa: PT017
    assert refusals > 50
