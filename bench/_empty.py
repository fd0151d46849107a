"""The least that a server of this kind can be: Starlette and uvicorn with one route. `python _empty.py SOCKET`."""

from __future__ import annotations

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


async def health(_: Request) -> JSONResponse:
    return JSONResponse({"status": "ok"})


uvicorn.run(Starlette(routes=[Route("/v1/health", health)]), uds=sys.argv[1], log_level="warning", access_log=False)
