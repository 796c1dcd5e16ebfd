"""Samples for the tests of RULER: two ways to count tokens, and each sample made once."""

import functools
import re

from qfilters.ruler import TASKS, generate


def count_plain(context: str, question: str, prefix: str) -> int:
    """Words, digits and marks, and 30 for a template."""
    return 30 + len(re.findall(r"[A-Za-z]+|\d|[^\w\s]", context + question + prefix))


@functools.cache
def count_smollm2():
    from qfilters.models import load_tokenizer
    from qfilters.ruler.prompt import PromptFormat

    return PromptFormat(load_tokenizer("smollm2-135m")).count


@functools.cache
def samples(task: str, length: int = 1024, n: int = 5, counter: str = "plain", seed: int = 42):
    count = count_plain if counter == "plain" else count_smollm2()
    return tuple(generate(task, count, length, n, seed))


NAMES = tuple(TASKS)
