"""TFRecords in the original's format, written and read."""

from dataclasses import replace

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo import cli
from keras_bert_zoo.pretraining import (
    PretrainingBatches,
    Run,
    prepare,
    pretrain,
    read_records,
    record_batches,
    record_files,
    records,
    write_records,
)
from keras_bert_zoo.pretraining.record_batches import RecordBatches
from keras_bert_zoo.pretraining.record_files import RecordFiles
from tests.helpers import SHALLOW, WORDS, broken_off, left_to_torch, numpy, randomise, short_error, slow_on
from tests.pretraining_run_test import TEXT

tf = pytest.importorskip("tensorflow")


@pytest.fixture
def data(tmp_path, tokenizer):
    (tmp_path / "text").write_text(TEXT)
    prepare([tmp_path / "text"], tmp_path / "data", tokenizer, sequence_length=16, fix_masks=True, verbose=False)
    return tmp_path / "data"


def test_records_are_the_originals(data, tmp_path):
    """Parsed with the specification of google-research/bert, run_pretraining.py, input_fn_builder."""
    batches = PretrainingBatches(data, 1)
    assert write_records(data, tmp_path / "records") == batches.examples
    spec = {
        "input_ids": tf.io.FixedLenFeature([16], tf.int64),
        "input_mask": tf.io.FixedLenFeature([16], tf.int64),
        "segment_ids": tf.io.FixedLenFeature([16], tf.int64),
        "masked_lm_positions": tf.io.FixedLenFeature([3], tf.int64),
        "masked_lm_ids": tf.io.FixedLenFeature([3], tf.int64),
        "masked_lm_weights": tf.io.FixedLenFeature([3], tf.float32),
        "next_sentence_labels": tf.io.FixedLenFeature([1], tf.int64),
    }
    (path,) = (tmp_path / "records").iterdir()
    raw = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
    assert all(sorted(spec, key=lambda name: record.index(name.encode())) == sorted(spec) for record in raw)
    written = [tf.io.parse_single_example(record, spec) for record in raw]
    rows = [batches.take(np.array([row])) for row in range(batches.examples)]
    order = np.random.default_rng(records._SEED).permutation(batches.examples)
    assert np.abs(np.diff(order)).mean() > batches.examples / 4  # Because readers shuffle only neighbours.
    for row, record in zip(order, written, strict=True):
        parsed = {name: tensor.numpy() for name, tensor in record.items()}
        inputs, targets, weights = rows[row]
        np.testing.assert_array_equal(parsed["input_ids"], inputs["token_ids"][0])
        np.testing.assert_array_equal(parsed["input_mask"], inputs["padding_mask"][0])
        np.testing.assert_array_equal(parsed["segment_ids"], inputs["segment_ids"][0])
        np.testing.assert_array_equal(parsed["masked_lm_positions"], inputs["mask_positions"][0])
        np.testing.assert_array_equal(parsed["masked_lm_ids"], targets["mlm"][0])
        np.testing.assert_array_equal(parsed["masked_lm_weights"], weights["mlm"][0] > 0)
        assert parsed["next_sentence_labels"] == targets["nsp"]


def garden(path, renamed):
    """Rename the features as in the Model Garden's create_pretraining_data.py."""
    with tf.io.TFRecordWriter(str(renamed)) as writer:
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            example = tf.train.Example.FromString(record)
            for old, new in (("input_ids", "input_word_ids"), ("segment_ids", "input_type_ids")):
                example.features.feature[new].CopyFrom(example.features.feature[old])
                del example.features.feature[old]
            writer.write(example.SerializeToString())


def test_reading(data, tmp_path):
    write_records(data, tmp_path / "records")
    path = tmp_path / "records" / "shard-00000-of-00001.tfrecord"
    garden(path, tmp_path / "garden.tfrecord")
    batches = PretrainingBatches(data, 8)
    expected = batches.take(np.random.default_rng(records._SEED).permutation(batches.examples)[8:16])
    for paths in (str(tmp_path / "records" / "*.tfrecord"), [tmp_path / "garden.tfrecord"]):
        batch = list(read_records(paths, 8).as_numpy_iterator())[1]
        for part, values in zip(batch, expected, strict=True):
            assert part.keys() == values.keys()
            for name in values:
                np.testing.assert_allclose(part[name], values[name], rtol=1e-6, err_msg=name)
                assert part[name].dtype == values[name].dtype
    shuffled = list(read_records([path], 8, shuffle_seed=1).take(1).as_numpy_iterator())
    in_order = list(read_records([path], 8).as_numpy_iterator())
    assert (shuffled[0][0]["token_ids"] != in_order[0][0]["token_ids"]).any()
    assert "nsp" not in next(iter(read_records([path], 8, next_sentence=False)))[1]
    for seed in (True, -1, 2**32, 1.0):
        with short_error("`shuffle_seed` must be an integer in [0, 2**32). Received: shuffle_seed="):
            read_records([path], 8, shuffle_seed=seed)


