"""transformers and PyTorch in `finetune_scores.py`: their models, tokenizer and collators, padded batch by batch."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import transformers
from scores_tasks import BATCH_SIZE, EPSILON, LEARNING_RATE, TAGS, TASKS, WARMUP, Examples, contend, timed
from scores_transformers_squad import decode_answers, encode_questions

Features = list[dict[str, Any]]
Collate = Callable[[Features], dict[str, Any]]


def build(name: str, preset: str, random: bool = False) -> torch.nn.Module:
    """Build the task's model with the preset's weights, or with fresh ones of the same architecture."""
    head: dict[str, Any]
    auto, head = {
        "conll": (transformers.AutoModelForTokenClassification, {"num_labels": len(TAGS)}),
        "dream": (transformers.AutoModelForMultipleChoice, {}),
        "stsb": (transformers.AutoModelForSequenceClassification, {"num_labels": 1}),
        "squad": (transformers.AutoModelForQuestionAnswering, {}),
        "squad2": (transformers.AutoModelForQuestionAnswering, {}),
    }.get(name, (transformers.AutoModelForSequenceClassification, {"num_labels": 2}))
    config = transformers.AutoConfig.from_pretrained(preset, **head)
    return auto.from_config(config) if random else auto.from_pretrained(preset, config=config, dtype=torch.float32)


def encode(name: str, tokenizer: Any, examples: Examples) -> tuple[Features, Collate]:
    """Return what a model takes, an item per example (for SQuAD, per window), and what makes a batch of items."""
    x, y = examples
    options = {"truncation": True, "max_length": TASKS[name].sequence_length}
    collate: Any = transformers.DataCollatorWithPadding(tokenizer)
    if name in ("squad", "squad2"):
        return encode_questions(tokenizer, x, y, TASKS[name].sequence_length), collate
    if name == "conll":
        encoded = tokenizer(x, is_split_into_words=True, **options)
        labels = []
        for i, tags in enumerate(y):
            row = [-100] * len(encoded["input_ids"][i])
            for word, token in first_tokens(encoded.word_ids(i)).items():
                row[token] = TAGS.index(tags[word])
            labels.append(row)
        collate = transformers.DataCollatorForTokenClassification(tokenizer)
    elif name == "dream":
        rows = [tokenizer([context] * len(choices), choices, **options) for context, choices in zip(*x, strict=True)]
        encoded = {key: [row[key] for row in rows] for key in rows[0]}
        labels, collate = y, transformers.DataCollatorForMultipleChoice(tokenizer)
    else:
        encoded, labels = tokenizer(*(x if isinstance(x, tuple) else (x,)), **options), y
    names = [*encoded.keys(), "labels"]
    return [dict(zip(names, row, strict=True)) for row in zip(*encoded.values(), labels, strict=True)], collate


def first_tokens(word_ids: list[int | None]) -> dict[int, int]:
    """Map each word to its first token; a word that is cut off, or of which the tokenizer leaves nothing, has none."""
    return {word: token for token, word in reversed(list(enumerate(word_ids))) if word is not None}


class SimilarLengths(torch.utils.data.Sampler):
    """Batches of similar length in random order, or, unshuffled, in the items' order.

    transformers' own sampler leaves the batches sorted from long to short, fifty at a time.
    """

    def __init__(self, lengths: list[int], batch_size: int, shuffle: bool, together: int) -> None:
        self.lengths, self.batch_size, self.shuffle = torch.tensor(lengths), batch_size, shuffle
        self.together = together  # How many batches are sorted together.

    def __len__(self) -> int:
        return -(-len(self.lengths) // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        drawn = torch.arange(len(self.lengths))
        if self.shuffle:
            parts = torch.randperm(len(drawn)).split(self.together * self.batch_size)
            drawn = torch.cat([part[self.lengths[part].argsort()] for part in parts])
        batches = drawn.split(self.batch_size)
        order = torch.randperm(len(batches)) if self.shuffle else range(len(batches))
        return (batches[i].tolist() for i in order)


def train(
    model: Any,
    features: Features,
    collate: Collate,
    epochs: int,
    learning_rate: float = LEARNING_RATE,
    batch_size: int = BATCH_SIZE,
    shuffle: bool = True,
    bfloat16: bool = False,
    together: int = 50,
) -> list[float]:
    """Train the model; return the loss of each step."""
    decayed, plain = [], []
    for name, parameter in model.named_parameters():
        (plain if name.endswith("bias") or "LayerNorm" in name else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, eps=EPSILON)
    batches = SimilarLengths([_length(item["input_ids"]) for item in features], batch_size, shuffle, together)
    loader = torch.utils.data.DataLoader(features, batch_sampler=batches, collate_fn=collate)
    steps = len(loader) * epochs
    warmup = int(steps * WARMUP)
    # BERT's own schedule. `get_linear_schedule_with_warmup` counts the decay from the end of the warm-up, and is 1.1
    # times as high.
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: step / warmup if step < warmup else 1 - step / steps
    )
    losses = []
    model.train()
    for epoch in range(epochs):
        for batch in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
                loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}: loss {np.mean(losses[-len(loader) :]):.4f}", flush=True)
    return losses


@torch.inference_mode()
def predict(model: Any, features: Features, collate: Collate) -> list[np.ndarray]:
    """Return each item's logits: `[classes]`, or `[tokens, classes]` with padding; for SQuAD, starts and ends."""
    model.eval()
    order = np.argsort([-_length(item["input_ids"]) for item in features])
    logits: list[Any] = [None] * len(features)
    for rows in np.array_split(order, -(-len(order) // BATCH_SIZE)):
        outputs = model(**collate([features[row] for row in rows]))
        both = torch.stack([outputs.start_logits, outputs.end_logits], -1) if "start_logits" in outputs else None
        for row, own in zip(rows, outputs.logits if both is None else both, strict=True):
            logits[row] = own.numpy()
    return logits


def _length(ids: list[Any]) -> int:
    return max(map(_length, ids)) if isinstance(ids[0], list) else len(ids)


def finetune(name: str, train_examples: Examples, dev: Examples, job: dict[str, Any]) -> tuple[Any, dict[str, int]]:
    torch.manual_seed(job["seed"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["preset"])
    model = build(name, job["preset"], job["random"])
    encoded = encode(name, tokenizer, train_examples)
    features, collate = encode(name, tokenizer, dev)
    task, options = TASKS[name], {"bfloat16": job["bfloat16"], "together": 1 if job["random_batches"] else 50}
    measured = timed(
        lambda: train(model, *encoded, task.epochs, job["learning_rate"], batch_size=task.batch_size, **options)
    )
    logits = predict(model, features, collate)
    if name in ("squad", "squad2"):
        return decode_answers(tokenizer, dev.x, logits, TASKS[name].sequence_length), measured
    if name == "conll":
        word_ids = tokenizer(
            dev.x, is_split_into_words=True, truncation=True, max_length=TASKS[name].sequence_length
        ).word_ids
        return [
            [TAGS[own[tokens[word]].argmax()] if word in tokens else "O" for word in range(len(words))]
            for words, own, tokens in zip(
                dev.x, logits, (first_tokens(word_ids(i)) for i in range(len(dev.x))), strict=True
            )
        ], measured
    return np.squeeze(logits, -1) if name == "stsb" else np.array(logits), measured


if __name__ == "__main__":
    contend(finetune, ("transformers", "torch"))
