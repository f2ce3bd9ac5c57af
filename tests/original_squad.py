"""The windows and the answers of google-research/bert's run_squad.py, reimplemented one token at a time."""

import math


def windows(token_count, question_count, sequence_length, stride):
    """Return the first token and the number of tokens of each window."""
    room = sequence_length - question_count - 3
    spans, start = [], 0
    while start < token_count:
        count = min(token_count - start, room)
        spans.append((start, count))
        if start + count == token_count:
            break
        start += min(count, stride)
    return spans


def is_most_context(spans, number, token):
    """Whether the window of this number is the one in which a token of the context has the most context."""
    best, winner = None, None
    for i, (start, count) in enumerate(spans):
        last = start + count - 1
        if start <= token <= last:
            value = min(token - start, last - token) + 0.01 * count
            if best is None or value > best:
                best, winner = value, i
    return winner == number


def answers(spans, question_count, logits, texts, version_2, n_best, max_length):
    """Return the n-best list of a question, as dicts, and its null odds, which are for version 2.

    `logits` has a pair of lists per window; `texts(first, last)` is the text of a span of the context's tokens.
    """
    pool, lowest = [], None
    for number, (start, count) in enumerate(spans):
        begins, ends = logits[number]
        null = begins[0] + ends[0]
        if lowest is None or null < lowest[0]:
            lowest = (null, begins[0], ends[0])
        first = question_count + 2
        in_context = range(first, first + count)
        for a in top(begins, n_best):
            for b in top(ends, n_best):
                if a not in in_context or b not in in_context or b < a or b - a + 1 > max_length:
                    continue
                if is_most_context(spans, number, start + a - first):
                    pool.append((start + a - first, start + b - first, begins[a], ends[b]))
    if version_2:
        pool.append((None, None, lowest[1], lowest[2]))
    pool.sort(key=lambda one: one[2] + one[3], reverse=True)
    found = []
    for a, b, begin, end in pool:
        if len(found) >= n_best:
            break
        text = "" if a is None else texts(a, b)
        if text not in [one["text"] for one in found]:
            found.append({"text": text, "start_logit": begin, "end_logit": end})
    if version_2 and "" not in [one["text"] for one in found]:
        found.append({"text": "", "start_logit": lowest[1], "end_logit": lowest[2]})
    exponentials = [math.exp(one["start_logit"] + one["end_logit"]) for one in found]
    for one, value in zip(found, exponentials, strict=True):
        one["probability"] = value / sum(exponentials)
    best = next((one for one in found if one["text"]), {"start_logit": 0.0, "end_logit": 0.0})
    return found, lowest[0] - best["start_logit"] - best["end_logit"]


def top(values, count):
    return sorted(range(len(values)), key=lambda i: values[i], reverse=True)[:count]
