"""Prompts as ids: one BOS, the rendered text and nothing else, cut where the context ends."""

from types import SimpleNamespace

import pytest

from qfilters.errors import UsageError
from qfilters.models import load_tokenizer
from qfilters.ruler.prompt import PromptFormat

CONTEXT, QUESTION, PREFIX = "A door is red.\nA lamp is lit.\n", "What is red?", "Red is the"
TRIMMING = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}[/]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
THINKING = TRIMMING + "{% if enable_thinking %}<think>{% else %}<think></think>{% endif %}"


@pytest.fixture
def tokenizer(tiny_folder):
    return load_tokenizer(str(tiny_folder))


def formats(tokenizer, template, **options):
    tokenizer.chat_template = tokenizer._tokenizer.chat_template = template
    tokenizer.has_chat_template = template is not None
    return PromptFormat(tokenizer, **options)


@pytest.mark.parametrize("template", [TRIMMING, THINKING, None], ids=["trims", "thinks", "none"])
@pytest.mark.parametrize("aware", [False, True])
def test_ids_are_the_rendered_text_with_one_bos_at_the_start(tokenizer, template, aware):
    prompts = formats(tokenizer, template, aware=aware)
    made = prompts.encode(CONTEXT, QUESTION, PREFIX)
    text = "".join(prompts.render(CONTEXT, QUESTION, PREFIX))
    bos = tokenizer.bos_token_id
    ids = made.context + made.rest
    if template:
        assert ids[0] == bos and bos not in ids[1:]
        assert tokenizer.decode(ids) == text and text.startswith(tokenizer.bos_token)
    else:
        assert ids[1 if ids[0] == bos else 0 :] == tokenizer.encode(text, add_special_tokens=False)
    assert text.count(CONTEXT + QUESTION) == 1 and text.endswith(PREFIX)
    assert prompts.count(CONTEXT, QUESTION, PREFIX) == len(ids)


def test_aware_moves_the_question_into_the_context_and_changes_nothing_else(tokenizer):
    agnostic, aware = (
        formats(tokenizer, TRIMMING, aware=a).encode(CONTEXT, QUESTION, PREFIX)
        for a in (False, True)
    )
    assert agnostic.context + agnostic.rest == aware.context + aware.rest
    asked = tokenizer.encode(QUESTION, add_special_tokens=False)
    assert aware.context == agnostic.context + asked
    assert tokenizer.decode(agnostic.context).endswith(CONTEXT)


def test_a_base_model_gets_the_bos_its_tokenizer_writes(tokenizer):
    prompts = formats(tokenizer, None)
    assert (
        tokenizer.decode(prompts.encode(CONTEXT, QUESTION, PREFIX).rest) == f"{QUESTION}\n{PREFIX}"
    )
    adding = SimpleNamespace(
        bos_token_id=7,
        has_chat_template=False,
        encode=lambda text, add_special_tokens=True: (
            [7] * add_special_tokens + [ord(c) for c in text]
        ),
    )
    assert PromptFormat(adding).encode("ab", "c", "d").context == [7, ord("a"), ord("b")]


def test_template_variables_reach_the_template(tokenizer):
    thinking = formats(tokenizer, THINKING, template_options={"enable_thinking": True})
    assert thinking.render("a", "b", "c")[2].endswith("[assistant]<think>c")
    silent = formats(tokenizer, THINKING, template_options={"enable_thinking": False})
    assert silent.render("a", "b", "c")[2].endswith("<think></think>c")
    assert silent.template_sha256 != thinking.template_sha256


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no users here') }}", "refuses a prompt: no users here"),
        ("{{ messages[0]['content'] }}{{ messages[0]['content'] }}", "as it is"),
        ("fixed", "as it is"),
    ],
)
def test_a_template_that_cannot_carry_a_prompt_is_refused(tokenizer, template, message):
    with pytest.raises(UsageError, match=message):
        formats(tokenizer, template).encode(CONTEXT, QUESTION, PREFIX)
