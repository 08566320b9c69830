"""What an entry of `--lora-adapters` means: TGI's notation, and vLLM's `name=path`."""

import pytest

from jaxengine.options.adapters import NamedAdapter, named_adapters


@pytest.mark.parametrize(
    ("text", "name", "path"),
    [
        ("org/one", "org/one", "org/one"),
        ("org/one@v2", "org/one", "org/one@v2"),
        ("one=org/one@v2", "one", "org/one@v2"),
        ("one=/data/a=b", "one", "/data/a=b"),
        ("/data/one", "/data/one", "/data/one"),
        (" one = /data/one ", "one", "/data/one"),
    ],
)
def test_an_entry_is_a_name_and_a_path_and_a_path_alone_is_its_own_name(text: str, name: str, path: str) -> None:
    adapter = NamedAdapter.parse(text)
    assert (adapter.name, adapter.path) == (name, path)
    assert NamedAdapter.parse(str(adapter)) == adapter


def test_several_entries_and_commas_within_them_are_one_list() -> None:
    assert named_adapters(("a,b=/data/b", "c=org/c@v1,")) == (
        NamedAdapter("a", "a"),
        NamedAdapter("b", "/data/b"),
        NamedAdapter("c", "org/c@v1"),
    )
    assert named_adapters(()) == ()


@pytest.mark.parametrize(
    ("text", "what"),
    [("=path", "name ''"), ("a=", "path ''"), ("a\tb=path", r"name 'a\\tb'"), ("n" * 257, "at most 256")],
)
def test_a_name_or_path_that_cannot_be_one_is_named(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        named_adapters((text,))


def test_a_name_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="two adapters are called 'a'"):
        named_adapters(("a=/one", "b=/two,a=/three"))
