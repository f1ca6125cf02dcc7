"""verl's training data: what its parquet rows hold, read in batches of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kltune.errors import SettingsError

if TYPE_CHECKING:
    import pyarrow

#: Columns that decide what is trained. verl looks at no other, so a column more or less is no
#: change of the data. ``prompt`` may have another name, see ``data.prompt_key``.
CONTENT = ("data_source", "prompt", "reward_model", "images", "videos")

_BATCH = 16_384
# Between fields of one level. Texts that hold these characters could be taken for others; nobody
# writes prompts with them.
_FIELD, _ITEM, _NULL = b"\x1f", b"\x1e", b"\x00"


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch of rows, one element a row in each array.

    Attributes:
        contents: everything that decides what is trained, as bytes.
        identities: what stays when a row's content is changed: source, split and
            ``extra_info.index``, or the prompt where rows are not numbered.
        prompt_lengths, answer_lengths: characters of the prompt's messages and of
            ``reward_model.ground_truth``.
        sources: ``data_source``.
    """

    contents: pyarrow.Array
    identities: pyarrow.Array
    prompt_lengths: pyarrow.Array
    answer_lengths: pyarrow.Array
    sources: pyarrow.Array


def read_rows(paths: Sequence[Path], prompt_key: str = "prompt") -> Iterator[Rows]:
    """Yield the rows of parquet files, batch by batch.

    Raises:
        SettingsError: a file is missing, is no parquet file, or lacks a column of verl's.
    """
    import pyarrow
    import pyarrow.parquet

    for path in paths:
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                names = _columns(path, file.schema_arrow.names, prompt_key)
                for batch in file.iter_batches(_BATCH, columns=names):
                    yield _rows(batch, prompt_key)
        except FileNotFoundError:
            raise SettingsError(f"{path}: there is no such file") from None
        except (pyarrow.ArrowInvalid, OSError) as error:
            first = str(error).splitlines()[0]
            raise SettingsError(f"{path}: cannot be read as parquet ({first})") from None


def _columns(path: Path, names: Sequence[str], prompt_key: str) -> list[str]:
    needed = ("data_source", prompt_key, "reward_model")
    missing = [name for name in needed if name not in names]
    if missing:
        raise SettingsError(
            f"{path}: has no column {', '.join(missing)}; verl's rows have {', '.join(needed)}, "
            f"this file has {', '.join(names)}"
        )
    wanted = {*CONTENT, prompt_key, "extra_info"}
    return [name for name in names if name in wanted]