def test_training_from_records(data, tmp_path):
    write_records(data, tmp_path / "records")
    steps = PretrainingBatches(data, 1).examples // 8 + 3  # More than one pass has.
    model = randomise(kbz.BertPretrainer(kbz.BertBackbone(**SHALLOW, dropout=0.0, attention_dropout=0.0)))
    model.compile(keras.optimizers.SGD(0.0))
    first, both, trained = (read_records(str(tmp_path / "records" / "*"), 8, shuffle_seed=0) for _ in range(3))
    losses = [model.evaluate(part, verbose=0)[0] for part in (first.take(steps), both.take(2 * steps).skip(steps))]
    history = model.fit(trained, epochs=2, steps_per_epoch=steps, verbose=0).history
    np.testing.assert_allclose(history["loss"], losses, rtol=1e-5)
    assert int(model.optimizer.iterations) == 2 * steps


@slow_on("jax")
@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras says so of each such pass.
def test_a_pass_of_unknown_length_is_what_a_known_one_is(data, tmp_path):
    """TensorFlow finds the end by a step without a batch, which must not count."""
    write_records(data, tmp_path / "records", verbose=False)
    count = PretrainingBatches(data, 1).examples // 8
    ends = []
    for known in (False, True):
        records = read_records(str(tmp_path / "records" / "*"), 8)
        assert records.cardinality() == tf.data.UNKNOWN_CARDINALITY
        records = records.apply(tf.data.experimental.assert_cardinality(count)) if known else records
        model = randomise(kbz.BertPretrainer(kbz.BertBackbone(**SHALLOW, dropout=0.0, attention_dropout=0.0)))
        model.compile(kbz.AdamW(1e-3, weight_decay=10.0))
        history = model.fit(records, validation_data=records, epochs=2, verbose=0).history
        assert int(model.optimizer.iterations) == 2 * count
        ends.append([*history["loss"], *history["val_loss"], model.evaluate(records, verbose=0)[0]])
        ends[-1] += [float(np.abs(numpy(weight)).sum()) for weight in model.weights]
    np.testing.assert_allclose(*ends, rtol=1e-5)


def test_a_pass_has_a_batch(data, tmp_path):
    write_records(data, tmp_path / "records", verbose=False)
    pattern, count = str(tmp_path / "records" / "*"), PretrainingBatches(data, 1).examples
    assert len(list(read_records(pattern, count))) == 1
    with pytest.raises(ValueError, match="`batch_size` must be at most the number of examples"):
        read_records(pattern, count + 1)


