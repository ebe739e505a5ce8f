"""``uvicorn with_fastapi:app``"""

from __future__ import annotations

import live
from fastapi import FastAPI, HTTPException
from fastapi.responses import HTMLResponse, RedirectResponse, StreamingResponse

from redbeat_lite import PipelineNotFound

app = FastAPI()


@app.get("/")
def index() -> RedirectResponse:
    """Start a run, and show it. In earnest a POST does, from whoever may."""
    return RedirectResponse(f"/runs/{live.start()}")


@app.get("/runs/{run_id}")
def page(run_id: str) -> HTMLResponse:
    return HTMLResponse(live.PAGE)


@app.get("/runs/{run_id}/events")
def events(run_id: str) -> StreamingResponse:
    try:
        told = live.events(run_id)
    except PipelineNotFound:
        raise HTTPException(404) from None
    # A plain generator: it waits in a thread, and not in the loop.
    return StreamingResponse(told, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