def _rows(batch: pyarrow.RecordBatch, prompt_key: str) -> Rows:
    columns = {
        "prompt" if name == prompt_key else name: column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    texts = {name: canonical(columns[name]) for name in CONTENT if name in columns}
    numbered = _index(columns.get("extra_info"))
    identity = (
        _join(texts["data_source"], texts["prompt"])
        if numbered is None
        else _join(texts["data_source"], numbered)
    )
    return Rows(
        contents=_join(*texts.values()),
        identities=identity,
        prompt_lengths=_prompt_lengths(columns["prompt"]),
        answer_lengths=_lengths(_field(columns["reward_model"], "ground_truth")),
        sources=columns["data_source"],
    )


def canonical(array: pyarrow.Array) -> pyarrow.Array:
    """Return an array of any type as one of bytes: equal values give equal bytes.

    Fields of a struct are taken by name, since writers order them differently.
    """
    import pyarrow
    import pyarrow.compute as pc
    from pyarrow import types

    kind = array.type
    if isinstance(array, pyarrow.ExtensionArray):
        return canonical(array.storage)
    if types.is_dictionary(kind):
        return canonical(array.dictionary_decode())
    if types.is_struct(kind):
        fields = sorted(zip((f.name for f in kind), array.flatten(), strict=True))
        parts = [canonical(column) for _, column in fields]
        return _join(*parts) if parts else _empty(len(array))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        items = canonical(pc.list_flatten(array))
        lists = pyarrow.LargeListArray.from_arrays(_offsets(array), items)
        return pc.binary_join(lists, pyarrow.scalar(_ITEM, pyarrow.large_binary()))
    if types.is_null(kind):
        return _empty(len(array))
    if not (types.is_string(kind) or types.is_large_string(kind)):
        binary = types.is_binary(kind) or types.is_large_binary(kind)
        array = array if binary else array.cast(pyarrow.string())
    return pc.fill_null(array.cast(pyarrow.large_binary()), _NULL)


def _join(*parts: pyarrow.Array) -> pyarrow.Array:
    import pyarrow
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(*parts, pyarrow.scalar(_FIELD, pyarrow.large_binary()))


def _empty(length: int) -> pyarrow.Array:
    import pyarrow

    return pyarrow.array([_NULL] * length, pyarrow.large_binary())


def _offsets(lists: pyarrow.Array) -> pyarrow.Array:
    """Return where each list begins in the flattened values; an absent list holds nothing."""
    import numpy
    import pyarrow
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return pyarrow.array(numpy.concatenate([[0], numpy.cumsum(lengths)]).astype(numpy.int64))


def _field(array: pyarrow.Array, name: str) -> pyarrow.Array:
    """Return a field of a struct array; the array itself where there is no such field."""
    names = [field.name for field in array.type] if hasattr(array.type, "fields") else []
    return array.flatten()[names.index(name)] if name in names else array


def _index(extra: pyarrow.Array | None) -> pyarrow.Array | None:
    """Return split and number of each row, or None where rows are not numbered."""
    if extra is None or not hasattr(extra.type, "fields"):
        return None
    found = {f.name: c for f, c in zip(extra.type, extra.flatten(), strict=True)}
    if "index" not in found or found["index"].null_count:
        return None
    parts = [canonical(found[name]) for name in ("split", "index") if name in found]
    return _join(*parts)


def _lengths(array: pyarrow.Array) -> Any:
    """Return the length of each value, in characters where it is text."""
    import pyarrow.compute as pc
    from pyarrow import types

    if types.is_string(array.type) or types.is_large_string(array.type):
        return pc.fill_null(pc.utf8_length(array), 0)
    return pc.binary_length(canonical(array))


def _prompt_lengths(prompt: pyarrow.Array) -> pyarrow.Array:
    """Return the characters of all messages of each prompt."""
    import numpy
    import pyarrow
    import pyarrow.compute as pc
    from pyarrow import types

    if not (types.is_list(prompt.type) or types.is_large_list(prompt.type)):
        return _lengths(prompt)
    of_messages = _lengths(_field(pc.list_flatten(prompt), "content")).to_numpy(
        zero_copy_only=False
    )
    total = numpy.concatenate([[0], numpy.cumsum(of_messages)])
    return pyarrow.array(numpy.diff(total[_offsets(prompt).to_numpy()]))


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a test set: its place in the file, its text, and the expected answer."""

    name: str
    text: str
    truth: str


def read_problems(path: Path, prompt_key: str = "prompt") -> list[Problem]:
    """Return the problems of a test set in verl's schema; ``name`` is the number of the row.

    Raises:
        SettingsError: the file is missing, is no parquet file, or lacks a column of verl's.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            _columns(path, file.schema_arrow.names, prompt_key)
            rows = file.read([prompt_key, "reward_model"]).to_pylist()
    except FileNotFoundError:
        raise SettingsError(f"{path}: there is no such file") from None
    except (pyarrow.ArrowInvalid, OSError) as error:
        first = str(error).splitlines()[0]
        raise SettingsError(f"{path}: cannot be read as parquet ({first})") from None
    return [
        Problem(
            str(number), _last_text(row[prompt_key]), str(row["reward_model"].get("ground_truth"))
        )
        for number, row in enumerate(rows)
    ]


def _last_text(prompt: Any) -> str:
    """Return what the last message of a prompt says: templates wrap it, and do not change it."""
    return str(prompt[-1]["content"] if isinstance(prompt, list) else prompt).strip()
