"""Conversations as text: lists of messages through a tokenizer's chat template, and where in it the
assistant's answers are, which alone count in the loss.

A template is Jinja, rendered in a sandbox as Transformers does, but for the date: what a run trains
on does not change from day to day, so `strftime_now` is not defined. Answers are what stands in
`{% generation %}` blocks; of a template without them, what an assistant's message adds behind the
prompt for it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, cast

from ratrain.corpus.columns import rows_of_table
from ratrain.corpus.documents import Piece, json_rows
from ratrain.corpus.faults import missing_key
from ratrain.corpus.sources import Source
from ratrain.errors import SpecError
from ratrain.readers.files import decoded, exists, read_bytes
from ratrain.readers.json import read_json_table
from ratrain.readers.limits import JSON_BYTES

TEMPLATE, CONFIG, TOKENS_MAP = (
    "chat_template.jinja",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
_BEGIN, _END = "\ufdd0", "\ufdd1"
"""Mark answers while a template is rendered: no characters of any text (Unicode, noncharacters)."""
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")

Message = dict[str, Any]


class Rendered(NamedTuple):
    """A conversation's text, and (begin, end) of each answer in it."""

    text: str
    answers: tuple[tuple[int, int], ...]


class ChatTemplate:
    """The chat template of a tokenizer's folder."""

    def __init__(self, tokenizer: Path) -> None:
        folder = tokenizer if tokenizer.is_dir() else tokenizer.parent
        self._text, self.place = _template_of(folder)
        self._special = _special_tokens(folder)
        self._marks = _GENERATION.search(self._text) is not None
        known = json.dumps([self._text, self._special], sort_keys=True)
        self.fingerprint = hashlib.sha256(known.encode()).hexdigest()

    def render(self, row: Mapping[str, Any], key: str, place: str) -> Rendered:
        """A row's conversation. `place`: its file and line."""
        messages = _messages(row, key, place)
        tools = row.get("tools") or None
        if self._marks:
            return _unmarked(self._run(messages, tools, place))
        return self._by_turns(messages, tools, place)

    def _by_turns(self, messages: list[Message], tools: Any, place: str) -> Rendered:
        """What each answer adds to the text before it."""
        whole = self._run(messages, tools, place)
        answers: list[tuple[int, int]] = []
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._run(messages[:number], tools, place, prompts=True)
            upto = whole
            if number < len(messages) - 1:
                upto = self._run(messages[: number + 1], tools, place)
            if not (whole.startswith(upto) and upto.startswith(before)):
                raise SpecError(
                    f"message {number + 1}: the template writes earlier turns otherwise once more "
                    "follow, so where the answer stands in the text is not known",
                    place=place,
                    fix=f"mark answers in {self.place} by {{% generation %}} and "
                    "{% endgeneration %}",
                )
            answers.append((len(before), len(upto)))
        return Rendered(whole, tuple(answers))

    def _run(
        self, messages: list[Message], tools: Any, place: str, *, prompts: bool = False
    ) -> str:
        template = self._compiled
        try:
            return str(
                template.render(
                    messages=messages,
                    tools=tools,
                    documents=None,
                    add_generation_prompt=prompts,
                    **self._special,
                )
            )
        except Exception as error:  # whatever a template does with messages of another form
            raise SpecError(
                f"the chat template cannot write this conversation: {_first_line(error)}",
                place=place,
                fix=f"leave it out, or see {self.place}",
            ) from error

    @cached_property
    def _compiled(self) -> Any:
        jinja: Any = _library()
        environment = import_module("jinja2.sandbox").ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_generation_blocks(jinja), "jinja2.ext.loopcontrols"],
        )
        environment.filters["tojson"] = _as_json
        environment.globals["raise_exception"] = _raise
        try:
            return environment.from_string(self._text)
        except jinja.TemplateError as error:
            raise SpecError(
                f"not a chat template: {_first_line(error)}",
                place=self.place,
                fix="fetch the file again",
            ) from error


