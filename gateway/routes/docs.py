"""The OpenAPI document, and at `/docs` a page that makes it readable.

The page is self-contained, so it works where no CDN can be reached.
"""

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from gateway.routes.tgi.errors import TgiRoute

router = APIRouter(route_class=TgiRoute, include_in_schema=False)


@router.get("/openapi.json")
@router.get("/api-doc/openapi.json")
async def openapi_schema(request: Request) -> Response:
    return JSONResponse(request.app.openapi())


@router.get("/docs")
async def docs() -> Response:
    return HTMLResponse(PAGE)


PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Text generation: API</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
summary { cursor: pointer; padding: .4rem 0; }
pre, textarea { font: 14px/1.4 monospace; width: 100%; box-sizing: border-box; }
pre { background: #f4f4f4; padding: .8rem; overflow: auto; max-height: 30rem; white-space: pre-wrap; }
b { display: inline-block; width: 4rem; }
</style>
<h1></h1>
<p id="about"></p>
<p>The whole description: <a href="openapi.json">openapi.json</a></p>
<main></main>
<script>
const element = (name, text, parent) => {
  const made = document.createElement(name);
  made.textContent = text;
  parent.append(made);
  return made;
};
const operation = (path, method, details) => {
  const box = element("details", "", document.querySelector("main"));
  const head = element("summary", "", box);
  element("b", method.toUpperCase(), head);
  element("code", path, head);
  element("p", details.description || details.summary || "", box);
  const body = details.requestBody?.content?.["application/json"]?.schema;
  if (body) element("pre", JSON.stringify(body, null, 1), box);
  const input = body ? element("textarea", "{}", box) : null;
  const send = element("button", "Send", box);
  const answer = element("pre", "", box);
  send.onclick = async () => {
    const headers = { "content-type": "application/json" };
    const response = await fetch("." + path, { method: method.toUpperCase(), headers, body: input?.value });
    answer.textContent = response.status + "\\n" + await response.text();
  };
};
fetch("openapi.json").then((response) => response.json()).then((api) => {
  document.querySelector("h1").textContent = api.info.title;
  document.querySelector("#about").textContent = api.info.description;
  for (const [path, methods] of Object.entries(api.paths))
    for (const [method, details] of Object.entries(methods)) operation(path, method, details);
});
</script>
</html>
"""
