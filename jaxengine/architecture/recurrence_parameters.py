"""The parameters of what stands in the place of attention in layers that keep states. No JAX here."""

from jaxengine.architecture.parameter import Parameter
from jaxengine.architecture.recurrence import LinearAttention, Mamba2, Recurrence, ShortConvolution


def recurrence_parameters(hidden: int, recurrence: Recurrence) -> dict[str, Parameter]:
    if isinstance(recurrence, LinearAttention):
        return _linear_attention(hidden, recurrence)
    return _mamba2(hidden, recurrence) if isinstance(recurrence, Mamba2) else _short(hidden, recurrence)


def _linear_attention(hidden: int, linear: LinearAttention) -> dict[str, Parameter]:
    """Grouped by key head, as attention's are: `linear_in[j]` makes that head's query and key, then the values of its
    value heads; `linear_gate[j]` their gates, `linear_rates[j]` their rates and their time steps.
    """
    heads, group, value = linear.key_heads, linear.group, linear.value_dim
    of_heads = Parameter((heads, group), ("key_heads", None), dtype="float32")
    return {
        "linear_in": Parameter((heads, linear.convolved, hidden), ("key_heads", None, "embed"), 1),
        "linear_gate": Parameter((heads, group, value, hidden), ("key_heads", None, None, "embed"), 1),
        "linear_rates": Parameter((heads, 2 * group, hidden), ("key_heads", None, "embed"), 1),
        "linear_conv": Parameter((heads, linear.convolved, linear.kernel), ("key_heads", None, None)),
        "linear_decay": of_heads,
        "linear_step": of_heads,
        "linear_norm": Parameter((value,), (None,)),
        "linear_out": Parameter((hidden, heads, group, value), ("embed", "key_heads", None, None), 3),
    }


def _mamba2(hidden: int, mamba: Mamba2) -> dict[str, Parameter]:
    """`mamba_in` makes gates (0) and inputs (1) of heads, `mamba_shared` B (0) and C (1) of groups, and `mamba_rates`
    time steps, to which `mamba_step` is added.
    """
    heads, groups = (mamba.heads, mamba.head_dim), (2, mamba.groups, mamba.size)
    split, alike = ("state_heads", None), (None, None, None)
    of_heads = Parameter((mamba.heads,), ("state_heads",), dtype="float32")
    table = {
        "mamba_in": Parameter((2, *heads, hidden), (None, *split, "embed"), 1),
        "mamba_in_bias": Parameter((2, *heads), (None, *split)) if mamba.bias else None,
        "mamba_shared": Parameter((*groups, hidden), (*alike, "embed"), 1),
        "mamba_shared_bias": Parameter(groups, alike) if mamba.bias else None,
        "mamba_rates": Parameter((mamba.heads, hidden), ("state_heads", "embed"), 1),
        "mamba_rates_bias": Parameter((mamba.heads,), ("state_heads",)) if mamba.bias else None,
        "mamba_conv": Parameter((*heads, mamba.kernel), (*split, None)),
        "mamba_conv_bias": Parameter(heads, split) if mamba.conv_bias else None,
        "mamba_shared_conv": Parameter((*groups, mamba.kernel), (*alike, None)),
        "mamba_shared_conv_bias": Parameter(groups, alike) if mamba.conv_bias else None,
        "mamba_decay": of_heads,
        "mamba_step": of_heads,
        "mamba_skip": of_heads,
        "mamba_norm": Parameter(heads, split) if mamba.norm != "none" else None,
        "mamba_out": Parameter((hidden, *heads), ("embed", *split), 2),
        "mamba_out_bias": Parameter((hidden,), ("embed",)) if mamba.out_bias else None,
    }
    return {name: parameter for name, parameter in table.items() if parameter}


def _short(hidden: int, short: ShortConvolution) -> dict[str, Parameter]:
    """`short_in` is [3, channels, hidden]: b, c and x."""
    channels = short.channels
    biases = {
        "short_in_bias": Parameter((3, channels), (None, "channels")),
        "short_conv_bias": Parameter((channels,), ("channels",)),
        "short_out_bias": Parameter((hidden,), ("embed",)),
    }
    table = {
        "short_in": Parameter((3, channels, hidden), (None, "channels", "embed"), 1),
        "short_conv": Parameter((channels, short.kernel), ("channels", None)),
        "short_out": Parameter((hidden, channels), ("embed", "channels"), 1),
    }
    return table | (biases if short.bias else {})
