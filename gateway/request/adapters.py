"""Which adapter answers a request: `adapter_id` of TGI, `model` of `/v1`."""

from gateway.request.gateway_state import Gateway
from jaxengine.rpc import engine_pb2 as pb

MAX_LISTED = 16  # names in one message


async def find_adapter(gateway: Gateway, name: str) -> pb.Adapter | None:
    """The adapter that is served as `name`; None if there is none.

    Where adapters come at run time, the engine is asked before a name counts as unknown: another HTTP process may have
    loaded it a moment ago.
    """
    adapters = gateway.engine.adapters
    if name not in adapters.served and gateway.options.allow_runtime_lora_updating:
        await adapters.refresh()
    return adapters.served.get(name)


def adapters_served(gateway: Gateway) -> str:
    """The end of a refusal: the names of the adapters, or how a server gets some."""
    names = list(gateway.engine.adapters.served)
    if names:
        more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
        return ", ".join(names[:MAX_LISTED]) + more
    description = gateway.engine.description
    if description is not None and description.max_adapters:
        return "none is loaded"
    return "it serves none (--lora-adapters, --enable-lora)"
