"""Features of a word besides its subwords: its shape and its static vector.

>>> word_shape("Paris") == word_shape("London") != word_shape("paris")
True
"""

from pathlib import Path

import numpy as np

from nestree.errors import ModelError

SHAPES = 1 + 6 * 2 * 2 * 2  # 0: padding
WordVectors = tuple[tuple[str, ...], np.ndarray]  # words, and their vectors [words, dimensions] in float32


def word_shape(word: str) -> int:
    """The shape of a word, numbered from 1: its case, digits, other characters, whether it has one character."""
    if word.islower():
        case = 1
    elif word.isupper():
        case = 2
    elif word[:1].isupper() and (word[1:].islower() or not any(map(str.isupper, word[1:]))):
        case = 3
    elif any(map(str.isupper, word)) or any(map(str.islower, word)):
        case = 4
    else:
        case = 5 if any(map(str.isalpha, word)) else 0  # 5: a script without cases
    letters = word.isalpha()
    digits = not letters and any(map(str.isdigit, word))
    other = not (letters or word.isalnum())
    return 1 + ((case * 2 + digits) * 2 + other) * 2 + (len(word) == 1)


def read_vectors(path: Path) -> WordVectors:
    """Vectors of a GloVe text file (a word and its numbers per line), or of NAME.npy with its words in NAME.txt."""
    try:
        return read_npy(path) if path.suffix == ".npy" else read_glove(path)
    except OSError as error:
        raise ModelError(
            f"{error.filename or path}: word vectors cannot be read: {error.strerror}. "
            'Give their file in encoder.word_vectors, or set it to "" to do without.'
        ) from error


def read_glove(path: Path) -> WordVectors:
    words: dict[str, int] = {}
    rows: list[np.ndarray] = []
    with open(path, encoding="utf-8", errors="replace", newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            word, *values = line.rstrip("\r\n").rstrip(" ").split(" ")
            if number == 1 and len(values) == 1 and values[0].isdigit():
                continue  # word2vec files begin with the size of the table
            try:
                row = np.array(values, dtype=np.float32)
            except ValueError:
                raise ModelError(f"{path}:{number}: {line[:40]!r} is not a word and its numbers.") from None
            if not len(row) or (rows and len(row) != len(rows[0])):
                expected = len(rows[0]) if rows else "some"
                raise ModelError(f"{path}:{number}: {len(row)} numbers instead of {expected}.")
            if word not in words:
                words[word] = len(rows)
                rows.append(row)
    if not rows:
        raise ModelError(f"{path}: no word vectors are in this file.")
    return tuple(words), np.stack(rows)


def read_npy(path: Path) -> WordVectors:
    try:
        vectors = np.load(path, allow_pickle=False)
    except ValueError as error:
        raise ModelError(f"{path}: this is not an array of numbers in NumPy's format: {error}.") from None
    words_file = path.with_suffix(".txt")
    words = tuple(words_file.read_text(encoding="utf-8").splitlines())
    if vectors.ndim != 2 or len(vectors) != len(words) or not len(words):
        raise ModelError(
            f"{path}: an array of shape {vectors.shape} beside {len(words)} words in {words_file.name}; "
            "each word needs a row, and each row a word."
        )
    return words, vectors.astype(np.float32)