def conversations_of(source: Source, key: str, template: ChatTemplate) -> Iterator[Piece]:
    """The conversations of a file, each one piece."""
    if source.kind == "text":
        raise SpecError(
            "a text file holds no conversations",
            place=str(source.path),
            fix="give JSON lines, Parquet or Arrow, or leave messages_key out",
        )
    rows = json_rows(source) if source.kind == "json-lines" else rows_of_table(source)
    for row, place, done_bytes in rows:
        text, answers = template.render(row, key, place)
        if text:
            yield Piece(text, True, done_bytes, answers)


def _messages(row: Mapping[str, Any], key: str, place: str) -> list[Message]:
    if key not in row:
        raise missing_key(key, list(row), place, "messages_key")
    messages = row[key]
    fix = f'write "{key}": [{{"role": "user", "content": "..."}}, ...], or leave this one out'
    if not isinstance(messages, list) or not messages:
        raise SpecError(f"{key!r} is no list of messages", place=place, fix=fix)
    for number, message in enumerate(cast("list[Any]", messages), start=1):
        if not isinstance(message, dict) or not isinstance(
            cast("Message", message).get("role"), str
        ):
            raise SpecError(f"message {number} has no role", place=place, fix=fix)
        if any(mark in json.dumps(message, ensure_ascii=False) for mark in (_BEGIN, _END)):
            raise SpecError(f"message {number} has a noncharacter", place=place, fix="remove it")
    return cast("list[Message]", messages)


def _unmarked(marked: str) -> Rendered:
    """The text without the marks of answers, and where those stood."""
    text, answers, begin = "", list[tuple[int, int]](), 0
    for part in re.split(f"([{_BEGIN}{_END}])", marked):
        if part == _BEGIN:
            begin = len(text)
        elif part == _END:
            answers.append((begin, len(text)))
        else:
            text += part
    return Rendered(text, tuple(answers))


def _generation_blocks(jinja: Any) -> Any:
    """The extension that knows `{% generation %}`: marks around what is inside."""
    base: Any = import_module("jinja2.ext").Extension

    class Generation(base):
        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            call = self.call_method("_marked")
            return jinja.nodes.CallBlock(call, [], [], body).set_lineno(line)

        def _marked(self, caller: Any) -> str:
            return f"{_BEGIN}{caller()}{_END}"

    return Generation


def _template_of(folder: Path) -> tuple[str, str]:
    """The template's text, and the file that it is in."""
    path = folder / TEMPLATE
    if exists(path):
        return decoded(read_bytes(path, JSON_BYTES), str(path)), str(path)
    config = folder / CONFIG
    template: Any = read_json_table(config)[0].get("chat_template") if exists(config) else None
    if isinstance(template, list):  # several, by name
        named = {each.get("name"): each.get("template") for each in cast("list[Message]", template)}
        template = named.get("default")
    if not isinstance(template, str):
        raise SpecError(
            f"the tokenizer has no chat template: neither {TEMPLATE} nor a chat_template in "
            f"{CONFIG}",
            place=str(folder),
            fix="use the tokenizer of an instruction-tuned model, or leave messages_key out",
        )
    return template, str(config)


def _special_tokens(folder: Path) -> dict[str, str]:
    """What templates call bos_token, eos_token and so on."""
    tokens: dict[str, str] = {}
    for name in (TOKENS_MAP, CONFIG):
        if not exists(folder / name):
            continue
        for key, value in read_json_table(folder / name)[0].items():
            token = cast("Message", value).get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(token, str):
                tokens[key] = token
    return tokens


def _as_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise(message: str) -> None:
    raise _library().TemplateError(message)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _library() -> Any:
    try:
        return import_module("jinja2")
    except ImportError as error:
        raise SpecError(
            "chat data need the library `jinja2`",
            place="[data] messages_key",
            fix='pip install "ratrain[train]"',
        ) from error
