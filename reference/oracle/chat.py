# SPDX-License-Identifier: Apache-2.0
"""A conversation as the prompt text that the model was trained on.

Chat templates are programs that come with the model: they run in jinja2's immutable sandbox, with
the filters, functions and white-space settings that transformers gives them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from reference.oracle.tokenizer import Tokenizer
from refusal import Refusal

Message = dict[str, Any]


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}` marks what the assistant wrote; the text is its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 reads this class attribute)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render_chat(
    tokenizer: Tokenizer, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any
) -> str:
    """The prompt of a conversation.

    Args:
        messages: each with `role` and `content`.
        add_generation_prompt: end with the start of the assistant's turn.
        variables: further variables of the template, such as enable_thinking.

    Raises:
        Refusal: no template, a template that refuses these messages, or a broken one.
    """
    where = str(tokenizer.model_dir)
    if tokenizer.chat_template is None:
        raise Refusal(
            "no chat template",
            expected="chat_template.jinja, or chat_template in tokenizer_config.json",
            where=where,
            next_step="give the prompt as plain text; this may be a base model",
        )
    try:
        template = _compiled(tokenizer.chat_template)
        return template.render(
            messages=list(messages),
            tools=variables.pop("tools", None),
            documents=variables.pop("documents", None),
            add_generation_prompt=add_generation_prompt,
            **tokenizer.special_tokens,
            **variables,
        )
    except jinja2.TemplateError as error:
        raise Refusal(f"the chat template refuses: {error}", where=where) from None


def encode_chat(tokenizer: Tokenizer, messages: Sequence[Message], **variables: Any) -> list[int]:
    """Ids of a conversation. Special tokens come from the template alone, so that BOS is not put twice."""
    return tokenizer.encode(render_chat(tokenizer, messages, **variables), add_special_tokens=False)


@lru_cache(maxsize=8)
def _compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own filter escapes HTML characters; prompts must not be."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
