"""Which layers share a page table, and which share their caches."""

from collections import Counter
from dataclasses import replace

import pytest

from jaxengine.architecture.layer_groups import LayerGroups, place_size
from jaxengine.architecture.model import LayerKind, ModelSpec
from tests.gemma4_shapes import GEMMA4_26B_A4B, GEMMA4_31B, GEMMA4_E2B, GEMMA4_E4B
from tests.shapes import GEMMA2_9B, GEMMA3_270M, LLAMA_8B, MISTRAL_7B

RARE = replace(LLAMA_8B, kinds=(LayerKind(), *[LayerKind(window=64)] * 31))


@pytest.mark.parametrize(
    ("spec", "windows", "arrays"),
    [
        (LLAMA_8B, (0,), 32),
        (MISTRAL_7B, (4096,), 32),
        (GEMMA2_9B, (0, 4096), 21),
        (GEMMA3_270M, (0, 512, 512, 512, 512, 512), 3),
        (RARE, (0, *[64] * 8), 4),
        (replace(LLAMA_8B, num_layers=4, kinds=tuple(map(LayerKind, [None] * 4, [8, 0, 4, 0]))), (0, 0, 4, 8), 1),
    ],
    ids=["full", "all windowed", "half", "one of six", "one of 32", "two windows"],
)
def test_a_page_spans_as_many_layers_as_the_rarest_window_has(
    spec: ModelSpec, windows: tuple[int, ...], arrays: int
) -> None:
    groups = LayerGroups.of(spec)
    assert (groups.windows, groups.arrays) == (windows, arrays)


@pytest.mark.parametrize("spec", [LLAMA_8B, GEMMA2_9B, GEMMA3_270M, RARE])
def test_each_layer_has_the_table_of_its_window_and_shares_its_caches_with_no_other_of_it(spec: ModelSpec) -> None:
    groups = LayerGroups.of(spec)
    assert [groups.windows[table] for table, _ in groups.layers] == [
        spec.kind(i).window for i in range(spec.num_layers)
    ]
    assert max(Counter(groups.layers).values()) == 1


GEMMA4 = {  # by model: tables without a window, tables with one, places of a page
    "31B": (GEMMA4_31B, 1, 10, 5),
    "26B-A4B": (GEMMA4_26B_A4B, 1, 9, 3),
    "E2B": (GEMMA4_E2B, 1, 2, 3),
    "E4B": (GEMMA4_E4B, 1, 3, 4),
}


@pytest.mark.parametrize(("spec", "whole", "sliding", "arrays"), GEMMA4.values(), ids=GEMMA4)
def test_layers_that_keep_half_as_much_lie_two_to_a_place(
    spec: ModelSpec, whole: int, sliding: int, arrays: int
) -> None:
    """And the others one to a place; at most a place's half of a page is unused."""
    groups = LayerGroups.of(spec)
    assert (groups.windows.count(0), len(groups.windows), groups.arrays) == (whole, whole + sliding, arrays)
    heads, width = place_size(spec)
    for layer in spec.own_layers:
        sized, (part, parts) = spec.sized(spec.kind(layer)), groups.parts[layer]
        assert part < parts and sized.num_kv_heads * sized.head_dim * parts == heads * width
    places = [(groups.layers[layer], groups.parts[layer]) for layer in spec.own_layers]
    assert len(set(places)) == len(places)
    assert len(places) == spec.num_layers - sum(kind.reads is not None for kind in spec.kinds)


@pytest.mark.parametrize("spec", [GEMMA4_E2B, GEMMA4_E4B])
def test_a_layer_that_reads_the_keys_of_another_has_its_place(spec: ModelSpec) -> None:
    groups = LayerGroups.of(spec)
    for layer in range(spec.num_layers):
        if (source := spec.kind(layer).reads) is not None:
            assert (groups.layers[layer], groups.parts[layer]) == (groups.layers[source], groups.parts[source])


def test_heads_without_a_common_page_are_refused_by_name() -> None:
    kinds = (LayerKind(), LayerKind(head_dim=130))
    with pytest.raises(ValueError, match="layers of 8 key/value heads of 128 and 8 key/value heads of 130 have no"):
        LayerGroups.of(replace(LLAMA_8B, kinds=kinds, num_heads=32))
