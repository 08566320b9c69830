"""What every route may reach, as one value on the application: no module holds state of its own."""

from dataclasses import dataclass
from typing import cast

from fastapi import Request

from gateway.admission import Admission
from gateway.engine_client import Engine
from gateway.metrics import Metrics
from gateway.options import Options


@dataclass
class Gateway:
    options: Options
    engine: Engine
    admission: Admission
    metrics: Metrics
    draining: bool = False


def gateway_of(request: Request) -> Gateway:
    """The dependency routes declare: `gateway: Gateway = Depends(gateway_of)`."""
    return cast(Gateway, request.app.state.gateway)
