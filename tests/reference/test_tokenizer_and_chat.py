# SPDX-License-Identifier: Apache-2.0
"""Ids, text and prompts are those of the Hugging Face tokenizer of the same directory."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from reference.oracle import load_config
from reference.oracle.chat import encode_chat, render_chat
from reference.oracle.tokenizer import Tokenizer, load_tokenizer
from refusal import Refusal
from tests.reference.transformers_oracle import transformers
from tests.stand_ins.models import write_fixture_llama

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": 'Say "hi" & <b>bye</b> 👋🏽'},
    {"role": "assistant", "content": "hi"},
    {"role": "user", "content": "再见"},
]
STRINGS = [
    "",
    " ",
    "It was the best of times",
    "naïve café 12345",
    "👩‍👩‍👧 再见\n\n\tend",
    "<|im_start|>user\nx<|im_end|>",
]


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return write_fixture_llama(tmp_path)


def tokenizer_of(model_dir: Path) -> Tokenizer:
    return load_tokenizer(load_config(model_dir))


def hugging_face(model_dir: Path):
    return transformers.AutoTokenizer.from_pretrained(model_dir)


def edit(path: Path, **values) -> None:
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({key: value for key, value in (known | values).items() if value is not ...}))


@pytest.mark.parametrize("bos", [..., False, True])
@pytest.mark.parametrize("eos", [..., True])
def test_ids_are_those_of_transformers_whatever_tokenizer_config_says_of_bos(model_dir: Path, bos, eos) -> None:
    """Fault TG-02: a missing BOS looks right on both sides of a comparison."""
    edit(model_dir / "tokenizer_config.json", add_bos_token=bos, add_eos_token=eos)
    ours, theirs = tokenizer_of(model_dir), hugging_face(model_dir)
    for text in STRINGS:
        assert ours.encode(text) == theirs(text).input_ids, text
        assert ours.encode(text, add_special_tokens=False) == theirs(text, add_special_tokens=False).input_ids


def test_bos_in_the_post_processor_of_tokenizer_json(model_dir: Path) -> None:
    path = model_dir / "tokenizer.json"
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    edit(path, post_processor=template)
    ours, theirs = tokenizer_of(model_dir), hugging_face(model_dir)
    assert ours.encode("of times")[0] == 1
    assert ours.encode("of times") == theirs("of times").input_ids


def test_decode_is_that_of_transformers(model_dir: Path) -> None:
    ours, theirs = tokenizer_of(model_dir), hugging_face(model_dir)
    for text in STRINGS:
        ids = ours.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids)


class TestStream:
    """Fault TG-06: characters of several bytes, split over tokens."""

    @pytest.mark.parametrize("text", [*STRINGS, "🙂🙃", "a\ufffdb", "é"])
    def test_parts_join_to_the_whole_text(self, model_dir: Path, text: str) -> None:
        tokenizer = tokenizer_of(model_dir)
        ids = tokenizer.encode(text)
        stream = tokenizer.stream()
        parts = [stream.push(token) for token in ids]
        assert "".join([*parts, stream.finish()]) == tokenizer.decode(ids)

    def test_half_a_character_is_held_back(self, model_dir: Path) -> None:
        tokenizer = tokenizer_of(model_dir)
        ids = tokenizer.encode("🙂")
        assert len(ids) == 4  # one token a byte: the fixture's vocabulary has no merge for it
        stream = tokenizer.stream()
        assert [stream.push(token) for token in ids] == ["", "", "", "🙂"]
        assert stream.finish() == ""

    def test_text_that_ends_within_a_character(self, model_dir: Path) -> None:
        tokenizer = tokenizer_of(model_dir)
        stream = tokenizer.stream()
        assert "".join(stream.push(token) for token in tokenizer.encode("a🙂")[:-1]) == "a"
        assert stream.finish() == "\ufffd"


class TestEos:
    """Fault TG-03: EOS is an id or a list, in three files."""

    def test_union_of_all_files(self, model_dir: Path) -> None:
        edit(model_dir / "generation_config.json", eos_token_id=[3, 7])
        edit(model_dir / "config.json", eos_token_id=5)
        assert tokenizer_of(model_dir).eos_ids == {2, 3, 5, 7}  # 2 is <|im_end|> by tokenizer_config.json

    def test_without_generation_config(self, model_dir: Path) -> None:
        (model_dir / "generation_config.json").unlink()
        assert tokenizer_of(model_dir).eos_ids == {2}

    def test_something_else_is_refused(self, model_dir: Path) -> None:
        edit(model_dir / "generation_config.json", eos_token_id="<|im_end|>")
        with pytest.raises(Refusal, match="eos_token_id"):
            tokenizer_of(model_dir)


class TestIdLimit:
    """Fault TG-05: ids that the tokenizer does not have."""

    def test_padded_rows_are_never_chosen(self, model_dir: Path) -> None:
        tokenizer = tokenizer_of(model_dir)
        assert tokenizer.id_limit < 512
        logits = np.zeros(512, np.float32)
        logits[tokenizer.id_limit :] = 100.0
        logits[17] = 1.0
        assert int(np.argmax(tokenizer.mask_padding(logits))) == 17
        assert logits[-1] == 100.0

    def test_a_sparse_id_counts(self, model_dir: Path) -> None:
        path = model_dir / "tokenizer.json"
        content = json.loads(path.read_text())
        content["model"]["vocab"]["zzzz"] = 509
        path.write_text(json.dumps(content))
        assert tokenizer_of(model_dir).id_limit == 510

    def test_a_vocabulary_larger_than_the_embedding_is_refused(self, model_dir: Path) -> None:
        path = model_dir / "tokenizer.json"
        content = json.loads(path.read_text())
        content["model"]["vocab"]["zzzz"] = 512
        path.write_text(json.dumps(content))
        with pytest.raises(Refusal, match="'zzzz' has id 512; expected at most 511"):
            tokenizer_of(model_dir)


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_a_missing_or_broken_tokenizer_is_refused(model_dir: Path, content: str | None) -> None:
    path = model_dir / "tokenizer.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(Refusal, match=r"tokenizer\.json"):
        tokenizer_of(model_dir)


CHAT_TEMPLATES = {
    "white space and loop control": (
        "{%- for message in messages %}\n"
        "    {%- if message.role == 'system' %}{% continue %}{% endif %}\n"
        "{{ bos_token }}{{ message['content'] | trim }}\n"
        "    {% if loop.last %}\n{{ eos_token }}{% endif %}\n"
        "{% endfor %}\n"
    ),
    "tojson keeps HTML and Unicode": "{{ messages | tojson }}\n{{ messages[0] | tojson(indent=2) }}",
    "generation tag": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "tools and documents are none": "{% if tools is none and documents is none %}none{% endif %}",
    "date": "{{ strftime_now('%Y') }}",
}


@pytest.mark.parametrize("template", CHAT_TEMPLATES.values(), ids=CHAT_TEMPLATES.keys())
@pytest.mark.parametrize("place", ["tokenizer_config.json", "chat_template.jinja"])
def test_prompts_are_those_of_transformers(model_dir: Path, template: str, place: str) -> None:
    if place.endswith("jinja"):
        (model_dir / place).write_text(template)
    else:
        edit(model_dir / place, chat_template=template)
    expected = hugging_face(model_dir).apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert render_chat(tokenizer_of(model_dir), MESSAGES) == expected


@pytest.mark.parametrize("prompted", [True, False])
def test_chat_ids_hold_each_special_token_once(model_dir: Path, prompted: bool) -> None:
    edit(model_dir / "tokenizer_config.json", add_bos_token=True)
    ours = encode_chat(tokenizer_of(model_dir), MESSAGES, add_generation_prompt=prompted)
    theirs = hugging_face(model_dir).apply_chat_template(MESSAGES, add_generation_prompt=prompted, return_dict=False)
    assert ours == theirs
    assert ours.count(1) == len(MESSAGES) + prompted


def test_a_template_may_refuse(model_dir: Path) -> None:
    edit(model_dir / "tokenizer_config.json", chat_template="{{ raise_exception('roles must alternate') }}")
    with pytest.raises(Refusal, match="roles must alternate"):
        render_chat(tokenizer_of(model_dir), MESSAGES)


@pytest.mark.parametrize("template", ["{% for %}", "{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}{{ 1/0 }}"])
def test_a_broken_or_hostile_template_is_refused(model_dir: Path, template: str) -> None:
    edit(model_dir / "tokenizer_config.json", chat_template=template)
    with pytest.raises(Refusal, match="chat template"):
        render_chat(tokenizer_of(model_dir), MESSAGES)


def test_no_template_is_refused(model_dir: Path) -> None:
    edit(model_dir / "tokenizer_config.json", chat_template=...)
    with pytest.raises(Refusal, match="no chat template"):
        render_chat(tokenizer_of(model_dir), MESSAGES)
