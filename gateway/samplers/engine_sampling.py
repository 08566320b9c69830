"""What the samplers' fields make of the engine's sampling parameters, once a dialect has filled in those that it has.

A request whose fields are neutral leaves them as they are: then there is no `Samplers` message.
"""

from collections.abc import Collection, Mapping, Sequence

from gateway.errors import RequestError
from gateway.samplers.asked import COMMON_FILTERS, COMMON_PENALTIES, before_filters, filters, middle_temperature
from gateway.samplers.fields import SamplerFields
from gateway.samplers.order import DRY, FILTERS, FIRST, PENALTIES, order_field, stages
from gateway.samplers.token_bans import ban
from gateway.text.sampling_defaults import GREEDY_TEMPERATURE
from jaxengine.rpc import engine_pb2 as pb


def add_samplers(
    sampling: pb.Sampling,
    fields: SamplerFields,
    *,
    breakers: Collection[int] = (),
    defaults: Mapping[str, float] | None = None,
) -> None:
    """Add to `sampling` what `fields` ask for. A temperature of 0 there means greedy, and no filter acts.

    breakers: the ids of `dry_breakers`.
    defaults: values for fields that the request leaves open.

    Raises:
        RequestError: the engine has no such order, or too many tokens are banned.
    """
    middle = middle_temperature(fields)
    if middle is not None and sampling.temperature > 0:
        sampling.temperature = middle if middle >= GREEDY_TEMPERATURE else 0.0
    asked = before_filters(sampling, fields, defaults or {}, breakers)
    if sampling.temperature > 0:
        asked |= filters(sampling, fields, defaults or {})
    acting = [stage for stage in stages(fields) if stage in asked]
    _check_first(acting, order_field(fields))
    _switch_off(sampling, acting)
    own = {name: value for stage in acting for name, value in asked[stage].items()}
    samplers = pb.Samplers(
        **own,
        order=_order([stage for stage in acting if stage in FILTERS]),
        penalties_first=[stage for stage in acting if stage in (DRY, PENALTIES)] == [PENALTIES, DRY],
    )
    if samplers.ByteSize():
        sampling.samplers.CopyFrom(samplers)
    ban(sampling, fields.custom_token_bans or ())


def _order(acting: Sequence[str]) -> list[str]:
    """The filters in this order, as the engine wants it; empty for its own."""
    own = [stage for stage in FILTERS if stage in acting]
    return [] if own == acting else [stage.upper() for stage in acting]


def _switch_off(sampling: pb.Sampling, acting: Sequence[str]) -> None:
    """Make neutral what does not act, of the parameters that every dialect has. Greedy stays greedy."""
    for name, neutral in COMMON_FILTERS.items():
        if name not in acting and sampling.temperature > 0:
            setattr(sampling, name, neutral)
    if PENALTIES not in acting:
        for name, neutral in COMMON_PENALTIES.items():
            setattr(sampling, name, neutral)


def _check_first(acting: Sequence[str], field: str | None) -> None:
    """Raise RequestError if `field` puts behind a filter what the engine applies before all of them."""
    for number, stage in enumerate(acting):
        before = [each for each in acting[:number] if each in FILTERS]
        if stage in FIRST and before:
            rule = f"{', '.join(FIRST[:-1])} and {FIRST[-1]} act first here"
            raise RequestError.invalid(f"{field} puts {stage} behind {before[0]}, but {rule}", field)
