"""Which layers share a page table, and which share their caches."""

from collections import Counter
from dataclasses import replace

import pytest

from jaxengine.architecture.layer_groups import LayerGroups
from jaxengine.architecture.model import LayerKind, ModelSpec
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
