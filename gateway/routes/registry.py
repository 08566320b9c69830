"""Every router of the main port, by the dialect that its errors are worded in.

A new protocol is a folder beside this file and an entry in `DIALECTS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from gateway.errors import RequestError
from gateway.request.auth import may_know
from gateway.routes import dialect_by_body, docs, health, metrics, vertex
from gateway.routes.anthropic import errors as anthropic_errors
from gateway.routes.anthropic import routes as anthropic
from gateway.routes.kobold import errors as kobold_errors
from gateway.routes.kobold import routes as kobold
from gateway.routes.kserve import errors as kserve_errors
from gateway.routes.kserve import routes as kserve
from gateway.routes.openai import errors as openai_errors
from gateway.routes.openai import routes as openai
from gateway.routes.openai_responses import routes as openai_responses
from gateway.routes.tgi import errors as tgi_errors
from gateway.routes.tgi import routes as tgi


@dataclass(frozen=True)
class Dialect:
    """A protocol: its routes, and how its errors read.

    prefix: an error outside all routes is in this dialect if the path starts with it; the longest such prefix wins.
    routers: all of their routes ask for the key.
    responses: its errors, for the OpenAPI document.
    refusal: the answer to a refused request.
    no_such_route: makes the answer for an unknown path (404) or method (405), from the status and a message.
    """

    name: str
    prefix: str
    routers: tuple[APIRouter, ...]
    responses: dict[int | str, dict[str, Any]]
    refusal: Callable[[RequestError], Response]
    no_such_route: Callable[[int, str], Response]


DIALECTS = (
    Dialect(
        name="TGI",
        prefix="",
        routers=(tgi.router, dialect_by_body.router, vertex.router, docs.router),
        responses=tgi_errors.RESPONSES,
        refusal=tgi_errors.error_response,
        no_such_route=tgi_errors.no_such_route,
    ),
    Dialect(
        name="OpenAI",
        prefix="/v1/",
        routers=(openai.router, openai_responses.router, openai.helpers),
        responses=openai_errors.RESPONSES,
        refusal=openai_errors.error_response,
        no_such_route=openai_errors.no_such_route,
    ),
    Dialect(
        name="Anthropic",
        prefix="/v1/messages",
        routers=(anthropic.router,),
        responses=anthropic_errors.RESPONSES,
        refusal=anthropic_errors.error_response,
        no_such_route=anthropic_errors.no_such_route,
    ),
    Dialect(
        name="KServe",
        prefix="/v2",
        routers=(kserve.router,),
        responses=kserve_errors.RESPONSES,
        refusal=kserve_errors.error_response,
        no_such_route=kserve_errors.no_such_route,
    ),
    Dialect(
        name="KoboldAI",
        prefix="/api/",
        routers=(kobold.router,),
        responses=kobold_errors.RESPONSES,
        refusal=kobold_errors.error_response,
        no_such_route=kobold_errors.no_such_route,
    ),
)
KEYLESS = (health.router, kserve.probes, metrics.router(may_know_model=may_know))  # probes and scrapers carry no key
ROUTERS = (*(router for dialect in DIALECTS for router in dialect.routers), *KEYLESS)


def dialect_at(path: str) -> Dialect:
    """The dialect spoken at `path`, whether or not there is a route."""
    return max((each for each in DIALECTS if path.startswith(each.prefix)), key=lambda each: len(each.prefix))