def test_workers_share_the_batches(data, tmp_path, monkeypatch):
    """Three files, or a fourth with the rest, for two workers, as a strategy divides them."""
    from tensorflow.python.distribute import input_ops

    count = PretrainingBatches(data, 1).examples
    monkeypatch.setattr(records, "_EXAMPLES_A_FILE", count // 3)
    write_records(data, tmp_path / "records", verbose=False)
    pattern = str(tmp_path / "records" / "*.tfrecord")
    for seed, steps in ((None, count // 4), (1, 30)):
        # Each worker has a process of its own, in which an order drawn anew is drawn for the first time.
        whole, *copies = (read_records(pattern, 4, shuffle_seed=seed).take(steps) for _ in range(3))
        shares = [input_ops.auto_shard_dataset(copy, 2, worker) for worker, copy in enumerate(copies)]
        expected, *taken = (
            [batch[0]["token_ids"].tobytes() for batch in batches.as_numpy_iterator()] for batches in (whole, *shares)
        )
        assert taken == [expected[0::2], expected[1::2]]


def test_ids_of_a_larger_vocabulary(data, tmp_path):
    """Some backends accept any id as if they had it."""
    write_records(data, tmp_path / "records", verbose=False)
    records = read_records(str(tmp_path / "records" / "*"), 8)
    model = kbz.BertPretrainer(kbz.BertBackbone(**{**SHALLOW, "vocabulary_size": 20}))
    with pytest.raises(Exception, match=r"`token_ids` must be in \[0, 20\), the vocabulary of the model"):
        model.fit(records, steps_per_epoch=2, verbose=0)


@pytest.fixture
def many(data, tmp_path, monkeypatch):
    """Write four files, the last one shorter; return their pattern and the number of examples."""
    count = PretrainingBatches(data, 1).examples
    monkeypatch.setattr(records, "_EXAMPLES_A_FILE", count // 3 - 1)
    write_records(data, tmp_path / "records", verbose=False)
    assert len(list((tmp_path / "records").iterdir())) == 4
    return str(tmp_path / "records" / "*.tfrecord"), count


def known_by(batch):
    """Return what tells each example from the others."""
    inputs = batch[0]
    return [(a.tobytes(), b.tobytes()) for a, b in zip(inputs["token_ids"], inputs["mask_positions"], strict=True)]


def test_a_stream_goes_on_from_any_batch(many, data, tokenizer, monkeypatch):
    """It goes on through the end of a pass. Each pass holds every example once, in an order of its own."""
    monkeypatch.setattr(record_files, "_SHUFFLED_TOGETHER", 10)  # Of some 130.
    monkeypatch.setattr(record_files, "_FILES_AT_ONCE", 2)
    pattern, count = many
    batches = RecordBatches(pattern, tokenizer, batch_size=4, seed=3, gradient_accumulation_steps=2)
    arrays = PretrainingBatches(data, 1)
    assert (batches.examples, batches.sequence_length, batches.pairs) == (count, 16, True)
    assert batches.mean_length == pytest.approx(arrays.mean_length)
    predictions = arrays.take(np.arange(count))[2]["mlm"] > 0
    assert batches.mean_predictions == pytest.approx(predictions.sum() / count)
    number = 2 * count // 4 // 2 * 2
    whole = list(batches.start_at(0).take(number).as_numpy_iterator())
    for start in (2, count // 4 // 2 * 2, count // 4 // 2 * 2 + 2):
        for expected, batch in zip(whole[start:], batches.start_at(start).take(6).as_numpy_iterator(), strict=False):
            assert known_by(batch) == known_by(expected)
    examples = [row for batch in whole for row in known_by(batch)]
    passes = examples[:count], examples[count : 2 * count]
    everything = sorted(known_by(arrays.take(np.arange(count))))
    assert sorted(passes[0]) == everything
    assert passes[0][: len(passes[1])] != passes[1]
    assert not set(passes[1]) - set(everything)
    assert known_by(next(RecordBatches(pattern, tokenizer, 4, seed=4).start_at(0).as_numpy_iterator())) != examples[:4]


@pytest.mark.skipif(left_to_torch(), reason="knows no backend: once is enough")
def test_files_and_blocks_of_each_pass_are_its_own(many, monkeypatch):
    """Of one record each, blocks show the order of the files; of ten, where the first one ends."""
    monkeypatch.setattr(record_files, "_FILES_AT_ONCE", 1)
    monkeypatch.setattr(record_files, "_SHUFFLED_TOGETHER", 1)
    pattern, count = many
    paths = RecordFiles(pattern).files
    contents = [list(tf.data.TFRecordDataset(path).as_numpy_iterator()) for path in paths]
    stream = RecordFiles(pattern).shuffled(1).as_numpy_iterator()
    orders = set()
    for _ in range(4):
        found = [next(stream) for _ in range(count)]
        order = sorted(range(4), key=lambda i: found.index(contents[i][0]))
        assert found == [record for i in order for record in contents[i]]
        orders.add(tuple(order))
    assert len(orders) > 2
    monkeypatch.setattr(record_files, "_SHUFFLED_TOGETHER", 10)
    own, firsts = contents[0], set()
    stream = RecordFiles(paths[0]).shuffled(1).as_numpy_iterator()
    for _ in range(4):
        places = [own.index(next(stream)) for _ in own]
        ends = [end for end in range(1, 11) if all(max(places[:n]) < n for n in range(end, len(own), 10))]
        firsts.update(ends)
        assert len(ends) == 1
    assert len(firsts) > 2


def test_the_parts_of_an_update_have_the_weights_of_all(many, tokenizer):
    pattern, _ = many
    whole = next(RecordBatches(pattern, tokenizer, 8).start_at(0).as_numpy_iterator())
    parts = list(RecordBatches(pattern, tokenizer, 2, 0, 4).start_at(0).take(4).as_numpy_iterator())
    for place, values in enumerate(whole):
        for name, array in values.items():
            np.testing.assert_array_equal(np.concatenate([part[place][name] for part in parts]), array, err_msg=name)
    assert whole[2]["mlm"].mean() == pytest.approx(1.0)


SMALL = {name: SHALLOW[name] for name in ("num_layers", "num_heads", "hidden_dim", "intermediate_dim")}


@pytest.fixture
def run(many, data):
    vocab = str(data / "vocab.txt")
    options = {"steps": 6, "batch_size": 8, "save_every": 2, "vocab": vocab, "validation": many[0]}
    return Run(many[0], "bert_tiny", architecture=SMALL, **options)


@slow_on("tensorflow", "jax")
def test_a_run_from_records_goes_on_where_it_stopped(run, tmp_path):
    if keras.backend.backend() != "torch":
        run = replace(run, steps_per_execution=2)
    whole = pretrain(run, tmp_path / "whole", verbose=0)
    with broken_off(after=1):
        pretrain(run, tmp_path / "stopped", verbose=0)
    resumed = pretrain(run, tmp_path / "stopped", verbose=0)
    assert int(resumed.optimizer.iterations) == int(whole.optimizer.iterations) == 6
    for weight, expected in zip(resumed.weights, whole.weights, strict=True):
        np.testing.assert_array_equal(numpy(weight), numpy(expected), err_msg=weight.path)
    log = (tmp_path / "stopped" / "log.csv").read_text().splitlines()
    assert len(log) == 4
    assert "tokens_per_second" in log[0]
    with tf.io.TFRecordWriter(str(tmp_path / "records" / "one-more.tfrecord")) as writer:
        writer.write(next(iter(tf.data.TFRecordDataset(sorted(map(str, (tmp_path / "records").iterdir()))))).numpy())
    with pytest.raises(ValueError, match="must be the data that it began with"):
        pretrain(run, tmp_path / "stopped", verbose=0)


def test_what_is_not_looked_at_first_stops_training(many, data):
    """Bad segments, positions and targets may come after the first examples."""
    batch = next(read_records(many[0], 8).as_numpy_iterator())
    model = kbz.BertPretrainer(kbz.BertBackbone(**SHALLOW))
    for place, name in ((0, "segment_ids"), (0, "mask_positions"), (1, "mlm"), (1, "nsp")):
        wrong = keras.tree.map_structure(np.copy, batch)
        wrong[place][name].flat[-1] = 10_000
        with pytest.raises(Exception, match=f"`{name}` must be in"):
            model.evaluate(tf.data.Dataset.from_tensors(wrong), verbose=0)
    assert np.isfinite(model.evaluate(tf.data.Dataset.from_tensors(batch), verbose=0, return_dict=True)["loss"])
    larger = kbz.BertPretrainer(kbz.BertBackbone(**{**SHALLOW, "vocabulary_size": 300}))  # 300 is 44 as a uint8.
    narrow = {name: values.astype("uint8") for name, values in batch[0].items()}
    narrow["token_ids"][0, 1] = 200
    assert larger.predict(tf.data.Dataset.from_tensors(narrow), verbose=0)["nsp"].shape == (8, 2)
    assert model.predict(tf.data.Dataset.from_tensors(batch[0]), verbose=0)["nsp"].shape == (8, 2)


@pytest.mark.parametrize("validation", [False, True])
@pytest.mark.parametrize("what", ["a damaged one", "`segment_ids` must be in [0, 2), the segments of the model"])
def test_a_bad_record_behind_the_first_stops_a_run_in_one_line(what, validation, run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(record_batches, "_LOOKED_AT", 8)
    good = sorted((tmp_path / "records").iterdir())[0]
    *examples, last = tf.data.TFRecordDataset(str(good)).as_numpy_iterator()
    example = tf.train.Example.FromString(last)
    example.features.feature["segment_ids"].int64_list.value[0] = 7
    bad = str(tmp_path / "bad")
    with tf.io.TFRecordWriter(bad) as writer:
        for each in (*examples, example.SerializeToString()):
            writer.write(each)
    if what == "a damaged one":
        whole = good.read_bytes()
        (tmp_path / "bad").write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    given = {"validation": bad} if validation else {"data": bad, "validation": run.validation}
    command = ["pretrain", "--steps", "200", "--batch-size", "8", "--save-every", "2", "--vocab", run.vocab]
    for name, path in {"data": run.data, **given}.items():
        command += [f"--{name}", path]
    command += ["--architecture", str(SMALL).replace("'", '"'), "--out", str(tmp_path / "run")]
    assert cli.main(command) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    said = "`data` and `validation` must hold whole records of valid examples. Received: "
    assert last.startswith(f"keras-bert-zoo pretrain: {said}{what}")
    assert last.endswith(f"{tmp_path / 'run' / 'state.safetensors'}") != ("no state yet" in last)


@slow_on("tensorflow", "jax")
def test_a_run_from_records_at_the_console(run, tmp_path, capsys):
    """It has held-out records and accumulated updates, and its preset has the vocabulary that was given."""
    command = ["pretrain", "--data", run.data, "--vocab", run.vocab, "--validation", run.data, "--steps", "2"]
    command += ["--batch-size", "8", "--gradient-accumulation-steps", "2", "--save-every", "1"]
    command += ["--architecture", str(SMALL).replace("'", '"'), "--out", str(tmp_path / "run")]
    assert cli.main(command) == 0
    assert "weights" in capsys.readouterr().out
    header, *values = (tmp_path / "run" / "log.csv").read_text().splitlines()
    assert "val_mlm_loss" in header
    assert len(values) == 2
    model = kbz.BertPretrainer.from_preset(tmp_path / "run" / "preset")
    assert list(model.preprocessor.tokenizer.vocabulary) == WORDS


def test_a_run_that_records_do_not_allow(run, data, tmp_path):
    kbz.write_vocabulary(tmp_path / "short.txt", WORDS[:10])
    kbz.write_vocabulary(tmp_path / "turned.txt", ["[PAD]", "[UNK]", "[SEP]", "[MASK]", "[CLS]", *WORDS[5:]])
    for changes, words in (
        ({"masking": {"mask": 1.0}}, "`masking` must be None for TFRecords"),
        ({"data": str(data), "vocab": None, "cased": True}, "`cased` needs `vocab`"),
        ({"architecture": {**SMALL, "causal": True}}, "`data` must be made by `prepare` for a causal backbone"),
        ({"data": str(tmp_path / "*.none")}, "`data` must be TFRecord files"),
        ({"data": str(data)}, "`data` must be TFRecord files"),
        ({"validation": str(data)}, "`validation` must be TFRecord files"),
        ({"batch_size": 10_000}, "`batch_size` must be at most the number of examples of `data`"),
        ({"vocab": None}, "`vocab` must be given for TFRecords"),
        ({"steps_per_execution": 4}, "`steps_per_execution` must"),
        ({"vocab": str(tmp_path / "short.txt")}, "`data` must have token ids in [0, 10), those of `vocab`"),
        ({"vocab": str(tmp_path / "turned.txt")}, "`data` must begin each example with [CLS], 4 in `vocab`"),
    ):
        with short_error(words):
            pretrain(replace(run, **changes), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_from_the_console(data, tmp_path, capsys):
    assert cli.main(["records", "--data", str(data), "--out", str(tmp_path / "console")]) == 0
    assert f"{PretrainingBatches(data, 1).examples:,} examples" in capsys.readouterr().out
    write_records(data, tmp_path / "python", verbose=False)
    name = "shard-00000-of-00001.tfrecord"
    assert (tmp_path / "console" / name).read_bytes() == (tmp_path / "python" / name).read_bytes()
    assert cli.main(["records", "--data", str(data), "--out", str(tmp_path / "text")]) == 2
    assert "keras-bert-zoo records: `out` must be a directory that can be written" in capsys.readouterr().err


def test_nothing_of_a_set_is_there_before_all_of_it(data, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "_EXAMPLES_A_FILE", 10)
    make = records._examples

    def stop(tf, inputs, targets, weights):
        yield from list(make(tf, inputs, targets, weights))[:5]
        raise KeyboardInterrupt

    monkeypatch.setattr(records, "_examples", stop)
    with pytest.raises(KeyboardInterrupt):
        write_records(data, tmp_path / "records")
    assert not list((tmp_path / "records").glob("*.tfrecord"))
    monkeypatch.setattr(records, "_examples", make)
    count = write_records(data, tmp_path / "records")
    files = sorted(path.name for path in (tmp_path / "records").iterdir())
    total = -(-count // 10)
    assert files == [f"shard-{i:05d}-of-{total:05d}.tfrecord" for i in range(total)]
    assert sum(len(list(tf.data.TFRecordDataset(str(tmp_path / "records" / name)))) for name in files) == count


def test_a_part_of_a_set_is_no_set(data, tmp_path, monkeypatch):
    """A process is killed when it has renamed one of the files; the next one finishes the set."""
    monkeypatch.setattr(records, "_EXAMPLES_A_FILE", 10)
    out, rename = tmp_path / "records", tf.io.gfile.rename

    def rename_and_stop(path, *arguments, **options):
        rename(path, *arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(tf.io.gfile, "rename", rename_and_stop)
        with pytest.raises(KeyboardInterrupt):
            write_records(data, out, verbose=False)
    pattern, part = str(out / "*.tfrecord"), min(out.glob("*.part")).name
    assert len(list(out.glob("*.tfrecord"))) == 1
    for paths in (pattern, list(out.glob("*.tfrecord"))):
        with short_error(f"`paths` must be files of a finished set. Received: {out} with {part}"):
            RecordFiles(paths)
    count = write_records(data, out, verbose=False)
    assert RecordFiles(pattern).count() == count
    assert RecordFiles(str(out / "shard-00000-*")).count() == 10  # The others may be held out.
    for moved in ((), out.glob("shard-00001-*")):
        for path in moved:
            path.rename(tmp_path / path.name)
        with pytest.raises(ValueError, match="`out` must be a new or empty directory"):
            write_records(data, out)


def test_bad_records(data, tmp_path, tokenizer):
    (tmp_path / "broken").write_bytes(b"not a record, by any means, and long enough to be read as one")
    with tf.io.TFRecordWriter(str(tmp_path / "other")) as writer:
        writer.write(tf.train.Example().SerializeToString())
    prepare([tmp_path / "text"], tmp_path / "dynamic", tokenizer, sequence_length=16, verbose=False)
    prepare([tmp_path / "text"], tmp_path / "long", tokenizer, sequence_length=24, fix_masks=True, verbose=False)
    for name in ("data", "long"):
        write_records(tmp_path / name, tmp_path / f"{name} records", verbose=False)
    good, longer = (tmp_path / f"{name} records" / "shard-00000-of-00001.tfrecord" for name in ("data", "long"))
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "cut").write_bytes(good.read_bytes()[:-10])
    assert len(list(read_records([tmp_path / "empty", good], 8))) == len(list(read_records([good], 8)))
    for run, words in (
        (
            lambda: read_records("none://b/*.tfrecord", 8),
            "`paths` must be TFRecord files that can be read. Received: 'none:",
        ),
        (lambda: read_records(["none://b/c"], 8), "`paths` must be TFRecord files that can be read. Received: ['none:"),
        (lambda: read_records([tmp_path / "gone"], 8), "`paths` must be TFRecord files"),
        (lambda: read_records(str(tmp_path / "*.none"), 8), "`paths` must be TFRecord files"),
        (lambda: read_records([tmp_path / "broken"], 8), "broken must be a TFRecord file (DataLossError)"),
        (lambda: read_records([tmp_path / "other"], 8), "other must hold the features of BERT's pre-training"),
        (lambda: read_records([tmp_path / "other"], 0), "`batch_size` must be"),
        (lambda: read_records([tmp_path / "empty"], 8), "`paths` must be TFRecord files with examples"),
        (lambda: read_records([good, tmp_path / "broken"], 8), "broken must be a TFRecord file (DataLossError)"),
        (
            lambda: read_records([good, longer], 8),
            "shard-00000-of-00001.tfrecord must have the features and lengths of",
        ),
        (lambda: RecordBatches(str(tmp_path / "cut"), tokenizer, 8), "cut must be a whole TFRecord file"),
        (lambda: write_records(tmp_path / "dynamic", tmp_path / "out"), "`data` must have fixed masks"),
        (lambda: write_records(data, tmp_path), "`out` must be a new or empty directory"),
        (lambda: write_records(data, good), "`out` must be a directory that can be written. Received: out="),
        (lambda: write_records(data, good / "in"), "`out` must be a directory that can be written. Received: out="),
        (lambda: write_records(data, "none://b/c"), "`out` must be a directory that can be written. Received: out="),
    ):
        with short_error(words, longest=500):  # It lists the features of two files.
            run()


def write_changed(source, target, number, change):
    """Copy the records of a file and change one of them."""
    with tf.io.TFRecordWriter(str(target)) as writer:
        for i, record in enumerate(tf.data.TFRecordDataset(str(source)).as_numpy_iterator()):
            example = tf.train.Example.FromString(record)
            if i == number:
                change(example.features.feature)
            writer.write(example.SerializeToString())


def test_records_that_differ_and_values_that_no_example_has(data, tmp_path, tokenizer):
    count = write_records(data, tmp_path / "records", verbose=False)
    good, path = tmp_path / "records" / "shard-00000-of-00001.tfrecord", tmp_path / "changed"
    others = f"of its first record in every record. Received: others among the first {count} of changed"
    for number, change, words in (
        (1, lambda features: features["input_ids"].int64_list.value.pop(), others),
        (1, lambda features: features.pop("masked_lm_weights"), others),
        (1, lambda features: features["next_sentence_labels"].bytes_list.value.append(b"\xff"), others),
        (0, lambda features: features["segment_ids"].Clear(), "none in ['segment_ids']"),
        (0, lambda features: features["masked_lm_weights"].int64_list.value.append(1), "none in ['masked_lm_weights']"),
        (1, lambda features: features["segment_ids"].int64_list.value.__setitem__(3, 2), "segments in [0, 2). Rec"),
        (1, lambda features: features["next_sentence_labels"].int64_list.value.__setitem__(0, -1), "[0, 2). Received"),
        (1, lambda features: features["input_ids"].int64_list.value.__setitem__(4, 2**32), "token ids in [0, "),
        (1, lambda features: features["input_ids"].int64_list.value.__setitem__(0, 7), "with [CLS], 2 in `vocab`. Rec"),
    ):
        write_changed(good, path, number, change)
        with short_error(words):
            RecordBatches(str(path), tokenizer, 8)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in (next(tf.data.TFRecordDataset(str(good)).as_numpy_iterator()), b"\xff" * 30):
            writer.write(record)
    with pytest.raises(ValueError, match="Received: others among the first 2 of changed"):
        RecordBatches(str(path), tokenizer, 2)
    path.write_bytes(good.read_bytes()[:-1] + b"?")
    with short_error(f"must hold whole records. Received: a damaged one among the first {count} of changed"):
        RecordBatches(str(path), tokenizer, 8)


def header_of(length):
    """Return a record's header: its length, and a checksum of that (tensorflow/core/lib/io/record_writer.h)."""
    crc = 2**32 - 1
    for byte in length.to_bytes(8, "little"):
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (crc & 1) * 0x82F63B78
    crc ^= 2**32 - 1
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32
    return length.to_bytes(8, "little") + masked.to_bytes(4, "little")


def test_a_record_that_claims_more_than_its_file_holds(data, tmp_path, monkeypatch):
    """TensorFlow's reader would request that much memory, and end the process."""
    count = write_records(data, tmp_path / "records", verbose=False)
    good = (tmp_path / "records" / "shard-00000-of-00001.tfrecord").read_bytes()
    assert good.startswith(header_of(int.from_bytes(good[:8], "little")))
    claim = header_of(2**40) + b"x" * 104
    (tmp_path / "first").write_bytes(claim)
    (tmp_path / "last").write_bytes(good + claim)
    (tmp_path / "good").write_bytes(good)
    files = [RecordFiles([tmp_path / name]) for name in ("last", "good")]
    monkeypatch.setattr(tf.data, "TFRecordDataset", None)
    with pytest.raises(ValueError, match=r"first must be a TFRecord file \(DataLossError\)"):
        read_records([tmp_path / "first"], 2)
    for size in (record_files._READ, 8, 1000):
        monkeypatch.setattr(record_files, "_READ", size)
        with pytest.raises(
            ValueError, match=rf"last must be a whole TFRecord file \(the record at {len(good)} does not"
        ):
            files[0].count()
        assert len(list(record_files._lengths(tf, str(tmp_path / "good"), len(good)))) == count
    assert files[1].count() == count  # Without a second reading by TensorFlow.
