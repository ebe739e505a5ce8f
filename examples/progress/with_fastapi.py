"""``uvicorn with_fastapi:app``"""

from __future__ import annotations

import live
from fastapi import FastAPI
from fastapi.responses import HTMLResponse, RedirectResponse, StreamingResponse

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
    # A plain generator: it waits in a thread, and not in the loop.
    return StreamingResponse(live.events(run_id), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
