"""Of every published schema, what the server would answer is valid, or the schema is refused by name.

What is drawn here is drawn without a model: any token that the mask allows. `jsonschema` judges.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator

import pytest
from jsonschema.exceptions import ValidationError

from gateway.errors import RequestError
from gateway.grammar.formats import ENFORCED_FORMATS
from gateway.grammar.json_schema import guided
from tests.grammars.collection import Published, published
from tests.grammars.random_text import RandomWriter, Refused

pytestmark = pytest.mark.slow

ANSWERS = 8
MANY = 300
# Of each source, the share that is served: a change that refuses more is noticed.
SERVED = {"bfcl": 1.0, "json-schema-test-suite": 0.4, "kubernetes": 0.9, "mcp": 0.7, "schemastore": 0.4}


@pytest.mark.parametrize("source", SERVED)
def test_every_answer_is_valid_or_the_schema_is_refused(source: str) -> None:
    ends, wrong = Counter[str](), list[tuple[str, str, str]]()
    for each in published(source):
        texts = answers(each)
        ends["refused" if texts is None else "served" if texts else "endless"] += 1
        wrong += [(each.name, *fault) for fault in faults(each, texts or [])]
    assert not wrong
    assert ends["served"] >= SERVED[source] * ends.total(), ends
    assert ends["endless"] <= 0.01 * ends.total(), ends


@pytest.mark.parametrize("name", ENFORCED_FORMATS)
def test_every_text_is_of_its_format(name: str) -> None:
    schema = {"type": "string", "format": name}
    texts = RandomWriter().texts("json_schema", guided(schema, param="schema"), MANY)
    assert len(texts) > MANY / 2
    assert not list(faults(Published("", name, schema), texts))


def answers(each: Published) -> list[str] | None:
    """None if the schema is refused, by the gateway in words that name the field, or by the engine."""
    try:
        return RandomWriter().texts("json_schema", guided(each.schema, param="schema"), ANSWERS)
    except RequestError as error:
        assert error.message.startswith("schema") and error.param == "schema", error.message
    except Refused as error:
        assert str(error)
    return None


def faults(each: Published, texts: list[str]) -> Iterator[tuple[str, str]]:
    """Texts that are no JSON, or not what the schema allows, and why."""
    for text in texts:
        try:
            each.validator.validate(json.loads(text))
        except (ValueError, ValidationError) as error:
            yield text[:300], str(error)[:200]
        except re.error:  # a pattern with \\p, which the regexes of Python and so of `jsonschema` lack
            return
